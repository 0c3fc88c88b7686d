"""Predict cells with a network in memory: probabilities, embeddings, and the logits of each branch.

Two settings make a CPU up to twice as fast and change no result: products by oneDNN, and memory that is kept.
torch gives float32 products to oneDNN only if it may reduce their precision. On CPUs without matrix units for bfloat16
oneDNN computes in float32 all the same; a trial product shows it.

`linear` is the linear branch, `encoder` the encoder. Shape letters: B cells, C labels, D embedding width.
"""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch.nn.functional import pad

from scperformer.base.errors import InputError
from scperformer.base.memory import KEPT, freed_memory
from scperformer.model import power_transform
from scperformer.network.batches import MAX_BATCH_TOKENS, Cells, ahead, cells_at, prediction_batches, row_subset
from scperformer.network.network import CellTypeModel
from scperformer.network.tokens import Batch

FIXED_TOKENS, MAX_FIXED_CELLS = 2**12, 64  # limits of a prediction batch on a CPU
SUMMED_CELLS = 256  # of a network without layers that are predicted at a time
GPU_BATCH_TOKENS = 2**18  # 12 cells of scBERT's length, with padding: with fewer, an H100 waits for the next operation
BYTES_OF_TOKEN = 2**15  # bytes of GPU memory for each token, at scBERT's sizes in float32
SIZE = 256  # of the trial product
EXACT = 1e-5  # largest relative error of an exact one: in float32 it is about 1e-6, in bfloat16 4e-3


# Random numbers, precision and memory of torch are settings of the process, and a network knows the genes of one file
# at a time: threads that annotate or train at once take turns, and get the same results as one after the other.
_turn = threading.RLock()


def _new_turn() -> None:
    """Forget who has the turn: in the child of a fork, that thread does not exist."""
    global _turn
    _turn = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_turn)


@contextmanager
def torch_state_kept(threads: int | None = None) -> Iterator[None]:
    """Give torch `threads` CPU threads for a block; afterwards its threads and random numbers are as before.

    Blocks of other threads wait.
    """
    with _turn:
        before = torch.get_num_threads()
        # An unused GPU has no state to keep; asking for it would start the GPU.
        devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
        with torch.random.fork_rng(devices):
            torch.set_num_threads(threads or before)
            try:
                yield
            finally:
                torch.set_num_threads(before)


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
    a = a.float()
    b = b.float()
    exact = a.double() @ b.double()
    with _reduced_precision_allowed():
        products = (a @ b, torch.bmm(a[None], b[None])[0])
    return all(float((p - exact).norm() / exact.norm()) < EXACT for p in products)


@contextmanager
def fast_cpu(device: str) -> Iterator[None]:
    """On the device `cpu`: let torch use oneDNN for float32 products, if that is exact, and keep the memory of tensors.

    Afterwards all settings are as before, and free memory is given back. Blocks of other threads wait.
    """
    with _turn, ExitStack() as afterwards:
        if device == "cpu":
            afterwards.enter_context(freed_memory(KEPT))
            if _is_exact():
                afterwards.enter_context(_reduced_precision_allowed())
        yield


def computes_in_bfloat16() -> bool:
    """Whether this CPU has instructions for products of bfloat16; others take several times as long with it."""
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}  # older torch: not
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def choose_device(device: str, precision: str = "32-true") -> str:
    """Return `cuda` or `cpu`; `auto` takes a GPU if there is one. A missing GPU or precision is refused."""
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("device=cuda and no GPU", "a GPU that torch can use", "choose device=cpu")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and precision != "32-true" and not computes_in_bfloat16():
        expected = "a GPU, or a CPU with avx512_bf16 or amx_bf16: others are slower with it"
        raise InputError(f"precision={precision} on this CPU", expected, "leave precision out")
    return device


@contextmanager
def seeing_genes_of(network: CellTypeModel, cells: Cells) -> Iterator[None]:
    """Let the encoder know which genes the file of the cells has, for a block."""
    if network.encoder is None:
        yield
        return
    network.encoder.measured_G = None if cells.measured is None else torch.from_numpy(cells.measured)
    try:
        yield
    finally:
        network.encoder.measured_G = None


@contextmanager
def predicting(network: CellTypeModel, device: str = "cpu") -> Iterator[None]:
    """Put a network into eval mode, on a device, for a block; afterwards both are as before, whatever happens.

    The caller has the turn: see `torch_state_kept`.
    """
    was_training = network.training
    before = next(network.parameters()).device
    try:
        network.eval().to(device)
        yield
    finally:
        network.train(was_training).to(before)


def predict_cells(
    network: CellTypeModel,
    cells: Cells,
    batch_size: int,
    device: str = "cpu",
    precision: str = "32-true",
    done: Callable[[int], None] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Predict probabilities, N x C, and embeddings, N x D, of cells; no result depends on the cells beside it.

    A network without layers is computed on the CPU, in float32: sparse products take a fifth of the time that tokens
    take. For layers on a CPU, the batch size depends only on the length of the cells, as the last bits of a product
    depend on it; smaller batches are filled up with repeated cells. Each thread computes whole batches: if threads
    shared a product, its sums would depend on their number. While a GPU computes, the CPU prepares its next batches.

    `batch_size` is the number of cells on a GPU; batches of long cells have fewer. The precision `bf16-mixed` computes
    most products in bfloat16. The mode and the device of the network are as before afterwards. `done` is called with
    the number of cells of each finished batch.
    """
    num_threads = torch.get_num_threads()
    if network.has_no_layers:
        with torch_state_kept(threads=1), predicting(network):
            return _predict_sums(network, cells.x, num_threads, done)
    filled_up = device == "cpu"
    if filled_up:
        batch_size = 1 if network.needs_own_batch else MAX_FIXED_CELLS
        most_tokens = FIXED_TOKENS
    else:  # enough tokens to keep the GPU busy, within its memory
        most_tokens = max(MAX_BATCH_TOKENS, min(GPU_BATCH_TOKENS, torch.cuda.mem_get_info()[0] // BYTES_OF_TOKEN))

    def made(part: tuple[np.ndarray, int]) -> Batch:
        rows, length = part
        return cells.batch(np.resize(rows, cells_at(length, batch_size, most_tokens)) if filled_up else rows, length)

    def predicted(part: tuple[np.ndarray, int], batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        mixed = torch.autocast(device, torch.bfloat16, enabled=precision == "bf16-mixed")
        with torch.inference_mode(), mixed:  # both settings apply to the current thread only
            logits_BC, embedding_BD = (out[: len(part[0])] for out in network(batch.to(device)))
            if done is not None:
                done(len(part[0]))
            return logits_BC.float().softmax(-1), embedding_BD.float()

    batches = list(prediction_batches(cells.lengths, batch_size, most_tokens))
    with (
        torch_state_kept(threads=1),
        predicting(network, device),
        fast_cpu(device),
        seeing_genes_of(network, cells),
    ):
        if device == "cpu":
            # Each thread sets its own number of threads, or its first products may use more than one.
            with ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                # The first batch runs alone: it computes the memory of unexpressed genes, which all cells share.
                parts = [predicted(part, made(part)) for part in batches[:1]]
                parts += pool.map(lambda part: predicted(part, made(part)), batches[1:])
        else:
            ready = ahead(made(part).pin_memory() for part in batches)
            parts = list(map(predicted, batches, ready))
    # Copied at the end: each copy waits for a GPU, which would then wait for the next batch.
    proba, embedding = (torch.cat(part).cpu().numpy() for part in zip(*parts, strict=True))
    order = np.argsort(np.concatenate([rows for rows, _ in batches]))
    return proba[order], embedding[order]


def _predict_sums(
    network: CellTypeModel, x: csr_matrix, num_threads: int, done: Callable[[int], None] | None
) -> tuple[np.ndarray, np.ndarray]:
    """`predict_cells` for a network without layers.

    SciPy adds up the genes of a cell in their order, so the sums do not depend on the other cells.
    """
    linear = network.linear
    encoder = None if network.linear_alone else network.encoder
    views: list[tuple[float, np.ndarray]] = []
    if linear is not None:
        weights_GVC = linear.weight.weight[:-1].detach().unflatten(-1, (len(linear.powers), -1)).numpy()
        views = [(power, np.ascontiguousarray(weights_GVC[:, i])) for i, power in enumerate(linear.powers)]
    head_cells = 1 if network.needs_own_batch else MAX_FIXED_CELLS  # whatever their number: last bits depend on it

    def predicted(first: int) -> tuple[torch.Tensor, torch.Tensor]:
        some = row_subset(x, np.arange(first, min(first + SUMMED_CELLS, x.shape[0])))
        num_cells = some.shape[0]
        with torch.inference_mode():
            logits_BC = torch.zeros(num_cells, network.num_labels)
            for power, weight in views:
                logits_BC += torch.from_numpy(power_transform(some, power) @ weight)
            if linear is not None:
                logits_BC += linear.bias
            embedding_BD = logits_BC
            if encoder is not None:
                assert encoder.embedding.gene is not None
                vectors_GD = encoder.embedding.gene.weight[:-1].numpy()
                pooled_BD = torch.from_numpy(power_transform(some, 1.0) @ vectors_GD) - network.pool.centre_D
                filled_BD = pad(pooled_BD, (0, 0, 0, -num_cells % head_cells))
                heads = zip(*map(network.head, filled_BD.split(head_cells)), strict=True)
                encoder_BC, embedding_BD = (torch.cat(parts)[:num_cells] for parts in heads)
                logits_BC = logits_BC + encoder_BC
            if done is not None:
                done(num_cells)
            return logits_BC.softmax(-1), embedding_BD

    with ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        parts = list(pool.map(predicted, range(0, x.shape[0], SUMMED_CELLS)))
    proba, embedding = (torch.cat(part).numpy() for part in zip(*parts, strict=True))
    return proba, embedding


def branch_logits(network: CellTypeModel, cells: Cells, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits of the linear branch and of the encoder, float32 N x C each; 0 where a branch is off."""
    linear, encoder = np.zeros((2, len(cells), network.num_labels), dtype=np.float32)
    with fast_cpu("cpu"), predicting(network), torch.inference_mode():
        for rows, length in prediction_batches(cells.lengths, batch_size):
            linear_BC, encoder_BC, _ = network.branches(cells.batch(rows, length))
            linear[rows] = linear_BC.numpy()
            encoder[rows] = encoder_BC.numpy()
    return linear, encoder
