"""Unlabelled cells for pretraining: normalised cells of all files over one list of genes, in memory or on disk."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.base.errors import InputError
from scperformer.base.progress import progress
from scperformer.cells.collection import Filters, Stream, make_collection
from scperformer.cells.opened import OpenedCells
from scperformer.cells.splits import (
    MAX_FIT_CELLS,
    MAX_VAL_CELLS,
    stratified_sample,
    stratified_split,
)
from scperformer.config.training import NetworkOptions

log = logging.getLogger(__name__)

MIN_CORPUS_CELLS = 10  # with fewer cells, neither training nor validation is meaningful
MIN_CELL_GENES = 2  # genes of a cell: one to mask, and one to predict it from


@dataclass
class CorpusFile:
    """A file of a corpus."""

    name: str
    sha256: str
    num_cells: int
    input: str  # the kind and place of its values


@dataclass
class Corpus:
    """Cells of all files for pretraining, and their origin."""

    x: csr_matrix  # ln(1 + cp10k), CSR float32, N x G
    genes: list[str]
    file_of_cell: np.ndarray  # index of the file of each cell, int64, N
    files: list[CorpusFile]
    split: tuple[np.ndarray, np.ndarray]  # row numbers of training and validation cells
    # All training cells if they stay on disk; x then holds a sample of them, and the validation cells.
    stream: Stream | None = None

    @property
    def num_cells(self) -> int:
        """The number of training and validation cells."""
        return (
            self.x.shape[0] if self.stream is None else len(self.stream.cells) + len(self.split[1])
        )


@progress("preparing the cells")
def make_corpus(
    files: Sequence[OpenedCells[NetworkOptions]], vocabulary: list[str] | None = None
) -> Corpus:
    """Filter and normalise the cells of files as for `train`, and align them to one list of genes.

    If all files stay on disk, only the validation cells and a sample of the training cells are loaded. The genes are
    the `vocabulary` of an encoder, or else those that `data.min_cells` cells express.
    """
    options = files[0].options
    min_cells = max(1, options.data.min_cells)
    collection = make_collection(
        files, Filters(options.data.min_genes, min_cells, MIN_CELL_GENES), vocabulary
    )
    if len(collection) < MIN_CORPUS_CELLS:
        found = (
            f"{len(collection)} usable cells in {len(files)} file{'s' if len(files) > 1 else ''}"
        )
        expected = f"at least {MIN_CORPUS_CELLS} to pretrain on"
        raise InputError("few-cells", found, expected, "add files, or lower data.min_genes")
    parts = zip(files, collection.kept, collection.summaries, strict=True)
    origins = [
        CorpusFile(cells.name, cells.sha256, len(kept), summary) for cells, kept, summary in parts
    ]
    of_cell = collection.file_of_cell
    genes = collection.genes
    fraction = options.data.val_fraction
    if not all(cells.is_on_disk for cells in files):
        x = collection.read(np.arange(len(collection)))
        return Corpus(
            x,
            genes,
            of_cell,
            origins,
            stratified_split(of_cell, fraction, options.seed, min_cells=0),
        )
    train, val = stratified_split(
        of_cell, min(fraction, MAX_VAL_CELLS / len(of_cell)), options.seed, min_cells=0
    )
    sample = train[stratified_sample(of_cell[train], MAX_FIT_CELLS, options.seed)]
    log.info(
        "gene statistics are computed on a random sample of %d of %d training cells",
        len(sample),
        len(train),
    )
    loaded = np.concatenate([sample, val])
    split = np.arange(len(sample)), np.arange(len(sample), len(loaded))
    stream = Stream(collection, train, of_cell[train])
    return Corpus(collection.read(loaded), genes, of_cell[loaded], origins, split, stream)
