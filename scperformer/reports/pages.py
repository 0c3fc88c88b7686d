"""HTML pages from the templates of this room."""

import math
from pathlib import Path
from typing import Any

TEMPLATES = Path(__file__).parent / "templates"
VALUE_KINDS = {
    "counts": "counts",
    "linear": "values that are not counts (such as TPM)",
    "log1p": "log-normalised values",
}


def _percent(share: float) -> str:
    """A share as text; a share above 0 is never shown as 0.0%."""
    return "<0.1%" if 0 < share < 0.0005 else f"{share:.1%}"


def _score(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.3f}"


def _expression(facts: dict[str, Any]) -> str:
    """The place and kind of the values that were used, in words: "counts in X"."""
    source = str(facts["source"])
    kind = str(facts["kind"])
    total = float(facts["total"])
    place = {"X": "X", "raw": ".raw"}.get(source, f"layer {source.removeprefix('layers/')}")
    text = f"{VALUE_KINDS.get(kind, kind)} in {place}"
    if kind != "log1p":
        return text
    return text + (", total per cell not recorded" if math.isnan(total) else f", {total:,.0f} counts per cell")


def _shown(value: Any, kind: str) -> str:
    """A value of a table as text."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if kind.endswith("count"):
        return f"{int(value):,}"
    if kind == "number":
        return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"
    return {"share": _percent, "score": _score}.get(kind, str)(value)


def render_page(template: str, **content: Any) -> str:
    """The HTML of a template of this package."""
    import jinja2  # takes a while to import, and `check` needs no pages

    # Autoescape: labels, genes and file names are user data.
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.loader = jinja2.FileSystemLoader(TEMPLATES)
    environment.lstrip_blocks = True
    environment.filters |= {
        "count": lambda value: f"{int(value):,}",
        "percent": _percent,
        "score": _score,
        "shown": _shown,
        "file_name": lambda path: Path(str(path)).name,
        "expression": _expression,
    }
    return environment.get_template(template).render(**content)
