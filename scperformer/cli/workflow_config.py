"""The configuration of the workflow and its sample sheet, checked: for the command, and for the Snakefile itself."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py

from scperformer.base.errors import InputError
from scperformer.base.inputs import names_beside
from scperformer.base.messages import did_you_mean
from scperformer.base.outputs import MARK
from scperformer.cli.compose import make_config
from scperformer.cli.option_file import workflow_options
from scperformer.cli.overrides import option_word
from scperformer.io.hdf5_guard import open_hdf5
from scperformer.io.read import require_readable
from scperformer.io.sheet import path_in_sheet, read_sheet
from scperformer.io.tables import sniff
from scperformer.model.library import resolve_model

# What the workflow writes into its `output_dir`.
OWN = {"adapted", "annotated", "benchmarks", "evaluation", "example", "logs", "model", "model.run", "predicted"}
OWN |= {"prepared", "report.html", "samples", "samples.csv"}
SAMPLE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
OUTDIR = re.compile(r"[^~{}\s][^{}\n]*")  # snakemake reads braces as wildcards


@dataclass(frozen=True, kw_only=True)
class Workflow:
    """What the workflow is to do: its configuration, without defaults left open, and the samples of its sheet."""

    references: list[str]  # labelled files to train on; none with a model
    model: str  # the folder of a model; "": it is trained
    samples: dict[str, dict[str, str]]  # the other fields of the sheet by sample name; none: those of the embedded data
    label_key: str
    truth_key: str  # the column with the true labels, of all samples that have any
    output_dir: str
    predict_jobs: int
    gpu: int
    container: str | None
    options: dict[str, list[str]]  # the user's options of each step, as words of its command


def read_workflow(config: Mapping[str, Any], folder: str | Path, where: str = "configuration") -> Workflow:
    """Return the workflow of a configuration.

    Parameters
    ----------
    config
        Keys of config/config.yaml; all may be missing.
    folder
        The folder of the Snakefile. Beside it, only a checkout has the data that replace missing samples.
    where
        The place of the configuration, for errors.

    Raises
    ------
    InputError
        A key, an option or a row of the sample sheet is wrong; or a file, a model or a column of a file is missing.
    """
    cfg, options = workflow_options(config, where)
    assert cfg.label_key is not None
    assert cfg.output_dir is not None
    assert cfg.predict_jobs is not None
    assert cfg.gpu is not None
    references = cfg.reference or []
    if references and cfg.model_path:
        remedy = "drop model_path= to train, reference= to use the model"
        raise InputError("reference= and model_path=", "one of them", remedy)
    if (references or cfg.model_path) and not cfg.sample_sheet:
        remedy = "write one with the columns sample and path, add sample_sheet=samples.tsv"
        raise InputError("no sample_sheet=", "a sample sheet", remedy)
    if cfg.sample_sheet and not (references or cfg.model_path):
        remedy = "add reference=labelled.h5ad, or model_path=FOLDER or the name of a model"
        raise InputError("sample_sheet= alone", "what to annotate them with", remedy)
    if not cfg.sample_sheet and not (Path(folder).parent / "data" / "pbmc3k.h5ad").exists():
        remedy = "name it: scperformer workflow samples.tsv reference=reference.h5ad label_key=cell_type"
        raise InputError("no sample sheet", "one with the columns sample and path, as the first word", remedy)
    if not OUTDIR.fullmatch(cfg.output_dir):
        raise InputError(f"output_dir={cfg.output_dir}", "a folder without braces in its name", "choose another")
    _require_own_output_dir(cfg.output_dir)
    for path in references:
        _require_input(path, "the labelled file named by reference=")
    stems = [Path(path).stem for path in references]
    if twice := next((stem for stem in stems if stems.count(stem) > 1), None):
        raise InputError(f"two files {twice} in reference=", "a name of its own for each study", "rename one of them")
    model = ""
    if cfg.model_path:
        model = _require_input(str(resolve_model(cfg.model_path)[0]), f"the model named by model_path={cfg.model_path}")
    samples = _read_samples(cfg.sample_sheet) if cfg.sample_sheet else {}
    truth_key = _truth_key(samples, cfg.label_key)
    _require_columns(references, samples, cfg.label_key, truth_key, options)
    return Workflow(
        references=references,
        model=model,
        samples=samples,
        label_key=cfg.label_key,
        truth_key=truth_key,
        output_dir=os.path.normpath(cfg.output_dir),
        predict_jobs=cfg.predict_jobs,
        gpu=cfg.gpu,
        container=cfg.container,
        options=options,
    )


def _require_own_output_dir(output_dir: str) -> None:
    """Refuse a folder with other files in the place of ours: Snakemake removes outputs before it makes them anew."""
    there = set(os.listdir(output_dir)) if os.path.isdir(output_dir) else set()
    if there & OWN and MARK not in there and not there <= OWN:
        found = f"{output_dir}/{min(there & OWN)} exists, and this workflow may not have made it"
        raise InputError(found, "a folder without it", "move it away, or choose another output_dir")


def _require_input(path: str, what: str) -> str:
    """Return a path that exists and that snakemake takes for an input of jobs."""
    if not os.path.exists(path):
        remedy = "correct the path, or make the file first"
        if "\\" in path:
            remedy = "write / between folders"
        raise InputError(f"no {path}", what, f"{did_you_mean(Path(path).name, names_beside(Path(path)))}{remedy}")
    if set("{}") & set(path):
        raise InputError(
            f"braces in {path}, {what}", "a path without them: snakemake reads braces as wildcards", "rename it"
        )
    return path


def _read_samples(sheet: str) -> dict[str, dict[str, str]]:
    """Return the other fields of each row of a sheet by sample name; paths are relative to the working directory."""
    rows = read_sheet(sheet)
    if not rows:
        raise InputError(f"no samples in {sheet}", "a line of column names and a line for each sample", "add them")
    samples: dict[str, dict[str, str]] = {}
    for row in rows:
        for column in ("sample", "path"):
            if column not in row:
                found = f"a row of {sheet} without {column} ({', '.join(map('='.join, row.items()))})"
                expected = "the columns sample, path, optional truth, truth_key, and others that describe the samples"
                raise InputError(found, expected, f"name the column {column}, and fill it in each row")
        name = row.pop("sample")
        if not SAMPLE_NAME.fullmatch(name):
            expected = "a name of letters, digits, dots, dashes and underscores"
            raise InputError(f"sample '{name}' in {sheet}", expected, "rename it")
        if name in samples:
            raise InputError(f"sample {name} twice in {sheet}", "every sample name once", "rename one of them")
        for column in {"path", "truth"} & row.keys():
            what = f"the {column} of sample {name} in {sheet}"
            row[column] = _require_input(path_in_sheet(sheet, row[column]), what)
        if os.path.isdir(row["path"]):  # the job refuses other files that it cannot read
            try:
                require_readable(row["path"])
            except InputError as error:
                found = f"the path of sample {name} in {sheet}: {error.found}"
                raise InputError(found, error.expected, error.remedy) from error
        samples[name] = row
    return samples


def _truth_key(samples: Mapping[str, Mapping[str, str]], label_key: str) -> str:
    """Return the column with the true labels, which must be the same for all samples that have any."""
    columns: dict[tuple[str, str], str] = {}
    for name, row in samples.items():
        if "truth" in row or "truth_key" in row:
            where = "table" if "truth" in row else "obs"
            columns.setdefault((where, row.get("truth_key", label_key)), name)
    if len(columns) > 1:
        found = " and ".join(f"{where} column {key} for {name}" for (where, key), name in columns.items())
        raise InputError(
            f"truth in {found}", "the same kind of truth for all samples", "give all of them a truth table alike"
        )
    return next((key for _, key in columns), label_key)


def _columns_of(path: str) -> list[str] | None:
    """Return the columns of a table, or of obs of an h5ad file; None for a file that the job which reads it refuses."""
    try:
        if not path.endswith(".h5ad"):
            return sniff(Path(path)).header
        with open_hdf5(path) as file:
            obs = file["obs"]
            return list(map(str, obs.dtype.names if isinstance(obs, h5py.Dataset) else obs.attrs["column-order"]))
    except (OSError, RuntimeError, KeyError, TypeError, ValueError):
        return None


def _require_columns(
    references: list[str],
    samples: Mapping[str, Mapping[str, str]],
    label_key: str,
    truth_key: str,
    options: Mapping[str, list[str]],
) -> None:
    """Refuse names of columns that a reference, a sample or a table of true labels lacks."""
    train = make_config("train", ["inputs=[a]", option_word("label_key", label_key), *options["train"]])
    of_reference = {"label_key": [train.label_key], "label_keys": train.label_keys}
    of_reference |= {"ontology_key": [train.ontology_key], "data.split_key": [train.data.split_key]}
    clusters = make_config("predict", ["inputs=[a]", *options["predict"]]).clusters
    named = [
        (path, name, column) for path in references for name, columns in of_reference.items() for column in columns
    ]
    for row in samples.values():
        named.append((row["path"], "clusters", None if clusters == "auto" else clusters))
        if "truth" in row or "truth_key" in row:
            named.append((row.get("truth", row["path"]), "truth_key", truth_key))
    for path, name, column in named:
        columns = _columns_of(path) if column else None
        if columns is not None and column not in columns:
            found, expected = f"{name}={column}, which is no column of {path}", f"one of {', '.join(columns) or 'none'}"
            remedy = f"{did_you_mean(column, columns)}set {name} to the column that is meant"
            raise InputError(found, expected, remedy)
