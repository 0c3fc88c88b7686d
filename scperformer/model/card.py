"""The model card: what a person should know before using a model, as Markdown; no program reads it."""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from scperformer.base.metrics import class_scores, confusion_matrix
from scperformer.labels.ontology import UNKNOWN_TERM
from scperformer.model.saved_model import SavedModel, branch_names, encoder_is_silent, sum_of_branches

TEMPLATES = Path(__file__).parent / "templates"


def model_card(saved: SavedModel, pictures: Mapping[str, Any] | None = None) -> str:
    """Return the model card; it shows the PNG files among `pictures`."""
    make = _imported_card if saved.imported else _annotator_card if saved.is_annotator else _encoder_card
    make = _studies_card if saved.studies else make
    text = make(saved)
    shown = {name: Path(name).stem.replace("_", " ") for name in pictures or {} if name.endswith(".png")}
    return text + "".join(f"\n![{caption}]({name})\n" for name, caption in shown.items())


def _annotator_card(saved: SavedModel) -> str:
    return _render(
        "annotator.md.jinja",
        saved,
        labels=_label_table(saved),
        fold=saved.metrics.get("out_of_fold"),
        encoder=saved.metrics.get("encoder"),
        branch_scores=saved.branch_scores,
        branches=branch_names(saved.metrics.get("encoder", {})),
        logits=sum_of_branches(saved.scales),
        encoder_is_silent=encoder_is_silent(saved.scales),
    )


def _imported_card(saved: SavedModel) -> str:
    fold = saved.metrics.get("out_of_fold")
    return _render("imported.md.jinja", saved, origin=saved.imported, labels=_label_table(saved), fold=fold)


def _studies_card(saved: SavedModel) -> str:
    return _render("studies.md.jinja", saved, labels=_label_table(saved), fold=saved.metrics["out_of_fold"])


def _label_table(saved: SavedModel) -> str:
    """Return a table with a row for each label: its cells, its ontology id, and how its held-out cells were called."""
    places = range(len(saved.labels))
    columns: dict[str, list[Any]] = {"label": [_text(label) for label in saved.labels]}
    if counts := saved.provenance.get("cells_per_label"):
        columns["cells"] = [f"{counts[label]:,}" for label in saved.labels]
    if any(term != UNKNOWN_TERM for term in saved.ontology_term_ids):
        columns["Cell Ontology"] = [_text(term) for term in saved.ontology_term_ids]
    if saved.studies:
        columns["studies that know it"] = [
            _text(", ".join(study.name for study in saved.studies if study.meaning[:, place].any())) for place in places
        ]
    if saved.held_out is not None:
        confusion = confusion_matrix(saved.held_out.labels, saved.held_out.logits.argmax(axis=1), places)
        found = class_scores(confusion)
        columns["held-out cells"] = [f"{num:,}" if num else "not tested" for num in found["support"].tolist()]
        for name in ("recall", "precision"):
            columns[name] = ["–" if np.isnan(value) else f"{value:.3f}" for value in found[name].tolist()]
        np.fill_diagonal(confusion, 0)
        others = zip(confusion.argmax(axis=1), confusion.max(axis=1), strict=True)
        columns["most often mistaken for"] = [f"{columns['label'][at]} ({num})" if num else "–" for at, num in others]
    rows = [list(columns), ["---"] * len(columns), *zip(*columns.values(), strict=True)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _encoder_card(saved: SavedModel) -> str:
    reads_genes = saved.config["model"].get("queries") == "cell"
    usual = "the mean of the gene" if reads_genes else "the usual values of gene and cell"
    hidden = "genes, in each step others," if reads_genes else "genes that a cell expresses"
    learned = saved.metrics["loss"] < saved.metrics["naive_loss"]
    verdict = f"it has learned more than {usual}" if learned else f"**it has learned nothing beyond {usual}**"
    share = f"{saved.config['masking']['share']:.0%}"
    return _render("encoder.md.jinja", saved, share=share, hidden=hidden, verdict=verdict)


def _render(template: str, saved: SavedModel, **content: Any) -> str:
    import jinja2  # takes a while to import, and only new models need it

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
    return environment.get_template(template).render(
        saved=saved, made=saved.provenance, metrics=saved.metrics, **content
    )


def _text(value: Any) -> str:
    """Return a text of the user for Markdown, in which HTML is code and `|` separates the cells of a table."""
    return escape(str(value), quote=False).replace("|", "\\|")
