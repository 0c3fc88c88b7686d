"""Labelled cells for training: filtered, normalised and split into training and validation; in memory or on disk."""

import logging
import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.base.errors import InputError
from scperformer.base.messages import named
from scperformer.base.progress import progress
from scperformer.cells import splits
from scperformer.cells.batches import named_as_batches
from scperformer.cells.collection import (
    CellCollection,
    Filters,
    Stream,
    make_collection,
    stored_cells,
    stored_matrices,
)
from scperformer.cells.normalisation import over_own_genes
from scperformer.cells.not_measured import genes_not_measured
from scperformer.cells.opened import whole_cells
from scperformer.cells.reference_labels import CellLabels, Labelled, ReferenceFile
from scperformer.cells.splits import stratified_sample
from scperformer.config.training import ReferenceOptions
from scperformer.io.gene_lists import read_genes
from scperformer.io.gene_overlap import find_panel

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Reference(Labelled):
    """Labelled cells for training, with their expression."""

    x: csr_matrix  # ln(1 + cp10k), CSR float32, N x G
    genes: list[str]
    summary: str  # the expression and the filters, for users
    own_totals: bool  # cells are normalised over `genes` alone
    # All training cells if they stay on disk; the other fields then describe a sample of them, and validation cells.
    stream: Stream | None

    @property
    def counts(self) -> np.ndarray:
        """The number of training and validation cells of each label; int64."""
        if self.stream is None:
            return np.bincount(self.labels)
        labels = np.concatenate([self.stream.labels, self.labels[self.split.val]])
        return np.bincount(labels, minlength=len(self.label_names))


@progress("preparing the reference")
def make_reference(files: Sequence[ReferenceFile], distinct: Container[str] = ()) -> Reference:
    """Filter, normalise and label cells, and split them into training and validation cells.

    Test cells (`data.split=column`) influence nothing. Cells that stay on disk are not loaded, except for validation
    cells and a sample of the training cells. Labels that are `distinct` are not joined with others.
    """
    options = files[0].options
    are_on_disk = any(cells.is_on_disk for cells in files)
    table = CellLabels.of_files(files)
    left_out = table.test_cells()
    if left_out.any() and not are_on_disk:  # they must not even influence the kind of the values
        starts = np.cumsum([0, *(cells.n_obs for cells in files)])
        files = [
            cells.without(left_out[a:b])
            for cells, (a, b) in zip(files, pairwise(starts), strict=True)
        ]
        table = table.rows(~left_out)
        left_out = np.zeros(len(table.labels), dtype=bool)
    called = table.are_calls()
    table = table.joined(distinct)
    is_unlabelled = table.unlabelled()
    left_out = left_out | is_unlabelled
    whole = make_collection(files, Filters.by(options.data), left_out=left_out)
    kept = table.rows(whole.rows)
    labels = table.labels[~left_out]
    if nums := labels[~labels.isin(set(kept.labels))].value_counts().to_dict():
        log.warning(
            "labels whose cells are all dropped by data.min_genes=%d: %s",
            options.data.min_genes,
            named(nums),
        )
    # Groups and columns decide which cells validate: of these, a sample is loaded. Otherwise fewer are chosen.
    is_capped = are_on_disk and options.data.split_key is None
    max_val = splits.MAX_VAL_CELLS if is_capped else math.inf
    numbers, labelled = kept.labelled(int(is_unlabelled.sum()), called, max_val)
    collection, panel = _of_panel(whole, options)
    stream = None
    if are_on_disk:
        train = labelled.split.train
        stream = Stream(collection, numbers[train], labelled.labels[train])
        train, val, notes = _sample_of(labelled, options)
        labelled = labelled.some(train, val)
        labelled.notes.extend(notes)
        numbers = numbers[np.concatenate([train, val])]
        summary = "; ".join([*dict.fromkeys(whole.summaries), f"{len(files)} files{panel}"])
    else:
        num_genes = sum(cells.findings.num_genes for cells in files)
        dropped = f"{(~left_out).sum() - len(whole)} cells and {num_genes - len(whole.genes)} genes dropped"
        summary = f"{whole.summaries[0]}; {dropped} by the filters{panel}"
    x = collection.read(numbers)
    batches = _ways_to_tell_batches(kept, collection, numbers)
    is_absent = genes_not_measured(x, labelled.labels, batches, collection.genes)
    if is_absent.any():
        x = over_own_genes(x[:, ~is_absent], options.data.target_sum)
        collection = collection.of_panel(~is_absent)
        stream = None if stream is None else replace(stream, collection=collection)
    content = {"x": x, "genes": collection.genes, "own_totals": collection.own_totals}
    return Reference(**vars(labelled), **content, summary=summary, stream=stream)


def _of_panel(collection: CellCollection, options: ReferenceOptions) -> tuple[CellCollection, str]:
    """Return the cells with the genes of the panel `genes_path`, if there is one, and a text about these."""
    path = options.genes_path
    if path is None:
        return collection, ""
    known = collection.genes
    in_panel = find_panel(
        read_genes(path, known), known, "reference", species=options.species, path=path
    )
    num = in_panel.sum()
    log.info("%s: the model has only its %d genes, and cells are normalised over these", path, num)
    return collection.of_panel(
        in_panel
    ), f"; {num} genes of {Path(path).name} alone, and totals over these"


def _ways_to_tell_batches(
    kept: CellLabels, collection: CellCollection, numbers: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the name of the batch of each loaded cell, by columns of obs and by files."""
    obs = kept.obs.iloc[numbers]
    key = kept.options.batch_key
    columns = [key] if key is not None else named_as_batches(map(str, obs.columns))
    batches = {f"obs['{key}']": obs[key].astype(str).to_numpy(str) for key in columns if key in obs}
    if len(collection.files) > 1:
        batches["files"] = np.array([cells.name for cells in collection.files])[
            collection.file_of_cell[numbers]
        ]
    return batches


def _sample_of(
    labelled: Labelled, options: ReferenceOptions
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Choose training and validation cells to load, of cells that stay on disk; also return, and log, notes."""
    split = labelled.split
    fit = split.train
    val = split.val
    fit = fit[stratified_sample(labelled.labels[fit], splits.MAX_LOADED_CELLS, options.seed)]
    if options.data.split_key is not None:
        val = val[stratified_sample(labelled.labels[val], splits.MAX_VAL_CELLS, options.seed)]
    notes = [f"The {len(split.train):,} training cells stayed on disk."]
    if len(fit) < len(split.train):
        notes.append(
            f"{len(fit):,} of them, each label in proportion, were loaded for what does not learn from all."
        )
    if len(val) < len(split.val):
        notes.append(f"Validation is on a sample of {len(val):,} of {len(split.val):,} cells.")
    for note in notes:
        log.info("%s", note)
    return fit, val, notes


def read_unlabelled(reference: Reference, options: ReferenceOptions) -> csr_matrix | None:
    """Read about 20,000 cells of `unlabelled`, ln(1 + cp10k), CSR float32, cells x genes of the reference.

    Without such files, return None. Cells are not filtered by `data.min_genes`, as a panel has few genes. A file with
    fewer than half of the genes is refused, as gene vectors treat absent genes as not expressed.
    """
    if not options.unlabelled:
        return None
    files = []
    for path in map(Path, options.unlabelled):
        files.append(
            whole_cells(path, options)
            if stored_matrices(path) is None
            else stored_cells(path, options)
        )
    collection = make_collection(files, Filters(min_shared=1), reference.genes)
    collection.own_totals = reference.own_totals
    numbers = stratified_sample(collection.file_of_cell, splits.MAX_FIT_CELLS, options.seed)
    num_genes = len(reference.genes)
    nums = np.bincount(collection.file_of_cell[numbers], minlength=len(files))
    for cells, mapping, kept, num in zip(
        files, collection.maps, collection.kept, nums, strict=True
    ):
        num_shared = len(np.unique(mapping.target[mapping.target >= 0]))
        if num_shared < num_genes / 2:
            found = f"{num_shared} of the {num_genes} genes of the reference in unlabelled file {cells.path}"
            remedy = "leave it out, or give cells measured with the same genes"
            raise InputError("few-genes", found, "half of them", remedy)
        text = "%s: gene vectors are also learned from %d of its %d cells, with %d of the genes"
        log.info(text, cells.path, num, len(kept), num_shared)
    return collection.read(numbers)
