"""Making models: prepare cells, train, pretrain and adapt; the model folders that there are."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

import pandas as pd
from anndata import AnnData

from scperformer.api.keywords import File, Options, config_of, listed, loaded, path_of, paths_of, required_output, step
from scperformer.base.errors import InputError
from scperformer.base.outputs import require_absent
from scperformer.cli.pretrain import PretrainConfig
from scperformer.cli.train import TrainConfig
from scperformer.model.content import INFO
from scperformer.model.folder import read_model
from scperformer.model.library import PACKAGED_MODEL, library_folder

if TYPE_CHECKING:  # they import torch or pictures: the functions load them when they are called
    from scperformer.attention.base import Attention
    from scperformer.model.load import Model


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
        Align the genes to those of this model.
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
    required_output(cfg)
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
        required_output(cfg)
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
    from scperformer.io.read import default_output
    from scperformer.training.adapt import write_adapted

    cfg = config_of(
        "adapt",
        options,
        inputs=paths_of(cells, several=False),
        model_path=path_of(model),
        output=output,
        overwrite=overwrite,
    )
    source = cells if isinstance(cells, AnnData) else os.fspath(cells)
    beside_it = isinstance(source, str) and cfg.output is None
    place = default_output(source, ".adapted") if isinstance(source, str) and beside_it else required_output(cfg)
    return _trained(write_adapted(loaded(model, cfg), source, place, cfg))


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
    from scperformer.importing.folders import import_model as import_one

    named = {"name": name, "reference": reference, "label_key": label_key, "output": output, "overwrite": overwrite}
    cfg = config_of("models", options, action="import", inputs=[os.fspath(path)], **named)
    return _trained(import_one(Path(path), Path(cfg.output) if cfg.output else library_folder(), cfg))


@step("models")
def models() -> pd.DataFrame:
    """List the packaged model and the imported ones: a row each, with labels, genes, tissue and folder.

    A folder that cannot be used has a row with the reason in `problem`, which is empty for the others.
    """
    library = library_folder()
    imported = [folder for folder in sorted(library.iterdir()) if (folder / INFO).is_file()] if library.is_dir() else []
    rows = []
    for folder in [PACKAGED_MODEL, *imported]:
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
