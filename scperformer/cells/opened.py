"""The cells of a file, or of an AnnData in memory: what is asked about them is found once, and kept."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import pandas as pd
from anndata import AnnData
from anndata.io import read_elem
from scipy.sparse import csr_matrix

from scperformer.cells.detect import Findings, detect_expression, gene_table, matrices_of
from scperformer.cells.normalisation import merge_genes
from scperformer.cells.quality import QUALITY, block_quality, mitochondrial
from scperformer.cells.values import SAMPLE_CELLS, evenly_spaced, sample_of
from scperformer.config.options import ExpressionOptions
from scperformer.io.gene_names import first_of_each, require_named
from scperformer.io.h5ad import BackedH5ad, open_stored, read_stored
from scperformer.io.read import checksum, open_adata, read_cells
from scperformer.io.rows import Matrix, Rows
from scperformer.io.safety import reading

IN_MEMORY = "the data"  # the path of cells in memory, in messages
MAX_OPEN = 64  # files of a reference that stay open; of more, each is opened when it is read
Options = TypeVar("Options", bound=ExpressionOptions)


class OpenedCells(Generic[Options]):
    """N cells in memory, or of an open h5ad file whose matrices stay on disk, with options to read and match them.

    They are a query, or a part of a reference. `findings` are given if the expression needs no detection.
    """

    def __init__(
        self,
        adata: AnnData | BackedH5ad,
        options: Options,
        path: str | Path = IN_MEMORY,
        findings: Findings | None = None,
    ):
        self._adata: Any = adata
        self.is_on_disk = isinstance(adata, BackedH5ad)
        self.options = options
        self.path = str(path)
        self.n_obs: int = adata.n_obs
        self._findings = findings
        # of the blocks that were read, by their first row
        self._quality: dict[int, np.ndarray] = {}
        # row numbers, and their stored expression
        self._samples: list[tuple[np.ndarray, csr_matrix]] = []

    @property
    def adata(self) -> Any:
        """The cells; X, raw, layers, var and obs have the names of AnnData."""
        if self._adata is None:
            with self.reading():
                self._adata = open_stored(self.path)
        return self._adata

    def close(self) -> None:
        """Close the file of cells that stay on disk; it is opened again when it is read."""
        if self.is_on_disk:
            self._adata = None
            self.__dict__.pop("rows", None)

    @property
    def name(self) -> str:
        """The name of the file, in messages."""
        return Path(self.path).name

    @property
    def is_known(self) -> bool:
        """Whether the expression was found, or given."""
        return self._findings is not None

    def find_expression(self, species: str = "auto") -> Findings:
        """Find the place and the kind of the expression, of a species in a file of two; the first call decides.

        Raises
        ------
        InputError
            The cells have no usable expression.
        """
        if self._findings is None:
            with self.reading():
                self._findings = detect_expression(self.adata, self.options, self.path, species)
        return self._findings

    @property
    def findings(self) -> Findings:
        return self.find_expression()

    @cached_property
    def rows(self) -> Rows:
        """The expression, N cells x the genes of `var`; several unnamed genes are refused."""
        findings = self.findings
        require_named(self.gene_names, f"{findings.source} of {self.path}")
        with self.reading():
            return Rows(
                matrices_of(self.adata)[findings.source], findings.is_gene, findings.from_smallest
            )

    @cached_property
    def var(self) -> pd.DataFrame:
        """The table of the genes, without features that are not genes."""
        return gene_table(self.adata, self.findings)

    @cached_property
    def gene_names(self) -> list[str]:
        return [str(name).strip() for name in self.var.index]

    @cached_property
    def first_of_name(self) -> np.ndarray:
        """For each gene, the first gene of the same name, int64."""
        return first_of_each(self.gene_names)

    @property
    def is_first(self) -> np.ndarray:
        """Which genes are the first of their name, boolean."""
        return self.first_of_name == np.arange(len(self.first_of_name))

    def merged(self, stored: Matrix) -> csr_matrix:
        """Return stored rows with a column for each name: the values of repeated names are added up."""
        is_first = self.is_first
        if is_first.all():
            return csr_matrix(stored)
        return merge_genes(stored, self.first_of_name, self.findings.log_base)[:, is_first]

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the file or folder; empty for cells in memory."""
        return checksum(self.path) if Path(self.path).exists() else ""

    @cached_property
    def _is_mito(self) -> np.ndarray:
        return mitochondrial(self.var)

    def block(self, start: int) -> Matrix:
        """Return the stored expression of the block that begins with row `start`, whose quality is measured with it."""
        with self.reading():
            stored = self.rows.block(start, min(start + self.rows.block_cells, self.n_obs))
        if start not in self._quality:
            self._quality[start] = block_quality(stored, self._is_mito, self.findings)
        return stored

    def some(self, rows: np.ndarray) -> csr_matrix:
        """Return the stored expression of rows with ascending numbers, float64; small samples are kept."""
        for numbers, stored in [*filter(None, [self.findings.sample]), *self._samples]:
            places = np.searchsorted(numbers, rows)
            if (
                0 < len(rows) <= len(numbers)
                and (numbers[np.minimum(places, len(numbers) - 1)] == rows).all()
            ):
                return stored if len(rows) == len(numbers) else stored[places]
        with self.reading():
            stored = self.rows.some(rows)
        if 0 < len(rows) <= SAMPLE_CELLS:
            self._samples.append((rows, stored))
        return stored

    def sample_rows(self, rows: np.ndarray | None = None) -> np.ndarray:
        """Return the numbers of up to 2,000 rows, ascending, that show what the file states about all of its cells.

        They are from up to 20 blocks, spread over the file, or over the given rows; in an unfiltered matrix, they are
        spread from the smallest barcode to the largest. Rows that are no cells of the sample are not among them.
        """
        rows = np.arange(self.n_obs) if rows is None else rows
        rows = rows[self.findings.is_cell[rows]]
        if self.findings.droplets is None:
            return sample_of(rows, self.rows.block_cells)
        by_size = self.findings.droplets.cells
        by_size = by_size[np.isin(by_size, rows)]
        return np.sort(by_size[evenly_spaced(len(by_size), SAMPLE_CELLS)])

    def typical_quality(self) -> dict[str, int | float | None]:
        """Return the medians of the quality of some cells; those that are not known are None."""
        num_genes, totals, shares = block_quality(
            self.some(self.sample_rows()), self._is_mito, self.findings
        ).T
        filled = num_genes > 0
        is_known = self._is_mito.any() and filled.any()
        return {
            "num_seen": len(num_genes),
            "median_genes": float(np.median(num_genes)),
            "median_counts": float(np.median(totals)) if self.findings.kind == "counts" else None,
            "median_mitochondrial": float(np.median(shares[filled])) if is_known else None,
        }

    def quality(self) -> pd.DataFrame:
        """Return the quality of all cells, with the columns of `block_quality`; blocks that were not read are read."""
        starts = range(0, self.n_obs, self.rows.block_cells)
        for start in starts:
            if start not in self._quality:
                self.block(start)
        return pd.DataFrame(
            np.concatenate([self._quality[start] for start in starts]), columns=list(QUALITY)
        )

    def reading(self) -> AbstractContextManager[None]:
        """A block that reads from the file: what fails in it is a damaged file."""
        return reading(self.path) if self.is_on_disk else nullcontext()

    @property
    def obs(self) -> pd.DataFrame:
        return self.adata.obs

    @property
    def obs_names(self) -> pd.Index:
        return self.adata.obs_names

    @property
    def index_name(self) -> str | None:
        return self.adata.index_name if self.is_on_disk else self.adata.obs.index.name

    def names(self, start: int, stop: int) -> list[str]:
        return (
            self.adata.names(start, stop)
            if self.is_on_disk
            else list(map(str, self.adata.obs_names[start:stop]))
        )

    def columns(self, names: Iterable[str]) -> pd.DataFrame:
        """Return the columns of obs with these names, as far as they exist."""
        if self.is_on_disk:
            return self.adata.columns(names)
        return self.adata.obs[[name for name in names if name in self.adata.obs]]

    def keys(self) -> dict[str, set[str]]:
        """Return the names in obs, obsm and uns."""
        if self.is_on_disk:
            return self.adata.keys()
        return {
            place: set(map(str, getattr(self.adata, place))) for place in ("obs", "obsm", "uns")
        }

    def neighbour_graph(self) -> Any:
        """Return the neighbour graph that scanpy has stored with the cells, sparse N x N; None without one."""
        if not self.is_on_disk:
            return self.adata.obsp.get("connectivities")
        stored = self.adata.file.get("obsp", {})
        return read_elem(stored["connectivities"]) if "connectivities" in stored else None

    def without(self, left_out: np.ndarray) -> "OpenedCells[Options]":
        """Return the others of cells in memory, boolean N, as if there were no more."""
        return OpenedCells(self.adata[~left_out].copy(), self.options, self.path)

    def to_adata(self) -> AnnData:
        return read_stored(self.path, everything=True) if self.is_on_disk else self.adata


@contextmanager
def open_cells(source: str | Path | AnnData, options: Options) -> Iterator[OpenedCells[Options]]:
    """Open the cells of a file or folder of any kind, or of an AnnData.

    An h5ad file of anndata 0.8 or newer stays on disk.
    """
    if isinstance(source, AnnData):
        yield OpenedCells(source, options)
        return
    with open_adata(source, options.orientation) as adata:
        yield OpenedCells(adata, options, source)


def close_many(files: Sequence[OpenedCells]) -> None:
    """Close files of a reference that are too many to stay open."""
    if len(files) > MAX_OPEN:
        for cells in files:
            cells.close()


def whole_cells(path: str | Path, options: Options) -> OpenedCells[Options]:
    """Return the cells of a file or folder of any kind, read into memory."""
    return OpenedCells(read_cells(path, options.orientation), options, path)
