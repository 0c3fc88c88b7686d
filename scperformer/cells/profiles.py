"""References without cells: mean expression of cell types or bulk samples, from which cells are simulated.

The counts of a simulated cell are Poisson. Their rates are the shares of the genes in the profile, times log-normal
factors of each gene in each cell, which stand for the differences between cells of a type and between studies.

Shape letters: T profiles, N cells, G genes.
"""

import logging
from collections.abc import Container
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from anndata import AnnData
from scipy import sparse

from scperformer.base.errors import InputError
from scperformer.base.messages import listed
from scperformer.cells.detect import Stated, detect_expression, gene_table, stored_expression
from scperformer.cells.normalisation import normalise, undo_log
from scperformer.cells.on_disk import Sample
from scperformer.cells.reference import Reference, make_reference
from scperformer.cells.reference_labels import MAX_LABELS, deepest_labels
from scperformer.cells.values import are_bulk, evenly_spaced
from scperformer.config.options import AUTO
from scperformer.config.training import ReferenceOptions
from scperformer.io.axes import AXIS_SHARE, axis_shares
from scperformer.io.h5ad import BackedH5ad
from scperformer.io.rows import Rows
from scperformer.io.safety import quiet_anndata, reading
from scperformer.labels.joining import MAP, replicate_types
from scperformer.labels.ontology import read_pairs
from scperformer.labels.texts import label_texts

log = logging.getLogger(__name__)

MAX_PROFILES = 3  # of a label, on average; cells of a reference are at least ten times as many
MAX_ROWS = 10_000  # more are cells
NUM_SAMPLED_ROWS = 50  # rows whose expressed genes are counted
CELLS_PER_LABEL = 150  # simulated cells of each label
DEPTH = 10_000  # their median number of counts; models are refitted to shallower queries
DEPTH_SD = 0.4  # standard deviation of the logarithm of their number of counts
GENE_SD = 0.5  # of the logarithm of the factors of genes
SIMULATED_NOTE = "Scores on held-out simulated cells say little about real cells: they are too easy."
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
    num_labels = label_texts(cells.obs[cfg.label_key]).nunique()
    if num_labels < 2:
        return False
    if cells.n_obs <= MAX_PROFILES * min(num_labels, MAX_LABELS):
        return True
    with reading(path):
        matrix = next((x for x in (cells.X, *cells.layers.values()) if x is not None), None)
        some = None if matrix is None else Rows(matrix).some(evenly_spaced(cells.n_obs, NUM_SAMPLED_ROWS))
    return some is not None and are_bulk(np.asarray((some != 0).sum(axis=1)).ravel(), cells.n_vars)


def make_any_reference(source: Sample, cfg: ReferenceOptions, apart: Container[str] = ()) -> Reference:
    """Make a reference of cells, or of cells that are simulated from profiles."""
    if not has_profiles(source.adata, cfg, source.path):
        return make_reference(source, cfg, apart)
    if cfg.label_key is None and not len(source.adata.obs.columns):
        cfg = replace(cfg, label_key=NAMES_KEY)
    simulated = simulate_cells(source.adata, cfg, source.path)
    values: dict[str, Any] = {"input_kind": "counts", "input_total": None, "input_base": "auto"}
    findings = detect_expression(simulated, Stated("X", **values))
    sample = Sample(simulated, source.path, findings=findings)
    reference = make_reference(sample, replace(cfg, source="X", **values), apart)
    labels = reference.label_names
    note = f"all cells of {len(labels)} of {len(labels)} labels are simulated from profiles ({listed(labels)})"
    log.warning("%s: held-out ones among them are easier than real cells", note)
    reference.summary = f"{note}, {reference.summary.partition(', ')[2]}"
    reference.split.notes.append(SIMULATED_NOTE)
    return reference


def simulate_cells(profiles: AnnData, cfg: ReferenceOptions, path: Path) -> AnnData:
    """Simulate cells of each profile, whose columns of obs are repeated: counts, CSR float32, N x G."""
    profiles = _labelled(profiles, cfg, path)
    findings = detect_expression(profiles, Stated.by(cfg), path=path)
    rows, _ = stored_expression(profiles, findings, path=path)
    values = undo_log(normalise(rows.block(0, profiles.n_obs), findings, 1.0))
    totals = np.asarray(values.sum(axis=1)).ravel()
    if not (totals > 0).all():
        found = f"a profile without expression in {path}"
        raise InputError("empty-profile", found, "expression in each row", "leave it out")
    labels = profiles.obs[cfg.label_key]
    nums = -(-CELLS_PER_LABEL // labels.groupby(labels, observed=True).transform("size").to_numpy(int))
    counts = simulated_counts(sparse.csr_matrix(sparse.diags(1 / totals) @ values), nums, cfg.seed)
    text = "%s: %d profiles of %d cell types, %s; %s cells are simulated from them"
    log.info(text, path, len(nums), labels.nunique(), findings.sentence, f"{len(counts.indptr) - 1:,}")
    obs = profiles.obs.iloc[np.repeat(np.arange(len(nums)), nums)]
    names = [f"simulated{number}" for number in range(len(obs))]
    return AnnData(counts, obs=obs.set_axis(names), var=gene_table(profiles, findings))


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


def simulated_counts(shares: sparse.csr_matrix, nums: int | np.ndarray, seed: int) -> sparse.csr_matrix:
    """Simulate cells of T profiles, T x G shares of genes, `nums` (T, or one for all) of each: counts, CSR float32."""
    rng = np.random.default_rng(seed)
    nums = np.broadcast_to(nums, shares.shape[0])
    depths = DEPTH * np.exp(rng.normal(0, DEPTH_SD, nums.sum()))
    counts = []
    for row, stop, num in zip(shares, np.cumsum(nums), nums, strict=True):
        shares_G = row.toarray().ravel()
        rates_NG = shares_G * np.exp(rng.normal(0, GENE_SD, (num, len(shares_G))))
        rates_NG *= depths[stop - num : stop, None] * shares_G.sum() / rates_NG.sum(axis=1, keepdims=True)
        counts.append(sparse.csr_matrix(rng.poisson(rates_NG), dtype=np.float32))
    return sparse.vstack(counts, format="csr")
