"""The rules of the code that no linter knows: what loads when, public names, errors, no traces of a machine."""

import ast
import subprocess
import sys
from pathlib import Path

import anndata as ad
import pytest

ROOT = Path(__file__).parents[1]

HEAVY = (
    "torch",
    "scanpy",
    "hydra",
    "omegaconf",
    "pandas",
    "numpy",
    "anndata",
    "matplotlib",
    "sklearn",
)
START = {
    "import": "import scperformer",
    "help": "from scperformer.cli.main import main; main(['--help'])",
    "help of a step": "from scperformer.cli.main import main; main(['train', '--help'])",
}


def loaded_by(code: str, names: tuple[str, ...]) -> list[str]:
    """List the packages, of these, that a program has loaded after some code."""
    check = f"import sys\n{code}\nprint(*(name for name in {names} if name in sys.modules), file=sys.stderr)"
    ran = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return ran.stderr.splitlines()[-1].split()


@pytest.mark.parametrize("code", START)
def test_nothing_heavy_is_loaded_before_it_is_needed(code):
    assert loaded_by(START[code], HEAVY) == []


# Modules that take a while to import, and those of them that a step may load: the others have no use there.
SLOW_MODULES = (
    *(
        "torch",
        "torch._dynamo",
        "pytorch_lightning",
        "tensorboard",
        "sklearn",
        "scanpy",
        "numba",
        "umap",
        "igraph",
    ),
    *("matplotlib", "jinja2", "scipy.stats", "scipy.optimize", "scipy.signal"),
)
MAY_LOAD = {"check PBMC": set(), "predict PBMC output=FOLDER/annotated.h5ad": {"torch"}}


@pytest.mark.parametrize("step", MAY_LOAD, ids=lambda step: step.split()[0])
def test_cells_to_annotate_load_no_slow_module(step, tmp_path):
    cells = tmp_path / "cells.h5ad"
    ad.read_h5ad(ROOT / "data" / "pbmc3k.h5ad")[::8].copy().write_h5ad(cells)
    words = step.replace("PBMC", str(cells)).replace("FOLDER", str(tmp_path)).split()
    found = loaded_by(
        f"from scperformer.cli.main import main\nassert main({words}) == 0", SLOW_MODULES
    )
    assert set(found) <= MAY_LOAD[step]


def test_public_names():
    import scperformer

    steps = {
        "check",
        "train",
        "annotate",
        "embed",
        "tokens",
        "adapt",
        "evaluate",
        "explain",
        "report",
        "pretrain",
    }
    functions = {
        *steps,
        "models",
        "import_model",
        "tokens",
        "load_model",
        "InputError",
        "register_attention",
    }
    functions |= {"LinearAttention", "Attention", "AttentionOptions", "tokens", "curate"}
    assert all(callable(getattr(scperformer, name)) for name in functions)
    assert set(scperformer.__all__) == {"pl", *functions}
    assert set(scperformer.__all__) <= set(dir(scperformer))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = scperformer.no_such_name


def test_no_error_is_swallowed():
    """`ruff` finds broad handlers (BLE); one that is allowed must raise again or give a cause, but where errors end."""
    found = []
    for path in sorted((ROOT / "scperformer").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ExceptHandler):
                continue
            caught = {
                name.id for name in ast.walk(node.type or ast.Pass()) if isinstance(name, ast.Name)
            }
            is_broad = node.type is None or caught & {"Exception", "BaseException"}
            last = node.body[-1]
            raised_again = isinstance(last, ast.Raise) and (
                last.exc is None or last.cause is not None
            )
            # `writing` raises them when HDF5 has closed its file.
            if (
                is_broad
                and not raised_again
                and path.name not in ("main.py", "predict.py", "writing.py")
            ):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []


# folders of one machine
PLACES = tuple(f"/{name}/" for name in ("work", "tmp", "root", "home", "Users"))


def test_no_file_names_a_folder_of_a_machine():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("no git checkout")
    found = []
    for name in listed.stdout.splitlines():
        content = (ROOT / name).read_bytes() if (ROOT / name).is_file() else b"\0"
        if b"\0" not in content[:8000]:
            lines = enumerate(content.decode("utf-8", "replace").splitlines(), start=1)
            found += [
                f"{name}:{number}"
                for number, line in lines
                if any(place in line for place in PLACES)
            ]
    assert found == []
