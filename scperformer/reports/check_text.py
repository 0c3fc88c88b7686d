"""The findings of `check` as text, and the commands that it recommends."""

import shlex
import shutil
import sys
import textwrap
from typing import Any

from scperformer.config import CheckConfig, DataConfig
from scperformer.dataset import rare_note
from scperformer.errors import one_line
from scperformer.expression import Place
from scperformer.genes import KIND_NAMES
from scperformer.reports.quality import FEW_GENES, HIGH_SHARE
from scperformer.text import shortened

SPECIES = {"unknown": "species unknown", "other": "another species"}
INDENT = 15  # columns before the text of a row
COMMANDS = ("ok", "try")  # rows to copy: they stay on one line
Row = tuple[str, str]  # name and text


def next_command(path: str, cfg: CheckConfig, *more: str) -> str:
    """The next command for a file, quoted for a shell, with the options that `check` was given.

    Parameters
    ----------
    more
        Further options; they replace those of `cfg`.
    """
    names = ["orientation", "source", "input_kind", "input_total", "input_base", "species"]
    step, names = (
        ("predict", [*names, "model_path", "min_overlap"])
        if cfg.label_key is None
        else ("train", ["label_key", *names])
    )
    told = {name: getattr(cfg, name) for name in names}
    options = {
        name: value if isinstance(value, str) else f"{value:.15g}"
        for name, value in told.items()
        if value != getattr(CheckConfig, name)
    }
    options |= {name: value for name, _, value in (option.partition("=") for option in more)}
    file = f"./{path}" if path.startswith("-") else path
    return shlex.join(["scperformer", step, file, *(f"{name}={value}" for name, value in options.items())])


def _of_cells(num: int, num_cells: int) -> str:
    """A number of cells with its share, such as "12 cells (0.5%)"."""
    return f"{num:,} cell{'s' if num > 1 else ''} ({num / num_cells:.1%})" if num else "no cell"


def _quality_rows(quality: dict[str, Any], num_cells: int) -> list[Row]:
    text = f"median {quality['median_genes']:,.0f} genes"
    if quality["median_counts"] is not None:
        text += f" and {quality['median_counts']:,.0f} counts"
    text += " per cell"
    if quality["median_mitochondrial"] is not None:
        high = _of_cells(quality["num_high_mitochondrial"], num_cells)
        text += f"; median {quality['median_mitochondrial']:.1%} mitochondrial, {high} above {HIGH_SHARE:.0%}"
    rows = [("quality", text)]
    if quality["num_few_genes"]:
        rows.append(("note", f"{_of_cells(quality['num_few_genes'], num_cells)} with fewer than {FEW_GENES} genes"))
    if quality["num_doublets"] is not None:
        return [*rows, ("doublets", f"about {_of_cells(quality['num_doublets'], num_cells)} by Scrublet")]
    return [*rows, ("doublets", quality["doublet_note"])]


def _rows(result: dict[str, Any], cfg: CheckConfig, model: str) -> list[Row]:
    """All rows about a file; after a problem some findings are missing."""
    rows: list[Row] = []
    if "num_cells" in result:
        species = SPECIES.get(result["species"], result["species"])
        rows.append(("cells", f"{result['num_cells']:,}"))
        rows.append(("genes", f"{result['num_genes']:,}, {KIND_NAMES[result['id_kind']]}, {species}"))
    if findings := result.get("findings"):
        places = [Place(**place) for place in findings["places"]]
        rows.append(("expression", f"{findings['text']}: {findings['why']}"))
        rows += [("not used", f"{shortened(place.source)}: {place.text}") for place in places if not place.used]
        said = {place.note for place in places}
        rows += [("note", note) for note in findings["notes"] if note not in said]
    if quality := result.get("quality"):
        rows += _quality_rows(quality, result["num_cells"])
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
        text += (
            f" ({overlap['share_of_model']:.1%}), with {overlap['informative_share']:.1%} of its informative expression"
        )
        if overlap["absent"]:
            text += f"; missing: {', '.join(overlap['absent'][:3])}" + (" ..." if overlap["num_absent"] > 3 else "")
        rows += [("model", text), *(("note", note) for note in overlap["notes"])]
    rows += [("note", note) for note in result["notes"]]
    if result["problem"] is None:
        return [*rows, ("ok", result["command"])]
    return [*rows, ("problem", result["problem"]), *(("try", command) for command in result["fixes"])]


def in_words(result: dict[str, Any], cfg: CheckConfig, model: str) -> str:
    """The findings about a file as text; on a terminal, all lines but commands fit its width.

    Parameters
    ----------
    model
        The name of the model, and why it was chosen.
    """
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
