"""References without cells: mean expression of cell types or bulk samples, from which cells are simulated.

The counts of a simulated cell are Poisson. Their rates are the shares of the genes in the profile, times log-normal
factors of each gene in each cell, which stand for the differences between cells of a type and between studies. Beside
real cells, they have the depths of these, and not only the labels that these lack: otherwise a model would tell
simulated cells from real ones, not types.

Shape letters: T profiles, N cells, G genes.
"""

import logging
from collections.abc import Container, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse
from scipy.sparse import csr_matrix

from scperformer.base.errors import InputError
from scperformer.base.messages import listed
from scperformer.base.sparse import label_means, undo_log
from scperformer.cells.collection import Filters, make_collection, stored_cells
from scperformer.cells.detect import matrices_of
from scperformer.cells.normalisation import normalise, recover_counts
from scperformer.cells.opened import OpenedCells, open_cells
from scperformer.cells.reference import Reference, make_reference
from scperformer.cells.reference_labels import (
    MAX_LABELS,
    CellLabels,
    ReferenceFile,
    columns_with_labels,
)
from scperformer.cells.splits import TEST, TRAIN
from scperformer.cells.values import MIN_BULK_SHARE, are_bulk, evenly_spaced
from scperformer.config.options import AUTO
from scperformer.config.training import ReferenceOptions
from scperformer.io.axes import AXIS_SHARE, axis_shares
from scperformer.io.read import require_readable
from scperformer.io.rows import Rows
from scperformer.io.safety import quiet_anndata, reading
from scperformer.labels.joining import MAP, replicate_types
from scperformer.labels.ontology import read_pairs
from scperformer.labels.texts import label_texts
from scperformer.labels.tree import UNKNOWN_TERM
from scperformer.trust.batch_effect import gene_factors

log = logging.getLogger(__name__)

MAX_PROFILES = 3  # of a label, on average; cells of a reference are at least ten times as many
MAX_SAMPLES = 10  # bulk samples of a label with whole counts, on average
MAX_PROFILE_ROWS = 10_000  # more are cells
NUM_SAMPLED_ROWS = 50  # rows whose expressed genes are counted
CELLS_PER_LABEL = 150  # simulated cells of each label
DEPTH = 10_000  # their median number of counts; models are refitted to shallower queries
DEPTH_SD = 0.4  # standard deviation of the logarithm of their number of counts
GENE_SD = 0.5  # of the logarithm of the factors of genes
NUM_DEPTHS = 2000  # real cells whose numbers of counts are taken
NUM_SIMILAR = 2  # profiles whose labels the cells have, too, that correct another; chosen in blood and pancreas
MIN_SHARED_GENES = 50  # of cells and profiles
SIMULATED_NOTE = (
    "Scores on held-out simulated cells say little about real cells: they are too easy."
)
SIMULATED = "simulated"  # batch or group of simulated cells
PLAIN_VALUES: dict[str, Any] = {"input_kind": AUTO, "input_total": None, "input_base": AUTO}
NAMES_KEY = "cell_type"  # column of labels that are the names of rows, if no label_key names it


def has_profiles(cells: ReferenceFile) -> bool:
    """Return whether rows are profiles or bulk samples, as `profiles` says, or by their labels, names and genes."""
    options = cells.options
    if options.profiles != AUTO:
        return options.profiles == "true"
    if cells.n_obs > MAX_PROFILE_ROWS or options.types is not None:
        return False
    obs = cells.obs
    if not len(obs.columns):  # rows are named by types, neither by barcodes nor by numbers
        names = list(map(str, cells.obs_names))
        type_of = replicate_types(set(names))
        types = sorted({type_of.get(name, name) for name in names})
        like_types = axis_shares(types)[1] < AXIS_SHARE and not any(map(str.isdecimal, types))
        return like_types and 1 < len(types) <= MAX_LABELS
    if options.label_key not in obs:
        return False
    labels = label_texts(obs[options.label_key]).dropna().unique()
    if len(labels) < 2:
        return False
    with reading(cells.path):
        matrix = next(iter(matrices_of(cells.adata).values()), csr_matrix((0, 0)))
        rows = Rows(matrix).some(evenly_spaced(matrix.shape[0], NUM_SAMPLED_ROWS))
    num_genes = matrix.shape[1]
    num_expressed = np.asarray((rows != 0).sum(axis=1)).ravel()
    are_counts = rows.nnz > 0 and bool((rows.data == np.rint(rows.data)).all())
    if cells.n_obs <= MAX_PROFILES * min(len(labels), MAX_LABELS):
        are_barcodes = axis_shares(sorted(labels))[1] >= AXIS_SHARE
        return not are_barcodes and not (
            are_counts and np.median(num_expressed) <= MIN_BULK_SHARE * num_genes
        )
    is_bulk = rows.nnz > 0 and are_bulk(num_expressed, num_genes)
    if is_bulk and are_counts and cells.n_obs > MAX_SAMPLES * len(labels):
        text = "%s: rows are taken for cells, as many have whole counts of a label; profiles=true takes them for bulk"
        log.info(text, cells.path)
        return False
    return is_bulk


def added_profiles(options: ReferenceOptions) -> list[Path]:
    """Return the files of profiles beside a single file of cells, whose labels they complete; else none."""
    files = [Path(name) for name in options.inputs]
    if len(files) < 2 or options.profiles != AUTO:
        return []
    found = []
    for path in files:
        is_zarr = require_readable(path) == "zarr"  # which `open_cells` would read as a whole
        with (
            nullcontext(stored_cells(path, options))
            if is_zarr
            else open_cells(path, options) as cells
        ):
            found += [path] if has_profiles(cells) else []
    return found if len(files) - len(found) == 1 else []


def reference_of(
    files: Sequence[ReferenceFile],
    profiles: Sequence[ReferenceFile] = (),
    distinct: Container[str] = (),
) -> Reference:
    """Make a reference of cells, which `profiles` complete, or of cells that are simulated of profiles alone.

    Only cells in memory can be profiles, or be completed. Labels that are `distinct` are not joined with others.
    """
    cells = files[0]
    if cells.is_on_disk:
        if profiles:
            remedy = "leave data.in_memory out, or add studies=true for a model of each file"
            found = f"profiles beside {cells.path}, which stays on disk"
            raise InputError("storage", found, "cells in memory", remedy)
        return make_reference(files, distinct)
    if cells.options.labels is not None:
        adata = cells.adata.copy()
        adata.obs = columns_with_labels(cells)
        cells = OpenedCells(adata, replace(cells.options, labels=None), cells.path)
    if profiles:
        simulated, labels = add_profiles(cells, profiles)
    elif has_profiles(cells):
        simulated = simulate_cells(cells)
        labels = sorted(set(simulated.obs[simulated.options.label_key]))
    else:
        return make_reference([cells], distinct)
    reference = make_reference([simulated], distinct)
    # others were joined to one of them
    labels = [label for label in labels if label in reference.label_names]
    num = len(reference.label_names)
    note = (
        f"all cells of {len(labels)} of {num} labels are simulated from profiles ({listed(labels)})"
    )
    log.warning("%s: held-out ones among them are easier than real cells", note)
    reference.summary = f"{note}, {reference.summary.partition(', ')[2]}"
    reference.notes.append(SIMULATED_NOTE)
    return reference


def _opened(adata: AnnData, cells: ReferenceFile, values: dict[str, Any]) -> ReferenceFile:
    """Open cells that are simulated, whose values are known."""
    options = replace(cells.options, source="X", **PLAIN_VALUES | values)
    opened = OpenedCells(adata, options, cells.path)
    opened.find_expression()
    return opened


def simulate_cells(profiles: ReferenceFile) -> ReferenceFile:
    """Simulate cells of each profile, whose columns of obs are repeated: counts, CSR float32, N x G."""
    profiles = _labelled(profiles)
    labels = profiles.obs[profiles.options.label_key]
    shares = _shares(
        normalise(profiles.rows.block(0, profiles.n_obs), profiles.findings, 1.0), profiles.path
    )
    rng = np.random.default_rng(profiles.options.seed)
    nums = _nums(labels)
    counts = _simulate(shares, nums, _usual_depths(nums.sum(), rng), rng)
    text = "%s: %d profiles of %d cell types, %s; %s cells are simulated from them"
    facts = len(nums), labels.nunique(), profiles.findings.sentence, f"{nums.sum():,}"
    log.info(text, profiles.path, *facts)
    obs = profiles.obs.iloc[np.repeat(np.arange(len(nums)), nums)]
    obs = obs.set_axis([f"{SIMULATED}{number}" for number in range(len(obs))])
    return _opened(AnnData(counts, obs=obs, var=profiles.var), profiles, {"input_kind": "counts"})


def add_profiles(
    cells: ReferenceFile, profiles: Sequence[ReferenceFile]
) -> tuple[ReferenceFile, list[str]]:
    """Add cells that are simulated of profiles, and return the labels of which there are no other cells.

    X is ln(1 + counts per 10,000), CSR float32, of the genes that all files measure. `source` and the like apply to the
    cells. Labels with the same ontology id are the same label. Test cells are left out.
    """
    options = cells.options
    key = options.label_key
    data = options.data
    if data.split == "column" and data.split_key in cells.obs:
        cells = cells.without((label_texts(cells.obs[data.split_key]) == TEST).to_numpy())
    table = CellLabels.of_files([cells])
    is_known = table.is_known
    table = table.rows(is_known)
    profiles = [_labelled(file, source=AUTO, species=AUTO, **PLAIN_VALUES) for file in profiles]
    (x, *expression), genes, shared = _read_together([cells, *profiles])
    rng = np.random.default_rng(options.seed)
    counts = recover_counts(x[evenly_spaced(x.shape[0], NUM_DEPTHS)])  # of some cells
    depths = (
        _usual_depths(NUM_DEPTHS, rng) if counts is None else np.asarray(counts.sum(axis=1)).ravel()
    )
    depths = depths[depths > 0]
    names, codes = np.unique(table.labels.to_numpy(str), return_inverse=True)
    means = label_means(undo_log(x[is_known][:, shared]), codes, len(names))
    name_of_term = _label_of_term(table)
    blocks = [x[:, shared]]
    tables = [cells.obs]
    known = set(names)
    sides = (
        (options.batch_key, SIMULATED),
        (data.split_key, TRAIN if data.split == "column" else SIMULATED),
    )
    usual = {column: value for column, value in sides if column is not None}
    for file, values in zip(profiles, expression, strict=True):
        terms = _label_of_term(CellLabels.of_files([file])).items()
        same = {
            label: name_of_term[term]
            for term, label in terms
            if label not in names and term in name_of_term
        }
        obs = file.obs.assign(**usual)
        labels = obs[key] = obs[key].replace(same)
        shares = _shares(values, file.path)[:, shared]
        if labels.isin(known).all():
            remedy = "leave the file out, or add studies=true for a model of each file"
            found = f"{file.path} without a label that the cells lack"
            raise InputError("no-new-label", found, "profiles of other labels", remedy)
        known |= set(labels)
        shares = _in_chemistry_of_cells(shares, labels, names, means, file.path)
        nums = _nums(labels)
        drawn = rng.choice(depths, nums.sum())
        simulated = _simulate(shares, nums, drawn, rng)
        blocks.append(
            (sparse.diags(data.target_sum / drawn) @ simulated).log1p().astype(np.float32)
        )
        tables.append(obs.iloc[np.repeat(np.arange(len(nums)), nums)])
    obs = pd.concat([each.astype(object) for each in tables], ignore_index=True).rename(str)
    adata = AnnData(
        sparse.vstack(blocks, format="csr"), obs=obs, var=pd.DataFrame(index=genes[shared])
    )
    form = {"input_kind": "log1p", "input_total": data.target_sum, "input_base": "e"}
    return _opened(adata, cells, form), sorted(known.difference(names))


def _read_together(
    files: Sequence[ReferenceFile],
) -> tuple[list[csr_matrix], np.ndarray, np.ndarray]:
    """Return ln(1 + cp10k) of each file over all genes, the genes, and which of them all files measure."""
    collection = make_collection(files, Filters())
    measured = [
        np.isin(np.arange(len(collection.genes)), mapping.target) for mapping in collection.maps
    ]
    shared = np.logical_and.reduce(measured)
    if shared.sum() < MIN_SHARED_GENES:
        found = f"{shared.sum()} genes that all of {listed(cells.path for cells in files)} measure"
        remedy = "give profiles of the same species and kind of gene id"
        raise InputError("few-genes", found, f"{MIN_SHARED_GENES} or more", remedy)
    log.info("%d of %d genes are measured in all files", shared.sum(), len(shared))
    ends = pairwise(collection.starts.tolist())
    expression = [collection.read(np.arange(start, stop)) for start, stop in ends]
    return expression, np.array(collection.genes, dtype=object), shared


def _labelled(profiles: ReferenceFile, **changes: Any) -> ReferenceFile:
    """Return the profiles with a label; without any column in obs, the names of the rows become the labels.

    Names that differ in a number at their end, as R and pandas make names unique, are one label. `changes` are of the
    options with which their expression is found.
    """
    options = profiles.options
    key = (
        NAMES_KEY
        if options.label_key is None and not len(profiles.obs.columns)
        else options.label_key
    )
    options = replace(options, label_key=key, **changes)
    with quiet_anndata():  # rows of one type may have its name
        adata = profiles.adata.copy()
    if not len(adata.obs.columns):
        names = list(map(str, adata.obs_names))
        mapped = (
            []
            if options.label_map is None
            else [label for label, _ in read_pairs(options.label_map, MAP)]
        )
        if types := replicate_types(set(names).difference(mapped)):
            shown = listed(f"'{name}' is '{kind}'" for name, kind in types.items())
            text = "%s: names that differ in a number at the end are one type: %s; label_map=... keeps them apart"
            log.warning(text, profiles.path, shown)
        adata.obs[key] = [types.get(name, name) for name in names]
    adata.obs[key] = CellLabels.of(adata.obs, options, profiles.path).labels.array
    adata.obs_names = [f"{profiles.name} {number}" for number in range(len(adata.obs))]
    return OpenedCells(adata[adata.obs[key].notna()].copy(), options, profiles.path)


def _label_of_term(table: CellLabels) -> dict[str, str]:
    """Return the label of each ontology id."""
    ids = table.terms().ids
    return {
        term: label
        for label, term in zip(np.unique(table.labels), ids, strict=True)
        if term != UNKNOWN_TERM
    }


def _shares(x: csr_matrix, path: str) -> csr_matrix:
    """Return the share of each gene in profiles, T x G, from ln(1 + expression)."""
    values = undo_log(x)
    totals = np.asarray(values.sum(axis=1)).ravel()
    if not (totals > 0).all():
        found = f"a profile without expression in {path}"
        raise InputError("empty-profile", found, "expression in each row", "leave it out")
    return csr_matrix(sparse.diags(1 / totals) @ values)


def _nums(labels: pd.Series) -> np.ndarray:
    """Return how many cells are simulated of each profile, T."""
    return -(
        -CELLS_PER_LABEL // labels.groupby(labels, observed=True).transform("size").to_numpy(int)
    )


def _usual_depths(num: int, rng: np.random.Generator) -> np.ndarray:
    return DEPTH * np.exp(rng.normal(0, DEPTH_SD, num))


def _in_chemistry_of_cells(
    shares: csr_matrix, labels: pd.Series, names: np.ndarray, means: np.ndarray, path: str
) -> csr_matrix:
    """Return T profiles in the scale of cells, with factors of the most similar profiles to `means` of their labels."""
    both = np.flatnonzero(labels.isin(names))
    if not len(both):
        log.warning(
            "%s: no label that the cells have, by which another chemistry could be corrected", path
        )
        return shares
    log.info(
        "%s: corrected for the expression of %s in the cells",
        path,
        listed(sorted(set(labels.iloc[both]))),
    )
    expression = (1e4 * shares).log1p().toarray()
    similarity = np.corrcoef(expression - expression.mean(axis=0))
    corrected = []
    for row in range(len(labels)):
        nearest = both[np.argsort(-similarity[row, both])[:NUM_SIMILAR]]
        # as certain as so many cells
        x = csr_matrix(np.repeat(expression[nearest], CELLS_PER_LABEL, axis=0))
        predicted = np.repeat(
            np.searchsorted(names, labels.iloc[nearest].to_numpy(str)), CELLS_PER_LABEL
        )
        corrected.append(shares[row] @ sparse.diags(1 / gene_factors(x, predicted, means)))
    return csr_matrix(sparse.vstack(corrected))


def simulated_counts(shares: csr_matrix, num: int, seed: int) -> csr_matrix:
    """Simulate `num` cells of each of T profiles, T x G shares of genes, one after the other: CSR float32, N x G."""
    rng = np.random.default_rng(seed)
    nums = np.full(shares.shape[0], num)
    return _simulate(shares, nums, _usual_depths(nums.sum(), rng), rng)


def _simulate(
    shares: csr_matrix, nums: np.ndarray, depths: np.ndarray, rng: np.random.Generator
) -> csr_matrix:
    """Simulate `nums` cells of each of T profiles, T x G, with expected counts `depths`, N: counts, CSR float32."""
    counts = []
    for row, stop, num in zip(shares, np.cumsum(nums), nums, strict=True):
        shares_G = row.toarray().ravel()
        rates_NG = shares_G * np.exp(rng.normal(0, GENE_SD, (num, len(shares_G))))
        rates_NG *= (
            depths[stop - num : stop, None] * shares_G.sum() / rates_NG.sum(axis=1, keepdims=True)
        )
        counts.append(csr_matrix(rng.poisson(rates_NG), dtype=np.float32))
    return sparse.vstack(counts, format="csr")
