"""Prediction: a model folder and cells in, labels with their probabilities out, written into AnnData or a file."""

import json
import logging
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy.sparse import csr_matrix

from scperformer.bundle import FORMAT_VERSION
from scperformer.compose import make_config, quoted
from scperformer.config import AnalyzeConfig, PredictConfig
from scperformer.data import Cells
from scperformer.detect import Findings, detect, expression, gene_table
from scperformer.errors import InputError
from scperformer.inference import Model, choose_device, load_model, predict_cells, torch_state_kept
from scperformer.io import add_to_h5ad, read_h5ad, require_absent, require_h5ad, sha256, without_slashes
from scperformer.overlap import Overlap
from scperformer.preprocess import align_rows, plan_alignment

log = logging.getLogger(__name__)

OBS_COLUMNS = ("label", "confidence", "margin", "unknown", "ontology_term_id", "baseline_label")


@dataclass
class Annotation:
    """What is added to an AnnData: obs columns, obsm entries and one uns entry, all named with the prefix."""

    obs: pd.DataFrame
    obsm: dict[str, Any]
    uns: dict[str, Any]

    def write_into(self, adata: AnnData) -> None:
        """Add everything to an AnnData in memory."""
        for name, column in self.obs.items():
            adata.obs[name] = column
        adata.obsm.update(self.obsm)
        adata.uns.update(self.uns)


def aligned_cells(
    adata: AnnData, model: Model, cfg: PredictConfig | AnalyzeConfig, path: str
) -> tuple[csr_matrix, Findings, Overlap]:
    """Expression as a model wants it (N cells x G genes of the model), what was found, and how the genes overlap.

    Raises
    ------
    InputError
        No usable expression, or too few of the model's genes.
    """
    findings = detect(adata, cfg.source, cfg.input_kind, input_total=cfg.input_total, path=path)
    plan = plan_alignment(
        gene_table(adata, findings.source),
        findings,
        model.bundle.genes,
        importance=model.bundle.importance,
        target_sum=model.bundle.config["target_sum"],
        min_overlap=cfg.min_overlap,
        species=cfg.species,
        path=path,
    )
    for note in plan.overlap.notes:
        log.info("%s: %s", path, note)
    x, _ = expression(adata, findings, path=path)
    return align_rows(x, plan), findings, plan.overlap


def make_annotation(adata: AnnData, model: Model, cfg: PredictConfig, path: str = "the data") -> Annotation:
    """Annotate the cells of an AnnData, without changing it.

    Raises
    ------
    InputError
        No usable expression, or too few of the model's genes.
    """
    start = time.perf_counter()
    bundle, key = model.bundle, cfg.key_added
    x, findings, overlap = aligned_cells(adata, model, cfg, path)
    cells = Cells(x, model.tokens)
    with torch_state_kept(cfg.threads):
        predictions = predict_cells(model.network, cells, cfg.batch_size, choose_device(cfg.device))
    obs = calls(predictions.proba, x, model, cfg)
    obs.index = adata.obs_names
    proba = without_slashes(pd.DataFrame(predictions.proba, index=adata.obs_names, columns=bundle.labels))
    seconds = time.perf_counter() - start
    log.info(
        "%s: %d cells annotated in %.1f s (%.0f cells/s), %d flagged unknown",
        path,
        adata.n_obs,
        seconds,
        adata.n_obs / seconds,
        obs[f"{key}_unknown"].sum(),
    )
    record = {
        "model": describe_model(model),
        "input": describe_input(findings, path),
        "genes": describe_overlap(overlap),
        "baseline": {"name": "logistic regression (L2, C=1)"},
        "versions": package_versions(),
        "config_json": json.dumps(asdict(cfg) | {"inputs": [Path(name).name for name in cfg.inputs]}),
        "num_unknown": int(obs[f"{key}_unknown"].sum()),
        "seconds": seconds,
    }
    return Annotation(obs, {f"X_{key}": predictions.embedding, f"{key}_proba": proba}, {key: record})


def calls(proba: np.ndarray, x: csr_matrix, model: Model, cfg: PredictConfig) -> pd.DataFrame:
    """The obs columns: label, confidence, margin, unknown, ontology term and the baseline's label.

    Confidence is the probability of the label, margin its lead over the second one. A cell is flagged unknown
    when its confidence is below `min_confidence` or it expresses no gene of the model; its label stays.
    """
    key, labels = cfg.key_added, model.bundle.labels
    best = proba.argmax(axis=1)
    top_two = np.sort(proba, axis=1)[:, -2:]
    terms = np.array(model.bundle.ontology_term_ids)
    return pd.DataFrame(
        {
            f"{key}_label": pd.Categorical.from_codes(best, categories=labels),
            f"{key}_confidence": top_two[:, 1],
            f"{key}_margin": top_two[:, 1] - top_two[:, 0],
            f"{key}_unknown": (top_two[:, 1] < cfg.min_confidence) | (np.diff(x.indptr) == 0),
            f"{key}_ontology_term_id": pd.Categorical(terms[best]),
            f"{key}_baseline_label": pd.Categorical.from_codes(model.baseline.predict(x), categories=labels),
        }
    )


def require_new_keys(adata: AnnData, key: str, path: str = "the data") -> None:
    """Fail when an AnnData holds anything of the names that an annotation with this prefix would add.

    Raises
    ------
    InputError
        Names what is there.
    """
    there = [f"obs['{key}_{name}']" for name in OBS_COLUMNS if f"{key}_{name}" in adata.obs]
    there += [f"obsm['{name}']" for name in (f"X_{key}", f"{key}_proba") if name in adata.obsm]
    there += [f"uns['{key}']"] if key in adata.uns else []
    if there:
        more = f" and {len(there) - 3} more" if len(there) > 3 else ""
        raise InputError(
            f"{path} already has {', '.join(there[:3])}{more}",
            "no earlier annotation of this name",
            "add overwrite=true to replace it, or key_added=... to keep both",
        )


def package_versions() -> dict[str, str]:
    """What is recorded about the software."""
    packages = {name: version(name) for name in ("scperformer", "torch", "scanpy", "anndata", "numpy")}
    return packages | {"python": platform.python_version()}


def describe_model(model: Model) -> dict[str, Any]:
    """What is recorded about the model beside its calls."""
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


def describe_input(findings: Findings, path: str) -> dict[str, Any]:
    """What is recorded about the expression that was used."""
    return {
        "file": Path(path).name,
        "sha256": sha256(path) if Path(path).is_file() else "",
        "source": findings.source,
        "kind": findings.kind,
        "total": float("nan") if findings.total is None else float(findings.total),
        "notes": np.array(findings.notes, dtype=object),
    }


def describe_overlap(overlap: Overlap) -> dict[str, Any]:
    """What is recorded about shared and missing genes."""
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


def annotate(
    adata: AnnData,
    model: Model | None = None,
    *,
    key_added: str = "scperformer",
    overwrite: bool = False,
    overrides: Sequence[str] = (),
) -> AnnData:
    """Annotate the cells of an AnnData in place, and return it.

    Parameters
    ----------
    adata
        N cells x G genes: counts or log-normalised expression in X, a layer or `.raw`.
    model
        From `load_model`; None loads $SCPERFORMER_MODEL, else the packaged model.
    key_added
        Prefix of what is added (docs/formats.md lists the keys).
    overwrite
        Replace an earlier annotation with the same prefix.
    overrides
        More options of `predict` as on the command line, such as `["source=layers/counts", "min_confidence=0.5"]`.

    Raises
    ------
    InputError
        An option is wrong, the expression cannot be used, too few genes are shared, or the keys exist and
        `overwrite` is off.
    """
    named = ["inputs=[adata]", f"key_added={quoted(key_added)}", f"overwrite={str(overwrite).lower()}"]
    cfg = make_config("predict", [*named, *overrides])
    if cfg.output is not None:
        raise InputError(f"output={cfg.output}", "no output: the AnnData itself is annotated", "leave it out")
    if model is not None and cfg.model_path is not None:
        raise InputError(f"a model and model_path={cfg.model_path}", "one of them", "leave the other out")
    if not cfg.overwrite:
        require_new_keys(adata, cfg.key_added)
    make_annotation(adata, model or load_model(cfg.model_path), cfg).write_into(adata)
    return adata


def run_predict(cfg: PredictConfig) -> list[Path]:
    """Annotate files; each is copied with the annotation added and nothing else changed.

    Returns
    -------
    The annotated files: `cfg.output`, or `<input>.annotated.h5ad` beside each input.

    Raises
    ------
    InputError
        A file or the model cannot be used, or an output exists; nothing is written for that file.
    """
    for path in cfg.inputs:  # all of them before the first one is annotated
        require_h5ad(path)
    outputs = [Path(cfg.output or Path(path).with_suffix(".annotated.h5ad")) for path in cfg.inputs]
    for number, output in enumerate(outputs):
        if output in outputs[:number]:
            raise InputError(f"two inputs give {output}", "one input per output", "leave one of them out")
        require_absent(output, cfg.overwrite)
    model = load_model(cfg.model_path)
    for path, output in zip(cfg.inputs, outputs, strict=True):
        adata = read_h5ad(path)
        if not cfg.overwrite:
            require_new_keys(adata, cfg.key_added, path)  # before the work; writing checks again
        annotation = make_annotation(adata, model, cfg, path)
        add_to_h5ad(
            path,
            output,
            obs=annotation.obs,
            obsm=annotation.obsm,
            uns=annotation.uns,
            overwrite=cfg.overwrite,
            overwrite_keys=cfg.overwrite,
        )
        log.info("written: %s", output)
    return outputs
