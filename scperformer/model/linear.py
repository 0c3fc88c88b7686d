"""Sums over the genes of cells: sparse products of views of the expression with tables of the genes.

A view is the expression raised to a power, with all cells scaled to the same length. The linear branch, principal
components and the Performer's keys and values are such tables. On the CPU, torch is not needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.base.sparse import of_length, with_values
from scperformer.model.saved_model import SavedModel

if TYPE_CHECKING:
    from torch import Tensor

LENGTH = 20.0  # of every cell in every view: about its length in logarithms, so that penalties mean the same
CELLS_PER_SUM = 256  # cells whose sums over genes are computed at a time
CELLS_PER_SUM_ON_GPU = 8192


def power_transform(x: csr_matrix, power: float) -> csr_matrix:
    """Raise expression (CSR float32, N x G) to a power, with each cell scaled to length 20; empty cells stay 0."""
    return of_length(with_values(x, x.data**power), LENGTH)


def view_of(x: csr_matrix, power: float | None) -> csr_matrix:
    """Return a view of expression: `power_transform`, or expression itself if the power is None."""
    return x if power is None else power_transform(x, power)


def sums_over_genes(
    x: csr_matrix, tables: Sequence[tuple[float | None, np.ndarray | Tensor]], device: str = "cpu"
) -> np.ndarray:
    """Return the sums over the genes of cells, weighted by expression: float32 N x K.

    `x` is CSR float32 N x G, ln(1 + cp10k). `tables` are the powers of views (None: expression itself), each with a
    table of the genes, float32 G x K. No cell influences the last bits of another one.
    """
    if device != "cpu":
        return _sums_by_gathers(x, tables, device)
    sums = np.zeros((x.shape[0], tables[0][1].shape[1]), dtype=np.float32)
    # Gene after gene (CSC), so that each row of a wide table is read once for a block of cells, whose sums stay in the
    # cache: less than half of the time of cell after cell. Each cell adds up its genes in the same order.
    for start in range(0, len(sums), CELLS_PER_SUM):
        some = x[start : start + CELLS_PER_SUM]
        for power, table in tables:
            sums[start : start + CELLS_PER_SUM] += view_of(some, power).tocsc() @ np.asarray(table)
    return sums


def _sums_by_gathers(
    x: csr_matrix, tables: Sequence[tuple[float | None, np.ndarray | Tensor]], device: str
) -> np.ndarray:
    """Return the sums of `sums_over_genes`: each cell gathers the rows of its genes from the tables."""
    import torch
    from torch.nn.functional import embedding_bag

    parts = [torch.zeros(0, tables[0][1].shape[1])]
    there = [(power, torch.as_tensor(table, device=device)) for power, table in tables]
    for start in range(0, x.shape[0], CELLS_PER_SUM_ON_GPU):
        some = x[start : start + CELLS_PER_SUM_ON_GPU]
        genes, offsets = (
            torch.from_numpy(array).to(device) for array in (some.indices, some.indptr)
        )
        sums = torch.zeros(some.shape[0], len(there[0][1][0]), device=device)
        for power, table in there:
            weights = torch.from_numpy(view_of(some, power).data).to(device)
            sums += embedding_bag(
                genes,
                table,
                offsets,
                mode="sum",
                per_sample_weights=weights,
                include_last_offset=True,
            )
        parts.append(sums.cpu())
    return torch.cat(parts).numpy()


def linear_logits(saved: SavedModel, x: csr_matrix) -> np.ndarray | None:
    """Return the logits of the linear branch for aligned cells N x G, float32 N x C; None without this branch."""
    if (weight := saved.weights.get("model.linear.weight.weight")) is None:
        return None
    powers = saved.config.parts.model.linear_powers
    weights_GVC = weight[: len(saved.genes)].reshape(len(saved.genes), len(powers), -1)
    tables = [
        (power, np.ascontiguousarray(weights_GVC[:, place])) for place, power in enumerate(powers)
    ]
    return np.asarray(sums_over_genes(x, tables) + saved.weights["model.linear.bias"])
