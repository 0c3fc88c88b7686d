"""The model of a tissue: cells are simulated from its profiles, and the linear branch is fitted for each file.

The fit to a file has its genes and its depth, as any refitted model, but no Performer, which adds nothing to cells that
are all simulated (benchmarks/NOTES.md), and no cross-validation, as simulated cells are easier than real ones.
"""

import logging
from dataclasses import asdict, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from anndata import AnnData
from scipy.sparse import csr_matrix

from scperformer.annotation.coverage import NUM_ROUNDS, Coverage, adapted_model, reduced, seen_rows
from scperformer.annotation.which_tissue import GIVEN, better_tissue, named_tissue, rank_tissues, require_tissue
from scperformer.base.progress import progress
from scperformer.cells.profiles import simulated_counts
from scperformer.cells.query import Expression, Query
from scperformer.config.options import TissueOptions
from scperformer.config.training import HeadConfig, ModelConfig, TokensConfig
from scperformer.io.h5ad import BackedH5ad
from scperformer.labels.ontology import TABLE_VERSION, joined_by_terms, packaged_ontology
from scperformer.model.arrays import ReferenceCells
from scperformer.model.linear import linear_logits
from scperformer.model.load import Model
from scperformer.model.network import CellTypeModel
from scperformer.model.saved_model import SavedModel
from scperformer.model.tissues import collection
from scperformer.training.evidence import Fitted, fill_network
from scperformer.training.fit_linear import PENALTY_C, LinearOptions, fit_linear_branch
from scperformer.trust.batch_effect import correct_batch_effect, gene_factors
from scperformer.trust.resemblance import USUAL, Resemblance, fit_resemblance
from scperformer.trust.shift import MIN_CELLS

log = logging.getLogger(__name__)

SEED = 0
NUM_CELLS = 60  # simulated cells of each label; 30 or 120 call other studies as well
SCALE = 1.0  # of the logits, before the probabilities are joined with those by correlation
POWERS = (0.5, 2.0)


@cache
def tissue_model(name: str, in_capitals: bool = False) -> Model:
    """Return the model of a tissue, to be fitted to files; `in_capitals`: with symbols in capitals."""
    tissue = collection().tissue(name)
    labels = tissue.profiles.index.tolist()
    genes = [gene.upper() if in_capitals else str(gene) for gene in tissue.profiles.columns]
    shares = csr_matrix(tissue.profiles.to_numpy() / 1e6)
    counts = simulated_counts(shares, NUM_CELLS, SEED)
    codes = np.repeat(np.arange(len(labels)), NUM_CELLS)
    config = {
        "tokens": asdict(TokensConfig()),
        "model": asdict(ModelConfig(encoder=False, linear_powers=list(POWERS))),
        "attention": {"name": "favor"},
        "head": asdict(HeadConfig()),
        "target_sum": 1e4,
    }
    provenance: dict[str, Any] = {
        "reference": "; ".join(tissue.studies["title"]),
        "label_key": "cell_type",
        "num_cells": 0,
        "seed": SEED,
        "tissue": tissue.title,
        "ontology": TABLE_VERSION,
        "profiles": {
            "families": tissue.families.tolist(),
            "studies": tissue.studies["url"].tolist(),
            "others": list(tissue.others),
        },
    }
    saved = SavedModel(
        name=name,
        genes=genes,
        gene_means=np.log1p(tissue.profiles.to_numpy().mean(axis=0) / 100).astype(np.float32),
        labels=labels,
        ontology_term_ids=tissue.terms,
        config=config,
        metrics={"scales": {"linear": SCALE}},
        provenance=provenance,
        weights={},
        hash=collection().hash,
        reference_cells=ReferenceCells(counts, codes, are_counts=True, batches=None),
        tree=joined_by_terms(labels, tissue.terms, packaged_ontology(), by_name=True),
    )
    return Model(saved, collection().file.parent)


def find_tissue(
    cells: AnnData | BackedH5ad, cfg: TissueOptions, path: str, expression: Expression
) -> tuple[Model, dict[str, Any]]:
    """Return the model of the tissue of an open file, whose expression is known, and the record of how it was found.

    Raises
    ------
    InputError
        No tissue of the collection fits, or `cfg.tissue` is none of them.
    """
    if cfg.tissue is not None:
        name, in_capitals = named_tissue(cells, cfg, expression)
        record = {"name": name, "title": collection().title(name), "in_capitals": in_capitals, "how": GIVEN}
        if instead := better_tissue(cells, cfg, name, path, expression):
            record["instead"] = f"another tissue fits better than {record['title']}: {instead}"
    else:
        ranking = rank_tissues(cells, cfg, path, expression)
        record = ranking.record
        require_tissue(ranking, path)
    return tissue_model(record["name"], record["in_capitals"]), record


@progress("fitting the tissue to the genes and the depth of a file")
def fit_tissue(saved: SavedModel, coverage: Coverage) -> SavedModel:
    """Fit the linear branch to simulated cells as a query would have measured them."""
    cells = saved.reference_cells
    assert cells is not None
    x = reduced(cells, coverage, saved.config["target_sum"], SEED)
    options = LinearOptions(POWERS, PENALTY_C, class_weights="none", weighting="signal")
    fitted = Fitted(fit_linear_branch(x, cells.labels, options))
    parts: dict[str, Any] = {
        "tokens": TokensConfig(**saved.config["tokens"]),
        "model": ModelConfig(**saved.config["model"]),
        "attention": saved.config["attention"],
        "head": HeadConfig(**saved.config["head"]),
    }
    network = CellTypeModel(x.shape[1], len(saved.labels), **parts)
    with torch.no_grad():
        fill_network(network, fitted, saved.metrics["scales"])
    weights = {f"model.{name}": tensor.numpy() for name, tensor in network.state_dict().items()}
    return adapted_model(saved, coverage, x, None, config=saved.config | {"own_totals": True}, weights=weights)


def compare_with_profiles(
    query: Query,
    fitted: SavedModel,
    simulated: ReferenceCells,
    means: np.ndarray,
    batch: int | None = None,
    usual: np.ndarray | None = None,
) -> tuple[np.ndarray, Resemblance]:
    """Return the per-gene batch effect of a file or batch, float32 G, and its resemblance to the profiles of a tissue.

    `query` has the genes of `fitted`, the model of the tissue after its fit to the file; `simulated` are its cells as
    the file would have measured them, and `means` those of its labels. `usual` are the factors of the file,
    for a batch.
    """
    x = query.some(seen_rows(query, batch))
    x = x[np.diff(x.indptr) > 0]  # cells that express any gene
    factors = usual = np.ones(x.shape[1], dtype=np.float32) if usual is None else usual
    calls = np.arange(0)
    for number in range(1 + NUM_ROUNDS):
        if number:
            factors = gene_factors(x, calls, means, usual.astype(np.float64)).astype(np.float32)
        logits = linear_logits(fitted, correct_batch_effect(x, factors))
        assert logits is not None
        calls = logits.argmax(axis=1)
    of_file = x
    if x.shape[0] < MIN_CELLS:  # their own mean says little: all types alike in its place
        of_file, calls = simulated.values, simulated.labels
    centre = np.asarray(of_file.mean(axis=0)).ravel()
    shares = np.bincount(calls, minlength=len(fitted.labels)) / len(calls)
    found = fit_resemblance(centre, shares, simulated.values, simulated.labels)
    if x.shape[0]:
        found = replace(found, usual=float(np.quantile(found.of_cells(x, found.correlations(x)), USUAL)))
    return factors, found


def recorded_resemblance(saved: SavedModel, coverage: Coverage, centre: np.ndarray, shares: np.ndarray) -> Resemblance:
    """Return the resemblance of a file to the profiles of a tissue from what an annotation records of it."""
    cells = saved.reference_cells
    assert cells is not None
    return fit_resemblance(centre, shares, reduced(cells, coverage, saved.config["target_sum"], SEED), cells.labels)
