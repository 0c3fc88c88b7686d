"""Model folders and texts that mean harm: one clear line or a right, escaped output; nothing of them is executed."""

import json
import os
import shutil
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file, save
from support.annotated import annotated_sample
from support.measured import TensorBytes

from scperformer.base.errors import InputError, one_line
from scperformer.base.messages import escape_formula, name_problem
from scperformer.command.sweep import Sweep
from scperformer.files import sha256
from scperformer.model import read_model
from scperformer.network import load_model
from scperformer.reports.evaluate import read_evaluation


@pytest.fixture
def model(tiny_model, tmp_path) -> Path:
    """A model folder whose content the test may replace, with checksums that fit."""
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def change(model: Path, **entries) -> None:
    info = json.loads((model / "bundle.json").read_text())
    for name, value in entries.items():
        info[name] = info[name] | value if isinstance(value, dict) else value
    info["files"] = {name: sha256(model / name) for name in info["files"]}
    (model / "bundle.json").write_text(json.dumps(info))


def change_weights(model: Path, **arrays) -> None:
    weights = load_file(model / "model.safetensors") | arrays
    (model / "model.safetensors").write_bytes(save(weights))
    change(model)


# Sizes


SIZES = {  # more of them in tests/network/test_load.py
    "dim": {"model": {"dim": 10**9}},
    "depth": {"model": {"depth": 10**9}},
    "features": {"attention": {"num_features": 10**9}},
    "window": {"attention": {"name": "window", "half_width": 10**9}},
}


@pytest.mark.parametrize("case", SIZES)
def test_sizes_are_those_of_the_weights(case, model):
    """Refused before anything of the size is made."""
    config = json.loads((model / "bundle.json").read_text())["config"]
    for group, options in SIZES[case].items():
        config[group] = options if "name" in options and group == "attention" else config[group] | options
    change(model, config=config)
    with TensorBytes() as tensors, pytest.raises(InputError, match=r"damaged model '.*': "):
        load_model(model)
    assert tensors.largest < 2**20


def header(shape: list[int], end: int) -> bytes:
    text = json.dumps({"model.a": {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}}).encode()
    return len(text).to_bytes(8, "little") + text


WEIGHTS = {
    "huge shape": header([10**9, 10**9], 8),
    "huge offsets": header([2], 2**60) + bytes(8),
    "overflow": header([2**62, 4], 8) + bytes(8),
    "negative": header([-2], 8) + bytes(8),
    "huge header": (2**62).to_bytes(8, "little") + b"{}",
    "nested header": (10**5).to_bytes(8, "little") + b"[" * 10**5,
    "pickle": b"\x80\x04\x95" + bytes(100),
    "nothing": b"",
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_weights_that_lie(case, model):
    (model / "model.safetensors").write_bytes(WEIGHTS[case])
    change(model)
    with pytest.raises(InputError, match=r"'model.safetensors' unreadable"):
        read_model(model)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["baseline.weight", "model.linear.bias"])
def test_weights_that_are_no_numbers(name, value, model):
    array = load_file(model / "model.safetensors")[name].copy()
    array.flat[0] = value
    change_weights(model, **{name: array})
    with pytest.raises(InputError, match=f"NaN or infinite numbers in {name}"):
        read_model(model)


@pytest.mark.parametrize("name", ["baseline.weight", "baseline.bias"])
def test_logistic_regression_of_other_shapes(name, model):
    change_weights(model, **{name: np.zeros((2, 2), dtype=np.float32)})
    with pytest.raises(InputError, match=f"{name} does not fit"):
        read_model(model)


def test_json_is_not_read_when_it_is_huge(model):
    os.truncate(model / "bundle.json", 2**30)  # sparse: takes no room on the disk
    with pytest.raises(InputError, match=r"'bundle.json' of 1,073,741,824 bytes"):
        read_model(model)


@pytest.mark.parametrize("name", ["bundle.json", "genes.tsv", "model.safetensors"])
def test_links_that_leave_the_folder(name, model, tmp_path):
    (model / name).rename(tmp_path / "secret")
    (model / name).symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match=r"no bundle\.json|missing or changed"):
        read_model(model)


# Content


CONTENT = {
    "labels that are numbers": {"labels": [1, 2, 3]},
    "labels that are lists": {"labels": [["B cell"], "T cell", "x"]},
    "empty labels": {"labels": ["", "b", "c"]},
    "labels twice": {"labels": ["a", "a", "b"]},
    "newline": {"labels": ["a\nerror: b", "b", "c"]},
    "escape": {"labels": ["\x1b[2J", "b", "c"]},
    "long": {"labels": ["x" * 10_000, "b", "c"]},
    "surrogate": {"labels": ["\ud800", "b", "c"]},
    "name": {"name": "a\nb"},
    "no terms": {"ontology_term_ids": []},
    "terms that are numbers": {"ontology_term_ids": [1, 2, 3]},
    "tree that is a list": {"tree": ["a"]},
    "tree without terms": {"tree": {"parents": {}}},
    "tree with a number": {"tree": {"parents": {"B cell": 3}, "terms": {}}},
    "tree with a cycle": {"tree": {"parents": {"B cell": "x", "x": "B cell"}, "terms": {}}},
    "tree of other labels": {"tree": {"parents": {"Z cell": "x"}, "terms": {}}},
    "deep tree": {"tree": {"parents": {f"n{i}": f"n{i + 1}" for i in range(10_000)} | {"B cell": "n0"}, "terms": {}}},
    "target": {"config": {"target_sum": "much"}},
    "no target": {"config": {"target_sum": float("nan")}},
    "scales": {"metrics": {"scales": {"linear": "x"}}},
    "list of scales": {"metrics": {"scales": [1, 2]}},
    "scale of no branch": {"metrics": {"scales": {"shallow": 1.0}}},
    "infinite scale": {"metrics": {"scales": {"linear": float("inf")}}},
    "reference": {"provenance": {"reference": ["x"]}},
    "seed": {"provenance": {"seed": 10**30}},
    "group": {"config": {"head": ["mean"]}},
    "attention": {"config": {"attention": "favor"}},
    "name of attention": {"config": {"attention": {"name": ["favor"]}}},
    "type of an option": {"config": {"tokens": {"name": "bins", "num_bins": 2.5}}},
}


@pytest.mark.parametrize("case", CONTENT)
def test_content_of_wrong_types(case, model, counts_adata, write, command):
    info = json.loads((model / "bundle.json").read_text())
    for name, value in CONTENT[case].items():
        info[name] = info.get(name, {}) | value if isinstance(value, dict) else value
    (model / "bundle.json").write_text(json.dumps(info))
    ran = command("predict", write(counts_adata), "model_path=model")
    assert ran.code == 2, ran.err
    (line,) = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: damaged model 'model': ")
    assert len(line) < 600
    assert line.isprintable()
    assert not Path("sample.annotated.h5ad").exists()


# Texts


TEXTS = ["<script>alert(1)</script>", "=1+1", "+cmd|' /C calc'!A0", "../../x", "a/b", "a|b", 'q"uo"te', "a,b;c\td"[:5]]


def test_what_can_be_a_name():
    assert [name_problem(text) for text in [*TEXTS, "Naïve T", "x" * 1000]] == [None] * (len(TEXTS) + 2)
    assert name_problem(3) == "is not text"
    assert name_problem(" ") == "is empty"
    assert name_problem("a\u2028b") == "has the control character U+2028"
    assert name_problem("x" * 1001) == "has 1,001 characters (most: 1,000)"


def test_formulas_are_defused():
    assert [escape_formula(text) for text in ("=1", "+1", "-1", "@a", "\ta", "\ra", "a=1", "")] == [
        *("'=1", "'+1", "'-1", "'@a", "'\ta", "'\ra"),
        *("a=1", ""),
    ]


def test_messages_cannot_steer_a_terminal():
    assert one_line("a\n\x1b[2Jb\u202ec") == "a \ufffd[2Jb\ufffdc"
    error = str(InputError("x" * 10**5, "y", "z\x07"))
    assert len(error) < 2500
    assert error.isprintable()


@pytest.mark.slow
def test_hostile_names_from_training_to_prediction(counts_adata, write, command):
    labels = np.array(["=1+1", "<script>alert(1)</script>", "../../x"])[np.arange(120) % 3]
    counts_adata.obs["cell_type"] = labels
    counts_adata.obs["=cmd"] = "<b>"
    counts_adata.obs_names = ["=HYPERLINK(1)", "<img src=x>", "../../etc", *counts_adata.obs_names[3:]]
    counts_adata.var_names = ["=1+1", "<b>", "../x", *counts_adata.var_names[3:]]
    path = write(counts_adata)
    options = ("label_key=cell_type", "model=tiny", "trainer.max_epochs=1", "logger=none", "output=hostile")
    assert command("train", path, *options).code == 0
    assert command("predict", path, "model_path=hostile", "output=out.h5ad").code == 0
    found = ad.read_h5ad("out.h5ad")
    assert list(found.obs["scperformer_label"].cat.categories) == sorted(set(labels))
    assert list(found.obs_names) == list(counts_adata.obs_names)
    assert command("predict", path, "model_path=hostile", "output=out.csv").code == 0
    table = pd.read_csv("out.csv")
    assert set(table["scperformer_label"]) <= {"'=1+1", "<script>alert(1)</script>", "../../x"}
    assert table["cell"][0] == "'=HYPERLINK(1)"
    assert command("evaluate", "out.h5ad", "truth_key=cell_type", "output=scores").code == 0
    for name in ("per_class.csv", "confusion.csv"):
        text = Path("scores", name).read_text()
        assert "'=1+1" in text
        assert not [line for line in text.splitlines() if line.startswith(("=", "+", "@")) or ",=" in line]
    evaluation = read_evaluation("scores")
    assert list(evaluation.per_class["label"]) == list(evaluation.confusion.index) == sorted(set(labels))
    ran = command("report", "out.h5ad", "evaluation=scores", "output=page.html")
    assert ran.code == 0, ran.err
    page = Path("page.html").read_text()
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert sorted(path.name for path in Path("..").iterdir() if path.name in ("x", "etc")) == []


@pytest.mark.parametrize("label", ["a\nb", "x" * 10_000, "\x1b[2J"])
def test_labels_that_no_line_can_hold_are_refused_before_training(label, counts_adata, write, command):
    counts_adata.obs["cell_type"] = np.array([label, "B", "C"])[np.arange(120) % 3]
    ran = command("train", write(counts_adata), "label_key=cell_type", "model=tiny", "output=m")
    assert ran.code == 2
    (line,) = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert "labels of a line of text" in line
    assert line.isprintable()
    assert not Path("m").exists()


@pytest.mark.slow
def test_labels_that_differ_in_a_slash_only(counts_adata, write, command):
    counts_adata.obs["cell_type"] = np.array(["a/b", "a|b", "c"])[np.arange(120) % 3]
    path = write(counts_adata)
    ran = command(
        *("train", path, "label_key=cell_type", "model=tiny", "trainer.max_epochs=1", "logger=none", "output=m")
    )
    assert ran.code == 0, ran.err
    assert command("predict", path, "model_path=m").code == 0
    found = ad.read_h5ad("sample.annotated.h5ad")
    assert list(found.obsm["scperformer_proba"].columns) == ["a|b|", "a|b", "c"]


@pytest.mark.parametrize("step", ["evaluate", pytest.param("report", marks=pytest.mark.slow)])
def test_names_of_annotated_files(step, command, tmp_path):
    sample = annotated_sample(rename={"Dendritic": "<img src=x onerror=alert(1)>\n=2"})
    sample.write_h5ad(tmp_path / "<b>x.h5ad")
    options = {"evaluate": ("truth_key=bulk_labels", "output=e"), "report": ("output=r.html",)}
    ran = command(step, "<b>x.h5ad", *options[step])
    assert ran.code == 0, ran.err
    if step == "report":
        page = Path("r.html").read_text()
        assert "<img src=x" not in page
        assert "<b>x" not in page


def test_tables_of_sweeps(tmp_path):
    sweep = Sweep(tmp_path)
    with pytest.raises(ValueError, match="1"), sweep.job(tmp_path / "0", ["+label_key==1+1", "optim.lr=-1e-3"]):
        raise ValueError("=1+1\n\x1b[2J| x")
    _, row = (tmp_path / "runs.csv").read_text().splitlines()
    assert "'=1+1" in row
    assert ",-1e-3," in row
    assert "\x1b" not in row
    assert len(sweep.markdown().splitlines()) == 5


BYTES = os.fsdecode(b"s\xff\xe9")  # of a name in Latin-1, as old disks have them


@pytest.mark.parametrize(
    "words",
    [
        ["predict", f"{BYTES}.h5ad"],
        ["check", f"{BYTES}.h5ad"],
        ["train", f"{BYTES}.h5ad", "label_key=cell_type"],
        ["preprocess", f"{BYTES}.h5ad"],
        ["report", f"{BYTES}.h5ad"],
        ["predict", "ok.h5ad", f"output={BYTES}.h5ad"],
    ],
    ids=" ".join,
)
def test_names_that_are_not_utf8_are_one_line(words, command, counts_adata, write, tiny_model, tmp_path):
    os.rename(write(counts_adata, "ok.h5ad"), tmp_path / f"{BYTES}.h5ad")
    write(counts_adata, "ok.h5ad")
    more = [f"model_path={tiny_model}"] if words[0] in ("predict", "check") else []
    ran = command(*words, *more)
    assert ran.code == 2
    assert "a name that is not UTF-8" in ran.err + ran.out
    assert "Traceback" not in ran.err
    assert len(list(tmp_path.iterdir())) == 2


def test_a_model_in_such_a_folder_is_used(command, counts_adata, write, tiny_model, tmp_path):
    shutil.copytree(tiny_model, tmp_path / BYTES)
    ran = command("predict", write(counts_adata), f"model_path={tmp_path / BYTES}", "output=out.h5ad")
    assert ran.code == 0, ran.err
    assert ad.read_h5ad("out.h5ad").uns["scperformer"]["model"]["path"].endswith("s\ufffd\ufffd")
