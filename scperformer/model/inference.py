"""Predict cells with a network in memory: probabilities, embeddings, and the logits of each branch.

Two settings make a CPU up to twice as fast and change no result: matrix products by oneDNN, and keeping freed memory.
torch passes float32 products to oneDNN only if their precision may be reduced. On CPUs without bfloat16 matrix units
oneDNN computes them in float32 nevertheless, which is checked with a trial product.

Shape letters: B cells, G genes, V powers of the expression, C labels, D embedding width.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch.nn.functional import pad

from scperformer.attention.tokens import Batch
from scperformer.base.errors import InputError
from scperformer.base.memory import KEPT, freed_memory
from scperformer.model.imported import ImportedNetwork
from scperformer.model.linear import CELLS_PER_SUM, CELLS_PER_SUM_ON_GPU, sums_over_genes
from scperformer.model.minibatches import (
    MAX_BATCH_TOKENS,
    Cells,
    cells_at,
    prediction_batches,
    prefetch,
    row_subset,
)
from scperformer.model.network import CellTypeModel

CPU_BATCH_TOKENS = 2**12  # most tokens of a prediction batch on a CPU
CPU_BATCH_CELLS = 64  # most cells of such a batch
# 25 padded cells of scBERT's length: with 12, an H200 waits a seventh of the time
GPU_BATCH_TOKENS = 2**19
BYTES_PER_TOKEN = 2**15  # of GPU memory, at scBERT's sizes in float32
TRIAL_CELLS = 1000  # cells of a file with which `choose_precision` compares labels
MIN_EQUAL_SHARE = 0.999  # of their labels
TRIAL_SIZE = 256  # rows and columns of the trial product
# largest relative error of a product in float32: usually 1e-6; in bfloat16 it is 4e-3
MAX_FLOAT32_ERROR = 1e-5
log = logging.getLogger(__name__)
# Probabilities, B x C; embeddings, B x D; and whether the linear branch alone gives another label, B.
Outputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

# Random numbers, precision and memory of torch are settings of the whole process, and a network is set to the genes of
# one file at a time. So threads that annotate or train take turns, and get the same results as one after the other.
_turn = threading.RLock()
# who has the turn, also in threads that work for it
_owner: ContextVar[int] = ContextVar("owner", default=0)


def _after_fork() -> None:
    """Make a new lock in a forked process, and use one thread there: other threads of this process do not exist in it.

    A product in several threads of OpenMP would wait for them forever, if this process has used them.
    """
    global _turn
    _turn = threading.RLock()
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class NetworkOutput(NamedTuple):
    """The predictions for N cells: C labels, embedding width D."""

    proba: np.ndarray  # float32 N x C, each row sums to 1
    embedding: np.ndarray  # float32 N x D; float64 if it is the scores of an imported model
    # bool N, True if the linear branch alone gives another label; False with a single branch
    by_encoder: np.ndarray


@contextmanager
def torch_state_kept(threads: int | None = None) -> Iterator[None]:
    """Give torch `threads` CPU threads within a block, while other threads wait; then restore torch's state.

    Threads that work for this one (base/parallel.py) do not wait, and have one thread of torch each.
    """
    owner = _owner.get()
    if owner not in (0, threading.get_ident()):
        yield
        return
    with _turn:
        before = torch.get_num_threads()
        _owner.set(threading.get_ident())
        # An unused GPU has no random state; asking for it would initialise the GPU.
        devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
        with torch.random.fork_rng(devices):
            torch.set_num_threads(threads or before)
            try:
                yield
            finally:
                _owner.set(owner)
                torch.set_num_threads(before)


@contextmanager
def _changed(settings: Any, name: str, value: object) -> Iterator[None]:
    """Give an attribute another value within a block."""
    before = getattr(settings, name)
    setattr(settings, name, value)
    try:
        yield
    finally:
        setattr(settings, name, before)


def _reduced_precision_allowed() -> AbstractContextManager[None]:
    """Let oneDNN compute float32 products in lower precision within a block."""
    return _changed(torch.backends.mkldnn.matmul, "fp32_precision", "bf16")  # type: ignore[attr-defined]


@cache
def _computes_in_float32() -> bool:
    """Return whether oneDNN computes float32 products in float32 even if it may reduce their precision."""
    if not hasattr(torch.backends.mkldnn, "matmul"):  # torch before 2.9
        return False
    a, b = torch.randn(
        2, TRIAL_SIZE, TRIAL_SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    a, b = a.float(), b.float()
    exact = a.double() @ b.double()
    with _reduced_precision_allowed():
        products = (a @ b, torch.bmm(a[None], b[None])[0])
    return all(float((p - exact).norm() / exact.norm()) < MAX_FLOAT32_ERROR for p in products)


@contextmanager
def fast_cpu(device: str, precision: str = "32-true") -> Iterator[None]:
    """On the device `cpu`, compute products by oneDNN if it uses float32, and keep freed memory, within a block.

    With the precision `bf16-mixed`, oneDNN may round the factors of float32 products to bfloat16, too: they are vectors
    that layers in bfloat16 have made. Sums stay in float32. Other threads wait until the block ends.
    """
    with _turn, ExitStack() as afterwards:
        if device == "cpu":
            afterwards.enter_context(freed_memory(KEPT))
            if precision == "bf16-mixed" or _computes_in_float32():
                afterwards.enter_context(_reduced_precision_allowed())
        yield


def computes_in_bfloat16() -> bool:
    """Return whether this CPU has instructions for bfloat16 products; without them it is several times slower."""
    # not in older versions of torch
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def choose_device(device: str, precision: str = "auto") -> str:
    """Return `cuda` or `cpu`; `auto` is a GPU if there is one. Refuse a missing GPU and an unsuitable precision."""
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "no-gpu", "device=cuda without a GPU", "a GPU that torch can use", "choose device=cpu"
        )
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and (
        precision == "tf32" or (precision == "bf16-mixed" and not computes_in_bfloat16())
    ):
        cpu = (
            ", or a CPU with avx512_bf16 or amx_bf16, as others are slower with it"
            if precision != "tf32"
            else ""
        )
        raise InputError(
            "precision", f"precision={precision} on this CPU", f"a GPU{cpu}", "leave precision out"
        )
    return device


def choose_precision(
    network: CellTypeModel | ImportedNetwork, cells: Cells, batch_size: int, device: str
) -> str:
    """Return the fastest precision that gives nearly all of some cells, evenly spaced, the labels of float32.

    On a CPU, for networks without layers between tokens and for few cells, this is float32 itself.
    """
    is_fast = isinstance(network, ImportedNetwork) or network.only_sums or len(cells) <= TRIAL_CELLS
    if device == "cpu" or is_fast:
        return "32-true"
    rows = np.linspace(0, len(cells) - 1, TRIAL_CELLS).astype(np.int64)
    some = Cells(row_subset(cells.x, rows), cells.tokens, measured=cells.measured)
    exact = predict_cells(network, some, batch_size, device).proba.argmax(1)
    for precision in ("bf16-mixed", "tf32"):
        found = predict_cells(network, some, batch_size, device, precision).proba.argmax(1)
        num_equal = int((found == exact).sum())
        log.info(
            "precision %s gives %d of %d cells the label of float32",
            precision,
            num_equal,
            len(exact),
        )
        if num_equal >= MIN_EQUAL_SHARE * len(exact):
            return precision
    return "32-true"


def seeing_genes_of(
    network: CellTypeModel | ImportedNetwork, cells: Cells
) -> AbstractContextManager[None]:
    """Tell the encoder within a block which genes occur in the file of the cells."""
    if isinstance(network, ImportedNetwork) or network.only_sums:
        return nullcontext()
    measured_G = None if cells.measured is None else torch.from_numpy(cells.measured)
    return _changed(network.encoder.unexpressed, "measured_G", measured_G)


@contextmanager
def predicting(network: CellTypeModel | ImportedNetwork, device: str = "cpu") -> Iterator[None]:
    """Put a network into eval mode and on a device within a block of `torch_state_kept`; then restore both."""
    was_training = network.training
    before = next(network.parameters()).device
    try:
        network.eval().to(device)
        yield
    finally:
        network.train(was_training).to(before)


def predict_cells(
    network: CellTypeModel | ImportedNetwork,
    cells: Cells,
    batch_size: int,
    device: str = "cpu",
    precision: str = "32-true",
    done: Callable[[int], None] | None = None,
) -> NetworkOutput:
    """Predict N cells; no cell influences another's result.

    A network that only needs sums over genes is computed from these in float32, whatever `precision`: that takes a
    fifth of the time of tokens. `batch_size` is the number of cells per batch of other networks on a GPU. `done` is
    called with the number of cells of each finished batch.
    """
    num_threads = torch.get_num_threads()
    if isinstance(network, ImportedNetwork):
        return _predict_imported(network, cells, num_threads, done)
    if network.only_sums:
        with torch_state_kept(threads=1), predicting(network, device):
            return _predict_sums(network, cells.x, device, num_threads, done)
    if device == "cpu":
        batch_size = 1 if network.needs_own_batch else CPU_BATCH_CELLS
        max_tokens = CPU_BATCH_TOKENS
    else:  # enough tokens to keep the GPU busy, within its memory
        max_tokens = max(
            MAX_BATCH_TOKENS, min(GPU_BATCH_TOKENS, torch.cuda.mem_get_info()[0] // BYTES_PER_TOKEN)
        )
    batches = list(prediction_batches(cells.lengths, batch_size, max_tokens))

    def predict(batch: Batch, num_cells: int) -> Outputs:
        mixed = torch.autocast(device, torch.bfloat16, enabled=precision == "bf16-mixed")
        with torch.inference_mode(), mixed:  # both settings apply to the current thread only
            linear_BC, encoder_BC, embedding_BD = network.branches(batch.to(device))
            logits_BC = linear_BC + encoder_BC
            by_encoder_B = network.decided_by_encoder(linear_BC, logits_BC)
            if done is not None:
                done(num_cells)
            proba_BC = logits_BC.float().softmax(-1)
            return proba_BC[:num_cells], embedding_BD[:num_cells].float(), by_encoder_B[:num_cells]

    def predict_filled(rows_length: tuple[np.ndarray, int]) -> Outputs:
        # The last bits of a product depend on its number of rows, so this depends only on the length of the cells.
        rows, length = rows_length
        filled = np.resize(rows, cells_at(length, batch_size, max_tokens))
        return predict(cells.batch(filled, length), len(rows))

    # A GPU rounds the factors of float32 products to 10 bits.
    tf32 = _changed(torch.backends.cuda.matmul, "allow_tf32", True)
    with (
        torch_state_kept(threads=1),
        tf32 if precision == "tf32" else nullcontext(),
        predicting(network, device),
        fast_cpu(device, precision),
        seeing_genes_of(network, cells),
    ):
        # the first batch alone: it computes the memory of unexpressed genes, which all cells share
        if device == "cpu":
            outputs = [predict_filled(batch) for batch in batches[:1]]
            outputs += _in_threads(predict_filled, batches[1:], num_threads)
        else:  # the CPU prepares the next batches while the GPU computes
            ready = prefetch(cells.batch(rows, length).pin_memory() for rows, length in batches)
            outputs = [
                predict(batch, len(rows)) for (rows, _), batch in zip(batches, ready, strict=True)
            ]
    # Copied at the end: each copy waits for the GPU, which would then wait for its next batch.
    order = np.argsort(np.concatenate([rows for rows, _ in batches]))
    return NetworkOutput(
        *(torch.cat(part).cpu().numpy()[order] for part in zip(*outputs, strict=True))
    )


def _in_threads(
    function: Callable[[Any], Any], items: Iterable[Any], num_threads: int
) -> list[Any]:
    """Call a function for each item in threads, each with one thread of torch: sums are then always the same."""
    if num_threads == 1:
        return list(map(function, items))
    # Each thread sets its own number of threads, or its first products may use more than one.
    with ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(function, items))


def _predict_sums(
    network: CellTypeModel,
    x: csr_matrix,
    device: str,
    num_threads: int,
    done: Callable[[int], None] | None,
) -> NetworkOutput:
    """Predict cells with a network without layers between tokens, from the sums over their genes."""
    linear = network.linear
    encoder = network.performer
    # of each power of the expression, G x C
    weights: list[tuple[float | None, np.ndarray | torch.Tensor]] = []
    if linear is not None:
        weights_GVC = linear.weight.weight[:-1].detach().unflatten(-1, (len(linear.powers), -1))
        weights = [(power, weights_GVC[:, i].contiguous()) for i, power in enumerate(linear.powers)]
    if device == "cpu":
        num_cells, head_cells = CELLS_PER_SUM, 1 if network.needs_own_batch else CPU_BATCH_CELLS
    else:
        num_cells = head_cells = CELLS_PER_SUM_ON_GPU

    def predicted(first: int) -> Outputs:
        some = row_subset(x, np.arange(first, min(first + num_cells, x.shape[0])))
        with torch.inference_mode():
            logits_BC = torch.zeros(some.shape[0], network.num_labels, device=device)
            if linear is not None:
                logits_BC = (
                    torch.from_numpy(sums_over_genes(some, weights, device)).to(device)
                    + linear.bias
                )
            linear_BC = embedding_BD = logits_BC
            if encoder is not None:
                sums_BX = torch.from_numpy(encoder.sums_of(some, device)).to(device)
                # The last bits depend on the number of rows of a product, which is therefore the same for all.
                filled_BX = pad(sums_BX, (0, 0, 0, -len(sums_BX) % head_cells))
                outputs = [
                    network.head(encoder.from_sums(part_BX))
                    for part_BX in filled_BX.split(head_cells)
                ]
                encoder_BC, embedding_BD = (
                    torch.cat(parts)[: len(sums_BX)] for parts in zip(*outputs, strict=True)
                )
                logits_BC = logits_BC + encoder_BC
            if done is not None:
                done(len(logits_BC))
            return (
                logits_BC.softmax(-1),
                embedding_BD,
                network.decided_by_encoder(linear_BC, logits_BC),
            )

    parts = _in_threads(predicted, range(0, x.shape[0], num_cells), num_threads)
    return NetworkOutput(*(torch.cat(part).cpu().numpy() for part in zip(*parts, strict=True)))


def _predict_imported(
    network: ImportedNetwork, cells: Cells, num_threads: int, done: Callable[[int], None] | None
) -> NetworkOutput:
    """Predict cells as the tool that made the network does."""

    def predicted(first: int) -> tuple[np.ndarray, np.ndarray]:
        some = row_subset(cells.x, np.arange(first, min(first + CELLS_PER_SUM, len(cells))))
        scored = network.scored(some, cells.measured)
        if done is not None:
            done(some.shape[0])
        return network.probabilities(scored.scores), scored.embedding

    parts = _in_threads(predicted, range(0, len(cells), CELLS_PER_SUM), num_threads)
    proba, embedding = (np.concatenate(part) for part in zip(*parts, strict=True))
    return NetworkOutput(proba, embedding, np.zeros(len(cells), dtype=bool))


def branch_logits(
    network: CellTypeModel, cells: Cells, batch_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the logits of the linear branch and of the encoder, float32 N x C each; 0 for a missing branch."""
    linear, encoder = np.zeros((2, len(cells), network.num_labels), dtype=np.float32)
    with fast_cpu("cpu"), predicting(network), torch.inference_mode():
        for rows, length in prediction_batches(cells.lengths, batch_size):
            linear_BC, encoder_BC, _ = network.branches(cells.batch(rows, length))
            linear[rows] = linear_BC.numpy()
            encoder[rows] = encoder_BC.numpy()
    return linear, encoder
