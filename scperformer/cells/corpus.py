"""Unlabelled cells for pretraining: normalised cells of all files over one list of genes, in memory or on disk."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.base.errors import InputError
from scperformer.base.progress import progress
from scperformer.cells.on_disk import Sample, Stream, make_collection
from scperformer.cells.splits import MAX_FIT_CELLS, MAX_VAL_CELLS, stratified_sample, stratified_split
from scperformer.config.training import NetworkOptions
from scperformer.io.read import checksum

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
        return self.x.shape[0] if self.stream is None else len(self.stream.cells) + len(self.split[1])


@progress("preparing the cells")
def make_corpus(sources: Sequence[Path | Sample], cfg: NetworkOptions, vocabulary: list[str] | None = None) -> Corpus:
    """Filter and normalise the cells of files as for `train`, and align them to one list of genes.

    If all sources are paths, cells stay on disk: only the validation cells and a sample of the training cells are
    loaded. The genes are the `vocabulary` of an encoder, or else those that `data.min_cells` cells express.
    """
    at_least_one = replace(cfg, data=replace(cfg.data, min_cells=max(1, cfg.data.min_cells)))
    collection = make_collection(sources, at_least_one, vocabulary, min_shared=MIN_CELL_GENES)
    if len(collection) < MIN_CORPUS_CELLS:
        found = f"{len(collection)} usable cells in {len(sources)} file{'s' if len(sources) > 1 else ''}"
        expected = f"at least {MIN_CORPUS_CELLS} to pretrain on"
        raise InputError("few-cells", found, expected, "add files, or lower data.min_genes")
    files = []
    for source, part in zip(sources, collection.parts, strict=True):
        sha256 = source.checksum if isinstance(source, Sample) else checksum(source)
        files.append(CorpusFile(part.path.name, sha256, len(part.kept), part.summary))
    of_cell = collection.file_of_cell
    genes = collection.genes
    fraction = cfg.data.val_fraction
    if any(isinstance(source, Sample) for source in sources):
        x = collection.read(np.arange(len(collection)))
        return Corpus(x, genes, of_cell, files, stratified_split(of_cell, fraction, cfg.seed, min_cells=0))
    train, val = stratified_split(of_cell, min(fraction, MAX_VAL_CELLS / len(of_cell)), cfg.seed, min_cells=0)
    sample = train[stratified_sample(of_cell[train], MAX_FIT_CELLS, cfg.seed)]
    log.info("gene statistics are computed on a random sample of %d of %d training cells", len(sample), len(train))
    loaded = np.concatenate([sample, val])
    split = np.arange(len(sample)), np.arange(len(sample), len(loaded))
    stream = Stream(collection, train, of_cell[train])
    return Corpus(collection.read(loaded), genes, of_cell[loaded], files, split, stream)
