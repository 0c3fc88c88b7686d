"""Two settings that make a CPU up to twice as fast and change no result: products by oneDNN, and memory that is kept.

torch gives float32 products to oneDNN only if it may reduce their precision. On CPUs without matrix units for bfloat16
oneDNN computes in float32 all the same. A trial product shows whether this CPU is one of them.

glibc gives the memory of every large tensor back to the system, which clears each page again for the next tensor. With
16,907 tokens that takes a third of the time of an attention layer, or more.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock

import torch

SIZE = 256  # of the trial product
EXACT = 1e-5  # largest relative error of an exact one: in float32 it is about 1e-6, in bfloat16 4e-3
# Parameters of glibc's mallopt. USUAL holds the largest values that glibc sets by itself.
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
KEEP = {MMAP_MAX: 0, TRIM_THRESHOLD: -1}  # tensors get no memory of their own, and none is given back
USUAL = {MMAP_MAX: 65536, MMAP_THRESHOLD: 32 * 2**20, TRIM_THRESHOLD: 64 * 2**20}


def computes_in_bfloat16() -> bool:
    """Whether this CPU has instructions for products of bfloat16; others take several times as long with it."""
    if not hasattr(torch.cpu, "get_capabilities"):  # older versions of torch
        return False
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


@contextmanager
def fast_cpu(device: str) -> Iterator[None]:
    """Let torch use oneDNN for float32 products, if that is exact, and keep the memory of tensors for the next ones.

    Afterwards torch's setting is as before, and free memory is given back. With a `device` other than `cpu` nothing
    changes.
    """
    if device != "cpu":
        yield
    elif _is_exact():
        with _memory_kept(), _reduced_precision_allowed():
            yield
    else:
        with _memory_kept():
            yield


class _Users:
    """The number of blocks that keep memory."""

    number = 0
    lock = Lock()


@contextmanager
def _memory_kept() -> Iterator[None]:
    libc = _glibc()
    if libc is None:
        yield
        return
    with _Users.lock:
        _Users.number += 1
        for parameter, value in KEEP.items():
            libc.mallopt(parameter, value)
    try:
        yield
    finally:
        with _Users.lock:
            _Users.number -= 1
            if _Users.number == 0:
                for parameter, value in USUAL.items():
                    libc.mallopt(parameter, value)
                libc.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    """The C library of this process, if it is glibc."""
    try:
        libc = ctypes.CDLL(None)
        return libc if hasattr(libc, "gnu_get_libc_version") else None
    except (OSError, TypeError):  # Windows
        return None


@contextmanager
def _reduced_precision_allowed() -> Iterator[None]:
    setting = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # set when torch is imported
    before = setting.fp32_precision
    setting.fp32_precision = "bf16"
    try:
        yield
    finally:
        setting.fp32_precision = before


@cache
def _is_exact() -> bool:
    if not hasattr(torch.backends.mkldnn, "matmul"):  # torch before 2.9
        return False
    a, b = torch.randn(2, SIZE, SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a, b = a.float(), b.float()
    exact = a.double() @ b.double()
    with _reduced_precision_allowed():
        products = (a @ b, torch.bmm(a[None], b[None])[0])
    return all(float((p - exact).norm() / exact.norm()) < EXACT for p in products)


@contextmanager
def torch_state_kept(threads: int | None = None) -> Iterator[None]:
    """Give torch `threads` CPU threads for a block; afterwards its threads and random numbers are as before."""
    before = torch.get_num_threads()
    # An unused GPU has no state to keep; asking for it would start the GPU.
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices):
        torch.set_num_threads(threads or before)
        try:
            yield
        finally:
            torch.set_num_threads(before)
