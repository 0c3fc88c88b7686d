"""Genes that some batches of a reference did not measure, as after an outer join of studies, which fills them with 0.

A model would learn the study from them. Such a gene has no count in any cell of a batch, although cells of the same
labels in other batches express it.
"""

import logging
from collections.abc import Mapping

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.base.errors import InputError
from scperformer.base.messages import listed, shortened
from scperformer.cells.batches import MAX_BATCHES
from scperformer.io.gene_overlap import MIN_PANEL

log = logging.getLogger(__name__)

MIN_BATCH_CELLS = 20  # of a batch
# Expected number of cells of a batch that express a gene. Above the first, a gene without any was not measured; if the
# batch has many such genes, so were rarer ones.
SURE_CELLS = 10.0
LIKELY_CELLS = 3.0
# without a count in a batch; and a share of the genes that are expected there
MIN_ABSENT_GENES = 20
MIN_ABSENT_SHARE = 0.01


def genes_not_measured(
    x: csr_matrix, labels: np.ndarray, batches: Mapping[str, np.ndarray], genes: list[str]
) -> np.ndarray:
    """Return the genes that a batch did not measure, boolean G, and log them; refuse fewer than 50 that all measured.

    `x` is expression, N x G, and `labels` has the index of the label of each cell. `batches` has the name of the batch
    of each cell, for each way to tell batches, such as a column of obs.
    """
    is_absent = np.zeros(x.shape[1], dtype=bool)
    for how, names in batches.items():
        known, of_cell = np.unique(names, return_inverse=True)
        if not 2 <= len(known) <= MAX_BATCHES:
            continue
        expected, observed = _expressing_cells(x, labels, of_cell, len(known))
        is_zero = (observed == 0) & (np.bincount(of_cell) >= MIN_BATCH_CELLS)[:, None]
        for number in range(len(known)):
            is_sure = is_zero[number] & (expected[number] >= SURE_CELLS)
            if is_sure.sum() < max(
                MIN_ABSENT_GENES, MIN_ABSENT_SHARE * (expected[number] >= SURE_CELLS).sum()
            ):
                continue
            lacking = is_zero[number] & (expected[number] >= LIKELY_CELLS)
            is_absent |= lacking
            most = np.argsort(-np.where(lacking, expected[number], 0), kind="stable")[:3]
            text = "%s: %s genes have no count in '%s', though others with its labels express them (%s): not measured"
            shown = listed(genes[gene] for gene in most)
            log.warning(text, how, f"{lacking.sum():,}", shortened(known[number]), shown)
    if is_absent.any():
        num_left = int((~is_absent).sum())
        if num_left < MIN_PANEL:
            remedy = "train on each study as a file of its own: train a.h5ad b.h5ad"
            raise InputError(
                "few-genes",
                f"{num_left} genes that all batches measured",
                f"{MIN_PANEL} or more",
                remedy,
            )
        text = "%s genes that a batch did not measure are left out; cells are normalised over the other %s"
        log.warning(text, f"{is_absent.sum():,}", f"{num_left:,}")
    return is_absent


def _expressing_cells(
    x: csr_matrix, labels: np.ndarray, of_cell: np.ndarray, num_batches: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return how many cells of each batch are expected to express each gene, by the other batches, and how many do.

    Both are float64, batches x G. A label that no other batch has, expects nothing.
    """
    expected = np.zeros((num_batches, x.shape[1]))
    observed = np.zeros_like(expected)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        entries = np.ones(len(rows)), (of_cell[rows], np.arange(len(rows)))
        is_of = csr_matrix(entries, shape=(num_batches, len(rows)))
        expressing = (is_of @ (x[rows] > 0).astype(np.float64)).toarray()
        nums = np.bincount(of_cell[rows], minlength=num_batches)[:, None]
        others = nums.sum() - nums
        expected += nums * np.divide(
            expressing.sum(axis=0) - expressing, others, where=others > 0, out=0 * expressing
        )
        observed += expressing
    return expected, observed
