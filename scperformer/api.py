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
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
import pandas as pd
from anndata import AnnData

from scperformer.base.errors import InputError, require_path
from scperformer.base.progress import say
from scperformer.cells.opened import OpenedCells, open_cells
from scperformer.config.annotation import AnnotationOptions, PredictConfig
from scperformer.config.compose import Schema, make_options
from scperformer.config.descriptions import option_texts
from scperformer.config.steps import (
    AdaptConfig,
    CheckConfig,
    CurateConfig,
    EvaluateConfig,
    ExplainConfig,
    ModelsConfig,
    ReportConfig,
)
from scperformer.config.training import PretrainOptions, TrainOptions
from scperformer.model.content import INFO
from scperformer.model.folder import (
    PACKAGED_MODEL,
    imported_models,
    library_folder,
    names_model,
    read_model,
)
from scperformer.model.tissues import COMMON, collection
from scperformer.tasks.results import evaluate_cells, explain_sample, write_page

if TYPE_CHECKING:  # they import torch or pictures: the functions load them when they are called
    from scperformer.adaptation.fitted import Model
    from scperformer.attention.base import Attention
    from scperformer.attention.tokens import Batch
    from scperformer.results.check import Checks
    from scperformer.results.evaluate import Evaluation
    from scperformer.results.explain import Explanation

File = str | os.PathLike[str]
Options = Mapping[str, Any]
CELLS = (str, os.PathLike, AnnData)  # files, or cells in memory
TAKE_LISTS = (CheckConfig, PretrainOptions)  # steps that take several AnnData
# Steps for which cells in memory, which have no name, need an output, and what it is.
WRITES: dict[type, str] = dict.fromkeys(
    (TrainOptions, PretrainOptions, AdaptConfig), "a folder to write"
)
WRITES |= {ReportConfig: "a page to write"}
# Arguments that several functions have.
SHARED = {
    "cells": "N cells x G genes in memory, with counts or log-normalised expression in X, a layer or `.raw`; or files",
    "model": "from `load_model`, or its folder or name; if None, $SCPERFORMER_MODEL, else the tissue is inferred",
    "options": 'more options by their full names, such as `{"seed": 1}`',
    "attention": "a mechanism by its name, such as softmax, or a class of your own; if None, favor",
    "full_sample": "all cells of the sample, if `cells` are some of them, which are then treated as there",
}
Function = TypeVar("Function", bound=Callable[..., Any])


def documented(step: str, **texts: str) -> Callable[[Function], Function]:
    """Add the arguments to a docstring: their `texts`, else those that several functions have or that options have."""

    def decorate(function: Function) -> Function:
        meanings = {
            option.name: option.meaning for name in ("files", step) for option in option_texts(name)
        }
        meanings |= SHARED | texts
        entries = "\nParameters\n----------\n"
        for name in inspect.signature(function).parameters:
            meaning = re.sub(r"\bnull\b", "None", meanings[name])
            lines = textwrap.fill(f"{meaning[0].upper()}{meaning[1:]}.", 112)
            entries += f"{name}\n{textwrap.indent(lines, '    ')}\n"
        before, title, after = (inspect.getdoc(function) or "").partition("\nReturns\n")
        function.__doc__ = before + entries + title + after
        return function

    return decorate


def _options(schema: type[Schema], cells: Any, options: Options | None, /, **named: Any) -> Schema:
    """Return the options of a step for cells from the keywords of a function, and from `options`, which count more.

    None stands for the default of an option, which presets may change. AnnData objects are no options. A class as
    `attention` is registered, and chosen by its name.
    """
    if not isinstance(options, Mapping | None):
        raise InputError(
            "options-type",
            f"options={options!r}",
            "a mapping",
            "write options={'trainer.max_epochs': 5}",
        )
    sources = _sources(cells, several_in_memory=schema in TAKE_LISTS)
    given = {
        name: value
        for name, value in named.items()
        if value is not None and not isinstance(value, AnnData)
    }
    given |= {
        "inputs": [source if isinstance(source, str) else "AnnData" for source in sources]
    } | dict(options or {})
    if schema in WRITES and given.get("output") is None and isinstance(sources[0], AnnData):
        raise InputError(
            "no-output", "no output beside cells in memory", WRITES[schema], "add output=..."
        )
    if isinstance(mechanism := given.get("attention"), type):
        from scperformer.attention.registry import register_attention  # imports torch

        given["attention"] = register_attention(mechanism).__name__.lower()
    return make_options(schema, given)


def _one(cells: Any) -> str | AnnData:
    """Return cells as a file or an AnnData; refuse anything else, such as several files."""
    return _sources(cells, several=False)[0]


def _sources(
    cells: Any, *, several: bool = True, several_in_memory: bool = False
) -> list[str | AnnData]:
    """Return cells as a list of files, or of the AnnData; refuse anything else, such as tables."""
    is_list = (
        isinstance(cells, Iterable)
        and not isinstance(cells, Mapping)
        and getattr(cells, "ndim", 1) == 1
    )
    sources: list[Any] = (
        [cells] if isinstance(cells, CELLS) else list(cells) if several and is_list else []
    )
    if not sources or not all(isinstance(source, CELLS) for source in sources):
        expected = "an AnnData, a file or a list of files" if several else "an AnnData or a file"
        remedy = "make an AnnData, anndata.AnnData(matrix, obs, var) with cells in rows; of MuData, give "
        raise InputError(
            "cells-type",
            f"cells of type {type(cells).__name__}",
            expected,
            f"{remedy}mdata.mod['rna']",
        )
    sources = [source if isinstance(source, AnnData) else os.fspath(source) for source in sources]
    for source in sources:
        if isinstance(source, str):
            require_path(source)
        elif len(sources) > 1 and not several_in_memory:
            remedy = "write each to a file with write_h5ad, or put cells of one study together with anndata.concat"
            raise InputError(
                "mixed-cells",
                "a list with an AnnData in it",
                "one AnnData, or a list of files",
                remedy,
            )
    return sources


def _in_memory(cells: Any) -> AnnData | None:
    return cells if isinstance(cells, AnnData) else None


def _path_of(model: "Model | File | None") -> File | None:
    path = getattr(model, "path", model)
    if path is not None and not isinstance(path, str | os.PathLike):
        expected = "a folder, a name, or what load or train returned"
        raise InputError(
            "model-type",
            f"a model of the type {type(path).__name__}",
            expected,
            "give one of these",
        )
    return path


def _loaded(model: "Model | File | None", model_path: str | None) -> "Model":
    """Return the model, or load the one that the options name."""
    from scperformer.adaptation.fitted import Model
    from scperformer.adaptation.load import load_model

    return (
        model
        if isinstance(model, Model) and model_path == str(model.path)
        else load_model(model_path)
    )


def _named(model: "Model | File | None", cfg: AnnotationOptions) -> "Model | None":
    """Return the model, or load the one that the options name; None: the tissue of the cells is to be inferred."""
    return _loaded(model, cfg.model_path) if names_model(cfg.model_path, cfg.tissue) else None


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
            return pd.DataFrame(
                {"loss": {"model": metrics["loss"], "naive guess": metrics["naive_loss"]}}
            )
        if fold := metrics.get("out_of_fold"):
            return pd.DataFrame(
                {"model": {name: fold[name] for name in ("accuracy", "macro_f1")}}
            ).T
        return pd.DataFrame()

    def load(self) -> "Model":
        """Load the model."""
        from scperformer.adaptation.load import load_model

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
    # one of several processes, of which the first one writes the model
    if not (path / INFO).is_file():
        return Trained(path, {}, pd.DataFrame())
    metrics = json.loads((path / INFO).read_text(encoding="utf-8"))["metrics"]
    table = path.with_name(f"{path.name}.run") / "metrics.csv"
    return Trained(path, metrics, pd.read_csv(table) if table.is_file() else pd.DataFrame())


@documented(
    "train",
    cells="N cells x G genes in memory, with counts or log-normalised expression in X, a layer or `.raw`; or files."
    " Rows may also be profiles or bulk samples; a file of profiles beside one of cells adds the types that "
    "these lack",
    output="The model folder to write; if None, INPUT.model beside a file. Cells in memory need it",
    model="Preset of the encoder: performer (the default), pooled, tiny, base or scbert",
)
def train(
    cells: AnnData | File | Sequence[File],
    label_key: str | None = TrainOptions.label_key,
    *,
    output: File | None = None,
    model: str | None = None,
    attention: "str | type[Attention] | None" = None,
    seed: int = TrainOptions.seed,
    init: "Trained | File | None" = None,
    tissue: str | None = TrainOptions.tissue,
    batch_key: str | None = TrainOptions.batch_key,
    resume: bool = TrainOptions.resume,
    overwrite: bool = TrainOptions.overwrite,
    options: Options | None = None,
) -> Trained:
    """Train a model on labelled cells, or on profiles of cell types.

    Returns
    -------
    The model folder: `path`, `scores` beside logistic regression, `history` of the epochs, and `load()`.
    """
    from scperformer.tasks.train import train_model

    named: dict[str, Any] = {
        "label_key": label_key,
        "output": output,
        "model": model,
        "attention": attention,
    }
    named |= {"init": init, "tissue": tissue, "batch_key": batch_key}
    cfg = _options(
        TrainOptions, cells, options, seed=seed, resume=resume, overwrite=overwrite, **named
    )
    in_memory = _in_memory(cells)
    if in_memory is not None and in_memory.isbacked:
        in_memory = in_memory.to_memory()
    return _trained(train_model(cfg, in_memory))


@documented(
    "pretrain",
    cells="One or more AnnData, each N cells x G genes, with counts or log-normalised expression; or one or more files",
    output="The model folder to write; if None, INPUT.encoder beside the first file. Cells in memory need it",
    model="Preset of the encoder: tiny (the default), base or scbert",
)
def pretrain(
    cells: AnnData | File | Sequence[AnnData] | Sequence[File],
    *,
    output: File | None = None,
    model: str | None = None,
    attention: "str | type[Attention] | None" = None,
    seed: int = PretrainOptions.seed,
    init: "Trained | File | None" = None,
    resume: bool = PretrainOptions.resume,
    overwrite: bool = PretrainOptions.overwrite,
    options: Options | None = None,
) -> Trained:
    """Pretrain an encoder on cells without labels.

    Returns
    -------
    The model folder, for `train(..., init=...)`.
    """
    from scperformer.tasks.train import pretrain_encoder

    sources = _sources(cells, several_in_memory=True)
    named = {"output": output, "model": model, "attention": attention, "init": init}
    cfg = _options(
        PretrainOptions, sources, options, seed=seed, resume=resume, overwrite=overwrite, **named
    )
    in_memory = [source for source in sources if isinstance(source, AnnData)]
    if in_memory and len(in_memory) < len(sources):
        remedy = "read the files first, or write the cells"
        raise InputError("mixed-cells", "files beside cells in memory", "one of both", remedy)
    return _trained(pretrain_encoder(cfg, in_memory or None))


@documented(
    "adapt",
    model="From `load_model`, or its folder or name; it keeps cells of its reference",
    cells="N cells x G genes in memory, a file of cells, or a text file (.txt) with a gene in each line",
    output="The model folder to write; if None, INPUT.adapted beside a file. Cells in memory need it",
)
def adapt(
    model: "Model | File",
    cells: AnnData | File,
    *,
    output: File | None = None,
    overwrite: bool = False,
    options: Options | None = None,
) -> Trained:
    """Adapt a model to the genes and the depth of cells, or to a list of genes; `annotate` does so by itself.

    Returns
    -------
    The folder of the adapted model.
    """
    from scperformer.tasks.adapt import write_adapted

    named = {"model_path": _path_of(model), "output": output, "overwrite": overwrite}
    cfg = _options(AdaptConfig, _one(cells), options, **named)
    return _trained(write_adapted(cfg, _loaded(model, cfg.model_path), _in_memory(cells)))


@documented(
    "models",
    path="The file or folder",
    output="The folder of models; if None, $SCPERFORMER_MODELS, else that among the user's data",
)
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

    Returns
    -------
    The model folder, in the folder of models, where `load_model(name)` finds it.
    """
    from scperformer.importing import folders

    named = {"name": name, "reference": reference, "label_key": label_key, "output": output}
    cfg = _options(ModelsConfig, _one(path), options, action="import", overwrite=overwrite, **named)
    return _trained(
        folders.import_into_library(
            Path(path), Path(cfg.output) if cfg.output else library_folder(), cfg
        )
    )


def models() -> pd.DataFrame:
    """List the models, packaged and imported, and the tissues: a row each, with labels, genes, tissue and folder.

    `kind` is "model", "tissue" (which has no folder and is named by `options={"tissue": name}`) or "common types", by
    which cells of an unknown tissue are named. A folder that cannot be used has a row with the reason in `problem`,
    which is empty for the others.
    """
    rows: list[dict[str, object]] = []
    for folder in [PACKAGED_MODEL, *imported_models(library_folder())]:
        row: dict[str, object] = {
            "kind": "model",
            "name": folder.name,
            "labels": [],
            "num_genes": 0,
        }
        try:
            saved = read_model(folder)
            tissue = saved.provenance.tissue
            row |= {
                "name": saved.name,
                "labels": saved.labels,
                "num_genes": len(saved.genes),
                "tissue": tissue,
            }
        except InputError as error:
            row["problem"] = str(error)
        rows.append(row | {"path": str(folder)})
    others = collection().others
    kinds = dict.fromkeys(collection().tissues()["name"], "tissue") | dict.fromkeys(
        COMMON.values(), "common types"
    )
    for name, kind in kinds.items():
        labels = [
            label
            for label in collection().labels(name)["label"]
            if kind == "tissue" or label not in others
        ]
        rows.append(
            {"kind": kind, "name": name, "labels": labels, "tissue": collection().title(name)}
        )
    columns = ["kind", "name", "labels", "num_labels", "num_genes", "tissue", "path", "problem"]
    table = pd.DataFrame(rows, columns=columns).fillna({"path": "", "problem": ""})
    table["num_labels"] = table["labels"].map(len)
    table["labels"] = table["labels"].map(", ".join)
    return table.astype({"num_genes": "Int64"})


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

    sources = _sources(cells, several_in_memory=True)
    cfg = _options(CheckConfig, sources, options, model_path=_path_of(model), label_key=label_key)
    return check_all(sources, cfg)


@overload  # a text is a sequence of texts, too: the first signature that fits counts
def annotate(  # type: ignore[overload-overlap]
    cells: File, model: "Model | File | None" = ..., **named: Any
) -> Path: ...
@overload
def annotate(
    cells: Sequence[File], model: "Model | File | None" = ..., **named: Any
) -> list[Path]: ...
@overload
def annotate(cells: AnnData, model: "Model | File | None" = ..., **named: Any) -> AnnData: ...
@documented("predict", output="If None, INPUT.annotated.h5ad beside each file; not for an AnnData")  # type: ignore[misc]
def annotate(
    cells: AnnData | File | Sequence[File],
    model: "Model | File | None" = None,
    *,
    output: File | None = None,
    output_dir: File | None = None,
    key_added: str = PredictConfig.key_added,
    overwrite: bool = PredictConfig.overwrite,
    species: str = PredictConfig.species,
    min_confidence: float | None = PredictConfig.min_confidence,
    unknown_fpr: float = PredictConfig.unknown_fpr,
    alpha: float | None = PredictConfig.alpha,
    clusters: str | None = PredictConfig.clusters,
    umap: bool = PredictConfig.umap,
    batch_key: str | None = PredictConfig.batch_key,
    full_sample: AnnData | File | None = PredictConfig.full_sample,
    threads: int | None = PredictConfig.threads,
    options: Options | None = None,
) -> AnnData | Path | list[Path]:
    """Annotate cells: add labels, confidences and more to an AnnData in place, or write annotated copies of files.

    For an AnnData, a paragraph is printed that says what was found, and whether the labels can be trusted.
    `scanpy.pl.umap` needs `umap=True`; `scperformer.pl.embedding` does not.

    Returns
    -------
    The same AnnData; for a file, the path of its annotated copy; for several, a list of these.
    """
    from scperformer.annotation.predict import annotate_cells
    from scperformer.tasks.predict import annotate_files, model_for

    named: dict[str, Any] = {
        "model_path": _path_of(model),
        "output": output,
        "output_dir": output_dir,
    }
    named |= {"key_added": key_added, "overwrite": overwrite}
    named |= {
        "species": species,
        "min_confidence": min_confidence,
        "unknown_fpr": unknown_fpr,
        "alpha": alpha,
    }
    named |= {
        "clusters": clusters,
        "umap": umap,
        "batch_key": batch_key,
        "full_sample": full_sample,
    }
    cfg = _options(PredictConfig, cells, options, threads=threads, **named)
    whole = _in_memory(full_sample)
    if not isinstance(cells, AnnData):
        if whole is not None:
            found = "full_sample in memory for a file of cells"
            raise InputError("full-sample-type", found, "a file", "write it to a file first")
        paths = annotate_files(cfg, _named(model, cfg))
        return paths[0] if isinstance(cells, str | os.PathLike) else paths
    if written := [
        name for name in ("output", "output_dir", "markers_output") if getattr(cfg, name)
    ]:
        found = f"{written[0]}={getattr(cfg, written[0])}"
        raise InputError(
            "output-in-memory", found, "no output: the AnnData itself is annotated", "leave it out"
        )
    with model_for(cells, cfg, _named(model, cfg)) as ready:
        say(annotate_cells(cells, ready, cfg, whole).text)
    return cells


@documented(
    "curate",
    cells="Annotated cells in memory, or an annotated file",
    names='The name of each cluster, such as `{"3": "plasmablast"}`, or a table with them, as `markers_output` of '
    "`annotate` writes it. Clusters without a name keep their calls",
)
def curate(
    cells: AnnData | File,
    names: "Mapping[str, str] | File",
    *,
    output: File | None = None,
    by: str | None = CurateConfig.by,
    key_added: str = CurateConfig.key_added,
    overwrite: bool = CurateConfig.overwrite,
) -> AnnData | Path:
    """Name clusters: add your labels beside the calls to an AnnData in place, or write a copy of a file with them.

    Each call of this function begins with the calls and the clusters: a second one undoes the first.

    Returns
    -------
    The same AnnData; for a file, the path of its copy.
    """
    from scperformer.tasks.curate import curate_cells, curate_file

    given = names if isinstance(names, Mapping) else None
    table = "a mapping" if given is not None else names
    cfg = _options(
        CurateConfig,
        _one(cells),
        None,
        names=table,
        output=output,
        by=by,
        key_added=key_added,
        overwrite=overwrite,
    )
    if not isinstance(cells, AnnData):
        return curate_file(cfg, given)
    curate_cells(cells, cfg, given)
    return cells


@documented("predict")
def embed(
    cells: AnnData | File,
    model: "Model | File | None" = None,
    *,
    species: str = PredictConfig.species,
    batch_key: str | None = PredictConfig.batch_key,
    full_sample: AnnData | File | None = PredictConfig.full_sample,
    threads: int | None = PredictConfig.threads,
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

    named = {
        "species": species,
        "batch_key": batch_key,
        "full_sample": full_sample,
        "model_path": _path_of(model),
    }
    cfg = _options(PredictConfig, _one(cells), options, threads=threads, **named)
    whole = _in_memory(full_sample)
    ready = _named(model, cfg)
    with open_cells(cells if isinstance(cells, AnnData) else os.fspath(cells), cfg) as opened:
        return embed_cells(opened, ready, cfg, whole)


@documented(
    "predict", model="From `load_model`, or its folder or name; if None, $SCPERFORMER_MODEL"
)
def tokens(
    cells: AnnData,
    model: "Model | File | None" = None,
    *,
    species: str = PredictConfig.species,
    options: Options | None = None,
) -> "Batch":
    """Return the tokens of cells, for `model.network` in code of your own.

    Genes and values are recognised as by `annotate`: cells are aligned to the genes of the model and normalised.

    Returns
    -------
    The tokens of all cells in their order: `tokens[rows]` are of some cells, `tokens.to(device)` is a copy on a device.
    """
    from scperformer.annotation.predict import Session
    from scperformer.model.minibatches import Cells

    cfg = _options(PredictConfig, _one(cells), options, species=species, model_path=_path_of(model))
    ready = _named(model, cfg)
    if ready is None:
        remedy = "add model=..., such as scperformer.load_model()"
        raise InputError("no-model", "no model", "the model whose network takes the tokens", remedy)
    query = Session(OpenedCells(cells, cfg, "the cells"), ready, cfg).query
    found = Cells(query.all_cells(), ready.tokens, measured=query.measured)
    return found.batch(np.arange(len(found)))


@documented(
    "evaluate",
    cells="Annotated cells in memory, or annotated files",
    output="A folder to write the evaluation into; if None, nothing is written",
)
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

    Returns
    -------
    The evaluation: `scores`, `per_class` and `confusion` as tables, and all `metrics`.
    """
    named = {"truth_key": truth_key, "output": output, "key_added": key_added}
    cfg = _options(EvaluateConfig, cells, options, overwrite=overwrite, **named)
    return evaluate_cells(cfg, _in_memory(cells))


@documented(
    "explain",
    cells="Cells that `annotate` has annotated with the same model, or an annotated file",
    model="From `load_model`, or its folder or name; if None, the model that the annotation names",
    num_cells="Cells of each label, a random sample; if None, all",
    output="A folder to write the explanation into; if None, nothing is written",
)
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

    Returns
    -------
    The explanation: `genes` and `deletion` as tables, and `adata`, the contributions of genes to cells.
    """
    number = "all" if num_cells is None else num_cells
    named = {
        "model_path": _path_of(model),
        "label": label,
        "output": output,
        "key_added": key_added,
    }
    cfg = _options(
        ExplainConfig, _one(cells), options, cells=number, seed=seed, overwrite=overwrite, **named
    )
    ready = None if cfg.model_path is None else _loaded(model, cfg.model_path)
    return explain_sample(cfg, _in_memory(cells), ready)


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


@documented(
    "report",
    cells="Annotated cells in memory, or annotated files",
    output="The page, or its tables as .xlsx; if None, FILE.report.html beside the first file. Cells in memory need it",
    evaluation="From `evaluate`, or its folder: the page then shows it",
)
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

    Returns
    -------
    The page, with its `path`.
    """
    from scperformer.results.evaluate import Evaluation

    in_memory = evaluation if isinstance(evaluation, Evaluation) else None
    named = {
        "evaluation": None if in_memory else evaluation,
        "output": output,
        "key_added": key_added,
    }
    cfg = _options(ReportConfig, cells, options, overwrite=overwrite, **named)
    path, made = write_page(cfg, in_memory, _in_memory(cells))
    return Page(path, made.summary)
