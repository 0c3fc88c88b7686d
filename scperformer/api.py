"""The steps as functions of Python: keywords instead of words, files or AnnData objects, and objects as results.

Each function makes the same options as the command line, from its keywords and from `options`, a mapping of the full
names in docs/configuration.md: `options={"trainer.max_epochs": 5}`. The defaults are the same, too. No function changes
an AnnData but `annotate`, which adds to it.
"""

import inspect
import json
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, overload

import numpy as np
import pandas as pd
from anndata import AnnData

from scperformer.base.errors import InputError
from scperformer.base.outputs import require_absent
from scperformer.base.progress import say
from scperformer.cli.check import CheckConfig
from scperformer.cli.compose import config_from
from scperformer.cli.evaluate import EvaluateConfig
from scperformer.cli.explain import ExplainConfig
from scperformer.cli.option_texts import closest_option, option_texts
from scperformer.cli.predict import PredictConfig
from scperformer.cli.pretrain import PretrainConfig
from scperformer.cli.report import ReportConfig, write_page
from scperformer.cli.train import TrainConfig
from scperformer.io.read import open_cells
from scperformer.model.content import INFO
from scperformer.model.folder import read_model
from scperformer.model.library import PACKAGED_MODEL, imported_models, library_folder

if TYPE_CHECKING:  # they import torch or pictures: the functions load them when they are called
    from scperformer.attention.base import Attention
    from scperformer.attention.tokens import Batch
    from scperformer.model.load import Model
    from scperformer.results.check import Checks
    from scperformer.results.evaluate import Evaluation
    from scperformer.results.explain import Explanation

File = str | os.PathLike[str]
Options = Mapping[str, Any]
CELL_SOURCES = (str, os.PathLike, AnnData)  # of cells
Function = TypeVar("Function", bound=Callable[..., Any])


def step(name: str) -> Callable[[Function], Function]:
    """Make a function of Python of a step.

    Its docstring gets the meaning of each keyword that is an option of the step, from the dataclass of the step. A call
    refuses keywords that the function does not have, with the one that was meant.
    """

    def decorate(function: Function) -> Function:
        known = list(inspect.signature(function).parameters)
        function.__doc__ = with_options(function.__doc__ or "", known, name)

        @wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            for word in named.keys() - known:
                near = next(iter(get_close_matches(word, known, 1, 0.75)), "")
                option = closest_option(word, name)
                remedy = f"'scperformer {name} --help' lists the options"
                if near:
                    remedy = f"did you mean {near}? help(scperformer.{function.__name__}) shows all of them"
                elif option:
                    remedy = f"write options={{'{option}': ...}}"
                raise InputError(f"keyword {word} of {function.__name__}", f"one of {', '.join(known)}", remedy)
            return function(*given, **named)

        return call  # type: ignore[return-value]

    return decorate


def with_options(text: str, keywords: Sequence[str], step: str) -> str:
    """Return a docstring with the meaning of each keyword that is an option of a step, before `options`."""
    meanings = {option.name: option.meaning for option in [*option_texts(step), *option_texts("files")]}
    entries = ""
    for name in keywords:
        if name in meanings and f"\n    {name}\n" not in text:
            meaning = re.sub(r"\bnull\b", "None", meanings[name])
            lines = textwrap.wrap(f"{meaning[0].upper()}{meaning[1:]}.", 112)
            entries += f"    {name}\n" + "".join(f"        {line}\n" for line in lines)
    before, marker, after = text.partition("    options\n")
    return f"{before}{entries}{marker}{after}"


def config_of(step: str, options: Options | None, **named: Any) -> Any:
    """Make the options of a step; None stands for the default of the step, which presets may change.

    A class as `attention` is registered, and chosen by its name.
    """
    given = {name: value for name, value in named.items() if value is not None}
    if options is not None and not isinstance(options, Mapping):
        raise InputError(f"options={options!r}", "a mapping", "write options={'trainer.max_epochs': 5}")
    given |= dict(options or {})
    if isinstance(mechanism := given.get("attention"), type):
        from scperformer.attention.registry import register_attention  # imports torch

        given["attention"] = register_attention(mechanism).__name__.lower()
    return config_from(step, given)


def listed(cells: Any, *, several: bool = True, in_memory: bool = False) -> list[File | AnnData]:
    """Return the cells that a function was given as a list of files, or of the AnnData; refuse anything else at once.

    Parameters
    ----------
    several
        More than one file may be given.
    in_memory
        More than one AnnData may be given, too.

    Raises
    ------
    InputError
        Tables, matrices and other objects; the remedy says how to make an AnnData of them.
    """
    if isinstance(cells, CELL_SOURCES):
        return [cells]
    expected = "an AnnData, a file or a list of files" if several else "an AnnData or a file"
    if not several or getattr(cells, "ndim", 1) != 1 or isinstance(cells, Mapping) or not isinstance(cells, Iterable):
        raise InputError(f"cells of type {type(cells).__name__}", expected, _remedy(cells))
    found: list[File | AnnData] = list(cells)
    for one in found:
        if not isinstance(one, CELL_SOURCES):
            raise InputError(f"a {type(one).__name__} in a list of cells", expected, _remedy(one))
    if not in_memory and any(isinstance(one, AnnData) for one in found):
        remedy = "call the function for each of them, or put them together with anndata.concat"
        raise InputError("a list with an AnnData in it", "one AnnData, or a list of files", remedy)
    return found


def _remedy(cells: Any) -> str:
    """Return how to make an AnnData of an object."""
    if isinstance(getattr(cells, "mod", None), Mapping):  # MuData; of tables it is the modulo
        return "give the modality with the RNA alone, mdata.mod['rna']"
    if hasattr(cells, "columns"):
        return "make an AnnData of it, anndata.AnnData(table), with cells in rows and genes in columns"
    if hasattr(cells, "ndim"):
        genes = "var=pandas.DataFrame(index=genes)"
        return f"make an AnnData of it, anndata.AnnData(matrix, {genes}), with cells in rows"
    return "give an AnnData, or names of files"


def paths_of(cells: Any, *, several: bool = True, in_memory: bool = False) -> list[str]:
    """Return the names of files; a place holder stands for cells in memory. Arguments and errors as `listed`."""
    found = listed(cells, several=several, in_memory=in_memory)
    return ["AnnData" if isinstance(one, AnnData) else os.fspath(one) for one in found]


def path_of(model: "Model | File | None") -> str | None:
    """Return the folder or the name of a model, for options."""
    if model is None or isinstance(model, str | os.PathLike):
        return None if model is None else os.fspath(model)
    return str(model.path)


def loaded(model: "Model | File | None", cfg: Any) -> "Model":
    """Return the model, or load the one that the options name."""
    from scperformer.model.load import Model, load_model

    if model is not None and cfg.model_path != path_of(model):
        raise InputError(f"a model and model_path={cfg.model_path}", "one of them", "leave the other out")
    return model if isinstance(model, Model) else load_model(cfg.model_path)


def require_output(cfg: Any, expected: str = "a folder to write") -> None:
    """Refuse cells in memory, which have no place of their own, without an output."""
    if cfg.output is None:
        raise InputError("no output beside cells in memory", expected, "add output=...")


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
        from scperformer.model.load import load_model

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
@step("preprocess")
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
        Align the genes to this model.
    output
        The h5ad file to write; None: INPUT.prepared.h5ad beside a file, nothing for cells in memory.
    options
        More options of `preprocess` by their full names, such as `{"data.min_genes": 200}`.

    Returns
    -------
    New cells, ln(1 + counts per 10,000) in X, for cells in memory; for a file, the path of the output.
    """
    from scperformer.cli.preprocess import prepare
    from scperformer.cli.preprocess import run as run_preprocess
    from scperformer.io.h5ad import write_h5ad

    named = {"model_path": path_of(model), "output": output, "overwrite": overwrite}
    cfg = config_of("preprocess", options, inputs=paths_of(cells, several=False), **named)
    if not isinstance(cells, AnnData):
        return run_preprocess(cfg)
    if cfg.output is not None:
        require_absent(cfg.output, cfg.overwrite)
    cells = cells.to_memory() if cells.isbacked else cells
    prepared = prepare(cells, cfg, Path("the data"))
    prepared = prepared.copy() if prepared is cells else prepared
    if cfg.output is not None:
        write_h5ad(prepared, Path(cfg.output), cfg.overwrite)
    return prepared


@step("train")
def train(
    cells: AnnData | File | Sequence[File],
    label_key: str,
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
    """Train a model on labelled cells.

    Parameters
    ----------
    cells
        N cells x G genes in memory, with counts or log-normalised expression in X, a layer or `.raw`; or files.
    output
        The model folder to write; None: INPUT.model beside a file. Cells in memory need it.
    model
        Preset of the encoder: performer (the default), pooled, tiny, base or scbert.
    attention
        A mechanism by its name, such as softmax, or a class of your own; None: favor.
    batch_key
        Column of obs with the batch, donor or study of each cell: whole ones are held out where held-out cells decide.
    options
        More options of `train` by their full names, such as `{"trainer.max_epochs": 5}`.

    Returns
    -------
    The model folder: `path`, `scores` beside logistic regression, `history` of the epochs, and `load()`.

    Raises
    ------
    InputError
        An option is wrong, the cells cannot be used, or the folder exists.
    """
    from scperformer.cli.train import run as run_train

    named: dict[str, Any] = {"label_key": label_key, "output": output, "model": model, "seed": seed, "init": init}
    named |= {"tissue": tissue, "batch_key": batch_key, "attention": attention}
    cfg = config_of("train", options, inputs=paths_of(cells), **named, resume=resume, overwrite=overwrite)
    if not isinstance(cells, AnnData):
        return _trained(run_train(cfg))
    require_output(cfg)
    return _trained(run_train(cfg, cells.to_memory() if cells.isbacked else cells))


@step("pretrain")
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
        Preset of the encoder: performer (the default), tiny, base or scbert.
    attention
        A mechanism by its name, such as softmax, or a class of your own; None: favor.
    options
        More options of `pretrain` by their full names, such as `{"model": "tiny", "trainer.max_epochs": 5}`.

    Returns
    -------
    The model folder, for `train(..., init=...)`.

    Raises
    ------
    InputError
        An option is wrong, the cells cannot be used, or the folder exists.
    """
    from scperformer.cli.pretrain import run as run_pretrain

    named = {"output": output, "model": model, "attention": attention, "seed": seed, "init": init}
    named |= {"resume": resume, "overwrite": overwrite}
    several = listed(cells, in_memory=True)
    cfg = config_of("pretrain", options, inputs=paths_of(several, in_memory=True), **named)
    in_memory = [one for one in several if isinstance(one, AnnData)]
    if in_memory and len(in_memory) < len(several):
        raise InputError("files beside cells in memory", "one of both", "read the files first, or write the cells")
    if in_memory:
        require_output(cfg)
    return _trained(run_pretrain(cfg, in_memory or None))


@step("adapt")
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
    from scperformer.cli.adapt import run as run_adapt

    cfg = config_of(
        "adapt",
        options,
        inputs=paths_of(cells, several=False),
        model_path=path_of(model),
        output=output,
        overwrite=overwrite,
    )
    if isinstance(cells, AnnData):
        require_output(cfg)
    return _trained(run_adapt(cfg, loaded(model, cfg), cells if isinstance(cells, AnnData) else None))


@step("models")
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
    options
        More options of `models import` by their names, such as `{"licence": "CC BY 4.0"}`.

    Returns
    -------
    The model folder, in the folder of models, where `load_model(name)` finds it.

    Raises
    ------
    InputError
        It is damaged or of an unknown format, or a model of this name is there.
    """
    from scperformer.cli.models import run as run_models

    named = {"name": name, "reference": reference, "label_key": label_key, "output": output, "overwrite": overwrite}
    cfg = config_of("models", options, action="import", inputs=[os.fspath(path)], **named)
    return _trained(run_models(cfg)[0])


@step("models")
def models() -> pd.DataFrame:
    """List the packaged model and the imported ones: a row each, with labels, genes, tissue and folder.

    A folder that cannot be used has a row with the reason in `problem`, which is empty for the others.
    """
    rows = []
    for folder in [PACKAGED_MODEL, *imported_models(library_folder())]:
        row: dict[str, Any] = {"name": folder.name, "labels": "", "num_labels": 0, "num_genes": 0, "tissue": None}
        problem = ""
        try:
            saved = read_model(folder)
        except InputError as error:
            problem = str(error)
        else:
            row |= {"name": saved.name, "labels": ", ".join(saved.labels), "num_labels": len(saved.labels)}
            row |= {"num_genes": len(saved.genes), "tissue": saved.tissue}
        rows.append(row | {"path": str(folder), "problem": problem})
    return pd.DataFrame(rows)


@step("check")
def check(
    cells: AnnData | File | Sequence[AnnData | File],
    *,
    model: "Model | File | None" = None,
    label_key: str | None = CheckConfig.label_key,
    quality: bool = CheckConfig.quality,
    options: Options | None = None,
) -> "Checks":
    """Describe cells, and check whether a model can annotate them or, with `label_key`, whether they can train one.

    Parameters
    ----------
    cells
        Cells in memory or files, one or more.
    model
        From `load_model`, or its folder or name; None: $SCPERFORMER_MODEL, else the packaged model.
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
    from scperformer.results.check import check_all

    several = listed(cells, in_memory=True)
    named = {"model_path": path_of(model), "label_key": label_key, "quality": quality}
    cfg = config_of("check", options, inputs=paths_of(several, in_memory=True), **named)
    sources = [one if isinstance(one, AnnData) else os.fspath(one) for one in several]
    return check_all(sources, cfg, label_key=cfg.label_key, doublets=cfg.quality)


class AnnotateKeywords(TypedDict, total=False):
    """The keywords of `annotate`, for type checkers."""

    output: File | None
    output_dir: File | None
    key_added: str
    overwrite: bool
    replace_annotation: bool
    species: str
    min_confidence: float
    unknown_fpr: float
    alpha: float | None
    clusters: str | None
    condition_of: AnnData | File | None
    threads: int
    options: Options | None


@overload  # a text is a sequence of texts, too: the first signature that fits counts
def annotate(  # type: ignore[overload-overlap]
    cells: File, model: "Model | File | None" = ..., **named: Unpack[AnnotateKeywords]
) -> Path: ...
@overload
def annotate(
    cells: Sequence[File],
    model: "Model | File | None" = ...,
    **named: Unpack[AnnotateKeywords],
) -> list[Path]: ...
@overload
def annotate(cells: AnnData, model: "Model | File | None" = ..., **named: Unpack[AnnotateKeywords]) -> AnnData: ...
@step("predict")
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
    min_confidence: float = PredictConfig.min_confidence,
    unknown_fpr: float = PredictConfig.unknown_fpr,
    alpha: float | None = PredictConfig.alpha,
    clusters: str | None = PredictConfig.clusters,
    condition_of: AnnData | File | None = PredictConfig.condition_of,
    threads: int = PredictConfig.threads,
    options: Options | None = None,
) -> AnnData | Path | list[Path]:
    """Annotate cells: add labels, confidences and more to an AnnData in place, or write annotated copies of files.

    For an AnnData, a paragraph is printed that says what was found, and whether the labels can be trusted.

    Parameters
    ----------
    cells
        N cells x G genes in memory, with counts or log-normalised expression in X, a layer or `.raw`; or files.
    model
        From `load_model`, or its folder or name; None: $SCPERFORMER_MODEL, else the packaged model.
    output
        The annotated file; None: INPUT.annotated.h5ad beside each input. None for cells in memory.
    overwrite
        Replace an existing output.
    replace_annotation
        Replace an annotation of the same prefix that the cells have.
    condition_of
        All cells of the sample, if `cells` are some of them: they are then annotated as there. A file if `cells` are.
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
    from scperformer.annotation.predict import annotate_cells
    from scperformer.cli.predict import run as run_predict

    named = {"key_added": key_added, "overwrite": overwrite, "replace_annotation": replace_annotation}
    named |= {"species": species, "min_confidence": min_confidence, "unknown_fpr": unknown_fpr, "alpha": alpha}
    named |= {"clusters": clusters, "threads": threads}
    named |= {"output": output, "output_dir": output_dir, "model_path": path_of(model)}
    whole = condition_of if isinstance(condition_of, AnnData) else None
    named["condition_of"] = None if whole is not None else condition_of
    cfg = config_of("predict", options, inputs=paths_of(cells), **named)
    if not isinstance(cells, AnnData):
        if whole is not None:
            raise InputError("condition_of in memory for a file of cells", "a file", "write it to a file first")
        paths = run_predict(cfg, loaded(model, cfg))
        return paths[0] if isinstance(cells, str | os.PathLike) else paths
    if written := [name for name in ("output", "output_dir") if getattr(cfg, name)]:
        found = f"{written[0]}={getattr(cfg, written[0])}"
        raise InputError(found, "no output: the AnnData itself is annotated", "leave it out")
    say(annotate_cells(cells, loaded(model, cfg), cfg, whole))
    return cells


@step("predict")
def embed(
    cells: AnnData | File,
    model: "Model | File | None" = None,
    *,
    species: str = PredictConfig.species,
    condition_of: AnnData | File | None = PredictConfig.condition_of,
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
    condition_of
        All cells of the sample, if `cells` are some of them: they are then embedded as there.
    options
        More options of `predict` by their full names.

    Returns
    -------
    float32, N x D, as `annotate` puts it into obsm["X_scperformer"]: vectors of the encoder, those from which its head
    computes logits, also if it has no influence on the labels; corrected for the batch effect. For a model
    without an encoder, the logits, N x C; the log says so.

    Raises
    ------
    InputError
        As for `annotate`.
    """
    from scperformer.annotation.predict import embed_cells

    named = {"species": species, "threads": threads, "model_path": path_of(model)}
    whole = condition_of if isinstance(condition_of, AnnData) else None
    named["condition_of"] = None if whole is not None else condition_of
    cfg = config_of("predict", options, inputs=paths_of(cells, several=False), **named)
    ready = loaded(model, cfg)
    if isinstance(cells, AnnData):
        return embed_cells(cells, ready, cfg, whole=whole)
    with open_cells(os.fspath(cells), cfg.orientation) as opened:
        return embed_cells(opened, ready, cfg, os.fspath(cells), whole)


@step("predict")
def tokens(
    adata: AnnData,
    model: "Model | File | None" = None,
    *,
    species: str = PredictConfig.species,
    options: Options | None = None,
) -> "Batch":
    """Return the tokens of cells, for `model.network` in code of your own.

    Genes and values are recognised as by `annotate`: cells are aligned to the genes of the model and normalised.

    Parameters
    ----------
    adata
        N cells x G genes in memory.
    model
        From `load_model`, or its folder or name; None: $SCPERFORMER_MODEL, else the packaged model.
    options
        More options of `predict` by their full names.

    Returns
    -------
    The tokens of all cells in their order: `tokens[rows]` are of some cells, `tokens.to(device)` is a copy on a device.

    Raises
    ------
    InputError
        The cells have no usable expression, or too few genes of the model.
    """
    from scperformer.cells.query import find_query
    from scperformer.model.batches import Cells

    named = {"species": species, "model_path": path_of(model)}
    cfg = config_of("predict", options, inputs=paths_of(adata, several=False), **named)
    ready = loaded(model, cfg)
    query = find_query(adata, ready.saved, cfg, "the cells")
    cells = Cells(query.all_cells(), ready.tokens, measured=query.measured)
    return cells.batch(np.arange(len(cells)))


@step("evaluate")
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
    from scperformer.cli.evaluate import evaluate_cells
    from scperformer.results.read_annotations import of_cells

    named = {"truth_key": truth_key, "output": output, "key_added": key_added, "overwrite": overwrite}
    cfg = config_of("evaluate", options, inputs=paths_of(cells), **named)
    return evaluate_cells(cfg, of_cells(cells, cfg.key_added) if isinstance(cells, AnnData) else None)


@step("explain")
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
    num_cells
        Cells of each label, a random sample; None: all.
    output
        A folder to write the explanation into; None: nothing is written.
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
    from scperformer.results.explain import EXPLANATION, Explanation, explain_cells, write_explanation
    from scperformer.results.read_annotations import of_cells, read_annotated

    named = {"label": label, "cells": "all" if num_cells is None else num_cells, "seed": seed, "output": output}
    named |= {"key_added": key_added, "overwrite": overwrite, "model_path": path_of(model)}
    cfg = config_of("explain", options, inputs=paths_of(cells, several=False), **named)
    if cfg.output is not None:
        require_absent(cfg.output, cfg.overwrite, EXPLANATION)
    ready = None if model is None and cfg.model_path is None else loaded(model, cfg)
    in_memory = isinstance(cells, AnnData)
    annotated = of_cells(cells, cfg.key_added) if in_memory else read_annotated(cfg.inputs, cfg.key_added)[0]
    made = explain_cells(annotated, cfg, ready, label=cfg.label, num_cells=cfg.num_cells, seed=cfg.seed)
    if cfg.output is None:
        return Explanation(made, cfg.key_added)
    write_explanation(made, Path(cfg.output), cfg.key_added, annotated.name, overwrite=cfg.overwrite)
    return Explanation(made, cfg.key_added, Path(cfg.output))


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


@step("report")
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
        The page; None: report.html beside the first file. Cells in memory need it.
    evaluation
        From `evaluate`, or its folder: the page then shows it.
    options
        More options of `report` by their full names, such as `{"cells": 5000}`.

    Returns
    -------
    The page, with its `path`.

    Raises
    ------
    InputError
        The cells are not annotated, the evaluation is about other cells, or the page exists.
    """
    from scperformer.results.evaluate import Evaluation
    from scperformer.results.read_annotations import of_cells

    made = evaluation if isinstance(evaluation, Evaluation) else None
    named = {"key_added": key_added, "overwrite": overwrite, "output": output}
    named |= {"evaluation": None if made is not None else evaluation}
    cfg = config_of("report", options, inputs=paths_of(cells), **named)
    if not isinstance(cells, AnnData):
        return Page(*write_page(cfg, made))
    require_output(cfg, "a page to write")
    return Page(*write_page(cfg, made, of_cells(cells, cfg.key_added)))
