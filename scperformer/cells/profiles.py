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

from scperformer.base.errors import InputError
from scperformer.base.messages import listed
from scperformer.base.sparse import label_means, undo_log
from scperformer.cells.detect import Stated, detect_expression, gene_table, stored_expression
from scperformer.cells.normalisation import normalise, recover_counts
from scperformer.cells.on_disk import Sample, make_collection
from scperformer.cells.reference import Reference, make_reference
from scperformer.cells.reference_labels import MAX_LABELS, deepest_labels, read_terms
from scperformer.cells.splits import TEST, TRAIN
from scperformer.cells.values import MIN_BULK_SHARE, are_bulk, evenly_spaced
from scperformer.config.options import AUTO
from scperformer.config.training import ReferenceOptions
from scperformer.io.axes import AXIS_SHARE, axis_shares
from scperformer.io.h5ad import BackedH5ad, open_stored
from scperformer.io.read import open_adata, require_readable
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
MAX_ROWS = 10_000  # more are cells
NUM_SAMPLED_ROWS = 50  # rows whose expressed genes are counted
CELLS_PER_LABEL = 150  # simulated cells of each label
DEPTH = 10_000  # their median number of counts; models are refitted to shallower queries
DEPTH_SD = 0.4  # standard deviation of the logarithm of their number of counts
GENE_SD = 0.5  # of the logarithm of the factors of genes
NUM_DEPTHS = 2000  # real cells whose numbers of counts are taken
NUM_SIMILAR = 2  # profiles whose labels the cells have, too, that correct another; chosen in blood and pancreas
MIN_SHARED_GENES = 50  # of cells and profiles
SIMULATED_NOTE = "Scores on held-out simulated cells say little about real cells: they are too easy."
SIMULATED = "simulated"  # batch or group of simulated cells
NAMES_KEY = "cell_type"  # column of labels that are the names of rows, if no label_key names it


def has_profiles(cells: AnnData | BackedH5ad, cfg: ReferenceOptions, path: Path) -> bool:
    """Return whether rows are profiles or bulk samples, as `profiles` says, or by their labels, names and genes."""
    if cfg.profiles != AUTO:
        return cfg.profiles == "true"
    if cells.n_obs > MAX_ROWS:
        return False
    if not len(cells.obs.columns):  # rows are named by types, neither by barcodes nor by numbers
        names = list(map(str, cells.obs_names))
        type_of = replicate_types(set(names))
        types = sorted({type_of.get(name, name) for name in names})
        like_types = axis_shares(types)[1] < AXIS_SHARE and not any(map(str.isdecimal, types))
        return like_types and 1 < len(types) <= MAX_LABELS
    if cfg.label_key not in cells.obs:
        return False
    labels = label_texts(cells.obs[cfg.label_key]).dropna().unique()
    if len(labels) < 2:
        return False
    with reading(path):
        matrix = next((x for x in (cells.X, *cells.layers.values()) if x is not None), None)
        some = (
            sparse.csr_matrix((0, 0))
            if matrix is None
            else Rows(matrix).some(evenly_spaced(cells.n_obs, NUM_SAMPLED_ROWS))
        )
    num_expressed = np.asarray((some != 0).sum(axis=1)).ravel()
    are_counts = some.nnz > 0 and bool((some.data == np.rint(some.data)).all())
    if cells.n_obs <= MAX_PROFILES * min(len(labels), MAX_LABELS):
        are_barcodes = axis_shares(sorted(labels))[1] >= AXIS_SHARE
        return not are_barcodes and not (are_counts and np.median(num_expressed) <= MIN_BULK_SHARE * cells.n_vars)
    is_bulk = some.nnz > 0 and are_bulk(num_expressed, cells.n_vars)
    if is_bulk and are_counts and cells.n_obs > MAX_SAMPLES * len(labels):
        text = "%s: rows are taken for cells, as many have whole counts of a label; profiles=true takes them for bulk"
        log.info(text, path)
        return False
    return is_bulk


def added_profiles(cfg: ReferenceOptions) -> list[Path]:
    """Return the files of profiles beside a single file of cells, whose labels they complete; else none."""
    files = [Path(name) for name in cfg.inputs]
    if len(files) < 2 or cfg.profiles != AUTO:
        return []
    found = []
    for path in files:
        is_zarr = require_readable(path) == "zarr"  # which `open_cells` would read as a whole
        with reading(path), nullcontext(open_stored(path)) if is_zarr else open_adata(path, cfg.orientation) as cells:
            found += [path] if has_profiles(cells, cfg, path) else []
    return found if len(files) - len(found) == 1 else []


def reference_with_profiles(
    source: Sample, profiles: Sequence[Sample], cfg: ReferenceOptions, apart: Container[str] = ()
) -> Reference:
    """Make a reference of cells, which `profiles` complete, or of cells that are simulated of profiles alone."""
    if not profiles and not has_profiles(source.adata, cfg, source.path):
        return make_reference(source, cfg, apart)
    values: dict[str, Any] = {"input_kind": "counts", "input_total": None, "input_base": "auto"}
    if profiles:
        values = {"input_kind": "log1p", "input_total": cfg.data.target_sum, "input_base": "e"}
        simulated, labels = add_profiles(source, profiles, cfg)
    else:
        if cfg.label_key is None and not len(source.adata.obs.columns):
            cfg = replace(cfg, label_key=NAMES_KEY)
        simulated = simulate_cells(source.adata, cfg, source.path)
        labels = sorted(set(simulated.obs[cfg.label_key]))
    findings = detect_expression(simulated, Stated("X", **values))
    sample = Sample(simulated, source.path, findings=findings)
    reference = make_reference(sample, replace(cfg, source="X", **values), apart)
    labels = [label for label in labels if label in reference.label_names]  # others were joined to one of them
    num = len(reference.label_names)
    note = f"all cells of {len(labels)} of {num} labels are simulated from profiles ({listed(labels)})"
    log.warning("%s: held-out ones among them are easier than real cells", note)
    reference.summary = f"{note}, {reference.summary.partition(', ')[2]}"
    reference.split.notes.append(SIMULATED_NOTE)
    return reference


def simulate_cells(profiles: AnnData, cfg: ReferenceOptions, path: Path) -> AnnData:
    """Simulate cells of each profile, whose columns of obs are repeated: counts, CSR float32, N x G."""
    profiles = _labelled(profiles, cfg, path)
    findings = detect_expression(profiles, Stated.by(cfg), path=path)
    rows, _ = stored_expression(profiles, findings, path=path)
    shares = _shares(normalise(rows.block(0, profiles.n_obs), findings, 1.0), path)
    rng = np.random.default_rng(cfg.seed)
    nums = _nums(profiles.obs[cfg.label_key])
    counts = _simulate(shares, nums, _usual_depths(nums.sum(), rng), rng)
    num_labels = profiles.obs[cfg.label_key].nunique()
    text = "%s: %d profiles of %d cell types, %s; %s cells are simulated from them"
    log.info(text, path, len(nums), num_labels, findings.sentence, f"{len(counts.indptr) - 1:,}")
    obs = profiles.obs.iloc[np.repeat(np.arange(len(nums)), nums)]
    names = [f"{SIMULATED}{number}" for number in range(len(obs))]
    return AnnData(counts, obs=obs.set_axis(names), var=gene_table(profiles, findings))


def add_profiles(cells: Sample, profiles: Sequence[Sample], cfg: ReferenceOptions) -> tuple[AnnData, list[str]]:
    """Add cells that are simulated of profiles, and return the labels of which there are no other cells.

    X is ln(1 + counts per 10,000), CSR float32, of the genes that all files measure. `source` and the like apply to the
    cells. Labels with the same ontology id are the same label. Test cells are left out.
    """
    if cfg.data.split == "column" and cfg.data.split_key in cells.adata.obs:
        is_test = (label_texts(cells.adata.obs[cfg.data.split_key]) == TEST).to_numpy()
        cells = Sample(cells.adata[~is_test].copy(), cells.path)
    labels = deepest_labels(cells.adata.obs, cfg, cells.path)
    labelled = [replace(file, adata=_labelled(file.adata, cfg, file.path)) for file in profiles]
    labelled = [replace(file, findings=detect_expression(file.adata, path=file.path)) for file in labelled]
    (x, *expression), genes, shared = _read_together([cells, *labelled], cfg)
    rng = np.random.default_rng(cfg.seed)
    counts = recover_counts(x[evenly_spaced(x.shape[0], NUM_DEPTHS)])  # of some cells
    depths = _usual_depths(NUM_DEPTHS, rng) if counts is None else np.asarray(counts.sum(axis=1)).ravel()
    depths = depths[depths > 0]
    is_known = labels.notna().to_numpy()
    names, codes = np.unique(labels[is_known].to_numpy(str), return_inverse=True)
    means = label_means(undo_log(x[is_known][:, shared]), codes, len(names))
    name_of_term = _label_of_term(cells.adata.obs[is_known], names[codes], cfg, cells.path)
    blocks = [x[:, shared]]
    tables = [cells.adata.obs]
    known = set(names)
    side = TRAIN if cfg.data.split == "column" else SIMULATED
    for file, values in zip(labelled, expression, strict=True):
        obs = file.adata.obs
        terms = _label_of_term(obs, obs[cfg.label_key].to_numpy(str), cfg, file.path).items()
        same = {label: name_of_term[term] for term, label in terms if label not in names and term in name_of_term}
        obs[cfg.label_key] = obs[cfg.label_key].replace(same)
        shares = _shares(values, file.path)[:, shared]
        if obs[cfg.label_key].isin(known).all():
            remedy = "leave the file out, or add studies=true for a model of each file"
            found = f"{file.path} without a label that the cells lack"
            raise InputError("no-new-label", found, "profiles of other labels", remedy)
        known |= set(obs[cfg.label_key])
        shares = _in_chemistry_of_cells(shares, obs[cfg.label_key], names, means, file.path)
        nums = _nums(obs[cfg.label_key])
        drawn = rng.choice(depths, nums.sum())
        simulated = _simulate(shares, nums, drawn, rng)
        blocks.append((sparse.diags(cfg.data.target_sum / drawn) @ simulated).log1p().astype(np.float32))
        table = obs.iloc[np.repeat(np.arange(len(obs)), nums)].copy()
        for key, value in ((cfg.batch_key, SIMULATED), (cfg.data.split_key, side)):
            if key is not None:
                table[key] = value
        tables.append(table)
    obs = pd.concat([table.astype(object) for table in tables], ignore_index=True).rename(str)
    adata = AnnData(sparse.vstack(blocks, format="csr"), obs=obs, var=pd.DataFrame(index=genes[shared]))
    return adata, sorted(known.difference(names))


def _read_together(
    samples: Sequence[Sample], cfg: ReferenceOptions
) -> tuple[list[sparse.csr_matrix], np.ndarray, np.ndarray]:
    """Return ln(1 + cp10k) of each sample over all genes, the genes, and which of them all samples measure."""
    whole = replace(cfg, data=replace(cfg.data, min_genes=0, min_cells=0))
    collection = make_collection(samples, whole)
    measured = [np.isin(np.arange(len(collection.genes)), mapping.target) for mapping in collection.maps]
    shared = np.logical_and.reduce(measured)
    if shared.sum() < MIN_SHARED_GENES:
        found = f"{shared.sum()} genes that all of {listed(str(each.path) for each in samples)} measure"
        remedy = "give profiles of the same species and kind of gene id"
        raise InputError("few-genes", found, f"{MIN_SHARED_GENES} or more", remedy)
    log.info("%d of %d genes are measured in all files", shared.sum(), len(shared))
    ends = pairwise(collection.starts.tolist())
    expression = [collection.read(np.arange(start, stop)) for start, stop in ends]
    return expression, np.array(collection.genes, dtype=object), shared


def _labelled(profiles: AnnData, cfg: ReferenceOptions, path: Path) -> AnnData:
    """Return the profiles with a label; without any column in obs, the names of the rows become the labels.

    Names that differ in a number at their end, as R and pandas make names unique, are one label.
    """
    with quiet_anndata():  # rows of one type may have its name
        profiles = profiles.copy()
    if not len(profiles.obs.columns):
        names = list(map(str, profiles.obs_names))
        mapped = [] if cfg.label_map is None else [label for label, _ in read_pairs(cfg.label_map, MAP)]
        if types := replicate_types(set(names).difference(mapped)):
            shown = listed(f"'{name}' is '{kind}'" for name, kind in types.items())
            text = "%s: names that differ in a number at the end are one type: %s; label_map=... keeps them apart"
            log.warning(text, path, shown)
        profiles.obs[cfg.label_key] = [types.get(name, name) for name in names]
    profiles.obs[cfg.label_key] = deepest_labels(profiles.obs, cfg, path)
    profiles.obs_names = [f"{path.name} {number}" for number in range(len(profiles.obs))]
    return profiles[profiles.obs[cfg.label_key].notna()].copy()


def _label_of_term(obs: pd.DataFrame, labels: np.ndarray, cfg: ReferenceOptions, path: Path) -> dict[str, str]:
    """Return the label of each ontology id."""
    ids = read_terms(obs, labels, cfg, path).ids
    return {term: label for label, term in zip(np.unique(labels), ids, strict=True) if term != UNKNOWN_TERM}


def _shares(x: sparse.csr_matrix, path: Path) -> sparse.csr_matrix:
    """Return the share of each gene in profiles, T x G, from ln(1 + expression)."""
    values = undo_log(x)
    totals = np.asarray(values.sum(axis=1)).ravel()
    if not (totals > 0).all():
        found = f"a profile without expression in {path}"
        raise InputError("empty-profile", found, "expression in each row", "leave it out")
    return sparse.csr_matrix(sparse.diags(1 / totals) @ values)


def _nums(labels: pd.Series) -> np.ndarray:
    """Return how many cells are simulated of each profile, T."""
    return -(-CELLS_PER_LABEL // labels.groupby(labels, observed=True).transform("size").to_numpy(int))


def _usual_depths(num: int, rng: np.random.Generator) -> np.ndarray:
    return DEPTH * np.exp(rng.normal(0, DEPTH_SD, num))


def _in_chemistry_of_cells(
    shares: sparse.csr_matrix, labels: pd.Series, names: np.ndarray, means: np.ndarray, path: Path
) -> sparse.csr_matrix:
    """Return T profiles in the scale of cells, with factors of the most similar profiles to `means` of their labels."""
    both = np.flatnonzero(labels.isin(names))
    if not len(both):
        log.warning("%s: no label that the cells have, by which another chemistry could be corrected", path)
        return shares
    log.info("%s: corrected for the expression of %s in the cells", path, listed(sorted(set(labels.iloc[both]))))
    expression = (1e4 * shares).log1p().toarray()
    similarity = np.corrcoef(expression - expression.mean(axis=0))
    corrected = []
    for row in range(len(labels)):
        nearest = both[np.argsort(-similarity[row, both])[:NUM_SIMILAR]]
        x = sparse.csr_matrix(np.repeat(expression[nearest], CELLS_PER_LABEL, axis=0))  # as certain as so many cells
        predicted = np.repeat(np.searchsorted(names, labels.iloc[nearest].to_numpy(str)), CELLS_PER_LABEL)
        corrected.append(shares[row] @ sparse.diags(1 / gene_factors(x, predicted, means)))
    return sparse.csr_matrix(sparse.vstack(corrected))


def simulated_counts(shares: sparse.csr_matrix, num: int, seed: int) -> sparse.csr_matrix:
    """Simulate `num` cells of each of T profiles, T x G shares of genes, one after the other: CSR float32, N x G."""
    rng = np.random.default_rng(seed)
    nums = np.full(shares.shape[0], num)
    return _simulate(shares, nums, _usual_depths(nums.sum(), rng), rng)


def _simulate(
    shares: sparse.csr_matrix, nums: np.ndarray, depths: np.ndarray, rng: np.random.Generator
) -> sparse.csr_matrix:
    """Simulate `nums` cells of each of T profiles, T x G, with expected counts `depths`, N: counts, CSR float32."""
    counts = []
    for row, stop, num in zip(shares, np.cumsum(nums), nums, strict=True):
        shares_G = row.toarray().ravel()
        rates_NG = shares_G * np.exp(rng.normal(0, GENE_SD, (num, len(shares_G))))
        rates_NG *= depths[stop - num : stop, None] * shares_G.sum() / rates_NG.sum(axis=1, keepdims=True)
        counts.append(sparse.csr_matrix(rng.poisson(rates_NG), dtype=np.float32))
    return sparse.vstack(counts, format="csr")
