"""Labelled cells for training: filtered, normalised and split into training and validation; in memory or on disk."""

import logging
import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix

from scperformer.base.errors import InputError
from scperformer.base.messages import named
from scperformer.base.progress import progress
from scperformer.cells import reference_labels as labelling
from scperformer.cells import splits
from scperformer.cells.batches import named_as_batches
from scperformer.cells.label_tables import in_order_of_cells, read_cell_table
from scperformer.cells.normalisation import over_own_genes
from scperformer.cells.not_measured import genes_not_measured
from scperformer.cells.on_disk import CellCollection, Sample, Stream, make_collection, stored_matrices
from scperformer.cells.splits import TEST, Split, split_cells, split_values, stratified_sample
from scperformer.config.training import ReferenceOptions
from scperformer.io.gene_lists import read_genes
from scperformer.io.gene_overlap import find_panel
from scperformer.io.h5ad import open_stored
from scperformer.io.read import read_cells
from scperformer.io.safety import reading
from scperformer.labels.texts import label_texts

log = logging.getLogger(__name__)

FILE_OF_CELL = "_file_of_the_cell"  # a column beside those of obs


@dataclass
class Reference:
    """Labelled cells for training, and their origin."""

    labels: np.ndarray  # index of the label of each cell, int64, N
    label_names: list[str]
    terms: labelling.Terms
    split: Split
    rare: labelling.LabelSelection
    batch_names: list[str]
    batches: np.ndarray | None  # index of the batch of each cell, int64, N; None without batches
    x: csr_matrix = field(default_factory=lambda: csr_matrix((0, 0)))  # ln(1 + cp10k), CSR float32, N x G
    genes: list[str] = field(default_factory=list)
    cell_names: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=object))  # N; of files, row numbers
    summary: str = ""  # the expression and the filters, for users
    num_unlabelled: int = 0  # cells that are left out, as they have no label
    own_totals: bool = False  # cells are normalised over `genes` alone
    called: bool = False  # the labels are calls of this program
    # All training cells if they stay on disk; x then holds a sample of them, and the validation cells.
    stream: Stream | None = None

    @property
    def counts(self) -> np.ndarray:
        """The number of training and validation cells of each label; int64."""
        if self.stream is None:
            return np.bincount(self.labels)
        labels = np.concatenate([self.stream.labels, self.labels[self.split.val]])
        return np.bincount(labels, minlength=len(self.label_names))

    @property
    def notes(self) -> list[str]:
        called = [f"{labelling.CALLED.capitalize()}."] * self.called
        return called + [f"{self.rare.note}."] * bool(self.rare.note) + self.split.notes


def _label(
    obs: pd.DataFrame, labels: pd.Series, cfg: ReferenceOptions, path: str | Path, max_val: float
) -> tuple[np.ndarray, Reference]:
    """Return rows with a label, and a reference of these without expression; at most `max_val` of them validate."""
    rare = labelling.without_rare_labels(labels, cfg.data, path)
    usable = rare.labels.notna().to_numpy()
    if (num := rare.labels.nunique()) < 2:
        found = f"{num} usable label{'' if num == 1 else 's'} in obs['{cfg.label_key}'] of {path}"
        raise InputError("few-labels", found, "two or more labels", "choose another label_key or add cells")
    obs = obs[usable]
    texts = rare.labels[usable].to_numpy(str)
    names = sorted(set(texts.tolist()))
    terms = labelling.read_terms(obs, texts, cfg, path)
    values = split_values(obs, cfg.data, np.ones(len(obs), dtype=bool), path)
    sides = None if values is None else values.to_numpy(str)
    numbers = np.searchsorted(names, texts).astype(np.int64)
    capped = replace(cfg.data, val_fraction=min(cfg.data.val_fraction, max_val / len(numbers)))
    split = split_cells(numbers, names, sides, capped, cfg.data.seed_of_split(cfg.seed))
    batches = labelling.read_batches(obs, numbers, cfg.batch_key, path)
    return np.flatnonzero(usable), Reference(numbers, names, terms, split, rare, *batches)


def _unlabelled(obs: pd.DataFrame, labels: pd.Series, key: str) -> np.ndarray:
    """Return which cells have no label, boolean, and log them: they are left out, of the filters of genes, too."""
    is_unlabelled = labels.isna().to_numpy()
    if is_unlabelled.any():
        texts = label_texts(obs[key])[is_unlabelled].value_counts().to_dict()
        means_none = f" (no label: {named(texts)}; to keep one as a type, rename it)" if texts else ""
        text = "%d of %d cells without a label to train on are left out%s"
        log.warning(text, is_unlabelled.sum(), len(labels), means_none)
    return is_unlabelled


def _test_cells(obs: pd.DataFrame, labels: pd.Series, cfg: ReferenceOptions, path: str | Path) -> np.ndarray:
    """Return which cells are test cells, boolean. A missing column of the split is refused."""
    values = split_values(obs, cfg.data, labels.notna().to_numpy(), path)
    is_test = np.zeros(len(obs), dtype=bool)
    if cfg.data.split == "column" and values is not None:
        is_test = (values == TEST).to_numpy()
    if not is_test.any():
        return is_test
    only = labels[labels.isin(set(labels[is_test].dropna()) - set(labels[~is_test]))].value_counts().to_dict()
    lost = f"; the model will not know labels that only they have: {named(only)}" if only else ""
    log.info("%d of %d cells are test cells: they are left out of the training%s", is_test.sum(), len(is_test), lost)
    return is_test


def _without_unmeasured(
    labelled: Reference, collection: CellCollection, obs: pd.DataFrame, cfg: ReferenceOptions
) -> tuple[Reference, CellCollection]:
    """Leave out genes that some batches did not measure, of a reference whose cells have these rows of obs."""
    columns = [cfg.batch_key] if cfg.batch_key is not None else named_as_batches(map(str, obs.columns))
    batches = {f"obs['{key}']": obs[key].astype(str).to_numpy(str) for key in columns if key in obs}
    if len(collection.parts) > 1:
        files = np.array([part.path.name for part in collection.parts])
        batches["files"] = files[obs[FILE_OF_CELL].to_numpy()]
    is_absent = genes_not_measured(labelled.x, labelled.labels, batches, labelled.genes)
    if not is_absent.any():
        return labelled, collection
    x = over_own_genes(labelled.x[:, ~is_absent], cfg.data.target_sum)
    collection = replace(collection.of_genes(~is_absent), own_totals=True)
    return replace(labelled, x=x, genes=collection.genes, own_totals=True), collection


def with_labels(obs: pd.DataFrame, cfg: ReferenceOptions, path: Path, cells: pd.Index | None = None) -> pd.DataFrame:
    """Return the obs of a file with the columns of the table `cfg.labels`, which replace columns of the same names.

    `cells` are the names of its cells, if they are not the index of `obs`.
    """
    if cfg.labels is None:
        return obs
    table, _ = read_cell_table(cfg.labels, cfg.label_key or "", "labels")
    found = in_order_of_cells(table, obs.index if cells is None else cells, path, cfg.labels).set_axis(obs.index)
    return obs.drop(columns=[name for name in found if name in obs]).join(found)


def read_obs(sources: Sequence[Path | Sample], cfg: ReferenceOptions) -> list[pd.DataFrame]:
    """Read the columns of obs that hold labels, ontology ids and the split, for each source."""
    columns = cfg.label_key, *cfg.label_keys, cfg.ontology_key or f"{cfg.label_key}{labelling.TERM_SUFFIX}"
    names = list(dict.fromkeys(filter(None, (*columns, cfg.data.split_key, cfg.batch_key))))
    tables = []
    for source in sources:
        if isinstance(source, Sample):
            tables.append(source.adata.obs)
            continue
        with reading(source):
            stored = open_stored(source)
            others = stored.keys()["obs"]
            calls = labelling.columns_of_calls(others)
            table = stored.columns([*names, *named_as_batches(others), *(name for name in calls if name not in names)])
            # The error about a missing label column lists the columns of obs.
            table = table if cfg.labels is not None or cfg.label_key in table else stored.obs
            cells = None if cfg.labels is None else pd.Index(stored.names(0, stored.n_obs))
            tables.append(with_labels(table, cfg, source, cells))
    return tables


@progress("preparing the reference")
def make_reference(source: Sample | Sequence[Path], cfg: ReferenceOptions, apart: Container[str] = ()) -> Reference:
    """Filter, normalise and label cells, and split them into training and validation cells.

    Test cells (`data.split=column`) influence nothing. The cells of files stay on disk, except for validation cells and
    a sample of the training cells. Labels in `apart` are not joined with others.
    """
    sources: Sequence[Path | Sample] = [source] if isinstance(source, Sample) else source
    first = source.path if isinstance(source, Sample) else source[0]
    path = first if len(sources) == 1 else f"the {len(sources)} files"
    tables = read_obs(sources, cfg)
    cell_names = np.concatenate([table.index for table in tables])
    obs = pd.concat(tables, ignore_index=True)
    labels = labelling.deepest_labels(obs, cfg, path)
    is_test = _test_cells(obs, labels, cfg, path)
    if is_test.any() and isinstance(source, Sample):
        # Test cells must not even influence the kind of the values, so findings about all cells are dropped.
        return make_reference(replace(source, adata=source.adata[~is_test].copy(), findings=None), cfg, apart)
    called = labelling.are_calls(labels, obs, cfg.label_key, path)
    labels = labelling.joined_labels(labels, obs, cfg, path, apart)
    is_unlabelled = _unlabelled(obs, labels, cfg.label_key or "")
    left_out = is_unlabelled | is_test
    collection = make_collection(sources, cfg, left_out=left_out)
    starts = np.cumsum([0, *(part.findings.num_cells for part in collection.parts)])
    rows_left = np.concatenate([start + part.kept for start, part in zip(starts, collection.parts, strict=False)])
    labels_left = labels[~left_out]
    if lost := labels_left[~labels_left.isin(set(labels.iloc[rows_left]))].value_counts().to_dict():
        log.warning("labels whose cells are all dropped by data.min_genes=%d: %s", cfg.data.min_genes, named(lost))
    # Groups and columns decide which cells validate: of these, a sample is loaded. Otherwise fewer are chosen.
    is_capped = not isinstance(source, Sample) and cfg.data.split_key is None
    max_val = splits.MAX_VAL_CELLS if is_capped else math.inf
    rows, labelled = _label(obs.iloc[rows_left], labels.iloc[rows_left], cfg, path, max_val)
    labelled.cell_names = cell_names[rows_left][rows]
    labelled.called = called
    labelled.num_unlabelled = int(is_unlabelled.sum())
    num_genes = len(collection.genes)
    panel = ""
    if cfg.genes_path is not None:
        known, panel_path = collection.genes, cfg.genes_path
        in_panel = find_panel(read_genes(panel_path, known), known, "reference", species=cfg.species, path=panel_path)
        log.info("%s: the model has only its %d genes, and cells are normalised over these", panel_path, in_panel.sum())
        collection = replace(collection.of_genes(in_panel), own_totals=True)
        panel = f"; {len(collection.genes)} genes of {Path(cfg.genes_path).name} alone, and totals over these"
    labelled.genes = collection.genes
    labelled.own_totals = collection.own_totals
    if isinstance(source, Sample):
        labelled.x = collection.read(rows)
        labelled, collection = _without_unmeasured(labelled, collection, obs.iloc[rows_left[rows]], cfg)
        part = collection.parts[0]
        cells_dropped = (~left_out).sum() - len(collection)
        genes_dropped = part.findings.num_genes - num_genes
        dropped = f"{cells_dropped} cells and {genes_dropped} genes dropped by the filters"
        labelled.summary = f"{part.summary}; {dropped}{panel}"
        return labelled
    summaries = dict.fromkeys(part.summary for part in collection.parts)
    labelled.summary = "; ".join([*summaries, f"{len(sources)} files{panel}"])
    obs = obs.assign(**{FILE_OF_CELL: np.repeat(np.arange(len(tables)), [len(table) for table in tables])})
    return _load_sample(labelled, collection, rows, obs.iloc[rows_left[rows]], cfg)


def _load_sample(
    labelled: Reference, collection: CellCollection, cells: np.ndarray, obs: pd.DataFrame, cfg: ReferenceOptions
) -> Reference:
    """Return a reference whose training cells stay on disk; of them, and of validation cells, samples are loaded."""
    split = labelled.split
    labels = labelled.labels
    fit = split.train[stratified_sample(labels[split.train], splits.MAX_LOADED_CELLS, cfg.seed)]
    val = split.val
    if cfg.data.split_key is not None:
        val = val[stratified_sample(labels[val], splits.MAX_VAL_CELLS, cfg.seed)]
    notes = [f"The {len(split.train):,} training cells stayed on disk."]
    if len(fit) < len(split.train):
        notes.append(f"{len(fit):,} of them, each label in proportion, were loaded for what does not learn from all.")
    if len(val) < len(split.val):
        notes.append(f"Validation is on a sample of {len(val):,} of {len(split.val):,} cells.")
    for note in notes:
        log.info("%s", note)
    loaded = np.concatenate([fit, val])
    rows = np.arange(len(fit)), np.arange(len(fit), len(loaded))
    sample = replace(
        labelled,
        x=collection.read(cells[loaded]),
        labels=labels[loaded],
        split=Split(*rows, split.record, [*split.notes, *notes]),
        cell_names=labelled.cell_names[loaded],
        batches=None if labelled.batches is None else labelled.batches[loaded],
    )
    sample, collection = _without_unmeasured(sample, collection, obs.iloc[loaded], cfg)
    return replace(sample, stream=Stream(collection, cells[split.train], labels[split.train]))


def read_unlabelled(reference: Reference, cfg: ReferenceOptions) -> csr_matrix | None:
    """Read about 20,000 cells of `cfg.unlabelled`, ln(1 + cp10k), CSR float32, cells x genes of the reference.

    Without such files, return None. Cells are not filtered by `data.min_genes`, as a panel has few genes. A file with
    fewer than half of the genes is refused, as gene vectors treat absent genes as not expressed.
    """
    if not cfg.unlabelled:
        return None
    files = [Path(name) for name in cfg.unlabelled]
    on_disk = [stored_matrices(file) is not None for file in files]
    pairs = zip(files, on_disk, strict=True)
    sources = [file if stays else Sample(read_cells(file, cfg.orientation), file) for file, stays in pairs]
    unfiltered = replace(cfg, data=replace(cfg.data, min_genes=0))
    collection = make_collection(sources, unfiltered, reference.genes, min_shared=1)
    collection = replace(collection, own_totals=reference.own_totals)
    cells = stratified_sample(collection.file_of_cell, splits.MAX_FIT_CELLS, cfg.seed)
    num_genes = len(reference.genes)
    of_file = collection.file_of_cell[cells]
    for number, (file, mapping) in enumerate(zip(files, collection.maps, strict=True)):
        num_shared = len(np.unique(mapping.target[mapping.target >= 0]))
        if num_shared < num_genes / 2:
            found = f"{num_shared} of the {num_genes} genes of the reference in unlabelled file {file}"
            remedy = "leave it out, or give cells measured with the same genes"
            raise InputError("few-genes", found, "half of them", remedy)
        text = "%s: gene vectors are also learned from %d of its %d cells, with %d of the genes"
        log.info(text, file, (of_file == number).sum(), len(collection.parts[number].kept), num_shared)
    return collection.read(cells)
