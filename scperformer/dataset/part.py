"""One file of a collection whose matrix stays on disk: find its expression, filter its cells, read some of its rows."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import sparse
from scipy.sparse import csr_matrix

from scperformer.config import NetworkConfig
from scperformer.dataset.in_memory import STREAMED
from scperformer.dataset.preprocess import is_prepared
from scperformer.errors import InputError
from scperformer.expression import (
    Findings,
    align_normalised,
    detect_expression,
    gene_table,
    merge_genes,
    normalise,
    stored_expression,
)
from scperformer.files import Matrix, Rows, open_stored, reading, require_readable
from scperformer.genes import GeneMap, first_of_each, repeated_note

log = logging.getLogger(__name__)

MAX_GAP = 64  # rows between two wanted ones that are read with them: cheaper than a second access to the disk
MAX_RUN = 1024  # rows that are read at a time


@dataclass
class Part:
    """A file: the place of its expression, and how its rows become cells of the collection."""

    path: Path
    findings: Findings
    var: pd.DataFrame  # its genes, each name once
    first: np.ndarray | None  # for each column the first one of the same name; None: no name repeats
    is_prepared: bool  # by `preprocess`, to the same target sum: its cells need no filter
    target_sum: float
    kept: np.ndarray  # numbers of the rows that are cells of the collection, ascending

    def rows(self) -> Rows:
        """Open the matrix on disk."""
        with reading(self.path):
            return Rows(stored_expression(open_stored(self.path), self.findings, path=self.path)[0])

    def merged(self, x: Matrix) -> csr_matrix:
        """Return stored rows with one column for each name."""
        if self.first is None:
            return csr_matrix(x)
        is_gene = self.first == np.arange(len(self.first))
        return merge_genes(x, self.first, self.findings.log_base)[:, is_gene]

    def aligned(self, x: Matrix, mapping: GeneMap, num_genes: int) -> csr_matrix:
        """Return stored rows as cells: normalised over all genes of the file, then with the collection's genes."""
        return align_normalised(normalise(self.merged(x), self.findings, self.target_sum), mapping, num_genes)

    def filter_cells(
        self, mapping: GeneMap, num_genes: int, *, min_genes: int, min_shared: int, left_out: np.ndarray | None
    ) -> np.ndarray:
        """Set `kept`, and count the cells that express each gene of the collection: int64.

        Parameters
        ----------
        min_genes, min_shared
            Genes of the file and of the collection that a cell must express.
        left_out
            Rows that are not looked at, boolean; None: none.

        Raises
        ------
        InputError
            No cell is left.
        """
        num_cells = np.zeros(num_genes, dtype=np.int64)
        kept = []
        with reading(self.path):
            for start, block in self.rows().blocks():
                x = self.merged(block)
                x.eliminate_zeros()
                x.data = np.ones_like(x.data)  # only whether a gene is expressed counts here
                shared = align_normalised(x, mapping, num_genes)
                keep = np.diff(shared.indptr) >= min_shared
                if not self.is_prepared:
                    keep &= np.diff(x.indptr) >= min_genes
                if left_out is not None:
                    keep &= ~left_out[start : start + len(keep)]
                num_cells += np.bincount(shared[keep].indices, minlength=num_genes)
                kept.append(start + np.flatnonzero(keep))
        self.kept = np.concatenate(kept)
        log.info("%s: %d of %d cells are used", self.path, len(self.kept), self.findings.num_cells)
        if not len(self.kept):
            found = f"no cell of {self.path} that expresses data.min_genes={min_genes} genes"
            raise InputError(found, "at least some cells to be kept", "lower it, or leave the file out")
        return num_cells


def open_part(path: Path, cfg: NetworkConfig) -> Part:
    """Find the expression of a file; its cells are not filtered yet, and `kept` is empty.

    Raises
    ------
    InputError
        The file cannot be read by rows from disk, or its expression cannot be used.
    """
    kind = require_readable(path)
    remedy = "write it by rows with anndata (adata.X = adata.X.tocsr(), then write_h5ad), or set data.in_memory=true"
    if kind not in STREAMED:
        raise InputError(f"{path}, a {kind}", "h5ad or zarr for cells that stay on disk", remedy)
    with reading(path):
        cells = open_stored(path)
        findings = detect_expression(
            cells, cfg.source, cfg.input_kind, input_total=cfg.input_total, input_base=cfg.input_base, path=path
        )
        log.info("%s: %s", path, findings.sentence)
        matrix, names = stored_expression(cells, findings, path=path)
        if Rows(matrix).by_columns:
            found = f"{findings.source} of {path} is stored by columns (CSC)"
            raise InputError(found, "rows (CSR or dense) for cells that stay on disk", remedy)
    notes = repeated_note(names)
    first = first_of_each(names) if notes else None
    is_gene = slice(None) if first is None else first == np.arange(len(first))
    return Part(
        path=path,
        findings=replace(findings, notes=[*findings.notes, *notes]),
        var=gene_table(cells, findings.source).set_axis(names)[is_gene],
        first=first,
        is_prepared=is_prepared(cells, findings, cfg.data.target_sum) and not notes,
        target_sum=cfg.data.target_sum,
        kept=np.empty(0, dtype=np.int64),
    )


def read_scattered(rows: Rows, numbers: np.ndarray) -> csr_matrix:
    """Read the rows with these ascending numbers; rows near each other are read together."""
    begins = np.diff(numbers, prepend=-MAX_GAP - 1) > MAX_GAP
    start = numbers[np.maximum.accumulate(np.where(begins, np.arange(len(numbers)), 0))]
    ends = np.flatnonzero((np.diff(start) != 0) | (np.diff((numbers - start) // MAX_RUN) != 0)) + 1
    runs = np.split(numbers, ends)
    return sparse.vstack([csr_matrix(rows.block(run[0], run[-1] + 1))[run - run[0]] for run in runs], "csr")
