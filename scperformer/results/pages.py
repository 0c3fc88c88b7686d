"""HTML pages from the templates of this subpackage."""

import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scperformer.base.pictures import on_dark

if TYPE_CHECKING:
    from jinja2 import Template

TEMPLATES = Path(__file__).parent / "templates"


def _percent(share: float) -> str:
    """Return a share as text; only 0 is shown as 0.0%."""
    return "<0.1%" if 0 < share < 0.0005 else f"{share:.1%}"


def _score(value: float | None) -> str:
    """Return a score from 0 to 1 as text; a dash for a missing score."""
    return "–" if value is None or math.isnan(value) else f"{value:.3f}"


def _shown(value: Any, kind: str) -> str:
    """Return a value of a table as text, as its kind (report_tables.py) is shown."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if kind.endswith("count"):
        return f"{int(value):,}"
    if kind == "number":
        return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"
    return {"share": _percent, "score": _score}.get(kind, str)(value)


def render_page(template: str, **content: Any) -> str:
    """Return the HTML of a template of this subpackage."""
    return _template(template).render(**content)


@cache
def _template(name: str) -> "Template":
    import jinja2  # takes a while to import, and `check` does not need it

    # Labels, genes and file names come from users, so everything is escaped.
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.loader = jinja2.FileSystemLoader(TEMPLATES)
    environment.lstrip_blocks = True
    environment.filters |= {
        "count": lambda value: f"{int(value):,}",
        "percent": _percent,
        "score": _score,
        "shown": _shown,
        "dark": on_dark,
        "file_name": lambda path: Path(str(path)).name,
    }
    return environment.get_template(name)
