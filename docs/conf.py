"""Options of Sphinx: `make docs` builds the site into docs/_build/html, and any warning is an error."""

import os
import re
import sys
import textwrap
from itertools import pairwise
from pathlib import Path

ROOT, DOCS = Path(__file__).parents[1], Path(__file__).parent
sys.path.insert(0, str(ROOT))

import scperformer  # noqa: E402  (from the checkout)
from scperformer.config.descriptions import option_texts  # noqa: E402

project = "scperformer"
copyright = "the authors of scperformer"
release = version = scperformer.__version__

extensions = [
    "myst_nb",  # Markdown; runs the tutorials
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",  # a page for each name of docs/api.md, in docs/generated
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]

html_theme = "sphinx_book_theme"
html_title = "scperformer"
html_theme_options = {"show_navbar_depth": 1, "use_download_button": False}
copybutton_prompt_text = "$ "

myst_heading_anchors = 3  # as on GitHub
myst_enable_extensions = ["colon_fence"]

nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 600  # seconds for a cell
nb_execution_show_tb = True
nb_merge_streams = True
nb_output_stderr = "remove"  # bars of progress

default_role = "code"
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
napoleon_google_docstring = False

# Pages of the site that are files elsewhere in the repository, so that no text stands twice.
PAGES = {
    "index": "README.md",
    "contributing": "CONTRIBUTING.md",
    "conduct": "CODE_OF_CONDUCT.md",
    "data": "data/README.md",
    "workflow_keys": "config/README.md",
    "packaged_model": "scperformer/model/packaged/pbmc3k/MODEL_CARD.md",
}
HOME = {ROOT / file: DOCS / f"{page}.md" for page, file in PAGES.items()}


def option_table(name: str) -> str:
    """Return the table of the options of a step, of a group, or of `files`."""
    lines = ["| Option | Default | Meaning |", "|---|---|---|"]
    for option in option_texts(name):
        default = option.default if option.default == "required" else f"`{option.default}`"
        meaning = re.sub(r"docs/((\w+\.md)[#\w-]*)", r"[\2](\1)", option.meaning)
        lines.append(f"| `{option.name}` | {default} | {meaning} |")
    return "\n".join(lines)


def flowchart(text: str) -> str:
    """Return a flowchart, of the part of mermaid that the pages use, as SVG: the site loads no script to draw it.

    Boxes are in ranks below each other (TD) or beside each other; arrows lead to higher ranks.
    """
    header, *lines = text.strip().splitlines()
    texts: dict[str, str] = {}
    arrows: list[tuple[str, str]] = []
    for line in map(str.strip, lines):
        if box := re.fullmatch(r'(\w+)\["<b>(.*)</b><br>(.*)"\]', line):
            texts[box[1]] = box[3]
        else:
            stops = [part.split(" & ") for part in line.split(" --> ")]
            arrows += [(start, end) for starts, ends in pairwise(stops) for start in starts for end in ends]
    ranks = dict.fromkeys([*texts, *(name for arrow in arrows for name in arrow)], 0)
    for start, end in arrows * len(ranks):
        ranks[end] = max(ranks[end], ranks[start] + 1)
    is_down = header.endswith("TD")
    (width, height), (across, along) = ((210, 84), (226, 116)) if is_down else ((92, 30), (44, 128))
    rows = [[name for name in ranks if ranks[name] == rank] for rank in range(max(ranks.values()) + 1)]
    places = {}
    for rank, row in enumerate(rows):
        for number, name in enumerate(row):
            ends = ((number - (len(row) - 1) / 2) * across, rank * along)
            places[name] = ends if is_down else ends[::-1]
    parts = []
    for start, end in arrows:
        (x, y), (to_x, to_y) = places[start], places[end]
        if is_down:
            y, to_y = y + height / 2, to_y - height / 2 - 6
            curve = f"M{x} {y} C{x} {y + 20} {to_x} {to_y - 20} {to_x} {to_y}"
        else:
            x, to_x = x + width / 2, to_x - width / 2 - 6
            curve = f"M{x} {y} C{x + 24} {y} {to_x - 24} {to_y} {to_x} {to_y}"
        parts.append(f'<path d="{curve}" fill="none" stroke="#8793a0" marker-end="url(#tip)"/>')
    box_style = 'rx="6" fill="var(--pst-color-surface, #f5f7f9)" stroke="#8793a0"'
    for name, (x, y) in places.items():
        shown = textwrap.wrap(texts.get(name, ""), 32)
        top = y + 4 - 7.5 * len(shown)
        parts.append(f'<rect x="{x - width / 2}" y="{y - height / 2}" width="{width}" height="{height}" {box_style}/>')
        parts.append(f'<text x="{x}" y="{top}" font-weight="bold">{name}</text>')
        parts += [f'<text x="{x}" y="{top + 15 * (place + 1)}">{line}</text>' for place, line in enumerate(shown)]
    xs, ys = zip(*places.values(), strict=True)
    left, above = min(xs) - width / 2 - 2, min(ys) - height / 2 - 2
    size = max(xs) - min(xs) + width + 4, max(ys) - min(ys) + height + 4
    tip = '<marker id="tip" viewBox="0 0 8 8" refX="2" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    tip += '<path d="M0 0L8 4L0 8z" fill="#8793a0"/></marker>'
    style = f'style="max-width:100%;width:{size[0]:.0f}px" font-size="12.5" text-anchor="middle" fill="currentColor"'
    view = f"{left} {above} {size[0]} {size[1]}"
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="{view}" {style}>{tip}{"".join(parts)}</svg>'


def take_page(app, name: str, source: list[str]) -> None:
    """Put in the file behind a page, pictures and the tables of options; links that work on GitHub lead to pages of the site."""
    file = ROOT / PAGES[name] if name in PAGES else DOCS / f"{name}.md"
    if name == "index":  # its own text is the table of contents
        source[0] = file.read_text(encoding="utf-8").split("## Where next")[0] + source[0]
    elif name in PAGES:
        source[0] = file.read_text(encoding="utf-8")

    picture = r"```mermaid\n(.*?)```"
    source[0] = re.sub(
        picture, lambda found: f"```{{raw}} html\n{flowchart(found[1])}\n```", source[0], flags=re.DOTALL
    )
    source[0] = re.sub(r"<!-- options: (\w+) -->", lambda found: option_table(found[1]), source[0])

    def link(found: re.Match[str]) -> str:
        target = (file.parent / found[1]).resolve()
        return f"]({os.path.relpath(HOME.get(target, target), DOCS)}"

    source[0] = re.sub(r"\]\((?!\w+:|#)([^)#\s]+)", link, source[0])


def setup(app) -> None:
    """Called by Sphinx."""
    app.connect("source-read", take_page)
