"""Annotated files as `predict` writes them, made from real cells without training a model."""

import json
from functools import cache
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import scanpy as sc
from sklearn.linear_model import LogisticRegression

from scperformer.annotation.columns import final_call
from scperformer.base.messages import join_names
from scperformer.labels.tree import NO_CALL

NUM_REFERENCE = 420  # of 700 cells: the others are the samples
TRUTH_KEY = "bulk_labels"


@cache
def _cells() -> ad.AnnData:
    """The PBMC in scanpy's package in random order, log-normalised as in .raw."""
    pbmc = sc.datasets.pbmc68k_reduced()
    order = np.random.default_rng(0).permutation(pbmc.n_obs)
    cells = ad.AnnData(pbmc.raw.X, obs=pbmc.obs[[TRUTH_KEY, "percent_mito"]], var=pbmc.raw.var[[]])
    cells.obsm["pca"] = pbmc.obsm["X_pca"].astype(np.float32)
    return cells[order].copy()


@cache
def _classifier(num_dims: int, strength: float) -> LogisticRegression:
    cells = _cells()[:NUM_REFERENCE]
    truth = cells.obs[TRUTH_KEY].astype(str)
    return LogisticRegression(C=strength, max_iter=500).fit(cells.obsm["pca"][:, :num_dims], truth)


def annotated_sample(
    first: int = 0,
    num_cells: int = 140,
    *,
    rename: dict[str, str] | None = None,
    key: str = "scperformer",
    min_confidence: float = 0.0,
    model_hash: str = "0123456789abcdef" * 4,
) -> ad.AnnData:
    """Cells `first` to `first + num_cells` behind the reference, annotated under `key`; truth kept in obs.

    Parameters
    ----------
    rename
        Other names for some labels, in the truth and in the annotation alike.
    """
    start = NUM_REFERENCE + first
    sample = _cells()[start : start + num_cells].copy()
    pca = sample.obsm.pop("pca")
    model, baseline = _classifier(30, 0.05), _classifier(8, 0.01)
    names = [(rename or {}).get(str(label), str(label)) for label in model.classes_]
    proba = model.predict_proba(pca[:, :30]).astype(np.float32)
    highest = np.sort(proba, axis=1)[:, ::-1]
    called = proba.argmax(axis=1)
    by_baseline = baseline.predict_proba(pca[:, :8]).argmax(axis=1)
    truth = sample.obs[TRUTH_KEY].astype(str)
    sample.obs[TRUTH_KEY] = pd.Categorical(
        truth.map(lambda label: (rename or {}).get(label, label))
    )
    sample.obs[f"{key}_label"] = pd.Categorical.from_codes(called, names)
    sample.obs[f"{key}_confidence"] = highest[:, 0]
    sample.obs[f"{key}_ontology_term_id"] = pd.Categorical(["unknown"] * num_cells)
    _flag_unknown(sample, highest[:, 0] < min_confidence, key)
    details = {"margin": highest[:, 0] - highest[:, 1]}
    details["baseline_label"] = pd.Categorical.from_codes(by_baseline, names)
    sample.obsm[f"{key}_details"] = pd.DataFrame(details, index=sample.obs_names)
    sample.obsm[f"X_{key}"] = pca[:, :20]
    columns = [name.replace("/", "|") for name in names]
    sample.obsm[f"{key}_proba"] = pd.DataFrame(proba, index=sample.obs_names, columns=columns)
    num_unknown = int((sample.obs[f"{key}_call"] == NO_CALL).sum())
    sample.uns[key] = _facts(names, min_confidence, model_hash) | {"num_unknown": num_unknown}
    return sample


def _flag_unknown(sample: ad.AnnData, unknown: np.ndarray, key: str) -> None:
    """Call every cell its label, or unknown."""
    label = sample.obs[f"{key}_label"].array
    sample.obs[f"{key}_call"] = final_call(label.codes, list(label.categories), unknown)


def add_trust(sample: ad.AnnData, key: str = "scperformer", alpha: float = 0.1) -> None:
    """Add novelty, sets of labels and the evidence for them, as `predict alpha=...` does; every tenth cell is novel."""
    novel, proba = np.arange(sample.n_obs) % 10 == 0, sample.obsm[f"{key}_proba"].to_numpy()
    names = [str(label) for label in sample.uns[key]["model"]["labels"]]
    sizes = 1 + (proba.max(axis=1) < 0.9)
    order = np.argsort(-proba, axis=1)
    sample.obs[f"{key}_novelty"] = np.where(novel, 0.99, 0.5).astype(np.float32)
    _flag_unknown(sample, novel, key)
    texts = [
        join_names([names[i] for i in row[:size]]) for row, size in zip(order, sizes, strict=True)
    ]
    sample.obs[f"{key}_set"] = pd.Categorical(texts)
    sample.obs[f"{key}_set_size"] = sizes.astype(np.int32)
    columns = {"num_cells": [100, 300], "confidence": [0.6, 0.95], "accuracy": [0.55, 0.96]}
    bins = {name: np.array(values) for name, values in columns.items()}
    by_label = {name: values[:1] for name, values in bins.items()}
    by_label |= {"label": np.array(names[:1], dtype=object), "error": np.array([0.05])}
    sample.uns[key] |= {
        "calibration": {
            "num_cells": 400,
            "error": 0.02,
            "bins": bins,
            "labels": by_label | {"error": np.array([0.05])},
        },
        "novelty": {"unknown_fpr": 0.05, "num_cells": 400},
        "sets": {"alpha": alpha, "num_cells": 400, "mean_size": float(sizes.mean())},
    }


def _facts(labels: list[str], min_confidence: float, model_hash: str) -> dict:
    strings = lambda *values: np.array(values, dtype=object)  # noqa: E731
    return {
        "model": {
            "name": "pbmc",
            "hash": model_hash,
            "path": "/somewhere/private/pbmc",
            "labels": strings(*labels),
            "trained_on": "reference.h5ad",
            "label_key": TRUTH_KEY,
            "num_cells": NUM_REFERENCE,
            "format_version": 2,
            "seed": 0,
            "scales": {"linear": 0.9, "encoder": 0.4},
        },
        "input": {
            "file": "/somewhere/private/sample.h5ad",
            "sha256": "fedcba9876543210" * 4,
            "source": "raw",
            "kind": "log1p",
            "total": float("nan"),
            "log_base": np.e,
            "relative": False,
            "notes": strings("X holds scaled values (negative), which cannot be used."),
        },
        "genes": {
            "num_model": 800,
            "num_file": 765,
            "num_shared": 752,
            "share_of_model": 0.94,
            "informative_share": 0.94,
            "num_absent": 48,
            "num_dropped": 13,
            "notes": strings(),
            "absent": strings("SAMD11", "NOC2L", "KLHL17"),
            "dropped": strings("MT-ND1", "MT-ND2"),
        },
        "baseline": {"name": "logistic regression"},
        "versions": {
            "scperformer": "0.1.0",
            "torch": "2.13.0",
            "numpy": "2.4.6",
            "python": "3.11.7",
        },
        "config_json": json.dumps({"min_confidence": min_confidence, "batch_size": 64}),
        "num_unknown": 0,
        "repeats": {"num_seen": 10, "num_cells": 0},
        "remarks": {name: strings() for name in ("code", "severity", "text", "value")},
        "seconds": 1.5,
    }


def write_sample(folder: Path, name: str, sample: ad.AnnData) -> str:
    """Write `folder/name.annotated.h5ad`; its path."""
    path = folder / f"{name}.annotated.h5ad"
    sample.write_h5ad(path)
    return str(path)
