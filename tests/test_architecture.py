"""The rooms of the package: the picture of docs/architecture.md, docstrings and imports agree."""

import ast
import itertools
import re
import statistics
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "scperformer"
ROOMS = {path.parent.name: path for path in sorted(PACKAGE.glob("*/__init__.py"))}
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PICTURE = re.search(r"```mermaid\n(.*?)```", PAGE, re.DOTALL)[1]
MAX_ROOMS, MAX_ARROWS = 13, 70


def drawn(arrow: str) -> set[tuple[str, str]]:
    """The arrows of a kind in the picture: `a & b --> c --> d` are three."""
    found = set()
    for line in PICTURE.splitlines():
        stops = [set(part.split(" & ")) for part in re.split(arrow, line.strip())]
        for start, end in itertools.pairwise(stops):
            found |= {(one, other) for one in start for other in end}
    return found


def reachable(arrows: set[tuple[str, str]], room: str) -> set[str]:
    below = {other for one, other in arrows if one == room}
    return below.union(*(reachable(arrows, other) for other in below))


@pytest.fixture(scope="module")
def imports() -> set[tuple[str, str]]:
    """Which room imports which."""
    graph = grimp.build_graph("scperformer", exclude_type_checking_imports=True)
    found = set()
    for module in graph.modules:
        for other in graph.find_modules_directly_imported_by(module):
            rooms = tuple([*name.split("."), ""][1] for name in (module, other))
            if rooms[0] != rooms[1] and set(rooms) <= set(ROOMS):
                found.add(rooms)
    return found


def test_the_picture_shows_the_rooms_and_their_imports(imports):
    assert set(re.findall(r"<b>(\w+)</b>", PICTURE)) == set(ROOMS)
    solid, dotted = drawn(" --> "), drawn(r" -\. [\w ]+ \.-> ")
    assert solid | dotted <= imports, "drawn, but no import"
    hidden = {(one, other) for one, other in imports - dotted if other not in reachable(solid, one)}
    assert hidden == set(), "imports that the picture does not show"


def test_files_that_the_page_names_exist():
    named = re.findall(r"`(\w+/\w+\.py)`", PAGE) + [
        f"{room}/{file}.py" for room, file in re.findall(r"\*\*(\w+)\*\*\.(\w+)", PAGE)
    ]
    assert len(named) > 20
    assert [name for name in named if not (PACKAGE / name).is_file() and not name.startswith("tests/")] == []


def test_the_house_stays_small(imports):
    assert len(ROOMS) <= MAX_ROOMS
    assert len(imports) <= MAX_ARROWS


def test_functions_are_neither_shredded_nor_long():
    lengths = [
        node.end_lineno - node.lineno + 1
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    ]
    assert 8 <= statistics.median(lengths) <= 15


def test_a_room_imports_only_rooms_below_it():
    """The rules are in pyproject.toml."""
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert ran.returncode == 0, ran.stdout
