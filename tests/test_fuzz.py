"""Inputs drawn by chance, always the same ones: a right answer or one line of error, and nothing else."""

import dataclasses
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import anndata as ad
import numpy as np
import pytest
import tried
from fuzzing import KINDS, anndatas, faults, spoil, write
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from inputs import WRITERS, small_cells

from scperformer import cli
from scperformer.compose import make_config

FUZZED, DAMAGED = (int(os.environ.get(name, number)) for name, number in (("FUZZED", 15), ("DAMAGED", 25)))
BY_CHANCE, DAMAGE = "cells of every shape, type and name, by chance", "damaged bytes, by chance"
STEPS = ("check", "predict", "preprocess")
FUZZ = settings(
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=False,
    suppress_health_check=list(HealthCheck),
)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def configs(tiny_model):
    """The options of each step, composed once: Hydra takes longer than the rest."""
    options = {
        "check": [f"model_path={tiny_model}"],
        "predict": [f"model_path={tiny_model}", "min_overlap=0"],
        "preprocess": ["data.min_genes=0", "data.min_cells=0"],
    }
    return {step: make_config(step, ["inputs=[x]", *words]) for step, words in options.items()}


@pytest.fixture
def run(command, configs, monkeypatch):
    """The command line without Hydra: a step, an input and an output."""

    def run_step(step, words):
        path, output = words
        cli._run(step, dataclasses.replace(configs[step], inputs=[path], output=output))

    monkeypatch.setattr(cli, "run_step", run_step)
    return command


def outcome(run, step: str, path: Path, folder: Path, num_cells: int | None = None) -> str:
    """Run a step on an input: `right` or `refused`; anything else fails."""
    output = folder / ("out.json" if step == "check" else "out.h5ad")
    before = contents(folder)
    ran = run(step, path, output)
    errors = [line for line in ran.err.splitlines() if line.startswith(("error", "internal", "Traceback"))]
    if ran.code == 2:
        assert len(errors) == 1, ran.err
        assert ran.err.splitlines()[-1].startswith("error: "), ran.err
        if step != "check":
            assert contents(folder) == before, "something was left behind"
        output.unlink(missing_ok=True)
        return "refused"
    assert ran.code == 0, ran.err
    assert errors == []
    if step != "check":
        found = ad.read_h5ad(output)
        assert num_cells in (None, found.n_obs)
        if step == "predict":
            proba = found.obsm["scperformer_proba"].to_numpy()
            assert np.isfinite(proba).all()
            np.testing.assert_allclose(proba.sum(1), 1, atol=1e-5)
    output.unlink()
    assert contents(folder) == before, "something was left behind"
    return "right"


@pytest.mark.parametrize("kind", KINDS)
def test_cells_of_every_shape_type_and_name(kind, run):
    seen: Counter[str] = Counter()

    @settings(FUZZ, max_examples=FUZZED)
    @given(anndatas())
    def look(adata):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            try:
                path = write(adata, kind, folder)
            except (ValueError, TypeError, KeyError, AttributeError, UnicodeError, OSError):
                reject()  # it cannot even be written
            for step in STEPS:
                exact = kind in ("h5ad", "zarr") and step == "predict"
                found = outcome(run, step, path, folder, adata.n_obs if exact else None)
                seen[found] += 1
                tried.record(BY_CHANCE, found)

    look()
    assert min(seen["right"], seen["refused"]) >= 3, seen


@pytest.mark.parametrize("kind", ["h5ad", "10x h5 v3", "10x folder v2", "zarr 3", "csv"])
def test_damaged_bytes(kind, run, tmp_path_factory):
    cells = small_cells()
    cells.var_names = [f"GENE{i}" for i in range(cells.n_vars)]
    whole = WRITERS[kind](cells, tmp_path_factory.mktemp("whole"))
    files = sorted(file for file in whole.rglob("*") if file.is_file()) if whole.is_dir() else [whole]
    seen: Counter[str] = Counter()

    @settings(FUZZ, max_examples=DAMAGED)
    @given(st.sampled_from(files), faults(), st.sampled_from(STEPS))
    def look(file, fault, step):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            path = folder / whole.name
            (shutil.copytree if whole.is_dir() else shutil.copyfile)(whole, path)
            target = path / file.relative_to(whole) if whole.is_dir() else path
            content = file.read_bytes()
            if not content:
                reject()
            target.write_bytes(spoil(content, fault))
            found = outcome(run, step, path, folder)
            seen[found] += 1
            tried.record(DAMAGE, found)

    look()
    assert seen["refused"] >= 2, seen
