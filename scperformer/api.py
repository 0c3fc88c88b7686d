"""The steps as functions of Python: keywords instead of words, files or AnnData objects, and objects as results.

Each function makes the same options as the command line, from its keywords and from `options`, a mapping of the full
names in docs/configuration.md: `options={"trainer.max_epochs": 5}`. Their defaults are those of the step. No function
changes an AnnData but `annotate`, which adds to it.
"""

import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, overload

import numpy as np
import pandas as pd
from anndata import AnnData

from scperformer.config import (
    CheckConfig,
    EvaluateConfig,
    ExplainConfig,
    PredictConfig,
    PretrainConfig,
    ReportConfig,
    TrainConfig,
    make_config,
    meant,
    overrides_of,
)
from scperformer.errors import InputError
from scperformer.files import open_cells
from scperformer.model import INFO, PACKAGED, library_folder, load_bundle
from scperformer.outputs import require_absent
from scperformer.progress import progress

if TYPE_CHECKING:  # they import torch or pictures: the functions load them when they are called
    from scperformer.network import Model
    from scperformer.reports.check import Checks
    from scperformer.reports.evaluate import Evaluation
    from scperformer.reports.explain import Explanation

File = str | os.PathLike[str]
Options = Mapping[str, Any]
Function = TypeVar("Function", bound=Callable[..., Any])


def _step(step: str) -> Callable[[Function], Function]:
    """Show the progress of a function, and refuse keywords that it does not have, with the one that was meant."""

    def decorate(function: Function) -> Function:
        known = list(inspect.signature(function).parameters)

        @wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            for name in named.keys() - known:
                near = next(iter(get_close_matches(name, known, 1, 0.75)), "")
                option = meant(name, step)
                remedy = f"'scperformer {step} --help' lists the options"
                if near:
                    remedy = f"did you mean {near}? help(scperformer.{function.__name__}) shows all of them"
                elif option:
                    remedy = f"write options={{'{option}': ...}}"
                raise InputError(f"keyword {name} of {function.__name__}", f"one of {', '.join(known)}", remedy)
            with progress(f"scperformer.{function.__name__}"):
                return function(*given, **named)

        return call  # type: ignore[return-value]

    return decorate


def _config(step: str, options: Options | None, **named: Any) -> Any:
    """Make the options of a step; None stands for the default of the step, which presets may change."""
    given = {name: value for name, value in named.items() if value is not None}
    if options is not None and not isinstance(options, Mapping):
        raise InputError(f"options={options!r}", "a mapping", "write options={'trainer.max_epochs': 5}")
    return make_config(step, overrides_of(given | dict(options or {})))


def _paths(files: File | AnnData | Sequence[File | AnnData]) -> list[str]:
    """Return the names of files; a place holder stands for cells in memory."""
    several = [files] if isinstance(files, str | os.PathLike | AnnData) else list(files)
    return ["AnnData" if isinstance(one, AnnData) else os.fspath(one) for one in several]


def _path_of(model: "Model | File | None") -> str | None:
    """Return the folder or the name of a model, for options."""
    if model is None or isinstance(model, str | os.PathLike):
        return None if model is None else os.fspath(model)
    return str(model.path)


def _loaded(model: "Model | File | None", cfg: Any) -> "Model":
    from scperformer.network import Model, load_model

    if model is not None and cfg.model_path != _path_of(model):
        raise InputError(f"a model and model_path={cfg.model_path}", "one of them", "leave the other out")
    return model if isinstance(model, Model) else load_model(cfg.model_path)


@dataclass(repr=False)
class Trained:
    """A model folder that was written, with its scores and the history of its training; it can be used as a path."""

    path: Path
    metrics: dict[str, Any]  # all of them, as in bundle.json
    history: pd.DataFrame  # one row per epoch; empty if the branches were fitted, not trained

    @property
    def scores(self) -> pd.DataFrame:
        """Accuracy and macro-F1 on the validation cells, of the model and of logistic regression.

        Of a pretraining, the loss of the encoder and of a naive guess.
        """
        if "model" not in self.metrics:
            losses = {"model": self.metrics["loss"], "naive guess": self.metrics["naive_loss"]}
            return pd.DataFrame({"loss": losses})
        return pd.DataFrame({name: self.metrics[name] for name in ("model", "baseline")}).T

    def load(self) -> "Model":
        """Load the model."""
        from scperformer.network import load_model

        return load_model(self.path)

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        epochs = f", {len(self.history)} epochs" if len(self.history) else ""
        return f"Model folder {self.path}{epochs}\n{self.scores.round(3)}"

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self).partition(chr(10))[0])}</p>{self.scores.round(3).to_html()}"


def _trained(path: Path) -> Trained:
    metrics = json.loads((path / INFO).read_text(encoding="utf-8"))["metrics"]
    table = path.with_name(f"{path.name}.run") / "metrics.csv"
    return Trained(path, metrics, pd.read_csv(table) if table.is_file() else pd.DataFrame())


@_step("check")
def check(
    cells: AnnData | File | Sequence[AnnData | File],
    *,
    model: "Model | File | None" = None,
    label_key: str | None = CheckConfig.label_key,
    doublets: bool = CheckConfig.doublets,
    options: Options | None = None,
) -> "Checks":
    """Describe cells, and check whether a model can annotate them or, with `label_key`, whether they can train one.

    Parameters
    ----------
    cells
        Cells in memory or files, one or more.
    model
        From `load_model`, or its folder or name; None: $SCPERFORMER_MODEL, else the packaged model.
    label_key
        Column of obs with labels: check the cells as a reference.
    doublets
        Also look for likely doublets (Scrublet), which takes some seconds.
    options
        More options of `check` by their full names, such as `{"species": "mouse"}`.

    Returns
    -------
    The findings: `files`, one mapping each; `problems`, which are empty if all is well; and a text, its repr.

    Raises
    ------
    InputError
        An option is wrong. Problems of the cells are no errors: they are in the result.
    """
    from scperformer.reports.check import check_all

    cfg = _config(
        "check", options, inputs=_paths(cells), model_path=_path_of(model), label_key=label_key, doublets=doublets
    )
    several = [cells] if isinstance(cells, str | os.PathLike | AnnData) else cells
    return check_all([one if isinstance(one, AnnData) else os.fspath(one) for one in several], cfg)


class PreprocessKeywords(TypedDict, total=False):
    """The keywords of `preprocess`, for type checkers."""

    model: "Model | File | None"
    output: File | None
    overwrite: bool
    options: Options | None


@overload
def preprocess(cells: File, **named: Unpack[PreprocessKeywords]) -> Path: ...
@overload
def preprocess(cells: AnnData, **named: Unpack[PreprocessKeywords]) -> AnnData: ...
@_step("preprocess")
def preprocess(
    cells: AnnData | File,
    *,
    model: "Model | File | None" = None,
    output: File | None = None,
    overwrite: bool = False,
    options: Options | None = None,
) -> AnnData | Path:
    """Filter, normalise and log-transform cells.

    Parameters
    ----------
    cells
        N cells x G genes in memory, or a file.
    model
        Align the genes to those of this model.
    output
        The h5ad file to write; None: INPUT.prepared.h5ad beside a file, nothing for cells in memory.
    overwrite
        Replace an output that exists.
    options
        More options of `preprocess` by their full names, such as `{"data.min_genes": 200}`.

    Returns
    -------
    New cells, ln(1 + counts per 10,000) in X, for cells in memory; for a file, the path of the output.
    """
    from scperformer.dataset.preprocess import prepare, run_preprocess
    from scperformer.files import write_h5ad

    named = {"model_path": _path_of(model), "output": output, "overwrite": overwrite}
    cfg = _config("preprocess", options, inputs=_paths(cells), **named)
    if not isinstance(cells, AnnData):
        return run_preprocess(cfg)
    if cfg.output is not None:
        require_absent(cfg.output, cfg.overwrite)
    prepared = prepare(cells, cfg, Path("the data"))
    prepared = prepared.copy() if prepared is cells else prepared
    if cfg.output is not None:
        write_h5ad(prepared, Path(cfg.output), cfg.overwrite)
    return prepared


@_step("train")
def train(
    cells: AnnData | File | Sequence[File],
    label_key: str,
    *,
    output: File | None = None,
    model: str | None = None,
    seed: int = TrainConfig.seed,
    init: "Trained | File | None" = None,
    tissue: str | None = TrainConfig.tissue,
    resume: bool = TrainConfig.resume,
    overwrite: bool = TrainConfig.overwrite,
    options: Options | None = None,
) -> Trained:
    """Train a model on labelled cells.

    Parameters
    ----------
    cells
        N cells x G genes in memory, with counts or log-normalised expression in X, a layer or `.raw`; or files.
    label_key
        Column of obs with the cell types.
    output
        The model folder to write; None: INPUT.model beside a file. Cells in memory need it.
    model
        Preset of the encoder: pooled (the default), tiny, small, base or scbert.
    seed
        Of every random choice.
    init
        A model folder whose encoder is the start, such as the result of `pretrain`.
    tissue
        Tissue of the reference, which the model states.
    resume
        Continue an interrupted run.
    overwrite
        Replace a model folder that exists.
    options
        More options of `train` by their full names, such as `{"trainer.max_epochs": 5, "attention": "softmax"}`.

    Returns
    -------
    The model folder: `path`, `scores` beside logistic regression, `history` of the epochs, and `load()`.

    Raises
    ------
    InputError
        An option is wrong, the cells cannot be used, or the folder exists.
    """
    from scperformer.training.train import run_train, train_cells

    named = {"label_key": label_key, "output": output, "model": model, "seed": seed, "init": init, "tissue": tissue}
    cfg = _config("train", options, inputs=_paths(cells), **named, resume=resume, overwrite=overwrite)
    if not isinstance(cells, AnnData):
        return _trained(run_train(cfg))
    return _trained(train_cells(cells, cfg, _required(cfg)))


def _required(cfg: Any) -> Path:
    if cfg.output is None:
        raise InputError("no output beside cells in memory", "a folder to write", "add output=...")
    return Path(cfg.output)


@_step("pretrain")
def pretrain(
    cells: AnnData | File | Sequence[AnnData] | Sequence[File],
    *,
    output: File | None = None,
    model: str | None = None,
    seed: int = PretrainConfig.seed,
    init: "Trained | File | None" = None,
    resume: bool = PretrainConfig.resume,
    overwrite: bool = PretrainConfig.overwrite,
    options: Options | None = None,
) -> Trained:
    """Pretrain an encoder on cells without labels.

    Parameters
    ----------
    cells
        One or more AnnData, each N cells x G genes, with counts or log-normalised expression; or one or more files.
    output
        The model folder to write; None: INPUT.encoder beside the first file. Cells in memory need it.
    model
        Preset of the encoder: tiny (the default), small, base or scbert.
    seed
        Of every random choice.
    init
        A model folder whose encoder is the start.
    resume
        Continue an interrupted run.
    overwrite
        Replace a model folder that exists.
    options
        More options of `pretrain` by their full names, such as `{"tokens": "scbert", "trainer.max_epochs": 5}`.

    Returns
    -------
    The model folder, for `train(..., init=...)`.

    Raises
    ------
    InputError
        An option is wrong, the cells cannot be used, or the folder exists.
    """
    from scperformer.training.pretrain import pretrain_cells, run_pretrain

    named = {"output": output, "model": model, "seed": seed, "init": init, "resume": resume, "overwrite": overwrite}
    cfg = _config("pretrain", options, inputs=_paths(cells), **named)
    several = [cells] if isinstance(cells, str | os.PathLike | AnnData) else list(cells)
    in_memory = [one for one in several if isinstance(one, AnnData)]
    if in_memory and len(in_memory) < len(several):
        raise InputError("files beside cells in memory", "one of both", "read the files first, or write the cells")
    return _trained(pretrain_cells(in_memory, cfg, _required(cfg)) if in_memory else run_pretrain(cfg))


class AnnotateKeywords(TypedDict, total=False):
    """The keywords of `annotate`, for type checkers."""

    output: File | None
    output_dir: File | None
    key_added: str
    overwrite: bool
    species: str
    min_confidence: float
    false_alarms: float
    alpha: float | None
    clusters: str | None
    threads: int
    options: Options | None


@overload  # a text is a sequence of texts, too: the first signature that fits counts
def annotate(  # type: ignore[overload-overlap]
    cells: File, model: "Model | File | None" = ..., **named: Unpack[AnnotateKeywords]
) -> Path: ...
@overload
def annotate(
    cells: Sequence[File], model: "Model | File | None" = ..., **named: Unpack[AnnotateKeywords]
) -> list[Path]: ...
@overload
def annotate(cells: AnnData, model: "Model | File | None" = ..., **named: Unpack[AnnotateKeywords]) -> AnnData: ...
@_step("predict")
def annotate(
    cells: AnnData | File | Sequence[File],
    model: "Model | File | None" = None,
    *,
    output: File | None = None,
    output_dir: File | None = None,
    key_added: str = PredictConfig.key_added,
    overwrite: bool = PredictConfig.overwrite,
    species: str = PredictConfig.species,
    min_confidence: float = PredictConfig.min_confidence,
    false_alarms: float = PredictConfig.false_alarms,
    alpha: float | None = PredictConfig.alpha,
    clusters: str | None = PredictConfig.clusters,
    threads: int = PredictConfig.threads,
    options: Options | None = None,
) -> AnnData | Path | list[Path]:
    """Annotate cells: add labels, confidences and more to an AnnData in place, or write annotated copies of files.

    Parameters
    ----------
    cells
        N cells x G genes in memory, with counts or log-normalised expression in X, a layer or `.raw`; or files.
    model
        From `load_model`, or its folder or name; None: $SCPERFORMER_MODEL, else the packaged model.
    output
        The annotated file; None: INPUT.annotated.h5ad beside each input. None for cells in memory.
    output_dir
        A folder for the outputs of several files.
    key_added
        Prefix of the keys that are added (docs/formats.md lists them).
    overwrite
        Replace an earlier annotation with the same prefix, or outputs that exist.
    species
        Of the genes: auto, human or mouse.
    min_confidence
        Cells with a lower confidence, 0 to 1, are flagged as unknown, too.
    false_alarms
        Share of cells like the reference's that are flagged as unknown.
    alpha
        Also give each cell a set of labels that contains the true one with probability 1 - alpha.
    clusters
        Also one label per cluster: a column of obs, or auto.
    threads
        CPU threads.
    options
        More options of `predict` by their full names, such as `{"source": "layers/counts"}`.

    Returns
    -------
    The same AnnData; for a file, the path of its annotated copy; for several, a list of these.

    Raises
    ------
    InputError
        An option is wrong, the expression cannot be used, too few genes are shared, or the keys or the output exist.
    """
    from scperformer.prediction.predict import annotate_cells, run_predict

    named = {"key_added": key_added, "overwrite": overwrite, "species": species, "min_confidence": min_confidence}
    named |= {"false_alarms": false_alarms, "alpha": alpha, "clusters": clusters, "threads": threads}
    named |= {"output": output, "output_dir": output_dir, "model_path": _path_of(model)}
    cfg = _config("predict", options, inputs=_paths(cells), **named)
    if not isinstance(cells, AnnData):
        paths = run_predict(cfg, _loaded(model, cfg))
        return paths[0] if isinstance(cells, str | os.PathLike) else paths
    if written := [name for name in ("output", "outputs", "output_dir") if getattr(cfg, name)]:
        found = f"{written[0]}={getattr(cfg, written[0])}"
        raise InputError(found, "no output: the AnnData itself is annotated", "leave it out")
    annotate_cells(cells, _loaded(model, cfg), cfg)
    return cells


@_step("predict")
def embed(
    cells: AnnData | File,
    model: "Model | File | None" = None,
    *,
    species: str = PredictConfig.species,
    threads: int = PredictConfig.threads,
    options: Options | None = None,
) -> np.ndarray:
    """Embed cells with the encoder of a model.

    Parameters
    ----------
    cells
        N cells x G genes in memory, or a file.
    model
        From `load_model`, or its folder or name; None: $SCPERFORMER_MODEL, else the packaged model.
    species
        Of the genes: auto, human or mouse.
    threads
        CPU threads.
    options
        More options of `predict` by their full names.

    Returns
    -------
    float32, N x D, as `annotate` puts it into obsm["X_scperformer"].

    Raises
    ------
    InputError
        As for `annotate`.
    """
    from scperformer.prediction.predict import embed_cells

    named = {"species": species, "threads": threads, "model_path": _path_of(model)}
    cfg = _config("predict", options, inputs=_paths(cells), **named)
    loaded = _loaded(model, cfg)
    if isinstance(cells, AnnData):
        return embed_cells(cells, loaded, cfg)
    with open_cells(os.fspath(cells), cfg.orientation) as opened:
        return embed_cells(opened, loaded, cfg, os.fspath(cells))


@_step("adapt")
def adapt(
    model: "Model | File",
    cells: AnnData | File,
    *,
    output: File | None = None,
    overwrite: bool = False,
    options: Options | None = None,
) -> Trained:
    """Adapt a model to the genes and the depth of cells, or to a list of genes; `annotate` does so by itself.

    Parameters
    ----------
    model
        From `load_model`, or its folder or name; it keeps cells of its reference.
    cells
        N cells x G genes in memory, a file of cells, or a text file (.txt) with a gene in each line.
    output
        The model folder to write; None: INPUT.adapted beside a file. Cells in memory need it.
    overwrite
        Replace a model folder that exists.
    options
        More options of `adapt` by their full names.

    Returns
    -------
    The folder of the adapted model.

    Raises
    ------
    InputError
        The model keeps no cells, the cells cannot be annotated by it, or the folder exists.
    """
    from scperformer.files import beside
    from scperformer.prediction.adapt import write_adapted

    cfg = _config(
        "adapt", options, inputs=_paths(cells), model_path=_path_of(model), output=output, overwrite=overwrite
    )
    source = cells if isinstance(cells, AnnData) else os.fspath(cells)
    beside_it = isinstance(source, str) and cfg.output is None
    place = beside(source, ".adapted") if isinstance(source, str) and beside_it else _required(cfg)
    return _trained(write_adapted(_loaded(model, cfg), source, place, cfg))


@_step("evaluate")
def evaluate(
    cells: AnnData | File | Sequence[File],
    truth_key: str,
    *,
    output: File | None = None,
    key_added: str = EvaluateConfig.key_added,
    overwrite: bool = EvaluateConfig.overwrite,
    options: Options | None = None,
) -> "Evaluation":
    """Compare annotations with true labels, beside logistic regression.

    Parameters
    ----------
    cells
        Annotated cells in memory, or annotated files.
    truth_key
        Column of obs with the true labels.
    output
        A folder to write the evaluation into; None: nothing is written.
    key_added
        Prefix of the annotation.
    overwrite
        Replace a folder that exists.
    options
        More options of `evaluate` by their full names, such as `{"truth_path": ["labels.csv"]}`.

    Returns
    -------
    The evaluation: `scores`, `per_class` and `confusion` as tables, and all `metrics`.

    Raises
    ------
    InputError
        The cells are not annotated, or there are no true labels.
    """
    from scperformer.reports.annotated import of_cells, read_annotated
    from scperformer.reports.evaluate import METRICS, evaluate_samples, write_evaluation

    named = {"truth_key": truth_key, "output": output, "key_added": key_added, "overwrite": overwrite}
    cfg = _config("evaluate", options, inputs=_paths(cells), **named)
    if cfg.output is not None:
        require_absent(cfg.output, cfg.overwrite, marker=METRICS)
    in_memory = isinstance(cells, AnnData)
    samples = [of_cells(cells, cfg.key_added)] if in_memory else read_annotated(cfg.inputs, cfg.key_added)
    evaluation = evaluate_samples(samples, cfg)
    if cfg.output is not None:
        write_evaluation(evaluation, Path(cfg.output), cfg.overwrite)
    return evaluation


@_step("explain")
def explain(
    cells: AnnData | File,
    model: "Model | File | None" = None,
    *,
    label: str | None = ExplainConfig.label,
    num_cells: int | None = ExplainConfig.cells,
    seed: int = ExplainConfig.seed,
    output: File | None = None,
    key_added: str = ExplainConfig.key_added,
    overwrite: bool = ExplainConfig.overwrite,
    options: Options | None = None,
) -> "Explanation":
    """Find the contribution of each gene to the calls of a sample of annotated cells.

    Parameters
    ----------
    cells
        Cells that `annotate` has annotated with the same model, or an annotated file.
    model
        From `load_model`, or its folder or name; None: the model that the annotation names.
    label
        Explain the logit of this label in all cells; None: of the label of each cell.
    num_cells
        Cells of each label, a random sample; None: all.
    seed
        Of the choice of cells, and of the genes that the deletion test draws.
    output
        A folder to write the explanation into; None: nothing is written.
    key_added
        Prefix of the annotation.
    overwrite
        Replace a folder that exists.
    options
        More options of `explain` by their full names.

    Returns
    -------
    The explanation: `genes` and `deletion` as tables, and `adata`, the contributions of genes to cells.

    Raises
    ------
    InputError
        An option is wrong, the cells are not annotated, or the model does not give them their labels.
    """
    from scperformer.reports.annotated import of_cells
    from scperformer.reports.explain import PAGE, Explanation, explain_cells, explain_file, write_explanation

    named = {"label": label, "cells": "all" if num_cells is None else num_cells, "seed": seed, "output": output}
    named |= {"key_added": key_added, "overwrite": overwrite, "model_path": _path_of(model)}
    cfg = _config("explain", options, inputs=_paths(cells), **named)
    if cfg.output is not None:
        require_absent(cfg.output, cfg.overwrite, marker=PAGE)
    loaded = None if model is None else _loaded(model, cfg)
    if isinstance(cells, AnnData):
        sample = of_cells(cells, cfg.key_added)
        made = explain_cells(cells, sample.labels, sample.facts, cfg, loaded)
    else:
        made = explain_file(cfg, loaded)
    if cfg.output is None:
        return Explanation(made, cfg.key_added)
    write_explanation(made, Path(cfg.output), cfg, Path(cfg.inputs[0]).stem)
    return Explanation(made, cfg.key_added, Path(cfg.output))


@dataclass(repr=False)
class Page:
    """A page that was written; it can be used as a path."""

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"Page {self.path}"

    def _repr_html_(self) -> str:
        return f'<a href="{escape(str(self.path))}" target="_blank">{escape(str(self.path))}</a>'


@_step("report")
def report(
    cells: AnnData | File | Sequence[File],
    *,
    output: File | None = None,
    evaluation: "Evaluation | File | None" = None,
    title: str = ReportConfig.title,
    key_added: str = ReportConfig.key_added,
    overwrite: bool = ReportConfig.overwrite,
    options: Options | None = None,
) -> Page:
    """Make one HTML page about annotated cells.

    Parameters
    ----------
    cells
        Annotated cells in memory, or annotated files.
    output
        The page; None: report.html beside the first file, or in the current folder.
    evaluation
        From `evaluate`, or its folder: the page then shows it.
    title
        Of the page.
    key_added
        Prefix of the annotation.
    overwrite
        Replace a page that exists.
    options
        More options of `report` by their full names, such as `{"max_cells": 5000}`.

    Returns
    -------
    The page, with its `path`.

    Raises
    ------
    InputError
        The cells are not annotated, the evaluation is about other cells, or the page exists.
    """
    from scperformer.reports.evaluate import Evaluation, write_evaluation
    from scperformer.reports.report import run_report

    with TemporaryDirectory(prefix="scperformer-") as temporary:
        paths, folder = _paths(cells), evaluation
        if isinstance(cells, AnnData):
            output = "report.html" if output is None else output
            paths = [str(Path(temporary) / "cells.h5ad")]
            cells.write_h5ad(paths[0])
        if isinstance(evaluation, Evaluation):
            folder = Path(temporary) / "evaluation"
            write_evaluation(evaluation, folder, overwrite=False)
        named = {"evaluation": folder, "title": title, "key_added": key_added, "overwrite": overwrite}
        return Page(run_report(_config("report", options, inputs=paths, output=output, **named)))


@_step("models")
def models() -> pd.DataFrame:
    """List the packaged model and the imported ones: a row each, with labels, genes, tissue and folder."""
    library = library_folder()
    imported = [folder for folder in sorted(library.iterdir()) if (folder / INFO).is_file()] if library.is_dir() else []
    rows = []
    for folder in [PACKAGED, *imported]:
        bundle = load_bundle(folder)
        labels = ", ".join(bundle.labels)
        row = {"name": bundle.name, "labels": labels, "num_labels": len(bundle.labels), "num_genes": len(bundle.genes)}
        rows.append(row | {"tissue": bundle.tissue, "path": str(folder)})
    return pd.DataFrame(rows)
