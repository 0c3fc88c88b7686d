"""Float32 matrix products on CPUs through oneDNN, where it is exact; there it can be twice as fast as torch's default.

torch sends float32 products to oneDNN only if told that reduced precision would do. On CPUs without matrix units for
bfloat16 oneDNN computes in float32 all the same. Whether this CPU is one of them is found by trying.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

SIZE = 256  # of the trial product
EXACT = 1e-5  # its relative error in float32 is about 1e-6, in bfloat16 4e-3


@contextmanager
def fast_products(device: str) -> Iterator[None]:
    """Let torch use oneDNN for float32 products on this CPU, if that is exact; the setting comes back afterwards.

    Parameters
    ----------
    device
        Nothing is changed unless it is `cpu`.
    """
    if device == "cpu" and _is_exact():
        with _reduced_precision_allowed():
            yield
    else:
        yield


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
