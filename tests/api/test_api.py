"""The functions for Python: keywords, files or cells in memory, results, names and types."""

import inspect
import os
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from support.refusal import refusal
from support.tissues import cells_of_tissue

import scperformer as scp
from scperformer.api import Trained
from scperformer.cli.compose import make_config
from scperformer.model.folder import read_model
from scperformer.model.tissues import collection
from scperformer.trust.shift import FAR, OTHER

ROOT = Path(__file__).parents[2]
STEPS = [name for name in scp.__all__ if inspect.isfunction(getattr(scp, name))]
QUICK = {"logger": "none", "trainer.max_epochs": 2}


@pytest.fixture(scope="module")
def model(tiny_model):
    return scp.load_model(tiny_model)


@pytest.fixture(scope="module")
def _annotated(model) -> ad.AnnData:
    from conftest import make_counts

    return scp.annotate(make_counts(), model)


@pytest.fixture
def annotated(_annotated) -> ad.AnnData:
    return _annotated.copy()


def contents(adata: ad.AnnData) -> dict[str, object]:
    """All entries of an AnnData by their places, as values that can be compared."""
    found: dict[str, object] = {
        "X": adata.X.toarray().tolist(),
        "obs": adata.obs.to_dict(),
        "uns": repr(adata.uns),
    }
    obsm = {name: np.asarray(adata.obsm[name]).tolist() for name in adata.obsm}
    return found | {"var": adata.var.to_dict(), "obsm": obsm}


# Options


REFUSED = {
    "a wrong name": (
        {"options": {"min_confidnce": 1}},
        "unknown-option",
        "min_confidnce",
        "min_confidence",
    ),
    "a mapping": ({"options": {"data": {"min_genes": 1}}}, "option-name", "'data.min_genes'"),
    "a list": ({"options": ["seed=1"]}, "options-type", "['seed=1']"),
    "an output": ({"output": "a.h5ad"}, "output-in-memory", "a.h5ad"),
    "bytes": ({"min_confidence": b"x"}, "option-type", "bytes"),
    "an object": ({"threads": object()}, "option-type", "object"),
    "a function": ({"min_confidence": len}, "option-type", "builtin_function_or_method"),
    "a complex number": ({"min_confidence": np.complex128(1)}, "option-type", "complex"),
    "an object in a list": ({"options": {"allow_labels": [object()]}}, "option-type", "object"),
    "a null character": ({"clusters": "a\0b"}, "null-character"),
    "a number as model": ({"model": 3}, "model-type", "int"),
    "bytes as model": ({"model": b"x"}, "model-type", "bytes"),
    "an array as model": ({"model": np.zeros(3)}, "model-type", "ndarray"),
    "a long path of a model": ({"model": "x" * 5000}, "path-length", "5,000"),
    "a long path": ({"full_sample": "x" * 5000}, "path-length", "5,000"),
    "a key with a line break": ({"key_added": "a\nb"}, "option-range", "key_added"),
    "a key that clears the terminal": ({"key_added": "\x1b[2J"}, "option-range", "key_added"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_keywords_are_refused_in_one_line(case, counts_adata, model):
    named, code, *values = REFUSED[case]
    with refusal(code, *values) as caught:
        scp.annotate(counts_adata, **{"model": model} | named)
    assert str(caught.value).isprintable()
    assert list(counts_adata.obs) == ["cell_type"]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("a\0b", "path-null"),
        ("x" * 5000, "path-length"),
        ("x" * 300, "path-length"),
        ("x/" * 2000, "path-length"),
    ],
)
@pytest.mark.parametrize("step", [scp.annotate, scp.check, scp.report, scp.explain, scp.embed])
def test_paths_that_no_file_can_have(step, path, code):
    with refusal(code):
        step(path)


def test_cells_in_memory_need_an_output(counts_adata, model):
    for call in (lambda: scp.train(counts_adata, "cell_type"), lambda: scp.pretrain(counts_adata)):
        with refusal("no-output"):
            call()
    with refusal("mixed-cells"):
        scp.pretrain([counts_adata, "a.h5ad"], output="e")


NO_CELLS = {
    "a table": (lambda cells: cells.to_df(), "cells of type DataFrame"),
    "a sparse matrix": (lambda cells: cells.X, "cells of type csr_matrix"),
    "a list of tables": (lambda cells: [cells.to_df()], "cells of type list"),
    "a mapping": (lambda cells: {"rna": cells}, "cells of type dict"),
}
STEPS_OF_CELLS = {
    "check": scp.check,
    "annotate": scp.annotate,
    "embed": scp.embed,
    "pretrain": lambda cells: scp.pretrain(cells, output="m"),
    "adapt": lambda cells: scp.adapt("m", cells, output="a"),
    "report": lambda cells: scp.report(cells, output="r.html"),
}


@pytest.mark.parametrize("what", NO_CELLS)
@pytest.mark.parametrize("name", STEPS_OF_CELLS)
def test_what_is_no_cells_is_refused_with_the_remedy(
    name, what, counts_adata, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    made, found = NO_CELLS[what]
    with refusal("cells-type", found, "anndata.AnnData(matrix", "mdata.mod"):
        STEPS_OF_CELLS[name](made(counts_adata))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_several_files_may_come_in_any_order_of_things(counts_adata, model, write, tmp_path):
    paths = [write(counts_adata, f"{name}.h5ad") for name in ("a", "b")]
    for number, given in enumerate(
        (paths, tuple(paths), iter(paths), pd.Series(paths), np.array(paths, dtype=object))
    ):
        assert len(scp.annotate(given, model, output_dir=tmp_path / str(number))) == 2
    assert len(scp.check(iter(paths), model=model).files) == 2
    with refusal("mixed-cells", "write_h5ad", "anndata.concat"):
        scp.train([counts_adata, counts_adata], "cell_type", output=tmp_path / "model")


@pytest.mark.parametrize(
    ("kind", "form"),
    [("view", "sparse"), ("view", "dense"), ("backed", "sparse"), ("view of backed", "dense")],
)
def test_views_and_cells_on_disk_are_annotated_like_others(
    kind, form, counts_adata, model, write, tmp_path
):
    if form == "dense":
        counts_adata.X = counts_adata.X.toarray()
    counts_adata.raw = counts_adata.copy()
    path = write(counts_adata)
    content = path.read_bytes()
    whole = counts_adata if kind == "view" else ad.read_h5ad(path, backed="r")
    cells = whole if kind == "backed" else whole[20:90]
    expected = scp.annotate(cells.to_memory().copy(), model)
    assert scp.check(cells, model=model).problems == []
    np.testing.assert_array_equal(scp.embed(cells, model), expected.obsm["X_scperformer"])
    with nullcontext() if kind == "backed" else pytest.warns(UserWarning, match="view"):
        assert scp.annotate(cells, model) is cells
    pd.testing.assert_frame_equal(cells.obs, expected.obs)
    np.testing.assert_array_equal(cells.obsm["X_scperformer"], expected.obsm["X_scperformer"])
    if kind != "backed":
        assert "scperformer_label" not in whole.obs
    scp.evaluate(cells, "cell_type")
    scp.explain(cells, model, num_cells=2)
    scp.pl.embedding(cells, "label", basis="X_scperformer")
    trained = scp.train(
        cells, "cell_type", output=tmp_path / "m", options={**QUICK, "experiment": "linear"}
    )
    assert len(trained.scores) == 2
    assert path.read_bytes() == content


def test_defaults_are_those_of_the_steps():
    """A default is written once, in the options of its step."""
    for name, step in (
        ("annotate", "predict"),
        ("train", "train"),
        ("explain", "explain"),
        ("report", "report"),
    ):
        cfg = make_config(step, ["inputs=[a]", *(["label_key=a"] if step == "train" else [])])
        for parameter in inspect.signature(getattr(scp, name)).parameters.values():
            if parameter.default not in (inspect.Parameter.empty, None) and hasattr(
                cfg, parameter.name
            ):
                assert parameter.default == getattr(cfg, parameter.name), (name, parameter.name)


# Files and cells in memory


def test_files_and_cells_in_memory_get_the_same_annotation(
    annotated, counts_adata, model, write, tmp_path
):
    path = write(counts_adata)
    made = scp.annotate(path, model)
    assert made == tmp_path / "sample.annotated.h5ad"
    pd.testing.assert_frame_equal(ad.read_h5ad(made).obs, annotated.obs)
    assert scp.annotate([path], model, overwrite=True) == [made]
    for cells in (path, counts_adata):
        np.testing.assert_array_equal(scp.embed(cells, model), annotated.obsm["X_scperformer"])
    of_file, of_cells = (scp.evaluate(cells, "cell_type") for cells in (made, annotated))
    pd.testing.assert_frame_equal(of_file.confusion, of_cells.confusion)
    pd.testing.assert_frame_equal(of_file.scores, of_cells.scores)


def test_only_annotate_changes_cells_in_memory(annotated, model, tmp_path):
    before = contents(annotated)
    scp.check(annotated, model=model)
    scp.embed(annotated, model)
    scp.evaluate(annotated, "cell_type", output=tmp_path / "evaluation")
    assert contents(annotated) == before


def test_annotate_says_once_what_the_cells_are_and_what_to_expect(counts_adata, model, capsys):
    others = counts_adata.copy()
    scp.annotate(counts_adata, model)
    own = capsys.readouterr().out
    assert own.startswith(
        "120 cells were annotated by the model reference (3 labels): 33% B cell, "
    )
    assert "0.0% are unknown. " in own
    assert "xpected accuracy 0" not in own  # the model has no out-of-fold predictions of it
    assert (
        "confidence and accuracy are too high: 120 of 120 cells looked at (100 %), such as" in own
    )
    order = np.arange(others.n_vars)
    np.random.default_rng(0).shuffle(order[: others.n_vars // 2])
    others.X = others.X[:, order]
    scp.annotate(others, model)
    text = capsys.readouterr().out
    shift = others.uns["scperformer"]["shift"]
    lowest, highest = shift["expected_lowest"], shift["expected_highest"]
    assert f"are unknown. To check: Cells of {OTHER}, whose labels are plausible" in text
    assert f": expected accuracy {lowest:.2f} to {highest:.2f}, as labels of other" in text
    assert text.count("xpected accuracy") == text.count(OTHER) == 1
    assert FAR not in text
    assert text.endswith("The column to use is obs['scperformer_call'].\n")


def test_explanation(annotated, model):
    before = contents(annotated)
    found = scp.explain(annotated, model, num_cells=3)
    assert contents(annotated) == before
    assert found.adata.n_obs == 3 * annotated.obs["scperformer_label"].nunique()
    assert set(found.genes.columns) >= {"label", "gene", "mean_contribution"}
    assert found.path is None
    assert repr(found).startswith(f"Explanation of {found.adata.n_obs} cells by 200 genes")
    assert "num_genes" in found.deletion


def test_models_are_listed(monkeypatch, tmp_path):
    monkeypatch.setenv("SCPERFORMER_MODELS", str(tmp_path / "none"))
    table = scp.models()
    models = table[table["kind"] == "model"]
    assert models["name"].tolist() == ["pbmc3k"]
    assert models["num_labels"].tolist() == [9]
    tissues = table[table["kind"] == "tissue"].set_index("name")
    assert tissues.index.tolist() == collection().tissues()["name"].tolist()
    pancreas = collection().tissue("pancreas")
    assert tissues.loc["pancreas", "labels"].split(", ") == pancreas.profiles.index.tolist()
    assert tissues.loc["pancreas", "tissue"] == "pancreas (adult human)"


def test_a_damaged_model_does_not_hide_the_others(monkeypatch, tiny_model, tmp_path):
    monkeypatch.setenv("SCPERFORMER_MODELS", str(tmp_path))
    for name in ("damaged", "sound"):
        shutil.copytree(tiny_model, tmp_path / name)
    (tmp_path / "damaged" / "bundle.json").write_text("{")
    table = scp.models().query("kind == 'model'").set_index("name")
    assert list(table.index) == ["pbmc3k", "damaged", read_model(tiny_model).name]
    assert "damaged model" in table.loc["damaged", "problem"]
    assert list(table["problem"].iloc[[0, 2]]) == ["", ""]


@pytest.mark.slow
def test_an_adapted_model_says_what_to_expect_of_it(tmp_path):
    cells = ad.read_h5ad(ROOT / "data" / "pbmc3k.h5ad")[::20, ::2].copy()
    adapted = scp.adapt(scp.load_model(), cells, output=tmp_path / "adapted")
    expected = adapted.metrics["out_of_fold"]
    assert adapted.scores.loc["model"].to_dict() == {
        name: expected[name] for name in ("accuracy", "macro_f1")
    }
    assert f"{expected['accuracy']:.3f}".rstrip("0") in repr(adapted)
    assert "accuracy" in adapted._repr_html_()
    # of simulated cells: no evidence
    nothing = Trained(Path("m"), {"scales": {"linear": 1.0}}, pd.DataFrame())
    assert (repr(nothing), nothing.scores.empty) == ("Model folder m", True)


@pytest.mark.slow
def test_pretrained_encoders_and_adapted_models(counts_adata, model, tmp_path):
    before = {name: getattr(scp, name) for name in scp.__all__}
    encoder = scp.pretrain(
        [counts_adata, counts_adata], output=tmp_path / "e", options={**QUICK, "data.min_genes": 0}
    )
    assert list(encoder.scores.index) == ["model", "naive guess"]
    options = {"trainer.max_epochs": 1, "logger": "none"}
    made = scp.train(
        counts_adata, "cell_type", output=tmp_path / "m", init=encoder, options=options
    )
    assert read_model(made.path).provenance.init.name == "e"
    cells = scp.annotate(counts_adata, made)
    scp.explain(cells, made, num_cells=1)
    scp.report(cells, output=tmp_path / "report.html")
    adapted = scp.adapt(made, counts_adata[:, 20:].copy(), output=tmp_path / "a")
    assert len(adapted.load().saved.genes) < 200
    assert {name: getattr(scp, name) for name in scp.__all__} == before


def test_report_of_cells_in_memory_is_that_of_their_file(annotated, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    annotated.obs["text"] = ["odd" if place % 2 else "even" for place in range(annotated.n_obs)]
    before, kept = contents(annotated), {name: annotated.obs[name].dtype for name in annotated.obs}
    written = scp.evaluate(annotated, "cell_type", output=tmp_path / "evaluation")
    evaluation = scp.evaluate(annotated, "cell_type")
    with refusal("no-output"):
        scp.report(annotated)
    page = scp.report(annotated, output="report.html", evaluation=evaluation)
    assert str(page.path) in page._repr_html_()
    assert contents(annotated) == before
    assert {name: annotated.obs[name].dtype for name in annotated.obs} == kept
    assert (evaluation.path, written.path) == (None, tmp_path / "evaluation")
    scp.report(annotated, output="again.html", evaluation=written)
    assert written.path == tmp_path / "evaluation"
    annotated.write_h5ad("cells.h5ad")
    scp.report("cells.h5ad", output="file.html", evaluation="evaluation")
    pages = [(tmp_path / f"{name}.html").read_text() for name in ("report", "again", "file")]
    assert pages[0] == pages[1] == pages[2]
    made = {"evaluation", "report.html", "again.html", "cells.h5ad", "file.html"}
    assert {path.name for path in tmp_path.iterdir()} == made


# Names and types


@pytest.mark.parametrize("name", STEPS)
def test_functions_have_types_and_document_every_keyword(name):
    function = getattr(scp, name)
    signature, text = inspect.signature(function), inspect.getdoc(function)
    assert signature.return_annotation is not inspect.Signature.empty
    for parameter in signature.parameters.values():
        assert parameter.annotation is not inspect.Parameter.empty, parameter.name
        if name not in ("load_model", "register_attention"):
            assert re.search(rf"^{parameter.name}$", text, re.MULTILINE), parameter.name


SCRIPT = """\
from pathlib import Path
import anndata as ad
import scperformer as scp
adata = ad.read_h5ad("a.h5ad")
made = scp.train("a.h5ad", "cell_type", model="tiny", options={"trainer.max_epochs": 5})
path: Path = made.path
one: Path = scp.annotate("a.h5ad", made.load(), min_confidence=0.5)
several: list[Path] = scp.annotate(["a.h5ad"])
accuracy: float = scp.evaluate(adata, truth_key="cell_type").metrics["num_cells"]
scp.pl.embedding(adata, "label", save="a.png")
"""


@pytest.mark.slow
def test_scripts_of_users_are_checked_for_types(tmp_path):
    """In one run of mypy, which takes a while; it finds nothing but the wrong lines."""
    wrong_lines = {
        "scp.train(adata, 'cell_type', sed=1)": "call-arg",
        "scp.explain(adata, num_cells='some')": "arg-type",
    }
    (tmp_path / "script.py").write_text("\n".join([SCRIPT.rstrip(), *wrong_lines, ""]))
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--ignore-missing-imports",
        "--follow-imports=silent",
        "script.py",
    ]
    environment = os.environ | {"MYPYPATH": str(ROOT)}
    ran = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
    )
    found = re.findall(r"^script\.py:(\d+): error: .*\[([\w-]+)\]$", ran.stdout, re.MULTILINE)
    first = SCRIPT.count("\n") + 1
    assert dict(found) == {
        str(first + number): error for number, error in enumerate(wrong_lines.values())
    }, ran.stdout


def test_without_a_model_the_tissue_is_found_or_a_model_asked_for(monkeypatch):
    monkeypatch.delenv("SCPERFORMER_MODEL", raising=False)
    cells = cells_of_tissue("pancreas", 4)[:, ::4].copy()
    embedding = scp.embed(cells)
    annotated = scp.annotate(cells)
    np.testing.assert_allclose(embedding, annotated.obsm["X_scperformer"], rtol=1e-5)
    assert embedding.shape == annotated.obsm["scperformer_proba"].shape
    with refusal("no-model"):
        scp.tokens(cells)
    assert scp.load_model().saved.name == "pbmc3k"
