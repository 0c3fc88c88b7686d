"""Cells that are dealt to folds, each of which is predicted by fits to the cells of the others."""

import numpy as np

from scperformer.cells.splits import stratified_sample

EVIDENCE_FOLDS = 5
EVIDENCE_CELLS = 4000  # that are predicted
MAX_FOLD_FIT_CELLS = 20_000  # of the fit by which a fold is predicted
CHOICE_FOLDS = 3
CHOICE_CELLS = 1500  # of the choice of options, in all; more cells would not change it
CHOICE_LABELS = 300  # of the choice of options, whose time grows with the labels
MAX_CELLS_PER_LABEL = 200


def most_of_a_label(labels: np.ndarray, num_cells: int) -> int:
    """Return how many cells of each label at most are `num_cells` in all: at least one for each fold, at most 200."""
    counts = np.bincount(labels)
    limits = range(CHOICE_FOLDS, MAX_CELLS_PER_LABEL + 1)
    return max(
        (limit for limit in limits if np.minimum(counts, limit).sum() <= num_cells),
        default=CHOICE_FOLDS,
    )


def label_folds(
    labels: np.ndarray, seed: int, num_folds: int, max_cells: int
) -> tuple[np.ndarray, np.ndarray]:
    """Deal at most `max_cells` cells of each label to folds: row numbers, and the fold of each.

    A label with a single cell has fold -1, which is never held out: every training then has all labels.
    """
    rng = np.random.default_rng(seed)
    rows = [
        rng.permutation(np.flatnonzero(labels == label))[:max_cells] for label in np.unique(labels)
    ]
    folds = [
        np.arange(len(cells)) % num_folds if len(cells) > 1 else np.array([-1]) for cells in rows
    ]
    return np.concatenate(rows), np.concatenate(folds)


def batch_folds(batches: np.ndarray, num_folds: int) -> np.ndarray:
    """Deal whole batches, int64 N, to folds, the largest first, each into the fold with the fewest cells: int64 N."""
    sizes = np.bincount(batches)
    fold_of_batch = np.zeros(len(sizes), dtype=np.int64)
    filled = np.zeros(min(num_folds, int(np.count_nonzero(sizes))), dtype=np.int64)
    for batch in np.argsort(-sizes, kind="stable"):
        fold_of_batch[batch] = filled.argmin()
        filled[fold_of_batch[batch]] += sizes[batch]
    return fold_of_batch[batches]


def labels_of_one_fold(folds: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the labels whose cells are all in one fold: if it is held out, the others do not have them."""
    return np.array(
        [label for label in np.unique(labels) if len(np.unique(folds[labels == label])) == 1],
        dtype=int,
    )


def choice_folds(
    labels: np.ndarray, seed: int, batches: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Choose up to 1,500 cells, at most 200 of a label, and deal them, or whole batches, to 3 folds: rows and folds.

    Of more than 300 labels, 300 are drawn. The only cell of a label, and the cells of a label that occurs in a single
    fold of batches, have fold -1.
    """
    drawn = np.random.default_rng(seed).permutation(np.unique(labels))[:CHOICE_LABELS]
    candidates = np.flatnonzero(np.isin(labels, drawn))
    rows, folds = label_folds(
        labels[candidates], seed, CHOICE_FOLDS, most_of_a_label(labels[candidates], CHOICE_CELLS)
    )
    rows = candidates[rows]
    if batches is not None:
        folds = batch_folds(batches[rows], CHOICE_FOLDS)
        folds[np.isin(labels[rows], labels_of_one_fold(folds, labels[rows]))] = -1
    return rows, folds


class Folds:
    """Cells that are dealt to folds, each of which is predicted by fits to the cells of the others."""

    def __init__(
        self, rows: np.ndarray, fold_of_cell: np.ndarray, batches: np.ndarray | None = None
    ):
        self.rows = rows  # numbers of the cells
        # also of those that are not predicted; -1: in the fits of all folds
        self.fold_of_cell = fold_of_cell
        self.fold_of_row = fold_of_cell[rows]
        self.batches = batches  # index of the batch of each cell, if whole batches are dealt
        self.numbers = range(int(self.fold_of_row.max(initial=-1)) + 1)
        self.is_dealt = self.fold_of_row >= 0

    def others(self, fold: int, labels: np.ndarray) -> np.ndarray:
        """Return the cells of the fit by which a fold is predicted: all others, or 20,000 of them."""
        rows = np.flatnonzero(self.fold_of_cell != fold)
        return rows[stratified_sample(labels[rows], MAX_FOLD_FIT_CELLS, fold)]


def no_folds(labels: np.ndarray) -> Folds:
    """Return folds without cells."""
    return Folds(np.arange(0), np.full(len(labels), -1))


def evidence_folds(labels: np.ndarray, seed: int, batches: np.ndarray | None = None) -> Folds:
    """Choose up to 4,000 cells, and deal them to 5 folds, or whole batches, if they are known, to up to 5.

    The only cell of a label is not held out, nor are the cells of a label that occurs in a single fold of batches.
    """
    rows = stratified_sample(labels, EVIDENCE_CELLS, seed)
    if batches is None:
        fold_of_cell = np.full(len(labels), -1)
        order, dealt = label_folds(labels[rows], seed, EVIDENCE_FOLDS, max_cells=len(rows))
        fold_of_cell[rows[order]] = dealt
    else:
        fold_of_cell = batch_folds(batches, EVIDENCE_FOLDS)
        fold_of_cell[np.isin(labels, labels_of_one_fold(fold_of_cell[rows], labels[rows]))] = -1
    return Folds(rows, fold_of_cell, batches)
