"""The cells of several files on disk as one list of cells over one list of genes.

Each file is read twice before training, block by block: to recognise its values, and to filter its cells and count the
cells that express each gene. Only the row numbers of its cells are kept in memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from scipy import sparse
from scipy.sparse import csr_matrix

from scperformer.config import NetworkConfig
from scperformer.dataset.part import Part, open_part, read_scattered
from scperformer.errors import InputError
from scperformer.files import Rows, reading
from scperformer.genes import GeneMap, gene_maps

MAX_OPEN = 64  # files at a time
READ_CELLS = 4096  # cells that are read at a time: while they are aligned, they take several times their memory


@dataclass
class Collection:
    """The cells of all files, numbered in the order of the files, and the genes that they share."""

    parts: list[Part]
    maps: list[GeneMap]
    genes: list[str]

    def __post_init__(self) -> None:
        self.starts = np.cumsum([0, *(len(part.kept) for part in self.parts)])
        self._rows: Callable[[int], Rows] = lru_cache(MAX_OPEN)(lambda file: self.parts[file].rows())

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def file_of_cell(self) -> np.ndarray:
        """The index of the file of each cell, int64."""
        return np.repeat(np.arange(len(self.parts)), np.diff(self.starts))

    @property
    def stored_rows(self) -> np.ndarray:
        """The row of each cell in all files one below the other, filtered cells included."""
        begins = np.cumsum([0, *(part.findings.num_cells for part in self.parts[:-1])])
        return np.concatenate([begin + part.kept for begin, part in zip(begins, self.parts, strict=True)])

    def with_columns(self, target: np.ndarray, names: list[str]) -> "Collection":
        """Return the same cells with other columns: gene j moves to `target[j]`, or is left out if that is -1."""
        moved = np.append(target, -1)  # -1 stays -1
        maps = [replace(mapping, target=moved[mapping.target]) for mapping in self.maps]
        return Collection(self.parts, maps, names)

    def read(self, cells: np.ndarray) -> csr_matrix:
        """Read the cells with these numbers, in this order: CSR float32, ln(1 + cp10k).

        Raises
        ------
        InputError
            A file is damaged, or was changed.
        """
        pieces = [csr_matrix((0, len(self.genes)), dtype=np.float32)]
        for first in range(0, len(cells), READ_CELLS):
            wanted, place = np.unique(cells[first : first + READ_CELLS], return_inverse=True)
            found = []  # in the order on disk
            for file in np.unique(np.searchsorted(self.starts, wanted, side="right") - 1):
                part = self.parts[file]
                begin, end = np.searchsorted(wanted, self.starts[file : file + 2])
                with reading(part.path):
                    stored = read_scattered(self._rows(file), part.kept[wanted[begin:end] - self.starts[file]])
                found.append(part.aligned(stored, self.maps[file], len(self.genes)))
            pieces.append(csr_matrix(sparse.vstack(found, "csr"))[place])
        return csr_matrix(sparse.vstack(pieces, "csr"))


@dataclass
class Stream:
    """The cells of a collection for training: their numbers, ascending, and a label each."""

    collection: Collection
    cells: np.ndarray
    labels: np.ndarray


def make_collection(
    paths: Sequence[Path],
    cfg: NetworkConfig,
    vocabulary: Sequence[str] | None = None,
    *,
    min_shared: int = 0,
    left_out: np.ndarray | None = None,
) -> Collection:
    """Filter the cells of files, each as if it were in memory, and choose the genes of the collection.

    Parameters
    ----------
    vocabulary
        The genes; None: those that at least `data.min_cells` cells express, in the order in which the files have them.
    min_shared
        Genes of the collection that a cell must express to be used.
    left_out
        Rows of all files that are not looked at, boolean; None: none.

    Raises
    ------
    InputError
        A file cannot be used, the files name genes by different kinds of id, or the filters leave nothing.
    """
    parts = [open_part(path, cfg) for path in paths]
    names, maps = gene_maps([part.var for part in parts], [path.name for path in paths], vocabulary, cfg.species)
    ends = np.cumsum([part.findings.num_cells for part in parts])[:-1]
    without = [None] * len(parts) if left_out is None else np.split(left_out, ends)
    limits = {"min_genes": cfg.data.min_genes, "min_shared": min_shared}
    num_cells = np.zeros(len(names), dtype=np.int64)
    for part, mapping, rows in zip(parts, maps, without, strict=True):
        num_cells += part.filter_cells(mapping, len(names), **limits, left_out=rows)
    collection = Collection(parts, maps, names)
    if vocabulary is not None:
        return collection
    keep = num_cells >= (0 if all(part.is_prepared for part in parts) else cfg.data.min_cells)
    if not keep.any():
        found = f"no gene that data.min_cells={cfg.data.min_cells} of the {len(collection)} cells express"
        raise InputError(found, "at least some genes", "lower it or add cells")
    kept = [name for name, is_kept in zip(names, keep, strict=True) if is_kept]
    return collection.with_columns(np.where(keep, np.cumsum(keep) - 1, -1), kept)
