"""Check files before a run: their content, whether a model can annotate them, and whether they can train a model.

`check` takes the same steps as `predict` or `train`, so that it refuses the same files with the same messages.
"""

from __future__ import annotations

import math
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
from typing import TYPE_CHECKING, Any

from anndata import AnnData

from scperformer.annotation.columns import require_not_annotated
from scperformer.base.errors import InputError, one_line
from scperformer.base.messages import shortened
from scperformer.base.outputs import require_absent
from scperformer.base.progress import progress
from scperformer.cells.detect import Place, gene_table
from scperformer.cells.on_disk import Sample
from scperformer.cells.quality import FEW_GENES, HIGH_SHARE, measure_quality
from scperformer.cells.query import Query, find_expression, map_to_model, require_fit, require_regular
from scperformer.cells.reference import make_reference
from scperformer.cells.reference_labels import label_columns, rare_labels, rare_note, require_labels
from scperformer.config.annotation import AnnotationOptions
from scperformer.config.training import DataConfig, ReferenceOptions
from scperformer.io.gene_names import KIND_NAMES, guess_species, id_kind
from scperformer.io.h5ad import BackedH5ad
from scperformer.io.read import default_output, open_cells, read_cells
from scperformer.io.safety import reading
from scperformer.model.file_verdict import file_text, file_warning
from scperformer.model.folder import load_reference_cells, parts_of, read_model
from scperformer.model.library import require_annotator, resolve_model
from scperformer.model.novelty import novelty_share
from scperformer.model.reference_cells import ReferenceCells
from scperformer.model.saved_model import SavedModel
from scperformer.training.condition import adapting_pays, depth_share, find_condition
from scperformer.training.query_shift import find_shift, known_cells, known_when_adapted
from scperformer.training.reference_repeats import find_repeats, joined_repeats

if TYPE_CHECKING:
    from scperformer.cli.check import CheckConfig

KnownCells = Sequence[tuple[SavedModel, ReferenceCells]]  # models with the cells that they keep
Checked = dict[str, Any]  # the findings about a file, as in its JSON; docs/formats.md lists them

SPECIES = {"unknown": "species unknown", "other": "another species"}
INDENT = 15  # columns before the text of a row
IN_MEMORY = "the data"  # cells in memory have no path
COMMANDS = ("ok", "try")  # rows with commands, which stay on one line so that they can be copied


def _check_tables(cells: AnnData | BackedH5ad, cfg: CheckConfig, path: str, result: Checked) -> None:
    """Add the findings that do not need the expression: cells, genes and the columns of obs."""
    names = list(map(str, cells.var.index))
    species = guess_species(names) if cfg.species == "auto" else cfg.species
    result |= {"num_cells": cells.n_obs, "num_genes": cells.n_vars, "id_kind": id_kind(names), "species": species}
    try:
        with reading(path):
            result["label_columns"] = label_columns(cells.obs)
    except InputError:  # predict works without obs
        result["label_columns"] = None
        result["notes"].append("the columns of obs cannot be read")
    else:
        if num := int(cells.obs_names.duplicated().sum()):
            result["notes"].append(f"repeated cell names, which are kept: {num:,}")
    if cfg.label_key is not None:
        with suppress(InputError):  # make_reference raises the same error later
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
    known: KnownCells,
    path: str,
    result: Checked,
) -> None:
    """Add the findings about the expression, and check it as `predict` does, or with `label_key` as `train` does."""
    options = {name: getattr(cfg, name) for name in ("source", "input_kind", "input_total", "input_base", "species")}
    predict = AnnotationOptions(inputs=[path], min_overlap=cfg.min_overlap, **options)
    findings, rows = find_expression(cells, predict, path)
    values = asdict(replace(findings, droplets=None)) | {"text": findings.text}
    del values["droplets"]  # a JSON of its own, below
    result |= {"findings": values, "num_genes": findings.num_genes, "id_kind": findings.id_kind}
    if (droplets := findings.droplets) is not None:
        result["droplets"] = {"floor": droplets.floor, "unit": droplets.unit, "num_empty": droplets.num_empty}
    with reading(path) if isinstance(cells, BackedH5ad) else nullcontext():
        var = gene_table(cells, findings.source)
        result["quality"] = measure_quality(rows, var, findings, cfg.doublets)
    try:
        plan = map_to_model(var, findings, model, cfg, path)
    except InputError:
        if cfg.label_key is None:
            raise
        note = f"{model.name} cannot annotate these cells: they are of another species, or their genes have no names"
        result["notes"].append(note)
    else:
        result |= {"overlap": asdict(plan.overlap), "species": plan.mapping.species}
    if cfg.label_key is not None:
        assert isinstance(cells, AnnData), "train reads the whole file"
        sample = Sample(cells, Path(path), findings=findings)
        train = ReferenceOptions(inputs=[path], label_key=cfg.label_key, orientation=cfg.orientation, **options)
        make_reference(sample, train)
        return
    require_fit(var, plan, model, predict, path)
    query = Query(path, rows, plan, var, cfg)
    find_condition(query)  # reads cells, so that it refuses damaged cells as predict does
    parts = [(query.of_model(part) if model.studies else query, part, kept) for part, kept in known]
    found = [_compared(*part) for part in parts]
    repeats = joined_repeats([find_repeats(*part) for part in parts])
    result["repeats"] = {"num_seen": repeats.num_seen, "num_cells": len(repeats.rows)}
    result["notes"] += filter(None, [repeats.warning(cells)])
    if found:  # of several studies, the nearest one shows how far the file is
        nearest: Checked = min(found, key=lambda each: each["shift"].distance if "shift" in each else (math.inf,))
        result |= nearest
    if "shift" in result:
        shift = result["shift"]
        warning = file_warning(shift.kind, result["unlike_share"], len(model.labels), model.tissue, findings.text)
        names = ("kind", "relative_novelty", "batch_effect", "num_cells")
        numbers = {name: None if (value := getattr(shift, name)) != value else value for name in names}
        result["shift"] = numbers | {"text": file_text(shift, warning)}
    require_regular(cells, path)
    require_not_annotated(cells, AnnotationOptions.key_added, path)


def _compared(query: Query, model: SavedModel, reference_cells: ReferenceCells) -> Checked:
    """Return genes and depth of the cells, compared with a reference, and whether `predict` adapts the model.

    Also return the share of cells that are unlike the labels of the model, and how far the file is from the reference,
    if the model keeps held-out calls.
    """
    condition = find_condition(query)
    share = depth_share(reference_cells, condition)
    num_genes = int(condition.measured.sum())
    adapts = adapting_pays(query.plan.overlap.informative_share, share)
    result: Checked = {
        "condition": {"adapts": adapts, "num_genes": num_genes, "depth": condition.depth, "depth_share": share}
    }
    known = known_when_adapted(model, reference_cells, condition) if adapts else known_cells(model)
    if known is not None and query.rows.shape[0]:
        seen = query.of_genes(condition.measured) if adapts else query
        shift, _, scores = find_shift(seen, known, model, reference_cells, condition)
        is_unlike = 1 - novelty_share(scores / shift.factor, known.scores) <= AnnotationOptions.false_alarms
        result |= {"unlike_share": float(is_unlike.mean()) if len(scores) else 1.0, "shift": shift}
    return result


def next_command(path: str, cfg: CheckConfig, *more: str) -> str:
    """Return the next command for a file, quoted for a shell, with the options of `check` that it needs.

    The options `more`, such as `output=b.h5ad`, replace those of `check`.
    """
    step = "predict"
    names = ["orientation", "source", "input_kind", "input_total", "input_base", "species"]
    if cfg.label_key is None:
        names += ["model_path", "genes", "min_overlap"]
    else:
        step = "train"
        names = ["label_key", *names]
    changed = {name: getattr(cfg, name) for name in names if getattr(cfg, name) != getattr(type(cfg), name)}
    options = {name: value if isinstance(value, str) else f"{value:.15g}" for name, value in changed.items()}
    options |= dict(option.split("=", 1) for option in more)
    file = f"./{path}" if path.startswith("-") else path
    return shlex.join(["scperformer", step, file, *(f"{name}={value}" for name, value in options.items())])


def check(source: str | AnnData, cfg: CheckConfig, model: SavedModel, known: KnownCells) -> Checked:
    """Return the findings about a file or cells in memory, and the next command.

    A problem ends the check, so later findings are missing. Cells in memory have no next command.

    Parameters
    ----------
    cfg
        With `label_key`, the file is checked as a reference, which need not fit the model; else as cells to annotate.
    known
        The model, or each of its studies, with the reference cells with which `predict` would adapt it; those without
        are left out.
    """
    path = source if isinstance(source, str) else IN_MEMORY
    result: Checked = {"file": path, "problem": None, "fixes": [], "command": None, "notes": []}
    step = "predict"
    ending = ".annotated.h5ad"
    if cfg.label_key is not None:
        step = "train"
        ending = ".model"
    output = default_output(path, ending)
    try:
        with _opened(source, cfg) as cells:
            _check_tables(cells, cfg, path, result)
            if output.exists():
                result["notes"].append(f"{output} exists: {step} needs output=..., or overwrite=true to replace it")
            _check_expression(cells, cfg, model, known, path, result)
        if isinstance(source, str) and not output.exists():
            require_absent(output, overwrite=False)  # refuses a folder that cannot be written
    except InputError as error:
        result["problem"] = str(error)
        result["fixes"] = list(error.fixes)
    if isinstance(source, str):
        options = []
        if output.exists():
            numbered = (output.with_name(f"{output.stem}-{number}{output.suffix}") for number in count(2))
            options = [f"output={next(path for path in numbered if not path.exists())}"]
        result["fixes"] = [next_command(path, cfg, *options, fix) for fix in result["fixes"]]
        result["command"] = next_command(path, cfg, *options) if result["problem"] is None else None
    return result


def _opened(source: str | AnnData, cfg: CheckConfig) -> AbstractContextManager[AnnData | BackedH5ad]:
    """Open cells as the next step does: `train` reads whole files, `predict` leaves matrices on disk."""
    if isinstance(source, AnnData):
        return nullcontext(source)
    if cfg.label_key is not None:
        return nullcontext(read_cells(source, cfg.orientation))
    return open_cells(source, cfg.orientation)


Row = tuple[str, str]  # name and text


def _rows(result: Checked, cfg: CheckConfig, model: str) -> list[Row]:
    """Return the rows of text about a file; after a problem, later findings are missing."""
    rows: list[Row] = []
    if "num_cells" in result:
        species = SPECIES.get(result["species"], result["species"])
        rows.append(("cells", f"{result['num_cells']:,}"))
        rows.append(("genes", f"{result['num_genes']:,}, {KIND_NAMES[result['id_kind']]}, {species}"))
    if findings := result.get("findings"):
        places = [Place(**place) for place in findings["places"]]
        rows.append(("expression", f"{findings['text']}: {findings['why']}"))
        rows += [("not used", f"{shortened(place.source)}: {place.text}") for place in places if not place.used]
        shown = {place.note for place in places}
        rows += [("note", note) for note in findings["notes"] if note not in shown]
    if "quality" in result:
        rows += _quality_rows(result)
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
        plan = "adapts the model to" if condition["adapts"] else "uses the model as it is:"
        rows.append(("condition", f"predict {plan} {condition['num_genes']:,} genes and {depth}"))
    if shift := result.get("shift"):
        rows.append(("shift", shift["text"]))
    rows += [("note", note) for note in result["notes"]]
    if result["problem"] is None:
        return [*rows, ("ok", result["command"] or "no problem")]
    return [*rows, ("problem", result["problem"]), *(("try", command) for command in result["fixes"])]


def _quality_rows(result: Checked) -> list[Row]:
    """Return the rows about genes, counts, mitochondrial expression and doublets."""
    num_cells = result["num_cells"]
    quality = result["quality"]
    num_measured = quality["num_seen"]

    def number_and_share(num: int, total: int) -> str:
        return f"{num:,} cell{'s' if num > 1 else ''} ({num / total:.1%})" if num and total else "no cell"

    counts = "" if quality["median_counts"] is None else f" and {quality['median_counts']:,.0f} counts"
    text = f"median {quality['median_genes']:,.0f} genes{counts} per cell"
    if quality["median_mitochondrial"] is not None:
        high = number_and_share(quality["num_high_mitochondrial"], num_measured)
        text += f"; median {quality['median_mitochondrial']:.1%} mitochondrial, {high} above {HIGH_SHARE:.0%}"
    if droplets := result.get("droplets"):
        text += f"; measured on {num_measured:,} barcodes with {droplets['floor']:,} {droplets['unit']} or more"
    elif num_measured < num_cells:
        text += f"; measured on {num_measured:,} cells, evenly spread over the file"
    rows = [("quality", text)]
    if num_few := quality["num_few_genes"]:
        rows.append(("note", f"{number_and_share(num_few, num_measured)} with fewer than {FEW_GENES} genes"))
    num_doublets = quality["num_doublets"]
    doublets = quality["doublet_note"]
    if num_doublets is not None:
        doublets = f"about {number_and_share(num_doublets, num_cells)} by Scrublet"
    return [*rows, ("doublets", doublets)]


def in_words(result: Checked, cfg: CheckConfig, model: str) -> str:
    """Return the findings about a file as text that fits the terminal, except for commands.

    `model` is the name of the model, with the reason why it was chosen.
    """
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    lines = [one_line(result["file"])]
    for name, text in _rows(result, cfg, model):
        # Names of columns, layers and genes may hold characters that control the terminal; one_line replaces them.
        line = f"  {name:<{INDENT - 3}} {one_line(text)}"
        if name not in COMMANDS and width >= 3 * INDENT:
            blanks = " " * INDENT
            line = textwrap.fill(line, width, subsequent_indent=blanks, break_long_words=False, break_on_hyphens=False)
        lines.append(line)
    return "\n".join([*lines, ""])


@dataclass(repr=False)
class Checks:
    """The findings about files or cells in memory."""

    model: dict[str, str]  # name, path, and why the model was chosen
    files: list[Checked]
    text: str  # all findings, as the command prints them

    @property
    def problems(self) -> list[str]:
        """The problems of the files that cannot be used."""
        return [result["problem"] for result in self.files if result["problem"] is not None]

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.text)}</pre>"


def check_all(sources: Sequence[str | AnnData], cfg: CheckConfig, tell: Callable[[str], None] | None = None) -> Checks:
    """Check files or cells in memory; `tell` receives the text about each of them as soon as it is known."""
    model_path, why = resolve_model(cfg.model_path)
    model = read_model(model_path)
    require_annotator(model, model_path)
    parts = parts_of(model, model_path) if cfg.label_key is None else []
    kept = [(part, load_reference_cells(part, place)) for part, place in parts]
    known = [(part, cells) for part, cells in kept if cells is not None]
    checks = Checks({"name": model.name, "path": str(model_path), "why": why}, [], "")
    with progress("checking", total=len(sources), unit="files") as shown:
        for source in sources:
            name = default_output(source, "").name if isinstance(source, str) else IN_MEMORY
            shown.set_description_str(f"checking {name}", refresh=False)
            result = check(source, cfg, model, known)
            text = in_words(result, cfg, f"{model.name} ({why})")
            checks.files.append(result)
            checks.text += f"{text}\n"
            shown.update()
            if tell is not None:
                tell(text)
    return checks
