"""The quality of cells: empty cells, few genes, mitochondrial expression. No cell is filtered."""

import re
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix

from scperformer.cells.detect import Findings
from scperformer.cells.normalisation import without_zeros
from scperformer.cells.values import linear_values
from scperformer.io.axes import without_affixes
from scperformer.io.gene_matching import name_columns
from scperformer.io.gene_names import ids_and_symbols
from scperformer.io.gene_table import human_genes
from scperformer.io.rows import Matrix

# Limits of quality, in median absolute deviations (MAD) from the median of the file. Source: Heumos et al. 2023, Best
# practices for single-cell analysis across modalities.
FEW_MADS = 5  # below the median of ln(1 + genes)
HIGH_MADS = 3  # above the median of the mitochondrial share
MIN_HIGH_SHARE = 0.08  # a lower mitochondrial share is never high
# Symbols in upper case. R writes a dot for the dash. RPS6KA1 and its kin are kinases, not ribosomal proteins.
MITOCHONDRIAL_GENES = re.compile(r"MT[-.]")
TECHNICAL_GENES = re.compile(r"MT[-.]|RP[LS]\d+[AXYL]*\d*(P\d+)?$|RPLP[0-2]$|RPSA$|MALAT1$")

QUALITY = ("num_genes", "total", "mitochondrial")


def block_quality(stored: Matrix, is_mito: np.ndarray, findings: Findings) -> np.ndarray:
    """Measure the cells of a block, float64 N x 3, as scanpy's `calculate_qc_metrics` does, which is slow to import.

    The columns are num_genes (expressed genes; scanpy's n_genes_by_counts), total (sum of the values before any
    logarithm; total_counts) and mitochondrial (share of this total, 0 to 1; pct_counts_mt in percent).
    """
    # Normalisation does not change shares, but the logarithm does.
    block = linear_values(without_zeros(csr_matrix(stored)), findings.log_base)
    num_genes = np.diff(block.indptr)
    totals = block @ np.ones(block.shape[1])
    shares = block @ is_mito.astype(np.float64)
    filled = num_genes > 0
    shares[filled] /= totals[filled]
    return np.column_stack([num_genes, totals, shares])


def low_quality(cells: pd.DataFrame, is_cell: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Return which cells of a table, with the columns `QUALITY`, have a low quality, and the limits of both measures.

    A cell has a low quality if ln(1 + genes) is more than 5 MAD below the median, or if its mitochondrial share is more
    than 3 MAD above the median and above 0.08. Rows that are not cells of the sample (`is_cell`, boolean N) have a low
    quality, and do not influence the limits: the smallest number of genes and the largest mitochondrial share.
    """
    logs = np.log1p(cells["num_genes"].to_numpy())
    shares = cells["mitochondrial"].to_numpy()
    median_log, median_share = (float(np.median(values[is_cell])) for values in (logs, shares))
    few = median_log - FEW_MADS * float(np.median(np.abs(logs[is_cell] - median_log)))
    high = median_share + HIGH_MADS * float(np.median(np.abs(shares[is_cell] - median_share)))
    high = max(high, MIN_HIGH_SHARE)
    return (logs < few) | (shares > high) | (logs == 0) | ~is_cell, float(np.expm1(few)), high


def _has_symbol(var: pd.DataFrame, pattern: re.Pattern[str]) -> np.ndarray:
    """Return which genes have a symbol that matches from its start, in any case, or a human Ensembl id of one."""
    plain = without_affixes(without_affixes(list(map(str, var.index)), "human"), "mouse")
    matching_ids: set[str | None] = set()
    matches = np.zeros(len(plain), dtype=bool)
    for names in (plain, *name_columns(var).values()):
        ids, symbols = ids_and_symbols([name.strip() for name in names])
        if not matching_ids and any(ids):  # the table takes a while to read
            matching_ids = {
                gene_id
                for gene_id, symbol in human_genes().symbols.items()
                if pattern.match(symbol)
            }
        is_match = [
            bool(pattern.match((symbol or "").upper())) or gene_id in matching_ids
            for gene_id, symbol in zip(ids, symbols, strict=True)
        ]
        matches |= np.array(is_match, dtype=bool)  # also of no genes
    return matches


def mitochondrial(var: pd.DataFrame) -> np.ndarray:
    """Return which genes are mitochondrial, by a symbol such as MT-ND1 or mt-Nd1, or by a human Ensembl id; boolean."""
    return _has_symbol(var, MITOCHONDRIAL_GENES)


def technical(names: Iterable[str]) -> np.ndarray:
    """Return which genes are ribosomal, mitochondrial or MALAT1, which vary with protocol and state; boolean."""
    return _technical(tuple(names))


# the genes of a model, and those of them that a file has, are asked for several times
@lru_cache(maxsize=8)
def _technical(names: tuple[str, ...]) -> np.ndarray:
    return _has_symbol(pd.DataFrame(index=pd.Index(names, dtype=object)), TECHNICAL_GENES)
