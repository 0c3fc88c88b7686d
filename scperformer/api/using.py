"""Using models: check, annotate and embed cells; evaluate, explain and report annotations."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack, overload

import numpy as np
from anndata import AnnData

from scperformer.api.keywords import File, Options, config_of, listed, loaded, path_of, paths_of, required_output, step
from scperformer.base.errors import InputError
from scperformer.base.outputs import require_absent
from scperformer.base.progress import say
from scperformer.cli.check import CheckConfig
from scperformer.cli.evaluate import EvaluateConfig
from scperformer.cli.explain import ExplainConfig
from scperformer.cli.predict import PredictConfig
from scperformer.cli.report import ReportConfig, write_page
from scperformer.io.read import open_cells

if TYPE_CHECKING:  # they import torch or pictures: the functions load them when they are called
    from scperformer.attention.tokens import Batch
    from scperformer.model.load import Model
    from scperformer.results.check import Checks
    from scperformer.results.evaluate import Evaluation
    from scperformer.results.explain import Explanation


@step("check")
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
    named = {"model_path": path_of(model), "label_key": label_key, "doublets": doublets}
    cfg = config_of("check", options, inputs=paths_of(several, in_memory=True), **named)
    sources = [one if isinstance(one, AnnData) else os.fspath(one) for one in several]
    return check_all(sources, cfg, label_key=cfg.label_key, doublets=cfg.doublets)


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
    if written := [name for name in ("output", "outputs", "output_dir") if getattr(cfg, name)]:
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
    from scperformer.results.evaluate import EVALUATION, evaluate_samples, write_evaluation
    from scperformer.results.read_annotations import of_cells, read_annotated

    named = {"truth_key": truth_key, "output": output, "key_added": key_added, "overwrite": overwrite}
    cfg = config_of("evaluate", options, inputs=paths_of(cells), **named)
    if cfg.output is not None:
        require_absent(cfg.output, cfg.overwrite, EVALUATION)
    in_memory = isinstance(cells, AnnData)
    samples = [of_cells(cells, cfg.key_added)] if in_memory else read_annotated(cfg.inputs, cfg.key_added)
    evaluation = evaluate_samples(samples, cfg.truth_key, cfg.truth_path, cfg.truth_map, cfg.match)
    if cfg.output is not None:
        write_evaluation(evaluation, Path(cfg.output), cfg.overwrite)
    return evaluation


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
    num = None if cfg.cells == "all" else cfg.cells
    chosen = {"label": cfg.label, "num_cells": num, "all_genes": cfg.all_genes, "seed": cfg.seed}
    made = explain_cells(annotated, cfg, ready, **chosen)
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
        More options of `report` by their full names, such as `{"max_cells": 5000}`.

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
    required_output(cfg, "a page to write")
    return Page(*write_page(cfg, made, of_cells(cells, cfg.key_added)))
