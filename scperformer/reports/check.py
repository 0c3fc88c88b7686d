"""Check files before a run: their content, whether a model can annotate them, and whether they can train a model."""

import json
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from html import escape
from itertools import count
from pathlib import Path
from typing import Any

from anndata import AnnData

from scperformer.base.errors import InputError, one_line
from scperformer.base.messages import shortened
from scperformer.base.outputs import new_file, require_absent
from scperformer.base.progress import progress, say
from scperformer.cells import (
    FEW_GENES,
    HIGH_SHARE,
    Place,
    Query,
    Sample,
    find_expression,
    gene_table,
    label_columns,
    make_reference,
    map_to_model,
    measure_quality,
    rare_labels,
    rare_note,
    require_fit,
    require_labels,
    require_regular,
    require_short,
)
from scperformer.config import CheckConfig, DataConfig, PredictConfig, TrainConfig
from scperformer.files import BackedH5ad, default_output, open_cells, read_cells, reading
from scperformer.fitting import adapting_pays, depth_share, find_condition, unlike_share
from scperformer.genes import KIND_NAMES, guess_species, id_kind
from scperformer.model import (
    ReferenceCells,
    SavedModel,
    load_reference_cells,
    read_model,
    require_annotator,
    resolve_model,
)
from scperformer.prediction import require_not_annotated
from scperformer.trust import MOST_UNKNOWN, foreign_text

Checked = dict[str, Any]  # the findings about one file as JSON-able values; docs/formats.md lists them

SPECIES = {"unknown": "species unknown", "other": "another species"}
INDENT = 15  # columns before the text of a row
IN_MEMORY = "the data"  # the name of cells in memory
COMMANDS = ("ok", "try")  # rows to copy: they stay on one line


def _check_tables(cells: AnnData | BackedH5ad, cfg: CheckConfig, path: str, result: Checked) -> None:
    """Add what is known without the expression: cells, genes and the columns of obs."""
    names = list(map(str, cells.var.index))
    species = guess_species(names) if cfg.species == "auto" else cfg.species
    result |= {"num_cells": cells.n_obs, "num_genes": cells.n_vars, "id_kind": id_kind(names), "species": species}
    try:
        with reading(path):
            result["label_columns"] = label_columns(cells.obs)
    except InputError:  # predict does not need obs
        result["label_columns"] = None
        result["notes"].append("the columns of obs cannot be read")
    else:
        if num := int(cells.obs_names.duplicated().sum()):
            result["notes"].append(f"{num:,} cell names repeat earlier ones; they are kept as they are")
    if cfg.label_key is not None:
        with suppress(InputError):  # make_reference raises it again
            labels = require_labels(cells.obs, cfg.label_key, path)
            result["labels"] = {
                "cells": {str(label): int(num) for label, num in labels.value_counts().items()},
                "num_unlabelled": int(labels.isna().sum()),
                "rare": rare_labels(labels, DataConfig.min_cells_per_label),
            }


def _check_expression(
    cells: AnnData | BackedH5ad,
    cfg: CheckConfig,
    model: SavedModel,
    reference_cells: ReferenceCells | None,
    path: str,
    result: Checked,
) -> None:
    """Add what the expression is, the quality of the cells, how the genes fit the model, and if `predict` adapts it.

    `predict`, or with `label_key` `train`, refuses the same files, because this function takes the same steps.
    """
    told = {name: getattr(cfg, name) for name in ("source", "input_kind", "input_total", "input_base")}
    predict = PredictConfig(inputs=[path], species=cfg.species, min_overlap=cfg.min_overlap, **told)
    findings, rows = find_expression(cells, predict, path)
    values = asdict(replace(findings, droplets=None)) | {"text": findings.text}
    del values["droplets"]
    result |= {"findings": values, "num_genes": findings.num_genes, "id_kind": findings.id_kind}
    if (droplets := findings.droplets) is not None:
        result["droplets"] = {"floor": droplets.floor, "unit": droplets.unit, "num_empty": droplets.num_empty}
    with reading(path) if isinstance(cells, BackedH5ad) else nullcontext():
        quality = measure_quality(rows, gene_table(cells, findings.source), findings, cfg.doublets)
        result["quality"] = asdict(quality)
    try:
        plan = map_to_model(cells, findings, model, cfg.species, path)
    except InputError:
        if cfg.label_key is None:
            raise
        note = f"{model.name} cannot annotate these cells: they are of another species, or their genes have no names"
        result["notes"].append(note)
    else:
        result |= {"overlap": asdict(plan.overlap), "species": plan.mapping.species}
    if cfg.label_key is not None:
        assert isinstance(cells, AnnData), "train reads the whole file"
        told |= {"orientation": cfg.orientation, "species": cfg.species}
        sample = Sample(cells, Path(path), findings=findings)
        make_reference(sample, TrainConfig(inputs=[path], label_key=cfg.label_key, **told))
        return
    require_fit(cells, plan, model, predict, path)
    query = Query(path, rows, plan)
    adapts = False
    condition = find_condition(query)
    if reference_cells is not None:
        share = depth_share(reference_cells, condition)
        num_genes = int(condition.measured.sum())
        adapts = adapting_pays(plan.overlap.informative_share, share)
        result["condition"] = {"adapts": adapts, "num_genes": num_genes, "depth": condition.depth, "depth_share": share}
        if model.held_out is not None and rows.shape[0]:
            unlike = unlike_share(query, reference_cells, condition, plan.target_sum, PredictConfig.false_alarms)
            result["unlike_share"] = unlike
            if unlike > MOST_UNKNOWN:
                result["notes"].append(foreign_text(unlike, len(model.labels), model.tissue, findings.text))
    if not adapts:  # an adapted model has no attention
        require_short(query, model)
    require_regular(cells, path)
    require_not_annotated(cells, PredictConfig.key_added, path)


def next_command(path: str, cfg: CheckConfig, *more: str) -> str:
    """The next command for a file, quoted for a shell; the options `more` replace those that `check` was given."""
    step = "predict"
    names = ["orientation", "source", "input_kind", "input_total", "input_base", "species"]
    if cfg.label_key is None:
        names += ["model_path", "min_overlap"]
    else:
        step = "train"
        names = ["label_key", *names]
    told = {name: getattr(cfg, name) for name in names if getattr(cfg, name) != getattr(CheckConfig, name)}
    options = {name: value if isinstance(value, str) else f"{value:.15g}" for name, value in told.items()}
    options |= dict(option.split("=", 1) for option in more)
    file = f"./{path}" if path.startswith("-") else path
    return shlex.join(["scperformer", step, file, *(f"{name}={value}" for name, value in options.items())])


def check(
    source: str | AnnData, cfg: CheckConfig, model: SavedModel, reference_cells: ReferenceCells | None
) -> Checked:
    """Find out what is in a file and what to do next with it; after a problem only the findings before it are given.

    With `cfg.label_key` the file is checked as a reference, which need not fit the model; else as cells to annotate.
    `reference_cells`: the cells with which the model adapts to the file, if there are any. About cells in memory there
    is no next command.
    """
    path = source if isinstance(source, str) else IN_MEMORY
    result: Checked = {"file": path, "problem": None, "fixes": [], "command": None, "notes": []}
    step = "predict"
    ending = f".annotated.{PredictConfig.output_format}"
    if cfg.label_key is not None:
        step = "train"
        ending = ".model"
    usual = default_output(path, ending)
    problem = None
    try:
        # As the next step does: `predict` leaves matrices on disk, `train` reads them.
        reads_all = cfg.label_key is not None
        opened: AbstractContextManager[AnnData | BackedH5ad]
        if isinstance(source, AnnData):
            opened = nullcontext(source)
        elif reads_all:
            opened = nullcontext(read_cells(path, cfg.orientation))
        else:
            opened = open_cells(path, cfg.orientation)
        with opened as cells:
            _check_tables(cells, cfg, path, result)
            if usual.exists():
                result["notes"].append(f"{usual} exists: {step} needs output=..., or overwrite=true to replace it")
            _check_expression(cells, cfg, model, reference_cells, path, result)
        if isinstance(source, str) and not usual.exists():
            require_absent(usual, overwrite=False)  # its folder can be written
    except InputError as error:
        problem = error
    options = []
    if usual.exists():
        others = (usual.with_name(f"{usual.stem}-{number}{usual.suffix}") for number in count(2))
        options = [f"output={next(other for other in others if not other.exists())}"]
    if problem is not None:
        result["problem"] = str(problem)
        result["fixes"] = list(problem.fixes)
    if isinstance(source, str):
        result["fixes"] = [next_command(path, cfg, *options, fix) for fix in result["fixes"]]
        result["command"] = next_command(path, cfg, *options) if problem is None else None
    return result


def _rows(result: Checked, cfg: CheckConfig, model: str) -> list[tuple[str, str]]:
    """The name and text of each row about a file; after a problem some findings are missing."""
    rows = []
    num_cells = result.get("num_cells")

    def of_cells(num: int, of: int | None) -> str:
        return f"{num:,} cell{'s' if num > 1 else ''} ({num / of:.1%})" if num and of else "no cell"

    if num_cells is not None:
        species = SPECIES.get(result["species"], result["species"])
        rows.append(("cells", f"{num_cells:,}"))
        rows.append(("genes", f"{result['num_genes']:,}, {KIND_NAMES[result['id_kind']]}, {species}"))
    if findings := result.get("findings"):
        places = [Place(**place) for place in findings["places"]]
        rows.append(("expression", f"{findings['text']}: {findings['why']}"))
        rows += [("not used", f"{shortened(place.source)}: {place.text}") for place in places if not place.used]
        said = {place.note for place in places}
        rows += [("note", note) for note in findings["notes"] if note not in said]
    if quality := result.get("quality"):
        num_seen = quality["num_seen"]
        num = quality["num_doublets"]
        counts = "" if quality["median_counts"] is None else f" and {quality['median_counts']:,.0f} counts"
        text = f"median {quality['median_genes']:,.0f} genes{counts} per cell"
        if quality["median_mitochondrial"] is not None:
            high = of_cells(quality["num_high_mitochondrial"], num_seen)
            text += f"; median {quality['median_mitochondrial']:.1%} mitochondrial, {high} above {HIGH_SHARE:.0%}"
        if droplets := result.get("droplets"):
            text += f"; measured on {num_seen:,} barcodes with {droplets['floor']:,} {droplets['unit']} or more"
        elif num_seen < num_cells:
            text += f"; measured on {num_seen:,} cells, evenly spread over the file"
        rows.append(("quality", text))
        if few := quality["num_few_genes"]:
            rows.append(("note", f"{of_cells(few, num_seen)} with fewer than {FEW_GENES} genes"))
        found = quality["doublet_note"] if num is None else f"about {of_cells(num, num_cells)} by Scrublet"
        rows.append(("doublets", found))
    if columns := result.get("label_columns"):
        rows.append(("obs columns", ", ".join(f"{shortened(key)} ({num} values)" for key, num in columns.items())))
    if labels := result.get("labels"):
        rows.append(("labels", f"{len(labels['cells'])} in {cfg.label_key}, {sum(labels['cells'].values()):,} cells"))
        if labels["num_unlabelled"]:
            rows.append(("note", f"cells without a label: {labels['num_unlabelled']:,}"))
        if rare := labels["rare"]:
            advice = "used for training, not for validation; to change this: data.rare_labels=merge or drop"
            rows.append(("note", f"{rare_note(rare, DataConfig.min_cells_per_label)} ({advice})"))
    if overlap := result.get("overlap"):
        text = f"{model}: {overlap['num_shared']:,} of {overlap['num_model']:,} genes found"
        informative = f"{overlap['informative_share']:.1%} of its informative expression"
        text += f" ({overlap['share_of_model']:.1%}), with {informative}"
        if overlap["absent"]:
            text += f"; missing: {', '.join(overlap['absent'][:3])}" + (" ..." if overlap["num_absent"] > 3 else "")
        rows += [("model", text), *(("note", note) for note in overlap["notes"])]
    if condition := result.get("condition"):
        share = f"{condition['depth_share']:.0%} of the reference's depth"
        depth = "an unknown depth" if condition["depth"] is None else share
        how = "fits the model anew to" if condition["adapts"] else "takes the model as it is:"
        rows.append(("condition", f"predict {how} {condition['num_genes']:,} genes and {depth}"))
    rows += [("note", note) for note in result["notes"]]
    if result["problem"] is None:
        return [*rows, ("ok", result["command"] or "no problem")]
    return [*rows, ("problem", result["problem"]), *(("try", command) for command in result["fixes"])]


def in_words(result: Checked, cfg: CheckConfig, model: str) -> str:
    """The findings about a file as text, with a model and why it was chosen; fits a terminal, except for commands."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    lines = [one_line(result["file"])]
    for name, text in _rows(result, cfg, model):
        # Columns, layers and genes are named by the file: one_line removes characters that control the terminal.
        line = f"  {name:<{INDENT - 3}} {one_line(text)}"
        if name not in COMMANDS and width >= 3 * INDENT:
            blanks = " " * INDENT
            line = textwrap.fill(line, width, subsequent_indent=blanks, break_long_words=False, break_on_hyphens=False)
        lines.append(line)
    return "\n".join([*lines, ""])


@dataclass(repr=False)
class Checks:
    """The findings about files or cells in memory: `files` as values by name, `model`, and all of it as text."""

    model: dict[str, str]  # name, path and why it was chosen
    files: list[Checked]
    text: str

    @property
    def problems(self) -> list[str]:
        """The problem of each file that has one."""
        return [result["problem"] for result in self.files if result["problem"] is not None]

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.text)}</pre>"


def check_all(sources: Sequence[str | AnnData], cfg: CheckConfig, tell: Callable[[str], None] | None = None) -> Checks:
    """Find out what is in files or cells in memory, and `tell` the text about each of them at once."""
    model_path, why = resolve_model(cfg.model_path)
    model = read_model(model_path)
    require_annotator(model, model_path)
    reference_cells = load_reference_cells(model, model_path) if cfg.label_key is None else None
    found = Checks({"name": model.name, "path": str(model_path), "why": why}, [], "")
    with progress("checking", total=len(sources), unit="files") as shown:
        for source in sources:
            shown.text = f"checking {Path(source).name if isinstance(source, str) else IN_MEMORY}"
            found.files.append(check(source, cfg, model, reference_cells))
            text = in_words(found.files[-1], cfg, f"{model.name} ({why})")
            found.text += f"{text}\n"
            shown.update()
            if tell is not None:
                tell(text)
    return found


def run_check(cfg: CheckConfig) -> list[Checked]:
    """Print the findings about each file and the next command, as text or JSON; with `output`, write the JSON.

    If at least one file has a problem, this is an error after the findings about all files.
    """
    if cfg.output is not None:
        require_absent(cfg.output, cfg.overwrite)
    found = check_all(cfg.inputs, cfg, None if cfg.json else say)
    results = found.files
    text = json.dumps({"model": found.model, "files": results}, indent=1, allow_nan=False)
    if cfg.json:
        say(text)
    if cfg.output is not None:
        with new_file(cfg.output, cfg.overwrite) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")
    if bad := [result["file"] for result in results if result["problem"] is not None]:
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        refused = f"{len(bad)} of {len(results)} files cannot be used as they are: {', '.join(bad[:3])}{more}"
        raise InputError(refused, "files without a problem", "see the problem and the remedy of each file above")
    return results
