"""The model card: what a person should know before using a model, as Markdown; no program reads it."""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from scperformer.labels import UNKNOWN_TERM
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
    calibrated: list[tuple[Any, ...]] = []
    if labels := saved.metrics.get("calibration", {}).get("labels"):
        columns = (labels[name] for name in ("label", "num_cells", "confidence", "accuracy", "error"))
        calibrated = list(zip(*columns, strict=True))
    return _render(
        "annotator.md.jinja",
        saved,
        has_terms=any(term != UNKNOWN_TERM for term in saved.ontology_term_ids),
        fold=saved.metrics.get("out_of_fold"),
        encoder=saved.metrics.get("encoder"),
        branch_scores=saved.branch_scores,
        branches=branch_names(saved.metrics.get("encoder", {})),
        logits=sum_of_branches(saved.scales),
        encoder_is_silent=encoder_is_silent(saved.scales),
        calibrated=calibrated,
    )


def _imported_card(saved: SavedModel) -> str:
    has_terms = any(term != UNKNOWN_TERM for term in saved.ontology_term_ids)
    fold = saved.metrics.get("out_of_fold")
    return _render("imported.md.jinja", saved, origin=saved.imported, has_terms=has_terms, fold=fold)


def _studies_card(saved: SavedModel) -> str:
    return _render(
        "studies.md.jinja",
        saved,
        has_terms=any(term != UNKNOWN_TERM for term in saved.ontology_term_ids),
        fold=saved.metrics["out_of_fold"],
        knowing=[
            [study.name for study in saved.studies if study.meaning[:, column].any()]
            for column in range(len(saved.labels))
        ],
    )


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
