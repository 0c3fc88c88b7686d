"""The steps as functions of Python: they take files or AnnData objects, and return objects.

Each function makes the options of its step from its keywords and from `options`, a mapping of the full names in
docs/configuration.md: `options={"trainer.max_epochs": 5}`. The defaults are the same as on the command line. No
function but `annotate` changes an AnnData. What a user can correct is an `InputError`.
"""

import inspect
import json
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
import pandas as pd
from anndata import AnnData

from scperformer.base.errors import InputError, require_path
from scperformer.base.progress import say
from scperformer.cells.opened import OpenedCells, open_cells
from scperformer.cli.check import CheckConfig
from scperformer.cli.compose import config_from
from scperformer.cli.evaluate import EvaluateConfig
from scperformer.cli.explain import ExplainConfig
from scperformer.cli.help import option_texts
from scperformer.cli.predict import PredictConfig
from scperformer.cli.pretrain import PretrainConfig
from scperformer.cli.report import ReportConfig, write_page
from scperformer.cli.steps import SCHEMAS
from scperformer.cli.train import TrainConfig
from scperformer.model.content import INFO
from scperformer.model.folder import PACKAGED_MODEL, imported_models, library_folder, names_model, read_model
from scperformer.model.tissues import COMMON, collection

if TYPE_CHECKING:  # they import torch or pictures: the functions load them when they are called
    from scperformer.annotation.fitted import Model
    from scperformer.attention.base import Attention
    from scperformer.attention.tokens import Batch
    from scperformer.results.check import Checks
    from scperformer.results.evaluate import Evaluation
    from scperformer.results.explain import Explanation

File = str | os.PathLike[str]
Options = Mapping[str, Any]
CELLS = (str, os.PathLike, AnnData)  # files, or cells in memory
TAKE_LISTS = ("check", "pretrain")  # steps that take several AnnData
# Arguments that several functions have.
SHARED = {
    "cells": "N cells x G genes in memory, with counts or log-normalised expression in X, a layer or `.raw`; or files",
    "model": "from `load_model`, or its folder or name; None: $SCPERFORMER_MODEL, else the tissue is found",
    "options": 'more options by their full names, such as `{"seed": 1}`',
    "attention": "a mechanism by its name, such as softmax, or a class of your own; None: favor",
    "full_sample": "all cells of the sample, if `cells` are some of them, which are then treated as there",
}
Function = TypeVar("Function", bound=Callable[..., Any])


def documented(step: str) -> Callable[[Function], Function]:
    """Add the arguments that a docstring leaves out: those that are options of a step, and `SHARED` ones."""

    def decorate(function: Function) -> Function:
        meanings = {option.name: option.meaning for option in [*option_texts("files"), *option_texts(step)]} | SHARED
        text = inspect.getdoc(function) or ""
        entries = ""
        for name in inspect.signature(function).parameters:
            if name in meanings and f"\n{name}\n" not in text:
                meaning = re.sub(r"\bnull\b", "None", meanings[name])
                lines = textwrap.fill(f"{meaning[0].upper()}{meaning[1:]}.", 112)
                entries += f"{name}\n{textwrap.indent(lines, '    ')}\n"
        before, title, after = text.partition("\nReturns\n")
        before += "" if "\nParameters\n" in before else "\nParameters\n----------\n"
        function.__doc__ = before + entries + title + after
        return function

    return decorate


def read_arguments(
    step: str, arguments: Mapping[str, Any], *, several: bool = True, writes: str = "", **more: Any
) -> tuple[Any, list[str | AnnData]]:
    """Return the options of a step, and its cells as a list, from the arguments of a function.

    None stands for the default of an option, which presets may change. AnnData objects are no options. A class as
    `attention` is registered, and chosen by its name. `several` files may be given. If the function `writes` something,
    cells in memory need an output. `more` are options in place of arguments.
    """
    options = arguments["options"]
    if not isinstance(options, Mapping | None):
        raise InputError("options-type", f"options={options!r}", "a mapping", "write options={'trainer.max_epochs': 5}")
    cells = _listed(arguments["cells"], several, step in TAKE_LISTS)
    for file in (one for one in cells if isinstance(one, str)):
        require_path(file)
    names = {entry.name for entry in fields(SCHEMAS[step])} - {"cells"}
    given = {name: value for name, value in arguments.items() if name in names} | more
    if "model" not in names and (model := arguments.get("model")) is not None:  # else it is a preset
        given["model_path"] = getattr(model, "path", model)
        if not isinstance(given["model_path"], str | os.PathLike):
            found = f"a model of the type {type(model).__name__}"
            raise InputError(
                "model-type", found, "a folder, a name, or what load or train returned", "give one of these"
            )
    given = {name: value for name, value in given.items() if value is not None and not isinstance(value, AnnData)}
    given |= options or {}
    if isinstance(mechanism := given.get("attention"), type):
        from scperformer.attention.registry import register_attention  # imports torch

        given["attention"] = register_attention(mechanism).__name__.lower()
    cfg = config_from(step, {"inputs": [one if isinstance(one, str) else "AnnData" for one in cells]} | given)
    if writes and cfg.output is None and isinstance(cells[0], AnnData):
        raise InputError("no-output", "no output beside cells in memory", writes, "add output=...")
    return cfg, cells


def _listed(cells: Any, several: bool, several_in_memory: bool) -> list[str | AnnData]:
    """Return cells as a list of files, or of the AnnData; refuse anything else, such as tables."""
    is_list = isinstance(cells, Iterable) and not isinstance(cells, Mapping) and getattr(cells, "ndim", 1) == 1
    found: list[Any] = [cells] if isinstance(cells, CELLS) else list(cells) if several and is_list else []
    if not found or not all(isinstance(one, CELLS) for one in found):
        expected = "an AnnData, a file or a list of files" if several else "an AnnData or a file"
        remedy = "make an AnnData, anndata.AnnData(matrix, obs, var) with cells in rows; of MuData, give "
        raise InputError("cells-type", f"cells of type {type(cells).__name__}", expected, f"{remedy}mdata.mod['rna']")
    if not (several_in_memory or isinstance(cells, AnnData)) and any(isinstance(one, AnnData) for one in found):
        remedy = "write each to a file with write_h5ad, or put cells of one study together with anndata.concat"
        raise InputError("mixed-cells", "a list with an AnnData in it", "one AnnData, or a list of files", remedy)
    return [one if isinstance(one, AnnData) else os.fspath(one) for one in found]


def _named(model: "Model | File | None", cfg: Any) -> "Model | None":
    """Return the model, or load the one that the options name; None: the tissue of the cells is to be found."""
    return _loaded(model, cfg) if names_model(cfg.model_path, cfg.tissue) else None


def _loaded(model: "Model | File | None", cfg: Any) -> "Model":
    """Return the model, or load the one that the options name."""
    from scperformer.annotation.fitted import Model
    from scperformer.annotation.load import load_model

    return model if isinstance(model, Model) and cfg.model_path == str(model.path) else load_model(cfg.model_path)


@dataclass(repr=False)
class Trained:
    """A model folder that was written, with its scores and the history of its training; it can be used as a path."""

    path: Path
    metrics: dict[str, Any]  # all of them, as in bundle.json
    history: pd.DataFrame  # one row per epoch; empty if the branches were fitted, not trained

    @property
    def scores(self) -> pd.DataFrame:
        """Accuracy and macro-F1 on the validation cells, of the model and of logistic regression.

        Of a pretraining, the loss of the encoder and of a naive guess; of an adapted model, the scores to expect of it,
        from held-out cells of the reference as the file would have measured them. Empty if there is no such evidence.
        """
        metrics = self.metrics
        if "model" in metrics:
            return pd.DataFrame({name: metrics[name] for name in ("model", "baseline")}).T
        if "loss" in metrics:
            return pd.DataFrame({"loss": {"model": metrics["loss"], "naive guess": metrics["naive_loss"]}})
        if fold := metrics.get("out_of_fold"):
            return pd.DataFrame({"model": {name: fold[name] for name in ("accuracy", "macro_f1")}}).T
        return pd.DataFrame()

    def load(self) -> "Model":
        """Load the model."""
        from scperformer.annotation.load import load_model

        return load_model(self.path)

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        epochs = f", {len(self.history)} epochs" if len(self.history) else ""
        scores = "" if self.scores.empty else f"\n{self.scores.round(3)}"
        return f"Model folder {self.path}{epochs}{scores}"

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self).partition(chr(10))[0])}</p>{self.scores.round(3).to_html()}"


def _trained(path: Path) -> Trained:
    if not (path / INFO).is_file():  # one of several processes, of which the first one writes the model
        return Trained(path, {}, pd.DataFrame())
    metrics = json.loads((path / INFO).read_text(encoding="utf-8"))["metrics"]
    table = path.with_name(f"{path.name}.run") / "metrics.csv"
    return Trained(path, metrics, pd.read_csv(table) if table.is_file() else pd.DataFrame())


@documented("train")
def train(
    cells: AnnData | File | Sequence[File],
    label_key: str | None = TrainConfig.label_key,
    *,
    output: File | None = None,
    model: str | None = None,
    attention: "str | type[Attention] | None" = None,
    seed: int = TrainConfig.seed,
    init: "Trained | File | None" = None,
    tissue: str | None = TrainConfig.tissue,
    batch_key: str | None = TrainConfig.batch_key,
    resume: bool = TrainConfig.resume,
    overwrite: bool = TrainConfig.overwrite,
    options: Options | None = None,
) -> Trained:
    """Train a model on labelled cells, or on profiles of cell types.

    Parameters
    ----------
    cells
        N cells x G genes in memory, with counts or log-normalised expression in X, a layer or `.raw`; or files. Rows
        may also be profiles or bulk samples; a file of profiles beside one of cells adds the types that these lack.
    output
        The model folder to write; None: INPUT.model beside a file. Cells in memory need it.
    model
        Preset of the encoder: performer (the default), pooled, tiny, base or scbert.

    Returns
    -------
    The model folder: `path`, `scores` beside logistic regression, `history` of the epochs, and `load()`.
    """
    from scperformer.cli.train import run as run_train

    cfg, _ = read_arguments("train", locals(), writes="a folder to write")
    if not isinstance(cells, AnnData):
        return _trained(run_train(cfg))
    return _trained(run_train(cfg, cells.to_memory() if cells.isbacked else cells))


@documented("pretrain")
def pretrain(
    cells: AnnData | File | Sequence[AnnData] | Sequence[File],
    *,
    output: File | None = None,
    model: str | None = None,
    attention: "str | type[Attention] | None" = None,
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
        Preset of the encoder: tiny (the default), base or scbert.

    Returns
    -------
    The model folder, for `train(..., init=...)`.
    """
    from scperformer.cli.pretrain import run as run_pretrain

    cfg, several = read_arguments("pretrain", locals(), writes="a folder to write")
    in_memory = [one for one in several if isinstance(one, AnnData)]
    if in_memory and len(in_memory) < len(several):
        raise InputError(
            "mixed-cells", "files beside cells in memory", "one of both", "read the files first, or write the cells"
        )
    return _trained(run_pretrain(cfg, in_memory or None))


@documented("adapt")
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

    Returns
    -------
    The folder of the adapted model.
    """
    from scperformer.cli.adapt import run as run_adapt

    cfg, _ = read_arguments("adapt", locals(), several=False, writes="a folder to write")
    return _trained(run_adapt(cfg, _loaded(model, cfg), cells if isinstance(cells, AnnData) else None))


@documented("models")
def import_model(
    path: File,
    *,
    name: str | None = None,
    reference: File | None = None,
    label_key: str | None = None,
    output: File | None = None,
    overwrite: bool = False,
    options: Options | None = None,
) -> Trained:
    """Import a model folder, an archive of one, or a model of another tool, such as a .pkl of CellTypist.

    Nothing in it is executed.

    Parameters
    ----------
    path
        The file or folder.
    output
        The folder of models; None: $SCPERFORMER_MODELS, else that among the user's data.

    Returns
    -------
    The model folder, in the folder of models, where `load_model(name)` finds it.
    """
    from scperformer.cli.models import run as run_models

    cfg, _ = read_arguments("models", locals() | {"cells": path}, several=False, action="import")
    return _trained(run_models(cfg)[0])


def models() -> pd.DataFrame:
    """List the models, packaged and imported, and the tissues: a row each, with labels, genes, tissue and folder.

    `kind` is "model", "tissue" (which has no folder and is named by `options={"tissue": name}`) or "common types", by
    which cells of an unknown tissue are named. A folder that cannot be used has a row with the reason in `problem`,
    which is empty for the others.
    """
    rows: list[dict[str, Any]] = []
    for folder in [PACKAGED_MODEL, *imported_models(library_folder())]:
        row = {"kind": "model", "name": folder.name, "labels": [], "num_genes": 0, "path": str(folder), "problem": ""}
        try:
            saved = read_model(folder)
            row |= {"name": saved.name, "labels": saved.labels, "num_genes": len(saved.genes), "tissue": saved.tissue}
        except InputError as error:
            row["problem"] = str(error)
        rows.append(row)
    for name in collection().tissues()["name"]:
        row = {"kind": "tissue", "name": name, "labels": collection().labels(name)["label"]}
        rows.append(row | {"tissue": collection().title(name), "path": "", "problem": ""})
    for species, name in COMMON.items():
        labels = [
            label for label in collection().common_types(species).profiles.index if label not in collection().others
        ]
        row = {"kind": "common types", "name": name, "labels": labels}
        rows.append(row | {"tissue": collection().title(name), "path": "", "problem": ""})
    table = pd.DataFrame(rows).assign(num_labels=[len(row["labels"]) for row in rows])
    table["labels"] = table["labels"].map(", ".join)
    columns = ["kind", "name", "labels", "num_labels", "num_genes", "tissue", "path", "problem"]
    return table[columns].astype({"num_genes": "Int64"})


@documented("check")
def check(
    cells: AnnData | File | Sequence[AnnData | File],
    *,
    model: "Model | File | None" = None,
    label_key: str | None = CheckConfig.label_key,
    options: Options | None = None,
) -> "Checks":
    """Describe cells, and check whether a model can annotate them or, with `label_key`, whether they can train one.

    Problems of the cells are in the result; they raise no error.

    Returns
    -------
    The findings: `files`, one mapping each; `problems`, which are empty if all is well; and a text, its repr.
    """
    from scperformer.results.check import check_all

    cfg, sources = read_arguments("check", locals())
    return check_all(sources, cfg, label_key=cfg.label_key)


@overload  # a text is a sequence of texts, too: the first signature that fits counts
def annotate(  # type: ignore[overload-overlap]
    cells: File, model: "Model | File | None" = ..., **named: Any
) -> Path: ...
@overload
def annotate(cells: Sequence[File], model: "Model | File | None" = ..., **named: Any) -> list[Path]: ...
@overload
def annotate(cells: AnnData, model: "Model | File | None" = ..., **named: Any) -> AnnData: ...
@documented("predict")  # type: ignore[misc]
def annotate(
    cells: AnnData | File | Sequence[File],
    model: "Model | File | None" = None,
    *,
    output: File | None = None,
    output_dir: File | None = None,
    key_added: str = PredictConfig.key_added,
    overwrite: bool = PredictConfig.overwrite,
    replace_annotation: bool = PredictConfig.replace_annotation,
    species: str = PredictConfig.species,
    min_confidence: float | None = PredictConfig.min_confidence,
    unknown_fpr: float = PredictConfig.unknown_fpr,
    alpha: float | None = PredictConfig.alpha,
    clusters: str | None = PredictConfig.clusters,
    batch_key: str | None = PredictConfig.batch_key,
    full_sample: AnnData | File | None = PredictConfig.full_sample,
    threads: int = PredictConfig.threads,
    options: Options | None = None,
) -> AnnData | Path | list[Path]:
    """Annotate cells: add labels, confidences and more to an AnnData in place, or write annotated copies of files.

    For an AnnData, a paragraph is printed that says what was found, and whether the labels can be trusted.

    Parameters
    ----------
    cells
        N cells x G genes in memory, with counts or log-normalised expression in X, a layer or `.raw`; or files.
    output
        The annotated file; None: INPUT.annotated.h5ad beside each input. None for cells in memory.

    Returns
    -------
    The same AnnData; for a file, the path of its annotated copy; for several, a list of these.
    """
    from scperformer.annotation.predict import annotate_cells
    from scperformer.cli.predict import run as run_predict

    cfg, _ = read_arguments("predict", locals())
    whole = full_sample if isinstance(full_sample, AnnData) else None
    if not isinstance(cells, AnnData):
        if whole is not None:
            raise InputError(
                "full-sample-type", "full_sample in memory for a file of cells", "a file", "write it to a file first"
            )
        paths = run_predict(cfg, _named(model, cfg))
        return paths[0] if isinstance(cells, str | os.PathLike) else paths
    if written := [name for name in ("output", "output_dir", "markers") if getattr(cfg, name)]:
        found = f"{written[0]}={getattr(cfg, written[0])}"
        raise InputError("output-in-memory", found, "no output: the AnnData itself is annotated", "leave it out")
    say(annotate_cells(cells, _named(model, cfg), cfg, whole).text)
    return cells


@documented("predict")
def embed(
    cells: AnnData | File,
    model: "Model | File | None" = None,
    *,
    species: str = PredictConfig.species,
    batch_key: str | None = PredictConfig.batch_key,
    full_sample: AnnData | File | None = PredictConfig.full_sample,
    threads: int = PredictConfig.threads,
    options: Options | None = None,
) -> np.ndarray:
    """Embed cells with the encoder of a model.

    Returns
    -------
    float32, N x D, as `annotate` puts it into obsm["X_scperformer"]: vectors of the encoder, those from which its head
    computes logits, also if it has no influence on the labels; corrected for the batch effect. For a model
    without an encoder, the logits, N x C; the log says so.
    """
    from scperformer.annotation.predict import embed_cells

    cfg, _ = read_arguments("predict", locals(), several=False)
    whole = full_sample if isinstance(full_sample, AnnData) else None
    ready = _named(model, cfg)
    with open_cells(cells if isinstance(cells, AnnData) else os.fspath(cells), cfg) as opened:
        return embed_cells(opened, ready, cfg, whole)


@documented("predict")
def tokens(
    cells: AnnData,
    model: "Model | File | None" = None,
    *,
    species: str = PredictConfig.species,
    options: Options | None = None,
) -> "Batch":
    """Return the tokens of cells, for `model.network` in code of your own.

    Genes and values are recognised as by `annotate`: cells are aligned to the genes of the model and normalised.

    Parameters
    ----------
    model
        From `load_model`, or its folder or name; None: $SCPERFORMER_MODEL.

    Returns
    -------
    The tokens of all cells in their order: `tokens[rows]` are of some cells, `tokens.to(device)` is a copy on a device.
    """
    from scperformer.cells.query import find_query
    from scperformer.model.minibatches import Cells

    cfg, _ = read_arguments("predict", locals(), several=False)
    ready = _named(model, cfg)
    if ready is None:
        remedy = "add model=..., such as scperformer.load_model()"
        raise InputError("no-model", "no model", "the model whose network takes the tokens", remedy)
    query = find_query(OpenedCells(cells, cfg, "the cells"), ready.saved)
    found = Cells(query.all_cells(), ready.tokens, measured=query.measured)
    return found.batch(np.arange(len(found)))


@documented("evaluate")
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
    output
        A folder to write the evaluation into; None: nothing is written.

    Returns
    -------
    The evaluation: `scores`, `per_class` and `confusion` as tables, and all `metrics`.
    """
    from scperformer.cli.evaluate import evaluate_cells

    cfg, _ = read_arguments("evaluate", locals())
    return evaluate_cells(cfg, cells if isinstance(cells, AnnData) else None)


@documented("explain")
def explain(
    cells: AnnData | File,
    model: "Model | File | None" = None,
    *,
    label: str | None = ExplainConfig.label,
    num_cells: int | None = 200,
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
    num_cells
        Cells of each label, a random sample; None: all.
    output
        A folder to write the explanation into; None: nothing is written.

    Returns
    -------
    The explanation: `genes` and `deletion` as tables, and `adata`, the contributions of genes to cells.
    """
    from scperformer.cli.explain import explain_sample

    cfg, _ = read_arguments("explain", locals(), several=False, cells="all" if num_cells is None else num_cells)
    ready = None if cfg.model_path is None else _loaded(model, cfg)
    return explain_sample(cfg, cells if isinstance(cells, AnnData) else None, ready)


@dataclass(repr=False)
class Page:
    """A page that was written; it can be used as a path."""

    path: Path
    summary: str  # HTML of its first screen

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"Page {self.path}"

    def _repr_html_(self) -> str:
        link = f'<a href="{escape(str(self.path))}" target="_blank">{escape(str(self.path))}</a>'
        return f"{self.summary}<p>{link}</p>"


@documented("report")
def report(
    cells: AnnData | File | Sequence[File],
    *,
    output: File | None = None,
    evaluation: "Evaluation | File | None" = None,
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
        The page; None: FILE.report.html beside the first file. Cells in memory need it.
    evaluation
        From `evaluate`, or its folder: the page then shows it.

    Returns
    -------
    The page, with its `path`.
    """
    from scperformer.results.evaluate import Evaluation

    made = evaluation if isinstance(evaluation, Evaluation) else None
    named = None if made is not None else evaluation
    cfg, _ = read_arguments("report", locals(), writes="a page to write", evaluation=named)
    return Page(*write_page(cfg, made, cells if isinstance(cells, AnnData) else None))
