"""Hints at the quality of cells: empty ones, few genes, much mitochondrial expression, likely doublets. No filter."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse
from scipy.ndimage import uniform_filter1d

from scperformer.expression import Findings
from scperformer.files import Rows
from scperformer.genes import human_genes, name_columns, parts, without_genome

FEW_GENES = 200  # where scanpy's and Seurat's tutorials cut
HIGH_SHARE = 0.2  # of a cell's expression is mitochondrial: usually a dying cell
MITOCHONDRIAL = "MT-"
MIN_DOUBLET_CELLS, MAX_DOUBLET_CELLS = 100, 20_000  # of 60 real cells it calls 8 % to 60 %, of 100 2 % to 8 %
QUICK_CELLS = 3000  # in which doublets are looked for unless told otherwise: that takes seconds
MIN_DOUBLET_GENES = 100
NUM_BINS = 256  # of the histogram in which a threshold is looked for, as scikit-image does


@dataclass(frozen=True, kw_only=True)
class Quality:
    """What the expression of some cells says about them."""

    num_empty: int  # cells without any expression
    num_few_genes: int  # cells with fewer than 200 genes, the empty ones among them
    median_genes: float  # of a cell
    median_counts: float | None  # of a cell; None: there are no counts
    num_mitochondrial_genes: int
    median_mitochondrial: float | None  # share of a cell's expression; None: there are no such genes
    num_high_mitochondrial: int  # cells with more than 20 %
    num_doublets: int | None = None  # likely ones; None: not looked for, or not to be told
    doublet_note: str = ""  # why not

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON-able values."""
        return asdict(self)


def measure_quality(rows: Rows, var: pd.DataFrame, findings: Findings) -> Quality:
    """Look at all cells, a block at a time; doublets are not looked for.

    Parameters
    ----------
    rows
        The expression that `findings` names, N cells x G genes.
    var
        The table of these genes, its index their names.
    """
    names, _ = without_genome(without_genome(list(map(str, var.index)), "human")[0], "mouse")
    is_mito = mitochondrial(names, var)
    num_genes, totals, shares = (np.zeros(rows.shape[0]) for _ in range(3))
    for start, stored in rows.blocks():
        block = sparse.csr_matrix(stored, dtype=np.float64, copy=True)
        block.sum_duplicates()
        block.eliminate_zeros()
        if findings.log_base is not None:  # shares are the same before normalisation and after it
            block.data = np.expm1(block.data * math.log(findings.log_base))
        cells = slice(start, start + block.shape[0])
        num_genes[cells] = np.diff(block.indptr)
        totals[cells] = np.asarray(block.sum(axis=1)).ravel()
        shares[cells] = block @ is_mito.astype(np.float64)
    filled = num_genes > 0
    shares[filled] /= totals[filled]
    has_shares = bool(is_mito.any() and filled.any())
    return Quality(
        num_empty=int((~filled).sum()),
        num_few_genes=int((num_genes < FEW_GENES).sum()),
        median_genes=float(np.median(num_genes)),
        median_counts=float(np.median(totals)) if findings.kind == "counts" else None,
        num_mitochondrial_genes=int(is_mito.sum()),
        median_mitochondrial=float(np.median(shares[filled])) if has_shares else None,
        num_high_mitochondrial=int((shares > HIGH_SHARE).sum()),
    )


def mitochondrial(names: Sequence[str], var: pd.DataFrame | None = None) -> np.ndarray:
    """Which genes are of the mitochondrial genome: MT-ND1, mt-Nd1 or a human Ensembl id of such a gene; boolean.

    Parameters
    ----------
    var
        A table of the same genes: a column of it may hold their symbols.
    """
    ids = {identifier for identifier, symbol in human_genes().symbols.items() if symbol.startswith(MITOCHONDRIAL)}
    found = np.zeros(len(names), dtype=bool)
    for values in (names, *name_columns(var).values()):
        split = [parts(value.strip()) for value in values]
        found |= [(symbol or "").upper().startswith(MITOCHONDRIAL) or gene_id in ids for gene_id, symbol in split]
    return found


# Doublets


def why_no_doublets(findings: Findings, wanted: str) -> str:
    """Why doublets are not looked for, "" if they are.

    Parameters
    ----------
    wanted
        auto (few cells only), true or false.
    """
    num = findings.num_cells
    if wanted == "false":
        return "not looked for, as told"
    if findings.kind != "counts":
        return "not looked for: that takes counts"
    if num < MIN_DOUBLET_CELLS or num > MAX_DOUBLET_CELLS:
        return f"not looked for: that takes {MIN_DOUBLET_CELLS} to {MAX_DOUBLET_CELLS:,} cells"
    if wanted == "auto" and num > QUICK_CELLS:
        return f"not looked for in more than {QUICK_CELLS:,} cells unless told: doublets=true"
    return ""


def count_doublets(rows: Rows) -> tuple[int | None, str]:
    """How many cells are likely doublets of unlike cells, by Scrublet (Wolock et al. 2019) as scanpy has it.

    Scrublet adds up pairs of cells and scores each cell by how many of its neighbours are such pairs. The threshold is
    the valley between the two peaks of the scores of the pairs. The same every time.

    Parameters
    ----------
    rows
        Counts.

    Returns
    -------
    The number, or None and why there is none.
    """
    import scanpy  # takes seconds, so only here

    counts = sparse.csr_matrix(rows.some(np.arange(rows.shape[0])), dtype=np.float32)
    counts = counts[np.diff(counts.indptr) > 0]
    num_expressed = int((counts.getnnz(axis=0) > 0).sum())
    if counts.shape[0] < MIN_DOUBLET_CELLS or num_expressed < MIN_DOUBLET_GENES:
        return None, f"not looked for: {counts.shape[0]} cells express {num_expressed} genes"
    cells = AnnData(counts)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about names and flat genes: of no interest in a hint
            # With few cells exact neighbours are faster; the threshold is set below, as scanpy's needs scikit-image.
            scanpy.pp.scrublet(cells, threshold=1.0, use_approx_neighbors=False, random_state=0, verbose=False)
    except (ValueError, ArithmeticError, IndexError) as error:
        return None, f"Scrublet cannot tell ({' '.join(str(error).split())[:100]})"
    threshold = valley(np.asarray(cells.uns["scrublet"]["doublet_scores_sim"]))
    if threshold is None:
        return None, "Scrublet cannot tell: the cells are too much alike"
    return int((cells.obs["doublet_score"] > threshold).sum()), ""


def valley(values: np.ndarray) -> float | None:
    """The lowest place between the two peaks of a histogram, smoothed until it has no more; None: it has not two.

    Source: Prewitt and Mendelsohn 1966, as `skimage.filters.threshold_minimum` does it.
    """
    counts, edges = np.histogram(values, NUM_BINS)
    height = counts.astype(np.float64)
    peaks = _peaks(height)
    for _ in range(10_000):
        if len(peaks) <= 2:
            break
        height = uniform_filter1d(height, 3)
        peaks = _peaks(height)
    if len(peaks) != 2:
        return None
    lowest = peaks[0] + int(np.argmin(height[peaks[0] : peaks[1] + 1]))
    return float((edges[lowest] + edges[lowest + 1]) / 2)


def _peaks(height: np.ndarray) -> list[int]:
    """Where a curve stops rising."""
    found, rising = [], True
    for place, (here, after) in enumerate(pairwise(height.tolist())):
        if rising and after < here:
            found.append(place)
        rising = after > here or (rising and after == here)
    return found
