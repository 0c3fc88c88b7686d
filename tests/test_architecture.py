"""The subpackages: the picture of docs/architecture.md agrees with the imports; sizes of functions; codes of errors."""

import ast
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

from scperformer.base import lab
from scperformer.base.lab import from_lab

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "scperformer"
SUBPACKAGES = {path.parent.name: path for path in sorted(PACKAGE.glob("*/__init__.py"))}
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PICTURE = re.search(r"```mermaid\n(.*?)```", PAGE, re.DOTALL)[1]
MAX_LINES, MAX_PARAMETERS = 70, 6
# Others: kernels for GPUs, whose language has no structures; functions whose parameters are options; the whole network.
LONGER = {"lab/fused.py", "lab/norm.py", "api.py", "pl.py", "model/network.py"}


def drawn(arrow: str) -> set[tuple[str, str]]:
    """The arrows of a kind in the picture: `a & b --> c --> d` are three."""
    found = set()
    for line in PICTURE.splitlines():
        stops = [set(part.split(" & ")) for part in re.split(arrow, line.strip())]
        for start, end in itertools.pairwise(stops):
            found |= {(one, other) for one in start for other in end}
    return found


def reachable(arrows: set[tuple[str, str]], start: str) -> set[str]:
    below = {other for one, other in arrows if one == start}
    return below.union(*(reachable(arrows, other) for other in below))


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("scperformer", exclude_type_checking_imports=True)


@pytest.fixture(scope="module")
def imports(graph) -> set[tuple[str, str]]:
    """Which subpackage imports which."""
    found = set()
    for module in graph.modules:
        for other in graph.find_modules_directly_imported_by(module):
            pair = tuple([*name.split("."), ""][1] for name in (module, other))
            if pair[0] != pair[1] and set(pair) <= set(SUBPACKAGES):
                found.add(pair)
    return found


def test_the_picture_shows_the_subpackages_and_their_imports(imports):
    assert set(re.findall(r"<b>(\w+)</b>", PICTURE)) == set(SUBPACKAGES)
    solid, dotted = drawn(" --> "), drawn(r" -\. [\w ]+ \.-> ")
    assert solid | dotted <= imports, "drawn, but no import"
    hidden = {(one, other) for one, other in imports - dotted if other not in reachable(solid, one)}
    assert hidden == set(), "imports that the picture does not show"


def test_files_that_the_page_names_exist():
    table = (
        (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("| Decision | File |")[2]
    )
    named = re.findall(r"`(\w+/\w+\.py)`", PAGE + table.partition("\n\n")[0]) + [
        f"{room}/{file}.py" for room, file in re.findall(r"\*\*(\w+)\*\*\.(\w+)", PAGE)
    ]
    assert len(named) > 20
    assert [
        name for name in named if not (PACKAGE / name).is_file() and not name.startswith("tests/")
    ] == []


def test_the_lab_has_one_door(imports):
    """Nothing imports it, and each name at its door leads to something in it."""
    assert {one for one, other in imports if other == "lab"} == set()
    assert {name: from_lab(name) for name in lab.PLACES}.keys() > lab.MECHANISMS.keys()


@pytest.mark.parametrize("name", SUBPACKAGES)
def test_files_import_each_other_in_no_circle(name, graph):
    files = graph.find_children(f"scperformer.{name}")
    TopologicalSorter(
        {file: graph.find_modules_directly_imported_by(file) & files for file in files}
    ).prepare()


def test_functions_for_python_do_not_need_the_command_line(graph):
    below = graph.find_upstream_modules("scperformer.api")
    assert not [module for module in below if module.startswith("scperformer.cli")]


def parsed() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def size(function: ast.FunctionDef) -> tuple[int, int]:
    """The lines of the body without the docstring, and the number of parameters."""
    body = (
        function.body[1:]
        if ast.get_docstring(function) and len(function.body) > 1
        else function.body
    )
    arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    return function.end_lineno - body[0].lineno + 1, sum(
        each.arg not in ("self", "cls") for each in arguments
    )


def test_functions_do_one_thing():
    functions = [
        (file, node.name, *size(node))
        for file, tree in parsed()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and file not in LONGER
    ]
    assert len(functions) > 1000
    assert [each for each in functions if each[2] > MAX_LINES or each[3] > MAX_PARAMETERS] == []


def test_each_error_has_a_code():
    """It is the first argument, and stays when the sentence changes."""
    errors = [
        (file, node.lineno, node.args[0] if node.args else None)
        for file, tree in parsed()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") in ("InputError", "DiskFull", "PluginProblem")
    ]
    assert len(errors) > 250
    wrong = [
        (file, line)
        for file, line, code in errors
        if not (
            isinstance(code, ast.Constant)
            and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", str(code.value))
        )
    ]
    assert wrong == []


def test_a_subpackage_imports_only_subpackages_below_it():
    """The rules are in pyproject.toml."""
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert ran.returncode == 0, ran.stdout
