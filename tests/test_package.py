"""The rules of the code itself: what loads when, docstrings, errors, no traces of a machine.

Which room may import which is checked by import-linter: see [tool.importlinter] in pyproject.toml.
"""

import ast
import subprocess
import sys
from pathlib import Path

import anndata as ad
import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "scperformer"
MODULES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
LONGEST_FILE, LONGEST_FUNCTION = 600, 100  # lines; longer ones hold more than one idea
PRINTING = ("cli/cli.py", "base/progress.py", "base/signals.py")  # what they print is their output


def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


# Imports


def test_rooms_import_only_what_they_may():
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert ran.returncode == 0, ran.stdout


HEAVY = ("torch", "scanpy", "hydra", "omegaconf", "pandas", "numpy", "anndata", "matplotlib", "sklearn")
START = {
    "import": "import scperformer",
    "help": "from scperformer.cli.cli import main; main(['--help'])",
    "help of a step": "from scperformer.cli.cli import main; main(['train', '--help'])",
}


def loaded_by(code: str, names: tuple[str, ...]) -> list[str]:
    """List the packages, of these, that a program has loaded after some code."""
    check = f"import sys\n{code}\nprint(*(name for name in {names} if name in sys.modules), file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, cwd=ROOT)
    return ran.stderr.splitlines()[-1].split()


@pytest.mark.parametrize("code", START)
def test_nothing_heavy_is_loaded_before_it_is_needed(code):
    assert loaded_by(START[code], HEAVY) == []


# Modules that take a while to import, and those of them that each step may load: the others have no use there.
SLOW_MODULES = (
    *("torch", "torch._dynamo", "pytorch_lightning", "tensorboard", "sklearn", "scanpy", "numba", "umap", "igraph"),
    *("matplotlib", "jinja2", "scipy.stats", "scipy.optimize", "scipy.signal"),
)
FITS = {
    "torch",
    "jinja2",
    "torch._dynamo",
    "sklearn",
    "scipy.stats",
    "scipy.optimize",
}  # torch's optimisers load its compiler
LIGHTNING = {"pytorch_lightning", "matplotlib", "scipy.signal"}  # it trains the encoder; torchmetrics loads the others
SCANPY = {"scanpy", "numba", "sklearn", "matplotlib", "scipy.stats", "scipy.optimize"}  # it prepares references
MAY_LOAD = {
    "check PBMC": set(),
    "preprocess PBMC output=FOLDER/prepared.h5ad": SCANPY,
    "train PBMC label_key=cell_type output=FOLDER/model": {
        *FITS,
        *SCANPY,
        *LIGHTNING,
        "tensorboard",
    },
    "preprocess PBMC model_path=FOLDER/model output=FOLDER/aligned.h5ad": set(),
    "predict PBMC output=FOLDER/by_packaged.h5ad": {"torch"},
    "predict PBMC model_path=FOLDER/model output=FOLDER/annotated.h5ad": {"torch"},
    "adapt FOLDER/model PBMC output=FOLDER/adapted": FITS | LIGHTNING,
    "evaluate FOLDER/annotated.h5ad truth_key=cell_type output=FOLDER/evaluation": set(),
    "report FOLDER/annotated.h5ad output=FOLDER/report.html": FITS - {"torch"} | SCANPY | {"umap", "igraph"},
}


def require_useful(step: str, folder: Path) -> None:
    """Run a step, and find the slow modules that it loads among those that it may load."""
    cells = folder / "cells.h5ad"
    if not cells.exists():
        ad.read_h5ad(ROOT / "data" / "pbmc3k.h5ad")[::8].copy().write_h5ad(cells)
    words = step.replace("PBMC", str(cells)).replace("FOLDER", str(folder)).split()
    found = loaded_by(f"from scperformer.cli.cli import main\nassert main({words}) == 0", SLOW_MODULES)
    assert set(found) <= MAY_LOAD[step], step


@pytest.mark.parametrize(
    "step", ["check PBMC", "predict PBMC output=FOLDER/by_packaged.h5ad"], ids=["check", "predict"]
)
def test_cells_to_annotate_load_no_slow_module(step, tmp_path):
    require_useful(step, tmp_path)


@pytest.mark.slow
def test_no_step_loads_a_slow_module_without_a_use(tmp_path):
    for step in MAY_LOAD:
        require_useful(step, tmp_path)


def test_public_names():
    import scperformer

    steps = {"check", "preprocess", "train", "annotate", "embed", "adapt", "evaluate", "explain", "report", "pretrain"}
    functions = {
        *steps,
        "models",
        "import_model",
        "load_model",
        "PerformerClassifier",
        "InputError",
        "register_attention",
    }
    functions |= {"Additive", "Attention", "AttentionOptions"}
    assert all(callable(getattr(scperformer, name)) for name in functions)
    assert set(scperformer.__all__) == {"pl", *functions}
    assert set(scperformer.__all__) <= set(dir(scperformer))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = scperformer.no_such_name


# Style: each test lists every place that breaks its rule


def test_files_and_functions_have_one_idea():
    found = []
    for module in MODULES:
        num_lines = len(MODULES[module].read_text(encoding="utf-8").splitlines())
        if num_lines > LONGEST_FILE:
            found.append(f"{module}: {num_lines} lines")
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= LONGEST_FUNCTION:
                found.append(f"{module}:{node.lineno}: {node.name} has {node.end_lineno - node.lineno + 1} lines")
    assert found == []


def test_public_things_have_docstrings():
    """Modules, classes and functions; methods that override one of Lightning, torch or logging inherit theirs."""
    found = []
    for module in MODULES:
        code = tree(module)
        things = [node for node in code.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        things = [
            node for node in things if "overload" not in [getattr(name, "id", "") for name in node.decorator_list]
        ]
        missing = [node.name for node in things if not node.name.startswith("_") and not ast.get_docstring(node)]
        found += [f"{module}: {name}" for name in missing]
        if not ast.get_docstring(code):
            found.append(module)
    assert found == []


def test_no_error_is_swallowed():
    found = []
    for module in MODULES:
        for node in ast.walk(tree(module)):
            if not isinstance(node, ast.ExceptHandler):
                continue
            caught = {name.id for name in ast.walk(node.type or ast.Pass()) if isinstance(name, ast.Name)}
            # The command line is where every error ends as a line; elsewhere it must be raised again, or explained.
            # `writing` raises them when HDF5 has closed its file.
            last = node.body[-1]
            raised_again = isinstance(last, ast.Raise) and (last.exc is None or last.cause is not None)
            is_broad = node.type is None or caught & {"Exception", "BaseException"}
            if is_broad and not raised_again and module not in ("cli/cli.py", "io/writing.py"):
                found.append(f"{module}:{node.lineno}")
    assert found == []


def test_print_is_for_the_command_line_and_reports():
    found = [
        f"{module}:{node.lineno}"
        for module in MODULES
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "print" and module not in PRINTING
    ]
    assert found == []


# The project's files


FOLDERS = ("scperformer", "conf", "workflows", "docs", "tests", "data", "benchmarks", "containers", ".ci")
TEXT = {"", ".py", ".md", ".yaml", ".toml", ".smk", ".sh", ".txt", ".jinja", ".css", ".rst", ".tsv", ".csv", ".json"}
PLACES = tuple(f"/{name}/" for name in ("work", "tmp", "root", "home", "Users"))  # folders of one machine


def project_files() -> list[Path]:
    inside = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    made = [path for path in inside if {"__pycache__", "_build"} & set(path.parts)]  # the second by `make docs`
    return [
        path
        for path in sorted([*ROOT.glob("*"), *set(inside).difference(made)])
        if path.is_file() and path.suffix in TEXT and path.name != ".git"  # a file in a worktree
    ]


def test_no_file_names_a_folder_of_a_machine():
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in project_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if any(place in line for place in PLACES)
    ]
    assert found == []


def test_files_end_with_one_newline_and_no_line_with_spaces():
    found = []
    for path in project_files():
        text = path.read_text(encoding="utf-8")
        if text and (not text.endswith("\n") or text.endswith("\n\n")):
            found.append(f"{path.relative_to(ROOT)}: its end")
        lines = enumerate(text.split("\n"), start=1)
        found += [f"{path.relative_to(ROOT)}:{number}" for number, line in lines if line != line.rstrip()]
    assert found == []
