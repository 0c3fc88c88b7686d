"""Options of Sphinx: `make docs` builds the site into docs/_build/html, and any warning is an error."""

import os
import re
import sys
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
    "sphinxcontrib.mermaid",
]
exclude_patterns = ["_build"]

html_theme = "sphinx_book_theme"
html_title = "scperformer"
html_theme_options = {"show_navbar_depth": 1, "use_download_button": False}
copybutton_prompt_text = "$ "

myst_heading_anchors = 3  # as on GitHub
myst_fence_as_directive = ["mermaid"]
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


def take_page(app, name: str, source: list[str]) -> None:
    """Put in the file behind a page and the tables of options; links that work on GitHub lead to pages of the site."""
    file = ROOT / PAGES[name] if name in PAGES else DOCS / f"{name}.md"
    if name == "index":  # its own text is the table of contents
        source[0] = file.read_text(encoding="utf-8").split("## Where next")[0] + source[0]
    elif name in PAGES:
        source[0] = file.read_text(encoding="utf-8")

    source[0] = re.sub(r"<!-- options: (\w+) -->", lambda found: option_table(found[1]), source[0])

    def link(found: re.Match[str]) -> str:
        target = (file.parent / found[1]).resolve()
        return f"]({os.path.relpath(HOME.get(target, target), DOCS)}"

    source[0] = re.sub(r"\]\((?!\w+:|#)([^)#\s]+)", link, source[0])


def setup(app) -> None:
    """Called by Sphinx."""
    app.connect("source-read", take_page)
