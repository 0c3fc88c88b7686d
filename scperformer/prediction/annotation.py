"""Calls of cells by a model, block by block, and the annotation that is made of them."""

import json
import logging
import platform
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy.sparse import csr_matrix

from scperformer.config import AnalyzeConfig, PredictConfig
from scperformer.dataset import Query, find_query
from scperformer.files import BackedH5ad
from scperformer.model import FORMAT_VERSION
from scperformer.network import Cells, Model, choose_device, predict_cells, torch_state_kept
from scperformer.prediction.parts import Calls
from scperformer.prediction.write_h5ad import Blocks, without_slashes

log = logging.getLogger(__name__)


def make_query(
    cells: AnnData | BackedH5ad, model: Model, cfg: PredictConfig | AnalyzeConfig, path: str = "the data"
) -> Query:
    """Find the expression of some cells and match their genes to a model; log the choices and their reasons.

    Raises
    ------
    InputError
        No usable expression, or too few of the model's genes.
    """
    query = find_query(cells, model.bundle, cfg, path)
    for note in [query.findings.sentence, *query.overlap.notes]:
        log.info("%s: %s", path, note)
    return query


def call_block(x: csr_matrix, model: Model, cfg: PredictConfig, path: str = "the data") -> Calls:
    """Call aligned cells of a file; the calls of a cell do not depend on the other cells.

    Raises
    ------
    InputError
        A cell has more tokens than the model's attention takes.
    """
    cells = Cells(x, model.tokens)
    model.network.require_length(int(cells.lengths.max(initial=0)), f"a cell of {path}")
    with torch_state_kept(cfg.threads):
        device = choose_device(cfg.device, cfg.precision)
        found = predict_cells(model.network, cells, cfg.batch_size, device, cfg.precision)
    baseline = model.baseline.predict(x).astype(np.int32)
    return Calls(found.proba, found.embedding, baseline, np.diff(x.indptr) == 0)


def obs_columns(calls: Calls, model: Model, cfg: PredictConfig) -> pd.DataFrame:
    """Return the obs columns: label, confidence, margin, unknown, ontology term and the label of the baseline.

    Confidence is the probability of the label, margin its lead over the second one. A cell is flagged unknown
    when its confidence is below `min_confidence` or it expresses no gene of the model; its label stays.
    """
    key, labels = cfg.key_added, model.bundle.labels
    best = calls.proba.argmax(axis=1)
    top_two = np.sort(calls.proba, axis=1)[:, -2:]
    terms = np.array(model.bundle.ontology_term_ids)
    return pd.DataFrame(
        {
            f"{key}_label": pd.Categorical.from_codes(best, categories=labels),
            f"{key}_confidence": top_two[:, 1],
            f"{key}_margin": top_two[:, 1] - top_two[:, 0],
            f"{key}_unknown": (top_two[:, 1] < cfg.min_confidence) | calls.empty,
            f"{key}_ontology_term_id": pd.Categorical(terms[best], categories=sorted(set(terms))),
            f"{key}_baseline_label": pd.Categorical.from_codes(calls.baseline, categories=labels),
        }
    )


@dataclass
class Annotation:
    """Additions to the cells of a file: obs columns, obsm entries and one uns entry, all named with the prefix.

    obs : one row per cell, numbered
    """

    obs: pd.DataFrame
    obsm: dict[str, Blocks]
    uns: dict[str, Any]

    def write_into(self, adata: AnnData) -> None:
        """Add everything to an AnnData in memory."""
        for name, column in self.obs.items():
            adata.obs[name] = column.array
        adata.obsm.update({name: blocks.in_memory(adata.obs_names) for name, blocks in self.obsm.items()})
        adata.uns.update(self.uns)


def make_annotation(
    query: Query, model: Model, cfg: PredictConfig, read: Callable[[], Iterable[Calls]], seconds: float
) -> Annotation:
    """Make the annotation of the cells of a query.

    Parameters
    ----------
    read
        Returns the calls of all blocks; it is called several times.
    seconds
        Time that the calls took.
    """
    bundle, key = model.bundle, cfg.key_added
    obs = pd.concat([obs_columns(calls, model, cfg) for calls in read()], ignore_index=True)
    labels = [str(name) for name in without_slashes(pd.DataFrame(columns=bundle.labels)).columns]
    width = next(iter(read())).embedding.shape[1]
    record = {
        "model": describe_model(model),
        "input": describe_input(query),
        "genes": describe_genes(query),
        "baseline": {"name": "logistic regression (L2, C=1)"},
        "versions": package_versions(),
        "config_json": json.dumps(asdict(cfg) | {"inputs": [Path(name).name for name in cfg.inputs]}),
        "num_unknown": int(obs[f"{key}_unknown"].sum()),
        "seconds": seconds,
    }
    obsm = {
        f"X_{key}": Blocks(lambda: (calls.embedding for calls in read()), width),
        f"{key}_proba": Blocks(lambda: (calls.proba for calls in read()), len(labels), labels),
    }
    return Annotation(obs, obsm, {key: record})


def package_versions() -> dict[str, str]:
    """Return the record of the software."""
    packages = {name: version(name) for name in ("scperformer", "torch", "scanpy", "anndata", "numpy")}
    return packages | {"python": platform.python_version()}


def describe_model(model: Model) -> dict[str, Any]:
    """Return the record of the model beside its calls."""
    bundle, provenance = model.bundle, model.bundle.provenance
    return {
        "name": bundle.name,
        "hash": bundle.hash,
        "path": str(model.path),
        "labels": np.array(bundle.labels),
        "trained_on": provenance["reference"],
        "label_key": provenance["label_key"],
        "num_cells": provenance["num_cells"],
        "seed": provenance["seed"],
        "scales": bundle.scales,
        "format_version": FORMAT_VERSION,
    }


def describe_input(query: Query) -> dict[str, Any]:
    """Return the record of the expression that was used."""
    findings = query.findings
    return {
        "file": Path(query.path).name,
        "sha256": query.sha256,
        "source": findings.source,
        "kind": findings.kind,
        "log_base": float("nan") if findings.log_base is None else float(findings.log_base),
        "total": float("nan") if findings.total is None else float(findings.total),
        "relative": findings.relative,
        "notes": np.array(findings.notes, dtype=object),
    }


def describe_genes(query: Query) -> dict[str, Any]:
    """Return the record of shared and missing genes."""
    overlap = query.overlap
    return {
        "num_model": overlap.num_model,
        "num_file": overlap.num_file,
        "num_shared": overlap.num_shared,
        "share_of_model": overlap.share_of_model,
        "informative_share": overlap.informative_share,
        "notes": np.array(overlap.notes, dtype=object),
        "absent": np.array(overlap.absent, dtype=object),
        "dropped": np.array(overlap.dropped, dtype=object),
    }
