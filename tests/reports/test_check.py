"""The input doctor: its verdict on each file, and the words in which it gives it."""

import json
import shlex
from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
from support.inputs import WRITERS

from scperformer.config.steps import CheckConfig
from scperformer.errors import InputError
from scperformer.model import folder as bundle
from scperformer.reports.check import run_check


class Model:
    """A stand-in with what check looks at."""

    name = "toy"
    kind = bundle.ANNOTATOR
    genes = [f"GENE{i}" for i in range(0, 250, 2)]  # noqa: RUF012
    importance = None
    config = {"target_sum": 1e4}  # noqa: RUF012


load_bundle = bundle.load_bundle


@pytest.fixture(autouse=True)
def _model(monkeypatch):
    monkeypatch.delenv("SCPERFORMER_MODEL", raising=False)
    monkeypatch.setattr("scperformer.model.load_bundle", lambda path: Model)


# the step


def test_good_file(counts_adata, write, tmp_path, capsys):
    path = write(counts_adata, "my sample.h5ad")
    output = tmp_path / "check.json"
    results = run_check(CheckConfig(inputs=[str(path)], output=str(output), doublets="false"))
    lines = [(line[2:15].strip(), line[15:]) for line in capsys.readouterr().out.splitlines()[1:-1]]
    num_genes, num_counts = (np.median(np.asarray(x)) for x in (counts_adata.X.getnnz(1), counts_adata.X.sum(1)))
    assert dict(lines) == {
        "cells": "120",
        "genes": "200, gene symbols, human",
        "expression": "counts in X: there is no other",
        "quality": f"median {num_genes:,.0f} genes and {num_counts:,.0f} counts per cell",
        "doublets": "not looked for, as told",
        "obs columns": "cell_type (3 values)",
        "model": "toy (packaged): 100 of 125 genes (80.0%) found, with 80.0% of its informative expression, "
        "not GENE200, GENE202, GENE204 ...",
        "note": "120 cells (100.0%) with fewer than 200 genes",
        "ok": f"scperformer predict '{path}'",
    }
    assert results[0]["problem"] is None
    assert json.loads(output.read_text())["files"] == results
    with pytest.raises(InputError, match="exists"):
        run_check(CheckConfig(inputs=[str(path)], output=str(output)))


def test_mouse_genes_are_a_problem_with_a_remedy(counts_adata, write, capsys):
    counts_adata.var_names = [f"Gene{i}" for i in range(200)]
    path = str(write(counts_adata))
    with pytest.raises(InputError, match="1 of 1 files"):
        run_check(CheckConfig(inputs=[path]))
    out = capsys.readouterr().out
    assert "genes        200, gene symbols, mouse" in out
    assert "add species=human if these are human genes, or species=mouse to match genes by their orthologs" in out
    [result] = run_check(CheckConfig(inputs=[path], species="human"))
    assert (result["species"], result["overlap"]["num_shared"], result["overlap"]["informative_share"]) == (
        "human",
        100,
        0.8,
    )
    out = capsys.readouterr().out
    assert "note         100 names were matched in upper case" in out
    assert f"ok           scperformer predict {path} species=human" in out


def test_log_values_and_notes_are_shown(pbmc, write, capsys, monkeypatch):
    monkeypatch.setattr(Model, "genes", [*pbmc.raw.var_names, *(f"NEW{i}" for i in range(1000))])
    run_check(CheckConfig(inputs=[str(write(pbmc))]))
    out = capsys.readouterr().out
    assert "expression   log1p in raw (natural logarithm, unknown total): nothing else can be used" in out
    assert "not used     X: negative values" in out
    assert "note         X is not used" not in out
    assert "doublets     not looked for: that takes counts" in out
    assert "note         only 43.3% of what the model looks at is in the file: look at the labels" in out


def test_all_files_are_shown_before_the_error(counts_adata, write, capsys, tmp_path):
    good = write(counts_adata, "good.h5ad")
    renamed = counts_adata.copy()
    renamed.var_names = [f"ENSG{i:011d}" for i in range(200)]
    foreign = write(renamed, "foreign.h5ad")
    output = tmp_path / "check.json"
    files = [str(tmp_path / "missing.h5ad"), str(foreign), str(good)]
    with pytest.raises(InputError, match=r"2 of 3 files cannot be used as they are: .*missing.h5ad, .*foreign.h5ad;"):
        run_check(CheckConfig(inputs=files, output=str(output)))
    out = capsys.readouterr().out
    assert "problem      no file" in out
    assert "problem      0 of 125 model genes (0.0 %) found" in out
    assert "model        toy (packaged): 0 of 125 genes (0.0%) found" in out
    assert "genes        200, Ensembl ids, human" in out
    assert "convert var_names from Ensembl ids to gene symbols" in out
    assert f"ok           scperformer predict {good}" in out
    assert [result["problem"] is None for result in json.loads(output.read_text())["files"]] == [False, False, True]


def test_reference(counts_adata, write, capsys):
    counts_adata.obs["cell_type"] = counts_adata.obs["cell_type"].where(np.arange(120) != 3)
    counts_adata.var_names = [f"OTHER{i}" for i in range(200)]  # a reference need not fit the packaged model
    path = write(counts_adata)
    results = run_check(CheckConfig(inputs=[str(path)], label_key="cell_type"))
    out = capsys.readouterr().out
    assert "labels       3 in cell_type, 119 cells" in out
    assert "note         cells without a label: 1" in out
    assert f"ok           scperformer train {path} label_key=cell_type" in out
    assert results[0]["labels"]["cells"] == {"B cell": 39, "T cell": 40, "Monocyte": 40}


def test_rare_labels_of_a_reference_are_named_and_no_problem(counts_adata, write, capsys):
    counts_adata.obs["cell_type"] = ["rare", *["a", "b"] * 59, "a"]
    results = run_check(CheckConfig(inputs=[str(write(counts_adata))], label_key="cell_type"))
    assert results[0]["problem"] is None
    assert results[0]["labels"]["rare"] == {"rare": 1}
    out = capsys.readouterr().out
    assert "note         1 label has fewer than 2 cells: 'rare' (1) (trained on but not validated; data.rare" in out
    assert "ok           scperformer train" in out


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            lambda obs: obs.rename(columns={"cell_type": "other"}),
            r"no column 'cell_type' .* expected other \(3 values\)",
        ),
        (lambda obs: obs.assign(cell_type="same"), "1 usable label in obs"),
    ],
    ids=["key", "one"],
)
def test_bad_reference(counts_adata, write, capsys, change, match):
    counts_adata.obs = change(counts_adata.obs)
    with pytest.raises(InputError, match="1 of 1 files cannot be used"):
        run_check(CheckConfig(inputs=[str(write(counts_adata))], label_key="cell_type"))
    assert pd.Series([capsys.readouterr().out]).str.contains(match).all()


@pytest.mark.skipif(not bundle.PACKAGED.is_dir(), reason="the packaged model has not been trained")
def test_packaged_model(pbmc, write, monkeypatch, capsys):
    monkeypatch.setattr("scperformer.model.load_bundle", load_bundle)
    results = run_check(CheckConfig(inputs=[str(write(pbmc))]))
    assert results[0]["overlap"]["share_of_model"] == 1.0
    assert "pbmc68k_reduced (packaged): 765 of 765 genes (100.0%) found, with 100.0% of" in capsys.readouterr().out


# what it says


def test_every_place_has_a_line_and_the_one_used_a_reason(counts_adata, write, capsys):
    adata = counts_adata
    adata.layers["counts"] = adata.X.copy()
    adata.X = np.log1p(adata.X.toarray() * (1e4 / adata.X.sum(axis=1)).A)
    adata.layers["scaled"] = adata.X - adata.X.mean(axis=0)
    adata.layers["unspliced"] = adata.layers["counts"]
    [result] = run_check(CheckConfig(inputs=[str(write(adata))]))
    out = capsys.readouterr().out
    assert "expression   counts in layers/counts: counts come first" in out
    assert "not used     X: log1p (natural logarithm, 10000 counts per cell)" in out
    assert "not used     layers/scaled: negative values" in out
    assert "not used     layers/unspliced: a part of the counts by its name" in out
    used = {place["source"]: place["used"] for place in result["findings"]["places"]}
    assert used == {"X": False, "layers/counts": True, "layers/scaled": False, "layers/unspliced": False}


def test_what_was_told_stays_in_the_command(counts_adata, write, capsys):
    counts_adata.layers["my layer"] = counts_adata.X
    path = write(counts_adata, "it's.h5ad")
    options = {"source": "layers/my layer", "input_kind": "counts", "min_overlap": 0.1}
    [result] = run_check(CheckConfig(inputs=[str(path)], doublets="false", **options))
    words = shlex.split(result["command"])
    assert words == [*("scperformer", "predict", str(path)), *(f"{name}={value}" for name, value in options.items())]


def test_json_and_nothing_else(command, counts_adata, pbmc, write, tmp_path):
    """Also of files with problems, without counts, and of cells with nothing in them."""
    empty = counts_adata.copy()
    empty.X = empty.X * 0
    few = counts_adata[:3].copy()
    files = [write(pbmc, "pbmc.h5ad"), write(empty, "empty.h5ad"), write(few, "few.h5ad"), tmp_path / "none.h5ad"]
    ran = command("check", *files, "--json", "output=same.json")
    assert ran.code == 2
    found = json.loads(ran.out, parse_constant=lambda name: pytest.fail(name))
    assert found == json.loads((tmp_path / "same.json").read_text())
    assert [result["problem"] is None for result in found["files"]] == [False, False, True, False]
    assert {result["file"] for result in found["files"]} == set(map(str, files))


def test_an_output_that_predict_would_not_replace_is_noted(counts_adata, write, capsys):
    path = write(counts_adata)
    path.with_suffix(".annotated.h5ad").touch()
    path.with_suffix(".annotated-2.h5ad").touch()
    (found,) = run_check(CheckConfig(inputs=[str(path)]))
    assert found["problem"] is None
    assert "sample.annotated.h5ad exists: predict needs output=..., or overwrite=true" in capsys.readouterr().out
    free = path.with_suffix(".annotated-3.h5ad")
    assert found["command"] == shlex.join(["scperformer", "predict", str(path), f"output={free}"])
    path.with_suffix(".model").mkdir()
    (found,) = run_check(CheckConfig(inputs=[str(path)], label_key="cell_type"))
    assert found["command"].endswith(f"output={path.with_name('sample-2.model')}")


def test_lines_fit_a_terminal(counts_adata, write, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "70")
    run_check(CheckConfig(inputs=[str(write(counts_adata))]))
    lines = capsys.readouterr().out.splitlines()[1:]
    assert max(len(line) for line in lines if not line.startswith("  ok")) <= 70
    assert any(line.startswith(" " * 15) for line in lines)


def test_obs_that_cannot_be_read_is_no_problem_of_predict(counts_adata, write, capsys):
    path = write(counts_adata)
    with h5py.File(path, "r+") as file:
        file["obs/cell_type"].attrs["encoding-type"] = "something new"
    assert run_check(CheckConfig(inputs=[str(path)]))[0]["label_columns"] is None
    assert "the columns of obs cannot be read" in capsys.readouterr().out


def test_repeated_cell_names_are_noted(counts_adata, write, capsys):
    counts_adata.obs_names = ["cell"] * 120
    run_check(CheckConfig(inputs=[str(write(counts_adata))]))
    assert "note         119 cell names repeat earlier ones" in capsys.readouterr().out


def test_matrices_stay_on_disk(counts_adata, write, monkeypatch):
    monkeypatch.setattr("scperformer.reports.check.read_cells", lambda *_: pytest.fail("the file is read as a whole"))
    assert run_check(CheckConfig(inputs=[str(write(counts_adata))]))[0]["problem"] is None


# its verdict is that of predict and train


def sample(counts_adata) -> ad.AnnData:
    """The cells with what the writers of every kind need."""
    counts_adata.var["gene_ids"] = [f"ENSG{i:011d}" for i in range(200)]
    counts_adata.obs["label"] = counts_adata.obs["cell_type"].astype(str)
    counts_adata.X = counts_adata.X.astype(np.int64)
    return counts_adata


def mixed(adata) -> None:
    x = adata.X.astype(np.float64).toarray()
    x[::2] = np.log1p(x[::2] * (1e4 / x[::2].sum(axis=1, keepdims=True)))
    adata.X = x


def nan(adata) -> None:
    adata.X = adata.X.astype(np.float64)
    adata.X.data[3] = np.nan


def scaled(adata) -> None:
    adata.X = adata.X.toarray() - adata.X.toarray().mean(axis=0)


def named(*names):
    def change(adata) -> None:
        adata.var_names = [*names, *(f"OTHER{i}" for i in range(200 - len(names)))]

    return change


def mouse(adata) -> None:
    adata.var_names = [f"Gene{i}" for i in range(200)]


def annotated(adata) -> None:
    adata.obs["scperformer_label"] = "B"


def damaged(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["X/indices"][0] = 10**6


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


CONTENTS = {
    "good": lambda adata: None,
    "mixed": mixed,
    "nan": nan,
    "scaled": scaled,
    "zeros": lambda adata: setattr(adata, "X", adata.X * 0),
    "few of the genes": named(*(f"GENE{i}" for i in range(14))),
    "none of the genes": named(),
    "genes without names": named("", "", *(f"GENE{i}" for i in range(100))),
    "genes twice": lambda adata: setattr(adata, "var_names", ["GENE7", *adata.var_names[1:]]),
    "mouse": mouse,
    "annotated before": annotated,
}


@pytest.fixture
def same_verdict(command, tiny_model, monkeypatch):
    """Run check and another step on a file; both must accept it or refuse it. Gives what check found, as JSON."""
    monkeypatch.setattr("scperformer.model.load_bundle", load_bundle)

    def run(path, step, *options, label_key=None, told=()) -> dict:
        labels = [] if label_key is None else [f"label_key={label_key}"]
        model = f"model_path={tiny_model}"
        checked = command("check", path, model, "doublets=false", "--json", *labels, *told)
        [result] = json.loads(checked.out)["files"]
        model = [model] if step == "predict" else []
        ran = command(step, path, *model, *labels, *told, *options)
        assert (checked.code, ran.code) in [(0, 0), (2, 2)], f"{result['problem']} / {ran.err}"
        assert (result["problem"] is None) == (result["command"] is not None) == (ran.code == 0)
        return result

    return run


@pytest.mark.parametrize("content", CONTENTS)
def test_verdict_of_predict(content, counts_adata, write, same_verdict):
    CONTENTS[content](counts_adata)
    result = same_verdict(write(counts_adata), "predict", "output=out.h5ad")
    assert (result["problem"] is None) == (content in ("good", "genes twice"))


@pytest.mark.parametrize("damage", [damaged, truncated])
def test_verdict_of_predict_on_damaged_files(damage, counts_adata, write, same_verdict):
    path = write(counts_adata)
    damage(path)
    assert same_verdict(path, "predict", "output=out.h5ad")["problem"] is not None


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (i % 2)) for i, kind in enumerate(WRITERS)]
)
def test_verdict_of_predict_on_every_kind(kind, counts_adata, tmp_path, same_verdict):
    path = WRITERS[kind](sample(counts_adata), tmp_path)
    assert same_verdict(path, "predict", "output=out.h5ad")["problem"] is None


LINEAR = ("experiment=linear", "logger=none", "output=model")


@pytest.mark.parametrize("content", ["good", "mixed", "nan", "none of the genes", "genes without names", "mouse"])
def test_verdict_of_train(content, counts_adata, write, same_verdict):
    CONTENTS[content](counts_adata)
    result = same_verdict(write(counts_adata), "train", *LINEAR, label_key="cell_type")
    assert (result["problem"] is None) == (content in ("good", "none of the genes", "mouse"))


REFERENCES = {
    "one label": lambda adata: setattr(adata, "obs", adata.obs.assign(cell_type="same")),
    "numbers": lambda adata: setattr(adata, "obs", adata.obs.assign(cell_type=np.linspace(0, 1, 120))),
    "few genes": lambda adata: setattr(adata, "X", adata.X.multiply(np.arange(200) < 30).tocsr()),
    "rare": lambda adata: setattr(adata, "obs", adata.obs.assign(cell_type=["rare", "also", *["a", "b"] * 59])),
    "other column": lambda adata: setattr(adata, "obs", adata.obs.rename(columns={"cell_type": "other"})),
}


@pytest.mark.parametrize("content", REFERENCES)
def test_verdict_of_train_on_labels(content, counts_adata, write, same_verdict):
    REFERENCES[content](counts_adata)
    result = same_verdict(write(counts_adata), "train", *LINEAR, label_key="cell_type")
    assert (result["problem"] is None) == (content == "rare")


# its advice works


def mends_of(result, command, *options) -> list[int]:
    """The exit codes of the commands that it advises."""
    return [
        command(*shlex.split(line)[1:], f"output=out{i}.h5ad", *options).code for i, line in enumerate(result["mends"])
    ]


@pytest.mark.parametrize("content", ["few of the genes", "mouse", "annotated before"])
def test_advised_options_mend_it(content, counts_adata, write, same_verdict, command):
    CONTENTS[content](counts_adata)
    result = same_verdict(write(counts_adata, "my sample.h5ad"), "predict", "output=out.h5ad")
    codes = mends_of(result, command)
    # The symbols of the toy model have no orthologs: only one of the two ways leads on.
    assert codes == {"few of the genes": [0], "mouse": [2, 0], "annotated before": [0, 0]}[content]


def test_orientation_mends_a_table_that_does_not_tell(counts_adata, tmp_path, same_verdict, command):
    table = counts_adata.to_df().iloc[:, :120]
    table.index = [f"T{i}" for i in range(120)]
    table.columns = [f"G{i}" for i in range(120)]
    path = tmp_path / "table.csv"
    table.to_csv(path)
    result = same_verdict(path, "predict", "output=out.h5ad")
    assert [line.rpartition(" ")[2] for line in result["mends"]] == [
        "orientation=cells_by_genes",
        "orientation=genes_by_cells",
    ]


def test_places_and_labels_that_there_are_mend_it(counts_adata, write, same_verdict, command):
    counts_adata.obs["my labels"] = counts_adata.obs.pop("cell_type")
    path = write(counts_adata)
    result = same_verdict(path, "predict", "output=out.h5ad", told=["source=layers/counts"])
    assert mends_of(result, command, "overwrite=true") == [0]
    result = same_verdict(path, "train", *LINEAR, label_key="cell_type")
    assert [shlex.split(line)[3] for line in result["mends"]] == ["label_key=my labels"]
    assert command(*shlex.split(result["mends"][0])[1:], *LINEAR).code == 0


def test_names_in_the_file_do_not_steer_the_terminal(counts_adata, write, tiny_model, command):
    counts_adata.obs["\x1b[31mcolumn\x1b[2J" + "x" * 5000] = ["a", "b", "c"] * 40
    counts_adata.layers["\x1b[2Jlayer" + "y" * 5000] = counts_adata.X
    path = write(counts_adata)
    out = command("check", path, f"model_path={tiny_model}").out
    assert "\x1b" not in out
    assert "column" in out
    assert max(map(len, out.splitlines())) < 500
