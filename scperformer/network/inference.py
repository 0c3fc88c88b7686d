"""A trained model in memory, and what it says of cells; knows nothing of AnnData."""

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from scperformer.errors import InputError
from scperformer.network.batches import AHEAD, MAX_BATCH_TOKENS, Cells, ahead, fixed_batch_size, prediction_batches
from scperformer.network.cpu import computes_in_bfloat16, fast_cpu, torch_state_kept
from scperformer.network.embedding import Batch
from scperformer.network.network import CellTypeModel

log = logging.getLogger(__name__)

GPU_BATCH_TOKENS = 2**18  # 12 cells of scBERT's 16,907 tokens: with fewer an H100 waits for the next operation
BYTES_OF_TOKEN = 2**15  # that a token takes on a GPU at scBERT's sizes, in float32


@dataclass
class Predictions:
    """Of N cells: proba float32 N x C (each row sums to 1) and embedding float32 N x D."""

    proba: np.ndarray
    embedding: np.ndarray


def gpu_batch_tokens() -> int:
    """Tokens of a prediction batch on a GPU, padding included: enough to keep it busy, within its memory."""
    return max(MAX_BATCH_TOKENS, min(GPU_BATCH_TOKENS, torch.cuda.mem_get_info()[0] // BYTES_OF_TOKEN))


def predict_cells(
    network: CellTypeModel, cells: Cells, batch_size: int, device: str = "cpu", precision: str = "32-true"
) -> Predictions:
    """Probabilities and embeddings of cells; what a cell gets does not depend on the cells beside it.

    On a CPU that holds bit for bit: batches of an encoder have one size for each length, and are filled up to it; and
    torch's threads take whole batches, as the sums of a product would depend on how many of them share it.

    Parameters
    ----------
    network
        The model; its training mode is restored afterwards.
    cells
        Expression aligned to the model's genes.
    batch_size
        Cells per batch on a GPU, and where there is no encoder to run; long cells share a batch with fewer others.
    precision
        `bf16-mixed` computes most products in bfloat16. On a GPU the next batches are made while it works.
    """
    was_training = network.training
    network.eval().to(device)
    fixed = device == "cpu" and network.encoder is not None and not network.wide_alone
    alone = network.one_by_one

    def size(length: int) -> int:
        return 1 if alone else fixed_batch_size(length)

    def tokens(batch: tuple[np.ndarray, int]) -> Batch:
        rows, length = batch
        return cells.batch(np.resize(rows, size(length)) if fixed else rows, length)

    def run(tokens: Batch, num_cells: int) -> tuple[torch.Tensor, torch.Tensor]:
        mixed = torch.autocast(device, torch.bfloat16, enabled=precision == "bf16-mixed")
        with torch.inference_mode(), mixed:  # of this thread
            logits_BC, embedding_BD = (part[:num_cells] for part in network(tokens.to(device)))
            return logits_BC.float().softmax(-1), embedding_BD.float()

    def fetched(parts: tuple[torch.Tensor, torch.Tensor]) -> tuple[np.ndarray, np.ndarray]:
        return parts[0].cpu().numpy(), parts[1].cpu().numpy()

    def call(batch: tuple[np.ndarray, int]) -> tuple[np.ndarray, np.ndarray]:
        return fetched(run(tokens(batch), len(batch[0])))

    max_tokens = MAX_BATCH_TOKENS if device == "cpu" else gpu_batch_tokens()
    batches = list(prediction_batches(cells.lengths, size if fixed else batch_size, max_tokens))
    num_threads = torch.get_num_threads()
    with torch_state_kept(threads=1), fast_cpu(device):
        if device == "cpu":
            # A thread's first products may take more threads than it was set to here, unless it is told itself.
            with ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                # The first batch alone: what the network keeps for all cells is computed once.
                found = [*map(call, batches[:1]), *pool.map(call, batches[1:])]
        else:
            made = ahead((tokens(batch).pin_memory() for batch in batches), AHEAD)
            # Fetched at the end: to fetch is to wait, and the GPU would have nothing to do until the next batch comes.
            parts = [run(batch, len(rows)) for batch, (rows, _) in zip(made, batches, strict=True)]
            proba, embedding = (torch.cat(part) for part in zip(*parts, strict=True))
            found = [fetched((proba, embedding))]
    network.train(was_training).cpu()
    order = np.argsort(np.concatenate([rows for rows, _ in batches]))
    return Predictions(*(np.concatenate(parts)[order] for parts in zip(*found, strict=True)))


def branch_logits(network: CellTypeModel, cells: Cells, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits of the wide and of the deep branch, float32 N x C each; 0 where a branch is off."""
    num_labels = network.num_labels
    wide, deep = (np.zeros((len(cells), num_labels), dtype=np.float32) for _ in range(2))
    was_training = network.training
    network.eval()
    with torch.inference_mode(), fast_cpu("cpu"):
        for rows, length in prediction_batches(cells.lengths, batch_size):
            wide_BC, deep_BC, _ = network.branches(cells.batch(rows, length))
            wide[rows], deep[rows] = wide_BC.numpy(), deep_BC.numpy()
    network.train(was_training)
    return wide, deep


def choose_device(device: str, precision: str = "32-true") -> str:
    """`cuda` or `cpu`; `auto` takes a GPU where there is one.

    Raises
    ------
    InputError
        A GPU is asked for and there is none, or the CPU is not one for the precision.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("device=cuda and no GPU", "a GPU that torch can use", "choose device=cpu")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and precision != "32-true" and not computes_in_bfloat16():
        expected = "a GPU, or a CPU with avx512_bf16 or amx_bf16: others are slower with it"
        raise InputError(f"precision={precision} on this CPU", expected, "leave precision out")
    return device
