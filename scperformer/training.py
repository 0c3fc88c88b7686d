"""Training on a labelled reference: prepare, split, fit the baseline, train the network, save the best as a bundle."""

import json
import logging
import platform
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from anndata import AnnData
from scipy.sparse import csr_matrix

from scperformer import baseline
from scperformer.bundle import INFO, Bundle, save_bundle
from scperformer.check import require_cells_per_label, require_labels
from scperformer.config import TrainConfig
from scperformer.data import Cells, stratified_split
from scperformer.errors import InputError
from scperformer.io import new_file, read_h5ad, require_absent, require_h5ad, sha256
from scperformer.metrics import score
from scperformer.model import CellTypeModel
from scperformer.predict import predict_cells
from scperformer.preprocess import PREPARED, prepare_reference

log = logging.getLogger(__name__)

UNKNOWN_TERM = "unknown"  # what the CELLxGENE schema writes where there is no ontology term


@dataclass
class Reference:
    """A prepared reference: x CSR float32 N x G (ln(1 + cp10k)), labels int64 N, and what it was made of."""

    x: csr_matrix
    labels: np.ndarray
    label_names: list[str]
    ontology_term_ids: list[str]
    genes: list[str]
    summary: str


def make_reference(adata: AnnData, cfg: TrainConfig, path: str | Path) -> Reference:
    """Filter, normalise and label the cells of a reference.

    Raises
    ------
    InputError
        The label column is missing, its labels are too few or too rare, or the expression cannot be used.
    """
    require_labels(adata, cfg.label_key, path)  # before the long part
    prepared = prepare_reference(adata, cfg.data, cfg.source, cfg.input_kind, cfg.input_total, path=path)
    labels = require_labels(prepared, cfg.label_key, path)
    usable = usable_cells(labels, cfg, path)
    kept, labels = prepared[usable], labels[usable]
    label_names = sorted(labels.unique())
    x = csr_matrix(kept.X, dtype=np.float32)
    x.sort_indices()
    return Reference(
        x=x,
        labels=np.searchsorted(label_names, labels.to_numpy(str)).astype(np.int64),
        label_names=label_names,
        ontology_term_ids=ontology_terms(kept.obs, cfg.label_key, labels),
        genes=list(map(str, kept.var_names)),
        summary=describe_preparation(prepared.uns[PREPARED]),
    )


def usable_cells(labels: pd.Series, cfg: TrainConfig, path: str | Path) -> np.ndarray:
    """Which cells can be trained on: those with a label that enough cells have; boolean, N.

    Raises
    ------
    InputError
        A label is too rare and `data.rare_labels` is `error`, or fewer than two labels are left.
    """
    if cfg.data.rare_labels == "error":
        require_cells_per_label(labels, cfg.data.min_cells_per_label, path)
    counts = labels.value_counts()
    enough = counts.index[counts >= cfg.data.min_cells_per_label]
    usable = labels.isin(enough).to_numpy()
    if len(enough) < 2:
        raise InputError(
            f"{len(enough)} usable labels in obs['{cfg.label_key}'] of {path}",
            "two or more",
            "choose another label_key or add cells",
        )
    if not usable.all():
        log.warning(
            "%d cells are left out: %d without a label, %d with a label that fewer than %d cells have",
            (~usable).sum(),
            labels.isna().sum(),
            (~usable).sum() - labels.isna().sum(),
            cfg.data.min_cells_per_label,
        )
    return usable


def describe_preparation(mark: Mapping[str, Any]) -> str:
    """One sentence on what `prepare_reference` found and did, for the model card."""
    return (
        f"{mark['kind']} from {mark['source']}, as ln(1 + counts per {mark['target_sum']:,.0f}); "
        f"{mark['cells_dropped']} cells and {mark['genes_dropped']} genes dropped by the filters"
    )


def ontology_terms(obs: pd.DataFrame, label_key: str, labels: pd.Series) -> list[str]:
    """The id of each label, in sorted order, where `<label_key>_ontology_term_id` gives just one, else "unknown"."""
    column = f"{label_key}_ontology_term_id"
    if column not in obs:
        return [UNKNOWN_TERM] * labels.nunique()
    terms = obs[column].astype(str).groupby(labels.to_numpy(str), sort=True).unique()
    return [str(ids[0]) if len(ids) == 1 else UNKNOWN_TERM for ids in terms]


def fit(
    reference: Reference, cfg: TrainConfig, run_folder: Path
) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """Train on a reference: the weights of a bundle and the metrics on the validation cells.

    Parameters
    ----------
    reference
        The cells and their labels.
    run_folder
        Checkpoints and logs go here.

    Returns
    -------
    Arrays by name (`model.*`, `baseline.*`); metrics of model and baseline, chosen epoch, seconds. None in the
    processes of a distributed run that only help.
    """
    from scperformer.learner import train_network  # Lightning takes seconds to import

    start = time.perf_counter()
    torch.set_num_threads(cfg.trainer.threads)
    x, labels = reference.x, reference.labels
    train_rows, val_rows = stratified_split(labels, cfg.data.val_fraction, cfg.seed)
    train = Cells(x[train_rows], cfg.tokens, labels[train_rows])
    val = Cells(x[val_rows], cfg.tokens, labels[val_rows])
    rival = baseline.fit(train.x, labels[train_rows])
    rival_calls = rival.predict(val.x)

    torch.manual_seed(cfg.seed)
    network = CellTypeModel(
        x.shape[1],
        len(reference.label_names),
        tokens=cfg.tokens,
        model=cfg.model,
        attention=cfg.attention,
        head=cfg.head,
        seed=cfg.seed,
    )
    if network.wide is not None:
        at_start = fit_wide(train, cfg)
        move_wide(network, at_start)
    log.info(
        "training on %d cells, validating on %d: %d genes, %d labels, %d parameters, attention %s",
        len(train),
        len(val),
        x.shape[1],
        len(reference.label_names),
        sum(p.numel() for p in network.parameters()),
        cfg.attention.name,
    )
    best_epoch = train_network(network, train, val, cfg, run_folder)
    if best_epoch is None:
        return None
    calls = predict_cells(network, val, cfg.trainer.batch_size).proba.argmax(1)
    metrics = {
        "num_val_cells": len(val),
        "model": asdict(score(val.known_labels, calls)),
        "baseline": asdict(score(val.known_labels, rival_calls)),
        "best_epoch": best_epoch,
        "seconds": round(time.perf_counter() - start, 1),
    }
    if network.wide is not None:
        # The held-out cells have done their work: the linear part learns from them too, as the baseline does.
        move_wide(network, at_start, sign=-1)
        move_wide(network, fit_wide(Cells(x, cfg.tokens, labels), cfg))
    # The baseline that is shipped has seen every cell of the reference, as a user's own would have.
    final = baseline.fit(x, labels)
    weights = {f"model.{name}": tensor.cpu().numpy() for name, tensor in network.state_dict().items()}
    weights |= {"baseline.weight": final.weight, "baseline.bias": final.bias}
    return weights, metrics


def fit_wide(cells: Cells, cfg: TrainConfig) -> baseline.LinearModel:
    """What a wide branch starts as: class-balanced logistic regression, or zeros."""
    if cfg.optim.wide_start == "zero":
        num_labels = int(cells.known_labels.max()) + 1
        return baseline.LinearModel(
            np.zeros((cells.x.shape[1], num_labels), np.float32), np.zeros(num_labels, np.float32)
        )
    return baseline.fit(cells.x, cells.known_labels, c=cfg.optim.wide_c, balanced=True)


def move_wide(network: CellTypeModel, by: baseline.LinearModel, sign: int = 1) -> None:
    """Add (sign 1) or take away (sign -1) a linear model from the wide branch."""
    assert network.wide is not None
    with torch.no_grad():
        network.wide.weight.weight[:-1].add_(torch.from_numpy(by.weight), alpha=sign)
        network.wide.bias.add_(torch.from_numpy(by.bias), alpha=sign)


def run_options(cfg: TrainConfig, reference_sha256: str) -> dict[str, Any]:
    """What must be the same for a run to be continued: every option but where it writes and how it shows progress."""
    options = asdict(cfg)
    for name in ("inputs", "output", "overwrite", "resume"):
        del options[name]
    del options["trainer"]["progress_bar"]
    return {"options": options, "reference_sha256": reference_sha256}


def open_run(cfg: TrainConfig, output: Path, reference_sha256: str) -> Path:
    """The run folder `<output>.run`, ready: empty, or holding the checkpoints of the same run that was cut off.

    Raises
    ------
    InputError
        An unfinished run is there and neither `resume` nor `overwrite` is on, or it ran with other options.
    """
    folder = output.with_name(output.name + ".run")
    record, last = folder / "run.json", folder / "checkpoints" / "last.ckpt"
    options = run_options(cfg, reference_sha256)
    if last.is_file() and not (cfg.overwrite and not cfg.resume):
        same = record.is_file() and json.loads(record.read_text()) == json.loads(json.dumps(options))
        if same and cfg.resume:
            log.info("continuing the run in %s", folder)
            return folder
        if not cfg.overwrite:
            found = "an unfinished run" if same else "an unfinished run with other options or another reference"
            remedy = "resume=true continues it, overwrite=true starts again" if same else "overwrite=true starts again"
            raise InputError(f"{found} in '{folder}'", "no earlier run", remedy)
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    with new_file(record) as temporary:
        temporary.write_text(json.dumps(options, indent=1) + "\n")
    return folder


def to_bundle(
    reference: Reference, cfg: TrainConfig, *, name: str, source: dict[str, str], fitted: tuple[dict, dict]
) -> Bundle:
    """Everything that prediction and a reader need to know, in one place.

    Parameters
    ----------
    source
        `reference` (file name) and `reference_sha256`.
    fitted
        Weights and metrics, as `fit` returns them.
    """
    weights, metrics = fitted
    counts = np.bincount(reference.labels)
    packages = ("scperformer", "torch", "scanpy", "anndata", "numpy", "scikit-learn")
    provenance = {
        **source,
        "label_key": cfg.label_key,
        "num_cells": len(reference.labels),
        "cells_per_label": {label: int(n) for label, n in zip(reference.label_names, counts, strict=True)},
        "input": reference.summary,
        "seed": cfg.seed,
        "command": f"scperformer train {source['reference']} label_key={cfg.label_key}",
        "options": run_options(cfg, source["reference_sha256"])["options"],
        "versions": {package: version(package) for package in packages} | {"python": platform.python_version()},
    }
    groups = {group: asdict(getattr(cfg, group)) for group in ("tokens", "model", "attention", "head")}
    return Bundle(
        name=name,
        genes=reference.genes,
        gene_means=np.asarray(reference.x.mean(axis=0)).ravel(),
        labels=reference.label_names,
        ontology_term_ids=reference.ontology_term_ids,
        config={"target_sum": cfg.data.target_sum, **groups},
        metrics=metrics,
        provenance=provenance,
        weights=weights,
    )


def run_train(cfg: TrainConfig) -> Path:
    """Train a model on the labelled file `cfg.inputs[0]`; writes the model folder and returns its path.

    Raises
    ------
    InputError
        The file, its labels or its expression cannot be used, or the output exists.
    """
    path = Path(cfg.inputs[0])
    require_h5ad(path)
    output = Path(cfg.output) if cfg.output else path.with_suffix(".model")
    require_absent(output, cfg.overwrite, marker=INFO)
    adata = read_h5ad(path)
    _train(adata, cfg, output, path=path, checksum=sha256(path))
    return output


def train(adata: AnnData, label_key: str, *, output: str | Path, overrides: Sequence[str] = ()) -> Path:
    """Train a model on labelled cells in memory.

    Parameters
    ----------
    adata
        N cells x G genes: counts or log-normalised expression in X, a layer or `.raw`.
    label_key
        Column of `adata.obs` with the cell types.
    output
        The model folder to write.
    overrides
        Options as on the command line, such as `["model=tiny", "trainer.max_epochs=5"]`.

    Returns
    -------
    The path of the model folder, for `load_model`.
    """
    from scperformer.compose import make_config, quoted

    required = ["inputs=[adata]", f"label_key={quoted(label_key)}", f"output={quoted(str(output))}"]
    cfg = make_config("train", [*required, *overrides])
    require_absent(output, cfg.overwrite, marker=INFO)
    _train(adata, cfg, Path(output), path=Path("AnnData in memory"), checksum="")
    return Path(output)


def _train(adata: AnnData, cfg: TrainConfig, output: Path, *, path: Path, checksum: str) -> None:
    reference = make_reference(adata, cfg, path)
    run_folder = open_run(cfg, output, checksum)
    try:
        fitted = fit(reference, cfg, run_folder)
    except InputError:  # an option that cannot be: nothing worth keeping has been written
        if not (run_folder / "checkpoints").exists():
            shutil.rmtree(run_folder)
        raise
    if fitted is None:  # a helping process of a distributed run
        return
    _, metrics = fitted
    log.info(
        "best epoch %d: accuracy %.3f, macro-F1 %.3f on %d validation cells; logistic regression %.3f, %.3f",
        metrics["best_epoch"],
        metrics["model"]["accuracy"],
        metrics["model"]["macro_f1"],
        metrics["num_val_cells"],
        metrics["baseline"]["accuracy"],
        metrics["baseline"]["macro_f1"],
    )
    source = {"reference": path.name, "reference_sha256": checksum}
    bundle = to_bundle(reference, cfg, name=output.stem, source=source, fitted=fitted)
    save_bundle(bundle, output, overwrite=cfg.overwrite)
    shutil.rmtree(run_folder / "checkpoints", ignore_errors=True)  # the logs stay
    log.info("written: %s", output)
