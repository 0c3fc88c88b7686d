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
    "workflow_keys": "workflows/README.md",
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

    Boxes are in ranks, below each other (TD) or beside each other. Arrows lead to higher ranks, and pass through gaps
    (names of two parts) in the ranks between.
    """
    header, *lines = text.strip().splitlines()
    texts: dict[str, str] = {}
    arrows: list[tuple[str, str]] = []
    for line in map(str.strip, lines):
        if box := re.fullmatch(r'(\w+)\["<b>.*</b><br>(.*)"\]', line):
            texts[box[1]] = box[2]
        else:
            stops = [part.split(" & ") for part in line.split(" --> ")]
            arrows += [
                (start, end) for starts, ends in pairwise(stops) for start in starts for end in ends
            ]
    ranks: dict[str, int] = dict.fromkeys(
        [*texts, *(name for arrow in arrows for name in arrow)], 0
    )
    for start, end in arrows * len(ranks):
        ranks[end] = max(ranks[end], ranks[start] + 1)
    gaps = {(start, end): range(ranks[start] + 1, ranks[end]) for start, end in arrows}
    ways = [
        (start, *(f"{start} {end} {rank}" for rank in gaps[start, end]), end)
        for start, end in arrows
    ]
    ranks |= {
        f"{start} {end} {rank}": rank for (start, end), passed in gaps.items() for rank in passed
    }
    steps = [step for way in ways for step in pairwise(way)]
    is_down = header.endswith("TD")
    (width, height), along = ((206, 80), 112) if is_down else ((92, 30), 128)
    across: dict[str, float] = {}  # the middle of each box or gap; each rank is around 0
    for rank in range(max(ranks.values()) + 1):
        before = {
            name: [across[start] for start, end in steps if end == name]
            for name in ranks
            if ranks[name] == rank
        }
        row = sorted(before, key=lambda name: sum(before[name]) / max(1, len(before[name])))
        sizes = [16 + (12 if " " in name else width if is_down else height) for name in row]
        for place, name in enumerate(row):
            across[name] = sum(sizes[:place]) + sizes[place] / 2 - sum(sizes) / 2

    def point(name: str, side: int) -> tuple[float, float]:
        """Return the middle of a side of a box or gap: before (-1), where a tip needs room, or after it (1)."""
        half = (height if is_down else width) / 2 + (7 if side < 0 and " " not in name else 0)
        return (across[name], ranks[name] * along + side * half)[:: 1 if is_down else -1]

    parts = []
    for start, end in steps:
        (x, y), (to_x, to_y) = point(start, 1), point(end, -1)
        mid_x, mid_y = (x + to_x) / 2, (y + to_y) / 2
        bend = f"{x} {mid_y} {to_x} {mid_y}" if is_down else f"{mid_x} {y} {mid_x} {to_y}"
        tip = "" if " " in end else ' marker-end="url(#tip)"'
        through = "M{} {} L".format(*point(start, -1)) if " " in start else "M"
        parts.append(
            f'<path d="{through}{x} {y} C{bend} {to_x} {to_y}" fill="none" stroke="#8793a0"{tip}/>'
        )
    for name in (name for name in ranks if " " not in name):
        x, y = (across[name], ranks[name] * along)[:: 1 if is_down else -1]
        words = textwrap.wrap(texts.get(name, ""), 29)
        top = y + 4 - 7.5 * len(words)
        box = f'x="{x - width / 2}" y="{y - height / 2}" width="{width}" height="{height}" rx="6"'
        parts.append(f'<rect {box} fill="none" stroke="#8793a0"/>')
        parts.append(f'<text x="{x}" y="{top}" font-weight="bold">{name}</text>')
        parts += [
            f'<text x="{x}" y="{top + 15 * (place + 1)}">{line}</text>'
            for place, line in enumerate(words)
        ]
    ends = [(across[name], rank * along)[:: 1 if is_down else -1] for name, rank in ranks.items()]
    (left, above), (right, below) = (
        tuple(map(limit, zip(*ends, strict=True))) for limit in (min, max)
    )
    size = f"{right - left + width + 4} {below - above + height + 4}"
    mark = '<marker id="tip" viewBox="0 0 8 8" refX="2" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    mark += '<path d="M0 0L8 4L0 8z" fill="#8793a0"/></marker>'
    view = f'viewBox="{left - width / 2 - 2} {above - height / 2 - 2} {size}"'
    view += f' style="max-width:100%;width:{size.split()[0]}px"'
    font = 'font-size="12.5" text-anchor="middle" fill="currentColor"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {view} {font}>{mark}{"".join(parts)}</svg>'


def take_page(app, name: str, source: list[str]) -> None:
    """Put in the file behind a page, flowcharts and tables of options; links that work on GitHub lead to pages here."""
    file = ROOT / PAGES[name] if name in PAGES else DOCS / f"{name}.md"
    if name == "index":  # its own text is the table of contents
        source[0] = file.read_text(encoding="utf-8").split("## Where next")[0] + source[0]
    elif name in PAGES:
        source[0] = file.read_text(encoding="utf-8")

    def drawn(found: re.Match[str]) -> str:
        return f"```{{raw}} html\n{flowchart(found[1])}\n```"

    source[0] = re.sub(r"```mermaid\n(.*?)```", drawn, source[0], flags=re.DOTALL)
    source[0] = re.sub(r"<!-- options: (\w+) -->", lambda found: option_table(found[1]), source[0])

    def link(found: re.Match[str]) -> str:
        target = (file.parent / found[1]).resolve()
        return f"]({os.path.relpath(HOME.get(target, target), DOCS)}"

    source[0] = re.sub(r"\]\((?!\w+:|#)([^)#\s]+)", link, source[0])


def setup(app) -> None:
    """Called by Sphinx."""
    app.connect("source-read", take_page)
