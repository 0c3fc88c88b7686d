"""The wheel, made from the sdist, works in an empty environment and another folder, with new and old dependencies."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import anndata as ad
import pytest

ROOT = Path(__file__).parents[1]
STEPS = (
    "--version",
    "models show pancreas",
    "check sample.h5ad",
    "train reference.h5ad label_key=cell_type output=model",
    "predict sample.h5ad model_path=model",
    "evaluate sample.annotated.h5ad truth_key=cell_type output=evaluation",
    "explain sample.annotated.h5ad cells=5",
    "report sample.annotated.h5ad evaluation=evaluation output=report.html",
    "train reference.h5ad label_key=cell_type model=tiny trainer.max_epochs=1 output=tiny",
)


def run(*command: str | Path, folder: Path) -> str:
    """Run a program in a folder as a user would, without what the tests' own environment has set."""
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYTHON", "SCPERFORMER"))
    }
    ran = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, f"{command}\n{ran.stdout[-3000:]}\n{ran.stderr[-3000:]}"
    return ran.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    # the sdist, and the wheel from it
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, folder=folder)
    return next(folder.glob("*.whl"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "constraints", ["packaging/constraints.txt", "packaging/constraints-lowest.txt"]
)
def test_wheel_in_an_empty_environment(constraints, wheel, tmp_path):
    run(sys.executable, "-m", "venv", tmp_path / "venv", folder=tmp_path)
    programs = tmp_path / "venv" / "bin"
    run(
        programs / "python",
        "-m",
        "pip",
        "install",
        "-q",
        "-c",
        ROOT / constraints,
        wheel,
        folder=tmp_path,
    )
    away = tmp_path / "away"
    away.mkdir()
    cells = ad.read_h5ad(ROOT / "data" / "pbmc3k.h5ad")
    cells[::5].copy().write_h5ad(away / "reference.h5ad")
    cells[1::30].copy().write_h5ad(away / "sample.h5ad")
    for step in STEPS:
        run(programs / "scperformer", *step.split(), folder=away)
    found = run(
        programs / "python", "-c", "import scperformer; print(scperformer.__file__)", folder=away
    )
    assert Path(found.strip()).is_relative_to(tmp_path)
    labels = (
        ad.read_h5ad(away / "sample.annotated.h5ad")
        .obs[["scperformer_label", "cell_type"]]
        .astype(str)
    )
    assert (labels["scperformer_label"] == labels["cell_type"]).mean() > 0.8
    assert (away / "report.html").stat().st_size > 10_000
    (away / "mark.py").write_text("open('marked', 'w')")
    preset = away / "own" / "experiment" / "evil.yaml"
    preset.parent.mkdir(parents=True)
    callback = "{_target_: runpy.run_path, path_name: mark.py}"
    preset.write_text(f"hydra: {{callbacks: {{x: {callback}}}}}\n")
    hostile = (
        "train",
        "sample.h5ad",
        "label_key=cell_type",
        "--config-dir",
        "own",
        "+experiment=evil",
    )
    ran = subprocess.run(
        [programs / "scperformer", *hostile], cwd=away, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr.count("error: ")) == (2, 1)
    assert not (away / "marked").exists()


def interpreter(version: str) -> str | None:
    """Return a Python of this version that starts, of the system or of pyenv."""
    installed = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    for program in (shutil.which(f"python{version}"), *map(str, installed)):
        if (
            program
            and subprocess.run([program, "--version"], capture_output=True, check=False).returncode
            == 0
        ):
            return program
    return None


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_wheel_with_a_newer_python(version, wheel, tmp_path):
    program = interpreter(version)
    if program is None:
        pytest.skip(f"no Python {version}")
    run(program, "-m", "venv", tmp_path / "venv", folder=tmp_path)
    programs = tmp_path / "venv" / "bin"
    run(
        programs / "python",
        "-m",
        "pip",
        "install",
        "-q",
        "-c",
        ROOT / "packaging/constraints.txt",
        wheel,
        folder=tmp_path,
    )
    ad.read_h5ad(ROOT / "data" / "pbmc3k.h5ad")[::30].copy().write_h5ad(tmp_path / "sample.h5ad")
    run(programs / "scperformer", "predict", "sample.h5ad", "model_path=pbmc3k", folder=tmp_path)
    run(programs / "scperformer", "report", "sample.annotated.h5ad", folder=tmp_path)
    assert "scperformer_call" in ad.read_h5ad(tmp_path / "sample.annotated.h5ad").obs
