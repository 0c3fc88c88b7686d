"""References without cells: mean expression of cell types, from which cells are simulated.

The counts of a simulated cell are Poisson. Their rates are the shares of the genes in the profile, times log-normal
factors of each gene in each cell, which stand for the differences between cells of a type and between studies.

Shape letters: T profiles, N cells, G genes.
"""

import logging
from pathlib import Path

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

from scperformer.base.errors import InputError
from scperformer.cells.detect import detect_expression, gene_table, stored_expression
from scperformer.cells.normalisation import normalise
from scperformer.config.training import ReferenceOptions

log = logging.getLogger(__name__)

MAX_PROFILES = 3  # of a label, on average; cells of a reference are at least ten times as many
MAX_ROWS = 10_000  # more are cells
NUM_CELLS = 150  # simulated cells of each label
DEPTH = 10_000  # their median number of counts; models are refitted to shallower queries
DEPTH_SD = 0.4  # standard deviation of the logarithm of their number of counts
GENE_SD = 0.5  # of the logarithm of the factors of genes


def has_profiles(adata: AnnData, label_key: str) -> bool:
    """Return whether rows are profiles of cell types: few for each label, or a table whose rows are named by them."""
    labels = adata.obs.get(label_key)
    if labels is None:
        return adata.obs.shape[1] == 0
    num_labels = labels.astype(str).nunique() if len(labels) <= MAX_ROWS else 0
    return num_labels > 1 and len(labels) <= MAX_PROFILES * num_labels


def simulate_cells(adata: AnnData, cfg: ReferenceOptions, path: Path) -> AnnData:
    """Simulate cells of each profile: counts, CSR float32, N x G.

    Counts, CPM and logarithms are recognised as in cells. The columns of obs are repeated; without the label
    column, the names of the rows are the labels.
    """
    findings = detect_expression(
        adata, cfg.source, cfg.input_kind, input_total=cfg.input_total, input_base=cfg.input_base, path=path
    )
    rows, _ = stored_expression(adata, findings, path=path)
    values = normalise(rows.block(0, adata.n_obs), findings, 1.0)
    shares_TG = np.expm1(values.toarray().astype(np.float64))
    if not (shares_TG.sum(1) > 0).all():
        raise InputError(f"a profile without expression in {path}", "expression in each row", "leave it out")
    obs = adata.obs if cfg.label_key in adata.obs else pd.DataFrame({cfg.label_key: adata.obs_names})
    num_profiles = obs.groupby(cfg.label_key, observed=True)[cfg.label_key].transform("size").to_numpy(int)
    rng = np.random.default_rng(cfg.seed)
    counts = []
    for shares_G, num in zip(shares_TG, -(-NUM_CELLS // num_profiles), strict=True):
        rates_NG = shares_G * np.exp(rng.normal(0, GENE_SD, (num, len(shares_G))))
        depths_N1 = DEPTH * np.exp(rng.normal(0, DEPTH_SD, (num, 1)))
        rates_NG *= depths_N1 / rates_NG.sum(1, keepdims=True)
        counts.append(sparse.csr_matrix(rng.poisson(rates_NG), dtype=np.float32))
    kept = np.repeat(np.arange(len(obs)), -(-NUM_CELLS // num_profiles))
    cells = obs.iloc[kept].set_axis([f"simulated{number}" for number in range(len(kept))])
    text = "%s: %d profiles of %d cell types, %s; %s cells are simulated from them"
    log.info(text, path, len(obs), obs[cfg.label_key].nunique(), findings.kind, f"{len(cells):,}")
    log.warning("scores on held-out cells will be about simulated cells, which are easier than real ones")
    return AnnData(sparse.vstack(counts, format="csr"), obs=cells, var=gene_table(adata, findings.source))
