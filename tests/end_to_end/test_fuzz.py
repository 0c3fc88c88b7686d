"""Inputs drawn by chance, with fixed seeds, give a right answer or one line of error."""

import dataclasses
import math
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from scipy import sparse
from support.fuzzing import KINDS, anndatas, write

from scperformer.cli import main as cli
from scperformer.cli.compose import make_config
from scperformer.model.folder import read_model

FUZZED = int(os.environ.get("FUZZED", 45))
STEPS = ("check", "predict", "preprocess", "train")
OUTPUTS = {"check": [".json"], "predict": [".h5ad", ".csv"], "preprocess": [".h5ad"], "train": [""]}
MARGIN = 0.01  # of the logits of two labels; less may be rounding
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
    """The options of each step, composed once, as Hydra takes longer than the step."""
    options = {
        "check": [f"model_path={tiny_model}"],
        # Without adapting, the calls can be computed from the weights of the model.
        "predict": [f"model_path={tiny_model}", "min_overlap=0", "adapt=false"],
        "preprocess": ["data.min_genes=0", "data.min_cells=0"],
        "train": [
            "label_key=cell_type",
            "experiment=linear",
            "logger=none",
            "data.min_genes=0",
            "data.min_cells=0",
        ],
    }
    return {step: make_config(step, ["inputs=[x]", *words]) for step, words in options.items()}


@pytest.fixture
def run(command, configs, monkeypatch):
    """Run the command line without Hydra, with a step, an input and an output."""

    def run_step(step, words, _plugins):
        path, output = words
        cli.call(
            cli.STEPS[step].run, dataclasses.replace(configs[step], inputs=[path], output=output)
        )
        return 0

    monkeypatch.setattr(cli, "run_step", run_step)
    return command


def outcome(run, step: str, path: Path, output: Path, look=lambda output: None) -> str:
    """Run a step on an input; return `right` or `refused`, and fail on any other outcome. `look` checks the output."""
    folder = path.parent
    before = contents(folder)
    ran = run(step, path, output)
    errors = [
        line for line in ran.err.splitlines() if line.startswith(("error", "internal", "Traceback"))
    ]
    if ran.code == 2:
        assert len(errors) == 1, ran.err
        assert ran.err.splitlines()[-1].startswith("error: "), ran.err
        if step == "check":
            output.unlink(missing_ok=True)
        assert contents(folder) == before, "something was left behind"
        return "refused"
    assert ran.code == 0, ran.err
    assert errors == []
    look(output)
    for written in (output, output.with_name(f"{output.name}.run")):
        if written.is_dir():
            shutil.rmtree(written)
        else:
            written.unlink(missing_ok=True)
    assert contents(folder) == before, "something was left behind"
    return "right"


def calls_of(output: Path) -> tuple[list[str], dict]:
    """Return the baseline's calls in an output and its record of the input; check the probabilities."""
    if output.suffix == ".csv":
        table = pd.read_csv(output)
        assert table["scperformer_confidence"].between(0, 1).all()
        return list(table["scperformer_baseline_label"]), {}
    found = ad.read_h5ad(output)
    proba = found.obsm["scperformer_proba"].to_numpy()
    assert np.isfinite(proba).all()
    np.testing.assert_allclose(proba.sum(1), 1, atol=1e-5)
    return list(found.obsm["scperformer_details"]["baseline_label"]), found.uns["scperformer"]


def naive_logits(adata: ad.AnnData, facts: dict, saved) -> np.ndarray:
    """Compute the logits of logistic regression from the formulas: float64, dense, gene by gene."""
    source, kind = facts["source"], facts["kind"]
    x = (
        adata.raw.X
        if source == "raw"
        else adata.X
        if source == "X"
        else adata.layers[source.removeprefix("layers/")]
    )
    names = [
        str(name).strip() for name in (adata.raw.var_names if source == "raw" else adata.var_names)
    ]
    values = np.asarray(x.todense() if sparse.issparse(x) else x, dtype=np.float64)
    if facts["from_smallest"]:
        values = values - values.min(axis=1, keepdims=True)
    if kind == "log1p":
        values = np.expm1(values * math.log(facts["log_base"]))
    sums = values.sum(1)
    if kind == "log1p" and not facts["relative"]:
        sums = np.full(len(values), 1e4 if math.isnan(facts["total"]) else facts["total"])
    values = (
        values
        * np.divide(saved.config.target_sum, sums, out=np.zeros_like(sums), where=sums > 0)[:, None]
    )
    place = {gene.upper(): i for i, gene in enumerate(saved.genes)}
    aligned = np.zeros((len(values), len(saved.genes)))
    for name, column in zip(names, values.T, strict=True):
        if name.upper() in place:
            aligned[:, place[name.upper()]] += column
    return np.log1p(aligned) @ saved.weights["baseline.weight"] + saved.weights["baseline.bias"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_cells_of_every_shape_type_and_name(kind, run, tiny_model):
    seen: Counter[str] = Counter()
    saved = read_model(tiny_model)

    @settings(FUZZ, max_examples=FUZZED)
    @given(anndatas(), st.data())
    def look(adata, data):
        def compare(output):
            labels, record = calls_of(output)
            if kind == "h5ad":
                assert len(labels) == adata.n_obs
            # a table whose names say cells x genes as much as the other
            if len(labels) != adata.n_obs or not record:
                return
            with np.errstate(over="ignore"):
                logits = naive_logits(adata, record["input"], saved)
            best = np.sort(logits, axis=1)[:, -2:]
            sure = (best[:, 1] - best[:, 0] > MARGIN) & np.isfinite(best).all(1)
            expected = np.array(saved.labels)[logits.argmax(1)]
            assert np.array(labels)[sure].tolist() == expected[sure].tolist()
            seen["compared"] += int(sure.sum())

        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            try:
                path = write(adata, kind, folder)
            except (ValueError, TypeError, KeyError, AttributeError, UnicodeError, OSError):
                reject()  # it cannot even be written
            for step in STEPS:
                output = folder / f"out{data.draw(st.sampled_from(OUTPUTS[step]))}"
                found = outcome(
                    run, step, path, output, compare if step == "predict" else lambda output: None
                )
                seen[found] += 1

    look()
    assert min(seen["right"], seen["refused"]) >= 3, seen
    assert seen["compared"] >= 10, seen
