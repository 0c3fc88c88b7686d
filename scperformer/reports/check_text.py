"""What the input doctor found, in words; and the commands that it advises."""

import shlex
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from scperformer.config import CheckConfig, DataConfig
from scperformer.dataset import rare_note
from scperformer.errors import one_line
from scperformer.expression import Place
from scperformer.genes import KIND_NAMES
from scperformer.reports.quality import FEW_GENES, HIGH_SHARE
from scperformer.text import shortened

SPECIES = {"unknown": "species unknown", "other": "another species"}
INDENT = 15
COMMANDS = ("ok", "try")  # rows to be copied: never broken into lines
Row = tuple[str, str]  # its name, and what there is to say


# Commands


def ready_command(path: str, cfg: CheckConfig, *more: str) -> str:
    """The command that goes on with a file, with the options that the user told `check`, for a shell.

    Parameters
    ----------
    more
        Options that win.
    """
    step = "predict" if cfg.label_key is None else "train"
    names = ["orientation", "source", "input_kind", "input_total", "input_base", "species"]
    names = [*names, "model_path", "min_overlap"] if step == "predict" else ["label_key", *names]
    told = {name: getattr(cfg, name) for name in names}
    options = {name: _word(value) for name, value in told.items() if value != getattr(CheckConfig, name)}
    options |= {name: value for name, _, value in (option.partition("=") for option in more)}
    file = f"./{path}" if path.startswith("-") else path
    return shlex.join(["scperformer", step, file, *(f"{name}={value}" for name, value in options.items())])


def _word(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.15g}"


def commands(path: str, cfg: CheckConfig, mends: Sequence[str], *more: str) -> list[str]:
    """For each option that mends a problem, the command with it."""
    return [ready_command(path, cfg, *more, mend) for mend in mends]


# Words


def block(result: Mapping[str, Any], cfg: CheckConfig, model: str) -> str:
    """The findings about a file as a person reads them; on a terminal no line but a command is wider than that.

    Parameters
    ----------
    model
        Its name and why it is this one.
    """
    rows = [*_contents(result), *_expression(result), *_labels(result, cfg)]
    if overlap := result.get("overlap"):
        rows.append(("model", _model_text(overlap, model)))
        rows += [("note", note) for note in overlap["notes"]]
    rows += [("note", note) for note in result["notes"]]
    if result["problem"] is not None:
        rows.append(("problem", result["problem"]))
        rows += [("try", command) for command in result["mends"]]
    else:
        rows.append(("ok", result["command"]))
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    return "\n".join([one_line(result["file"]), *(_line(name, text, width) for name, text in rows), ""])


def _line(name: str, text: str, width: int | None) -> str:
    # Names of columns, layers and genes are the file's: they must not steer the terminal.
    line = f"  {name:<{INDENT - 3}} {one_line(text)}"
    if name in COMMANDS or width is None or width < 3 * INDENT:
        return line
    blanks = " " * INDENT
    return textwrap.fill(line, width, subsequent_indent=blanks, break_long_words=False, break_on_hyphens=False)


def _contents(result: Mapping[str, Any]) -> list[Row]:
    if "num_cells" not in result:
        return []
    species = SPECIES.get(result["species"], result["species"])
    genes = f"{result['num_genes']:,}, {KIND_NAMES[result['id_kind']]}, {species}"
    return [("cells", f"{result['num_cells']:,}"), ("genes", genes)]


def _expression(result: Mapping[str, Any]) -> list[Row]:
    """What each place holds, what is used and why, and what it says about the cells."""
    findings = result.get("findings")
    if findings is None:
        return []
    places = [Place(**place) for place in findings["places"]]
    rows = [("expression", f"{findings['text']}: {findings['why']}")]
    rows += [("not used", f"{shortened(place.source)}: {place.text}") for place in places if not place.used]
    said = {place.note for place in places}
    rows += [("note", note) for note in findings["notes"] if note not in said]
    return rows + (_quality(result["quality"], result["num_cells"]) if "quality" in result else [])


def _quality(quality: Mapping[str, Any], num_cells: int) -> list[Row]:
    text = f"median {quality['median_genes']:,.0f} genes"
    if quality["median_counts"] is not None:
        text += f" and {quality['median_counts']:,.0f} counts"
    text += " per cell"
    if quality["median_mitochondrial"] is not None:
        high = _cells(quality["num_high_mitochondrial"], num_cells)
        text += f"; median {quality['median_mitochondrial']:.1%} mitochondrial, {high} above {HIGH_SHARE:.0%}"
    rows = [("quality", text)]
    if quality["num_few_genes"]:
        rows.append(("note", f"{_cells(quality['num_few_genes'], num_cells)} with fewer than {FEW_GENES} genes"))
    if quality["num_doublets"] is not None:
        rows.append(("doublets", f"about {_cells(quality['num_doublets'], num_cells)} by Scrublet"))
    elif quality["doublet_note"]:
        rows.append(("doublets", quality["doublet_note"]))
    return rows


def _cells(num: int, of: int) -> str:
    """Such as "12 cells (0.5%)"."""
    if num == 0:
        return "no cell"
    return f"{num:,} cell{'s' if num > 1 else ''} ({num / of:.1%})"


def _labels(result: Mapping[str, Any], cfg: CheckConfig) -> list[Row]:
    rows: list[Row] = []
    if columns := result.get("label_columns"):
        rows.append(("obs columns", ", ".join(f"{shortened(key)} ({num} values)" for key, num in columns.items())))
    if labels := result.get("labels"):
        rows.append(("labels", f"{len(labels['cells'])} in {cfg.label_key}, {sum(labels['cells'].values()):,} cells"))
        if labels["num_unlabelled"]:
            rows.append(("note", f"cells without a label: {labels['num_unlabelled']:,}"))
        if rare := labels["rare"]:
            advice = "trained on but not validated; data.rare_labels=merge or drop does otherwise"
            rows.append(("note", f"{rare_note(rare, DataConfig.min_cells_per_label)} ({advice})"))
    return rows


def _model_text(overlap: Mapping[str, Any], model: str) -> str:
    text = f"{model}: {overlap['num_shared']:,} of {overlap['num_model']:,} genes ({overlap['share_of_model']:.1%})"
    text += f" found, with {overlap['informative_share']:.1%} of its informative expression"
    if overlap["absent"]:
        text += f", not {', '.join(overlap['absent'][:3])}" + (" ..." if overlap["num_absent"] > 3 else "")
    return text
