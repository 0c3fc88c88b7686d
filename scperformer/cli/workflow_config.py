"""The configuration of the workflow and its sample sheet, checked: for the command, and for the Snakefile itself.

A YAML file with a configuration may come from anywhere. It can set the options of scperformer, and nothing else.
"""

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scperformer.base.errors import InputError
from scperformer.base.inputs import names_beside
from scperformer.base.messages import did_you_mean, listed
from scperformer.base.outputs import MARK
from scperformer.cli.arguments import option_word, sort_words
from scperformer.cli.compose import make_config
from scperformer.config.compose import make_options, option_values
from scperformer.config.steps import (
    SCHEMAS,
    WORKFLOW_DEFAULTS,
    WORKFLOW_KEYS,
    WORKFLOW_STEPS,
    WorkflowConfig,
)
from scperformer.io.read import require_readable
from scperformer.io.sheet import path_in_sheet, read_sheet
from scperformer.model.folder import names_model, resolve_model

WORKFLOW_FILE_KEYS = (*WORKFLOW_KEYS, "overrides")
WORKFLOW_FILE = "a YAML file like workflows/config.yaml, such as {label_key: cell_type, overrides: {train: {seed: 1}}}"
# What the workflow writes into its `output_dir`.
WORKFLOW_OUTPUTS = {
    "adapted",
    "annotated",
    "benchmarks",
    "evaluation",
    "example",
    "logs",
    "model",
    "model.run",
    "predicted",
}
WORKFLOW_OUTPUTS |= {"pancreas.html", "prepared", "report.html", "samples", "samples.csv"}
SAMPLE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# snakemake formats a container, and hands it to a shell without quotes
IMAGE = re.compile(r"[\w./][\w.,/:@=+-]*")
OUTDIR = re.compile(r"[^~{}\s][^{}\n]*")  # snakemake reads braces as wildcards


@dataclass(frozen=True, kw_only=True)
class Workflow:
    """What the workflow is to do: its configuration, without defaults left open, and the samples of its sheet."""

    cfg: WorkflowConfig
    references: list[str]  # labelled files to train on; none with a model
    model: str  # the folder of a model; "": it is trained, or without a reference the tissue of each sample is inferred
    # the other fields of the sheet by sample name; none: the embedded data
    samples: dict[str, dict[str, str]]
    truth_key: str  # the column with the true labels, of all samples that have any
    output_dir: str
    options: dict[str, list[str]]  # the user's options of each step, as words of its command


def workflow_options(
    content: Any, where: str = "configuration"
) -> tuple[WorkflowConfig, dict[str, list[str]]]:
    """Return the configuration of the workflow from the file `where`, and options of its steps as words."""
    content = _mapping(content or {}, where, WORKFLOW_FILE_KEYS)
    given = {
        key: value for key, value in content.items() if value is not None and key != "overrides"
    }
    cfg = make_options(WorkflowConfig, WORKFLOW_DEFAULTS | given)
    named = _mapping(content.get("overrides") or {}, f"{where}: overrides", WORKFLOW_STEPS)
    required = {"train": [option_word("label_key", cfg.label_key)], "evaluate": ["truth_key=a"]}
    words = {}
    for step in WORKFLOW_STEPS:
        try:
            words[step] = _words_of(named.get(step) or {}, step)
            if step == "predict":  # the last word counts
                of_workflow = {name: getattr(cfg, name) for name in ("tissue", "min_confidence")}
                words[step] += [
                    option_word(name, value)
                    for name, value in of_workflow.items()
                    if value is not None
                ]
            make_config(step, ["inputs=[a]", *required.get(step, []), *words[step]])
        except InputError as error:
            found = f"{where}: overrides: {step}: {error.found}"
            raise InputError("workflow-overrides", found, error.expected, error.remedy) from error
    return cfg, words


def _mapping(content: Any, where: str, known: tuple[str, ...]) -> dict[str, Any]:
    """Return content if it is a mapping with known keys; refuse anything else."""
    if not isinstance(content, dict):
        found = f"{where} is no mapping of names to values"
        raise InputError("workflow-config", found, WORKFLOW_FILE, "see docs/workflow.md")
    if unknown := [key for key in content if key not in known]:
        remedy = f"{did_you_mean(unknown[0], known)}rename it"
        raise InputError(
            "workflow-config", f"{where}: '{unknown[0]}'", f"one of {', '.join(known)}", remedy
        )
    return content


def _words_of(content: Any, step: str) -> list[str]:
    """Return the options of a step as words: from a mapping of full names to values, or words of the command line."""
    if isinstance(content, Mapping):
        option_values(SCHEMAS[step], content)  # refuses names and types before they are words
        return [option_word(name, value) for name, value in content.items()]
    try:
        words = shlex.split(content) if isinstance(content, str) else content
    except ValueError as error:  # a quote without its end
        found = f"{content} ({error})"
        raise InputError(
            "workflow-arguments", found, "words as on the command line", "close the quote"
        ) from error
    if not isinstance(words, list) or not all(
        isinstance(word, str) and "=" in word for word in words
    ):
        expected = "words such as 'alpha=0.1 clusters=leiden', a list of them, or a mapping such as {alpha: 0.1}"
        raise InputError("workflow-arguments", f"{content!r}", expected, "see docs/workflow.md")
    return sort_words(words, step)[0]


def read_workflow(
    config: Mapping[str, Any], folder: str | Path, where: str = "configuration"
) -> Workflow:
    """Return the workflow of a configuration with keys of workflows/config.yaml, which all may be missing.

    Only a checkout has the data that replace missing samples, in the folder of the Snakefile, `folder`. `where` is
    the place of the configuration, for errors.
    """
    cfg, options = workflow_options(config, where)
    _require_samples(cfg, Path(folder) / "data" / "pbmc3k.h5ad")
    output_dir = _output_dir(cfg)
    if cfg.container and not IMAGE.fullmatch(cfg.container):
        expected = "an image whose name has letters, digits and ./:@=+,_- alone"
        raise InputError(
            "container-name", f"container={cfg.container}", expected, "rename it, or link to it"
        )
    references = [
        _require_input(path, "the labelled file named by reference=")
        for path in cfg.reference or []
    ]
    stems = [Path(path).stem for path in references]
    if twice := next((stem for stem in stems if stems.count(stem) > 1), None):
        found = f"two files {twice} in reference="
        raise InputError(
            "same-name-twice", found, "a name of its own for each study", "rename one of them"
        )
    model = ""
    names_tissue = any(word.startswith("tissue=") for word in options["predict"])
    if cfg.model_path or (
        cfg.sample_sheet and not references and names_model(None, "" if names_tissue else None)
    ):
        named = f"model_path={cfg.model_path}" if cfg.model_path else "$SCPERFORMER_MODEL"
        model = _require_input(str(resolve_model(cfg.model_path)[0]), f"the model named by {named}")
    samples = _read_samples(cfg.sample_sheet) if cfg.sample_sheet else {}
    return Workflow(
        cfg=cfg,
        references=references,
        model=model,
        samples=samples,
        truth_key=_truth_key(samples, str(cfg.label_key)),
        output_dir=output_dir,
        options=options,
    )


def _require_samples(cfg: WorkflowConfig, embedded: Path) -> None:
    """Refuse two of a reference, a model and a tissue, and missing samples where no embedded data replace them."""
    if cfg.reference and cfg.model_path:
        remedy = "drop model_path= to train, reference= to use the model"
        raise InputError("reference-and-model", "reference= and model_path=", "one of them", remedy)
    if cfg.tissue is not None and (cfg.reference or cfg.model_path):
        found = f"tissue={cfg.tissue} beside a reference or a model"
        raise InputError("tissue-and-model", found, "one of them", "leave the other out")
    if not cfg.sample_sheet and (cfg.reference or cfg.model_path or not embedded.exists()):
        expected = "a sample sheet with the columns sample and path, as the first word"
        remedy = (
            "name it: scperformer workflow samples.tsv reference=labelled.h5ad label_key=cell_type"
        )
        raise InputError("no-sample-sheet", "no sample_sheet=", expected, remedy)


def _output_dir(cfg: WorkflowConfig) -> str:
    """Return the folder of outputs; refuse one with files that Snakemake would remove."""
    folder = cfg.output_dir or ""
    if not OUTDIR.fullmatch(folder):
        expected = "a folder without braces in its name"
        raise InputError(
            "output-dir-braces", f"output_dir={folder}", expected, "choose a different one"
        )
    there = set(os.listdir(folder)) if os.path.isdir(folder) else set()
    # Snakemake removes outputs before it makes them anew
    if there & WORKFLOW_OUTPUTS and MARK not in there and not there <= WORKFLOW_OUTPUTS:
        found = f"{folder}/{min(there & WORKFLOW_OUTPUTS)} exists, and this workflow may not have made it"
        remedy = "move it away, or choose a different output_dir"
        raise InputError("output-dir-taken", found, "a folder without it", remedy)
    return os.path.normpath(folder)


def require_labelled(workflow: Workflow) -> None:
    """Refuse a reference without its labels, or a truth without its column: now, not in the job that reads it."""
    from scperformer.cells.collection import stored_cells
    from scperformer.cells.label_tables import read_cell_table
    from scperformer.cells.reference_labels import CellLabels
    from scperformer.io.h5ad import open_stored

    words = [option_word("label_key", workflow.cfg.label_key), *workflow.options["train"]]
    cfg = make_config("train", ["inputs=[a]", *words])
    for path in filter(_stays_on_disk, workflow.references):
        CellLabels.of_files([stored_cells(Path(path), cfg)])
    for row in workflow.samples.values():
        place, key = row.get("truth", row["path"]), workflow.truth_key
        if "truth" in row:
            columns = list(read_cell_table(place, key, "true labels")[0].columns)
        elif "truth_key" in row and _stays_on_disk(place):
            columns = sorted(open_stored(place).keys()["obs"])
        else:
            continue
        if key not in columns:
            expected = f"the true labels in one of {listed(columns)}"
            instead = "name it in the column truth_key of the sample sheet, or by label_key="
            remedy = f"{did_you_mean(key, columns)}{instead}"
            raise InputError("no-column", f"no column '{key}' in {place}", expected, remedy)


def _stays_on_disk(path: str) -> bool:
    """Whether columns of obs can be read alone: not from texts, files of before anndata 0.8 or damaged ones."""
    from scperformer.io.h5ad import open_stored
    from scperformer.io.safety import READ_ERRORS

    try:
        return require_readable(path) in ("h5ad", "zarr") and bool(open_stored(path))
    except READ_ERRORS:
        return False


def _require_input(path: str, what: str) -> str:
    """Return a path that exists and that snakemake takes for an input of jobs."""
    if not os.path.exists(path):
        remedy = (
            "write / between folders"
            if "\\" in path
            else "correct the path, or make the file first"
        )
        near = did_you_mean(Path(path).name, names_beside(Path(path)))
        raise InputError("no-file", f"no {path}", what, f"{near}{remedy}")
    if set("{}") & set(path):
        expected = "a path without them: snakemake reads braces as wildcards"
        raise InputError("path-braces", f"braces in {path}, {what}", expected, "rename it")
    return path


def _read_samples(sheet: str) -> dict[str, dict[str, str]]:
    """Return the other fields of each row of a sheet by sample name; paths are relative to the working directory."""
    rows = read_sheet(sheet)
    if not rows:
        expected = "a line of column names and a line for each sample"
        raise InputError("no-samples", f"no samples in {sheet}", expected, "add them")
    samples: dict[str, dict[str, str]] = {}
    for row in rows:
        for column in ("sample", "path"):
            if column not in row:
                found = (
                    f"a row of {sheet} without {column} ({', '.join(map('='.join, row.items()))})"
                )
                expected = "the columns sample, path, optional truth, truth_key, and others that describe the samples"
                raise InputError(
                    "sheet-row",
                    found,
                    expected,
                    f"name the column {column}, and fill it in each row",
                )
        name = row.pop("sample")
        if not SAMPLE_NAME.fullmatch(name):
            expected = "a name of letters, digits, dots, dashes and underscores"
            raise InputError("sample-name", f"sample '{name}' in {sheet}", expected, "rename it")
        if name in samples:
            found = f"sample {name} twice in {sheet}"
            raise InputError("sample-twice", found, "every sample name once", "rename one of them")
        for column in {"path", "truth"} & row.keys():
            what = f"the {column} of sample {name} in {sheet}"
            row[column] = _require_input(path_in_sheet(sheet, row[column]), what)
        if os.path.isdir(row["path"]):  # the job refuses other files that it cannot read
            try:
                require_readable(row["path"])
            except InputError as error:
                found = f"the path of sample {name} in {sheet}: {error.found}"
                raise InputError("sample-path", found, error.expected, error.remedy) from error
        samples[name] = row
    return samples


def _truth_key(samples: Mapping[str, Mapping[str, str]], label_key: str) -> str:
    """Return the column with the true labels, which must be the same for all samples that have any."""
    columns: dict[tuple[str, str], str] = {}
    for name, row in samples.items():
        if "truth" in row or "truth_key" in row:
            columns.setdefault(
                ("table" if "truth" in row else "obs", row.get("truth_key", label_key)), name
            )
    if len(columns) > 1:
        found = " and ".join(
            f"{where} column {key} for {name}" for (where, key), name in columns.items()
        )
        expected = "the same kind of truth for all samples"
        raise InputError(
            "mixed-truth", f"truth in {found}", expected, "give all of them a truth table alike"
        )
    return next((key for _, key in columns), label_key)
