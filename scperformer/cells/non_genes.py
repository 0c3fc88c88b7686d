"""Columns among the genes that are not genes, such as coordinates, areas, numbers of cells or totals.

Their names are not names of genes, and their values differ in kind or size. They are looked for in some cells of a
file whose other names are of known genes.
"""

import re

import numpy as np
from scipy import sparse

from scperformer.io.axes import AXIS_SHARE, axis_shares, is_gene, without_affixes
from scperformer.io.gene_names import guess_species

MIN_CELLS, MIN_COLUMNS = 5, 100  # with fewer, values do not tell
MAX_SHARE = 0.02  # of the columns that may be of another kind than the others; of a few genes, `MAX_COLUMNS`
MAX_COLUMNS = 20
MIN_FILLED = 0.5  # such a column has values in this share of the cells; most genes are expressed in few cells
TINY = 1e-12  # in place of 0, where a quotient is taken
# Ratio to the largest gene of a cell from which a column is not expression, and from which it may not be.
MIN_RATIO = 5.0
MIN_DOUBTFUL_RATIO = 3.0
MOUSE_GENE = re.compile(r"[A-Z][a-z]+\d|[A-Z][a-z]+-[a-z]")  # as in Gstm1 and Hbb-bs


def find_non_genes(x: sparse.csr_matrix, rows: np.ndarray, names: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which columns are not genes, and which may not be: both boolean, G.

    The latter are of a different kind among unknown names, or larger than all genes by less. `x` are some cells as they
    are stored, n x G, `rows` their ascending row numbers in the file, and `names` the names of the columns.
    """
    none = np.zeros(x.shape[1], dtype=bool)
    if x.shape[0] < MIN_CELLS or x.shape[1] < MIN_COLUMNS:
        return none, none
    filled = np.bincount(x.indices, minlength=x.shape[1])
    is_odd = _of_another_kind(x, filled) | _numbers_of_rows(x, rows) | _far_larger(x, filled, MIN_RATIO)
    may_be_odd = is_odd | _far_larger(x, filled, MIN_DOUBTFUL_RATIO)
    if not may_be_odd.any():
        return none, none
    odd = np.flatnonzero(may_be_odd)
    stored = [str(name).strip() for name in names[odd]]
    plain = without_affixes(stored, "human")
    may_be_odd[odd] = [not (is_gene(name) or is_gene(gene)) for name, gene in zip(stored, plain, strict=True)]
    is_odd &= may_be_odd
    # The genes of the mouse are known as far as they have an ortholog: others may be the largest of cells of one type.
    doubtful = np.flatnonzero(may_be_odd & ~is_odd)
    if len(doubtful) and guess_species(names.tolist()) == "mouse":
        may_be_odd[doubtful] = [MOUSE_GENE.match(str(name).strip()) is None for name in names[doubtful]]
    if axis_shares(names.tolist())[0] < AXIS_SHARE:
        return none, is_odd
    return is_odd, may_be_odd & ~is_odd


def _of_another_kind(x: sparse.csr_matrix, filled: np.ndarray) -> np.ndarray:
    """Return columns with decimals among whole numbers, whole numbers among decimals, or the only negative or NaN."""
    with np.errstate(invalid="ignore"):
        has_decimals = np.bincount(x.indices[x.data != np.rint(x.data)], minlength=x.shape[1])
        is_impossible = np.bincount(x.indices[~(x.data >= 0)], minlength=x.shape[1]) > 0
    used = filled > 0
    full = filled >= MIN_FILLED * x.shape[0]
    few = max(MAX_SHARE * used.sum(), MAX_COLUMNS)
    is_other = np.zeros(x.shape[1], dtype=bool)
    kinds = is_impossible, full & (has_decimals > filled / 2), full & (has_decimals == 0)
    for kind, others in zip(kinds, (is_impossible, has_decimals > 0, used & (has_decimals == 0)), strict=True):
        if 0 < others.sum() <= min(few, used.sum() / 2):  # nearly all columns are of the other kind
            is_other |= kind
    return is_other


def _numbers_of_rows(x: sparse.csr_matrix, rows: np.ndarray) -> np.ndarray:
    """Return columns that number the cells, from any number on."""
    columns = sparse.csc_matrix(x)
    lengths = np.diff(columns.indptr)
    numbers = np.zeros(x.shape[1], dtype=bool)
    for column in np.flatnonzero(lengths >= x.shape[0] - 1):
        values = columns[:, [column]].toarray().ravel()
        numbers[column] = len(set((values - rows).tolist())) == 1
    return numbers


def _far_larger(x: sparse.csr_matrix, filled: np.ndarray, least: float) -> np.ndarray:
    """Return columns that are at least so many times as large as the largest of all smaller ones, in most cells."""
    found = np.zeros(x.shape[1], dtype=bool)
    columns = np.flatnonzero(filled >= MIN_FILLED * x.shape[0])
    dense = np.nan_to_num(x[:, columns].toarray())
    order = np.argsort(-np.median(dense, axis=0), kind="stable")
    others = np.delete(np.arange(x.shape[1]), columns)
    rest = x[:, others].max(axis=1).toarray().ravel() if len(others) else np.zeros(x.shape[0])
    # The largest of the smaller columns, for each of the largest columns in turn.
    below = np.maximum.accumulate(np.column_stack([rest, dense[:, order[::-1]]]), axis=1)[:, ::-1]
    ratios = np.median(dense[:, order] / np.maximum(below[:, 1:], TINY), axis=0)[:MAX_COLUMNS]
    if (is_step := ratios >= least).any():
        found[columns[order[: np.flatnonzero(is_step)[-1] + 1]]] = True
    return found
