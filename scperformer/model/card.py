"""The model card: what a person should know before using the model, as Markdown; no program reads it."""

from collections.abc import Iterable
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scperformer.base.errors import InputError
from scperformer.base.metrics import class_scores, confusion_matrix
from scperformer.labels.tree import UNKNOWN_TERM
from scperformer.model.content import to_json
from scperformer.model.saved_model import (
    SavedModel,
    branch_names,
    encoder_is_silent,
    sum_of_branches,
)

if TYPE_CHECKING:
    from jinja2 import Template

TEMPLATES = Path(__file__).parent / "templates"


def model_card(saved: SavedModel, files: Iterable[str] = ()) -> str:
    """Return the model card; it shows the PNG files among the names of other files in the folder."""
    from jinja2 import UndefinedError  # takes a while to import, and only new models need it

    try:
        info = to_json(saved)
        return _template().render(
            saved=saved,
            made=info["provenance"],
            metrics=info["metrics"],
            fold=info["metrics"].get("out_of_fold"),
            labels=_label_table(saved),
            branches=branch_names(saved.metrics.encoder),
            logits=sum_of_branches(saved.scales),
            encoder_is_silent=encoder_is_silent(saved.scales),
            pictures={
                name: Path(name).stem.replace("_", " ") for name in files if name.endswith(".png")
            },
        )
    except (
        UndefinedError,
        TypeError,
        ValueError,
        KeyError,
        OverflowError,
    ) as error:  # entries of a bundle.json
        found = f"model {saved.name} with scores or a provenance of another form ({error})"
        raise InputError(
            "model-scores", found, "those that 'scperformer train' writes", "train it again"
        ) from error


@cache
def _template() -> "Template":
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "text": _text,
        "code": lambda text: str(text).replace("`", "'"),
        "score": lambda value: f"{value:.3f}",
        "count": lambda value: f"{value:,}",
        "zip": lambda one, other: zip(one, other, strict=True),
    }
    return environment.get_template("card.md.jinja")


def _label_table(saved: SavedModel) -> str:
    """Return a table with a row for each label: its cells, its ontology id, and its scores on held-out cells."""
    places = range(len(saved.labels))
    columns: dict[str, list[Any]] = {"label": [_text(label) for label in saved.labels]}
    if counts := saved.provenance.cells_per_label:
        columns["cells"] = [f"{counts[label]:,}" for label in saved.labels]
    if any(term != UNKNOWN_TERM for term in saved.ontology_term_ids):
        columns["Cell Ontology"] = [_text(term) for term in saved.ontology_term_ids]
    if saved.studies:
        columns["studies that know it"] = [
            _text(", ".join(study.name for study in saved.studies if study.meaning[:, place].any()))
            for place in places
        ]
    if saved.held_out is not None:
        confusion = confusion_matrix(
            saved.held_out.labels, saved.held_out.logits.argmax(axis=1), places
        )
        found = class_scores(confusion)
        columns["held-out cells"] = [
            f"{num:,}" if num else "not tested" for num in found["support"].tolist()
        ]
        for name in ("recall", "precision"):
            columns[name] = [
                "–" if np.isnan(value) else f"{value:.3f}" for value in found[name].tolist()
            ]
        np.fill_diagonal(confusion, 0)
        others = zip(confusion.argmax(axis=1), confusion.max(axis=1), strict=True)
        columns["most often mistaken for"] = [
            f"{columns['label'][at]} ({num})" if num else "–" for at, num in others
        ]
    rows = [list(columns), ["---"] * len(columns), *zip(*columns.values(), strict=True)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _text(value: Any) -> str:
    """Return a text of the user for Markdown, in which HTML is code and `|` separates the cells of a table."""
    return escape(str(value), quote=False).replace("|", "\\|")
