"""Predict cells with a network in memory: probabilities, embeddings, and the logits of each branch.

`wide` is the linear branch, `deep` the encoder. Shape letters: B cells, C labels, D embedding width.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from scperformer.errors import InputError
from scperformer.network.batches import AHEAD, MAX_BATCH_TOKENS, Cells, ahead, fixed_batch_size, prediction_batches
from scperformer.network.cpu import computes_in_bfloat16, fast_cpu, torch_state_kept
from scperformer.network.network import CellTypeModel
from scperformer.network.tokens import Batch

GPU_BATCH_TOKENS = 2**18  # 12 cells of scBERT's length, with padding: with fewer, an H100 waits for the next operation
BYTES_OF_TOKEN = 2**15  # bytes of GPU memory for each token, at scBERT's sizes in float32


@dataclass
class Predictions:
    """Results for N cells: proba, float32 N x C (each row sums to 1), and embedding, float32 N x D."""

    proba: np.ndarray
    embedding: np.ndarray


def predict_cells(
    network: CellTypeModel, cells: Cells, batch_size: int, device: str = "cpu", precision: str = "32-true"
) -> Predictions:
    """Predict probabilities and embeddings of cells; the result of a cell does not depend on the cells beside it.

    Parameters
    ----------
    network
        The model; its training mode is restored afterwards.
    cells
        Expression aligned to the model's genes.
    batch_size
        Cells per batch on a GPU, and on a CPU if no encoder is run; batches of long cells have fewer.
    precision
        `bf16-mixed` computes most products in bfloat16.
    """
    was_training = network.training
    network.eval().to(device)
    num_threads = torch.get_num_threads()
    with torch_state_kept(threads=1), fast_cpu(device):
        if device == "cpu":
            rows, parts = _predict_on_cpu(network, cells, batch_size, precision, num_threads)
        else:
            rows, parts = _predict_on_gpu(network, cells, batch_size, precision)
    network.train(was_training).cpu()
    order = np.argsort(np.concatenate(rows))
    return Predictions(*(np.concatenate(part)[order] for part in zip(*parts, strict=True)))


Found = tuple[list[np.ndarray], list[tuple[np.ndarray, np.ndarray]]]  # row numbers; probabilities and embeddings


def _predict_on_cpu(network: CellTypeModel, cells: Cells, batch_size: int, precision: str, num_threads: int) -> Found:
    """Predict on a CPU; each cell gets the same bits, whatever the other cells are.

    The batch size of an encoder depends only on the length of the cells; smaller batches are filled up with repeated
    cells. Each thread computes whole batches: if threads shared a product, its sums would depend on their number.
    """
    runs_encoder = network.encoder is not None and not network.wide_alone
    alone = network.one_by_one

    def size(length: int) -> int:
        return 1 if alone else fixed_batch_size(length)

    def predict(batch: tuple[np.ndarray, int]) -> tuple[np.ndarray, np.ndarray]:
        rows, length = batch
        filled = cells.batch(np.resize(rows, size(length)) if runs_encoder else rows, length)
        proba_BC, embedding_BD = _predict_batch(network, filled, len(rows), "cpu", precision)
        return proba_BC.numpy(), embedding_BD.numpy()

    batches = list(prediction_batches(cells.lengths, size if runs_encoder else batch_size))
    # Each thread sets its own number of threads, or its first products may use more than one.
    with ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        # The first batch runs alone: it computes the memory of unexpressed genes, which all cells share.
        parts = [*map(predict, batches[:1]), *pool.map(predict, batches[1:])]
    return [rows for rows, _ in batches], parts


def _predict_on_gpu(network: CellTypeModel, cells: Cells, batch_size: int, precision: str) -> Found:
    """Predict on a GPU; the CPU prepares the next batches meanwhile."""
    # enough tokens to keep the GPU busy, within its memory
    most = max(MAX_BATCH_TOKENS, min(GPU_BATCH_TOKENS, torch.cuda.mem_get_info()[0] // BYTES_OF_TOKEN))
    batches = list(prediction_batches(cells.lengths, batch_size, most))
    made = ahead((cells.batch(rows, length).pin_memory() for rows, length in batches), AHEAD)
    parts = [_predict_batch(network, batch, len(batch.keep_BL), "cuda", precision) for batch in made]
    # Copied at the end: each copy waits for the GPU, which would then wait for the next batch.
    proba, embedding = (torch.cat(part).cpu().numpy() for part in zip(*parts, strict=True))
    return [rows for rows, _ in batches], [(proba, embedding)]


def _predict_batch(
    network: CellTypeModel, batch: Batch, num_cells: int, device: str, precision: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities and embeddings of the first cells of a batch, in float32."""
    mixed = torch.autocast(device, torch.bfloat16, enabled=precision == "bf16-mixed")
    with torch.inference_mode(), mixed:  # both settings apply to the current thread only
        logits_BC, embedding_BD = (part[:num_cells] for part in network(batch.to(device)))
        return logits_BC.float().softmax(-1), embedding_BD.float()


def branch_logits(network: CellTypeModel, cells: Cells, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits of the linear branch and of the encoder, float32 N x C each; 0 where a branch is off."""
    wide, deep = np.zeros((2, len(cells), network.num_labels), dtype=np.float32)
    was_training = network.training
    network.eval()
    with torch.inference_mode(), fast_cpu("cpu"):
        for rows, length in prediction_batches(cells.lengths, batch_size):
            wide_BC, deep_BC, _ = network.branches(cells.batch(rows, length))
            wide[rows], deep[rows] = wide_BC.numpy(), deep_BC.numpy()
    network.train(was_training)
    return wide, deep


def choose_device(device: str, precision: str = "32-true") -> str:
    """Return `cuda` or `cpu`; `auto` takes a GPU if there is one.

    Raises
    ------
    InputError
        There is no GPU but one is asked for, or the CPU has no instructions for the precision.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("device=cuda and no GPU", "a GPU that torch can use", "choose device=cpu")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and precision != "32-true" and not computes_in_bfloat16():
        expected = "a GPU, or a CPU with avx512_bf16 or amx_bf16: others are slower with it"
        raise InputError(f"precision={precision} on this CPU", expected, "leave precision out")
    return device
