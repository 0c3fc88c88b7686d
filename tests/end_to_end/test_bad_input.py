"""Bad input is refused with one line (found, expected, remedy) and exit code 2, and nothing is left behind."""

import json
import os
import re
import shutil
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from support.annotated import annotated_sample

TRAIN = ("label_key=cell_type", "model=tiny", "trainer.max_epochs=1", "logger=none")


@pytest.fixture
def sample(counts_adata, write) -> Path:
    """A good file, `sample.h5ad`."""
    return write(counts_adata)


@pytest.fixture
def model(tiny_model, tmp_path) -> Path:
    """A model folder `model` that the test may damage."""
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def mentions(text: str, *words: str) -> bool:
    missing = [word for word in words if word not in text]
    assert not missing, f"{missing} not in: {text}"
    return True


# Files that cannot be read


EVERY_STEP = {
    "check": ("check", "bad.h5ad", "model_path=model"),
    "preprocess": ("preprocess", "bad.h5ad"),
    "train": ("train", "bad.h5ad", *TRAIN),
    "predict": ("predict", "bad.h5ad", "model_path=model"),
    "evaluate": ("evaluate", "bad.h5ad", "truth_key=cell_type"),
    "report": ("report", "bad.h5ad"),
}
CONTENT = {
    "text": b"cell,gene\n1,2\n",
    "png": b"\x89PNG\r\n\x1a\n" + bytes(100),
    "empty": b"",
}


def bad_file(step: str, refused, command) -> str:
    """Return the problem that a step reports about bad.h5ad."""
    error = refused(*EVERY_STEP[step])
    # check is a report about any number of files: the problems of each are in it.
    return command(*EVERY_STEP[step]).out if step == "check" else error


CASES = [*((step, "text") for step in EVERY_STEP), ("predict", "png"), ("train", "empty")]


@pytest.mark.parametrize(("step", "content"), CASES)
def test_not_an_h5ad_file(step, content, model, tmp_path, refused, command):
    (tmp_path / "bad.h5ad").write_bytes(CONTENT[content])
    what = "is empty" if content == "empty" else "is not an HDF5 file"
    assert mentions(bad_file(step, refused, command), f"bad.h5ad {what}", "an h5ad file", "write_h5ad")


@pytest.mark.parametrize("step", EVERY_STEP)
def test_missing_file(step, model, refused, command):
    assert mentions(bad_file(step, refused, command), "no file bad.h5ad", "check the path")


@pytest.mark.parametrize(
    ("step", "share"), [*((step, 0.5) for step in EVERY_STEP), *(("predict", share) for share in (0.0005, 0.2, 0.99))]
)
def test_truncated_file(step, share, sample, model, tmp_path, refused, command):
    content = sample.read_bytes()
    (tmp_path / "bad.h5ad").write_bytes(content[: int(share * len(content))])
    assert mentions(bad_file(step, refused, command), "bad.h5ad is truncated", "copy or download it again")


@pytest.mark.parametrize("step", EVERY_STEP)
def test_a_folder(step, model, tmp_path, refused, command):
    (tmp_path / "bad.h5ad").mkdir()
    assert mentions(bad_file(step, refused, command), "bad.h5ad is a folder", "name the h5ad file itself")


@pytest.mark.parametrize(("step", "name"), [("train", "."), ("predict", "."), ("predict", ""), ("report", "")])
def test_a_name_without_file(step, name, model, refused):
    _, _, *options = EVERY_STEP[step]
    assert mentions(refused(step, name, *options), ". is a folder")


@pytest.mark.parametrize(
    ("step", "what"),
    [("check", "cell"), ("preprocess", "gene"), ("train", "cell"), ("predict", "cell"), ("predict", "gene")],
)
def test_no_cells_or_genes(step, what, counts_adata, write, model, refused, command):
    empty = counts_adata[:0] if what == "cell" else counts_adata[:, :0]
    write(empty.copy(), "bad.h5ad")
    assert mentions(bad_file(step, refused, command), f"no {what}s in bad.h5ad", f"at least one {what}")


def test_a_second_file_that_is_missing_stops_the_first(sample, model, refused):
    assert mentions(refused("predict", sample, "other.h5ad", "model_path=model"), "no file other.h5ad")


def test_a_file_named_twice(sample, model, refused):
    assert mentions(refused("predict", sample, sample, "model_path=model"), "two inputs give", "sample.annotated.h5ad")


def test_bad_files_do_not_stop_the_others_when_told_to_keep_going(counts_adata, write, model, tmp_path, command):
    write(counts_adata, "a.h5ad")
    (tmp_path / "b.h5ad").write_text("no h5ad file")
    write(counts_adata[:, :3].copy(), "c.h5ad")
    write(counts_adata[:7].copy(), "d.h5ad")
    files = [f"{name}.h5ad" for name in "abcd"]
    outputs = ",".join(f"out/{name}" for name in files)
    run = command("predict", *files, "model_path=model", f"outputs=[{outputs}]", "keep_going=true")
    assert run.code == 2
    lines = [line for line in run.err.splitlines() if line.startswith("error: ")]
    assert re.match(r"error: b\.h5ad: .*b\.h5ad.*; expected ", lines[0]), lines
    assert re.match(r"error: c\.h5ad: .*; expected ", lines[1]), lines
    assert lines[2].startswith("error: 2 of 4 files that cannot be annotated: b.h5ad, c.h5ad; expected ")
    assert len(lines) == 3
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *("a.h5ad", "b.failed.json", "c.failed.json", "d.h5ad")
    ]
    assert "scperformer_label" in ad.read_h5ad(tmp_path / "out/d.h5ad").obs


def test_outputs_that_do_not_fit_the_files(sample, model, refused):
    few = refused("predict", sample, sample, "model_path=model", "outputs=[a.h5ad]")
    assert mentions(few, "2 outputs, one per input file")
    both = refused("predict", sample, "model_path=model", "outputs=[a.h5ad]", "output=b.h5ad")
    assert mentions(both, "no output beside outputs")
    same = refused("predict", sample, sample, "model_path=model", "outputs=[a.h5ad,a.h5ad]")
    assert mentions(same, "two inputs give a.h5ad")
    assert mentions(refused("predict", sample, sample, "model_path=model", "output=a.h5ad"), "output_dir=FOLDER")
    both = refused("predict", sample, "model_path=model", "output_dir=out", "output=b.h5ad")
    assert mentions(both, "no output or outputs beside it")


# Labels


@pytest.mark.parametrize("step", ["check", "train"])
def test_wrong_label_key_lists_those_there_are(step, counts_adata, write, model, refused, command):
    counts_adata.obs["donor"] = np.repeat(["d1", "d2"], 60)
    write(counts_adata)
    options = ["model_path=model"] if step == "check" else ["model=tiny"]
    error = refused(step, "sample.h5ad", "label_key=celltype", *options)
    text = command(step, "sample.h5ad", "label_key=celltype", *options).out if step == "check" else error
    assert mentions(text, "no column 'celltype'", "cell_type (3 values), donor (2 values)", "set label_key=")


LABELS = {
    "single cells": ([f"Solo{i}" for i in range(120)], ("no labelled val cell", "cells on both sides", "add cells")),
    "no labels": ([np.nan] * 120, ("no cell of", "labelled cells")),
    "blank labels": (["  "] * 120, ("no cell of", "labelled cells")),
    "one label": (["B"] * 120, ("1 usable label", "two or more")),
    "numbers": (np.linspace(0, 1, 120), ("numbers with decimals", "expected labels", "set label_key=")),
}


@pytest.mark.parametrize("case", LABELS)
def test_bad_labels(case, counts_adata, write, refused):
    values, words = LABELS[case]
    counts_adata.obs["cell_type"] = values
    assert mentions(refused("train", write(counts_adata), *TRAIN), *words)


# Expression


EXPRESSION = {
    "NaN": (lambda x: np.where(np.arange(x.size).reshape(x.shape) == 7, np.nan, x), ("X: 1 NaN or infinite value",)),
    "negative": (lambda x: x - (np.arange(x.size).reshape(x.shape) == 7) * (x + 3), ("negative values down to -3",)),
    "scaled": (lambda x: (x - x.mean(0)) / (x.std(0) + 1), ("negative values", "scaled or centred")),
}


UNUSABLE = [
    *(("predict", case) for case in EXPRESSION),
    *((step, "scaled") for step in ("check", "preprocess", "train")),
]


@pytest.mark.parametrize(("step", "case"), UNUSABLE)
def test_unusable_expression(step, case, counts_adata, write, model, refused, command):
    change, words = EXPRESSION[case]
    counts_adata.X = change(counts_adata.X.toarray()).astype(np.float32)
    write(counts_adata, "bad.h5ad")
    text = bad_file(step, refused, command)
    assert mentions(text, "no usable expression in bad.h5ad", *words, "put the counts into X")


@pytest.mark.parametrize("step", ["check", "preprocess", "train", "predict"])
def test_genes_without_names(step, counts_adata, write, model, refused, command):
    counts_adata.var_names = ["", "nan", *counts_adata.var_names[2:]]
    write(counts_adata, "bad.h5ad")
    words = ("2 genes of X of bad.h5ad have an empty name or NaN", "a name for every gene", "drop these genes")
    assert mentions(bad_file(step, refused, command), *words)


def test_no_overlap_with_the_genes_of_the_model(counts_adata, write, model, refused, command):
    counts_adata.var_names = [f"ENSG{i:011d}" for i in range(counts_adata.n_vars)]
    write(counts_adata, "bad.h5ad")
    words = ("0 of 200 model genes (0.0 %)", "ENSG000", "GENE1", "at least 20 %", "Ensembl ids to gene symbols")
    for step in ("check", "predict"):
        assert mentions(bad_file(step, refused, command), *words)
    assert mentions(refused("preprocess", "bad.h5ad", "model_path=model"), *words)


@pytest.mark.parametrize("place", ["X", "raw"])
@pytest.mark.slow
def test_the_column_that_holds_the_genes_of_the_model_is_named(place, counts_adata, write, model, refused, command):
    counts_adata.var["my_names"] = counts_adata.var_names
    counts_adata.var_names = [f"ENSG{i:011d}" for i in range(counts_adata.n_vars)]
    if place == "raw":
        counts_adata.raw = counts_adata
        del counts_adata.var["my_names"]
    write(counts_adata, "bad.h5ad")
    for words in (EVERY_STEP["check"], EVERY_STEP["predict"], ("preprocess", "bad.h5ad", "model_path=model")):
        step, *rest = words
        error = refused(step, *rest, f"source={place}")
        text = command(step, *rest, f"source={place}").out if step == "check" else error
        assert mentions(text, 'var["my_names"]')


def test_a_place_that_does_not_exist(sample, model, refused):
    error = refused("predict", sample, "model_path=model", "source=layers/spliced")
    assert mentions(error, "no layers/spliced in", "it has X", "set source=")


# Outputs


NEEDS_ANNOTATION = {"evaluate": ("truth_key=bulk_labels",), "report": ()}
OUTPUTS = {
    "check": ("model_path=model",),
    "preprocess": (),
    "predict": ("model_path=model",),
    "train": TRAIN,
    **NEEDS_ANNOTATION,
}


def input_for(step: str, sample: Path) -> Path:
    if step in NEEDS_ANNOTATION:
        annotated_sample().write_h5ad(sample)
    return sample


@pytest.mark.parametrize("step", OUTPUTS)
def test_output_exists(step, sample, model, tmp_path, refused):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("precious")
    (tmp_path / "out.file").write_text("precious")
    path, options = input_for(step, sample), OUTPUTS[step]
    makes_folder = step in ("train", "evaluate")
    own, other = ("out", "out.file") if makes_folder else ("out.file", "out")
    assert mentions(refused(step, path, *options, f"output={own}"), f"{own} exists", "choose another output=")
    error = refused(step, path, *options, f"output={other}", "overwrite=true")
    assert mentions(error, f"{other} is a {'file' if makes_folder else 'folder'}")
    if makes_folder:
        error = refused(step, path, *options, "output=out", "overwrite=true")
        assert mentions(error, "out is a folder without", "choose another output=")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("step", OUTPUTS)
def test_folder_without_permission(step, sample, model, tmp_path, refused):
    folder = tmp_path / "readonly"
    folder.mkdir(mode=0o500)
    error = refused(step, input_for(step, sample), *OUTPUTS[step], f"output={folder / 'out'}")
    assert mentions(error, "cannot be written", "write permission")


def test_parent_of_the_output_is_a_file(sample, model, tmp_path, refused):
    (tmp_path / "notes").touch()
    error = refused("predict", sample, "model_path=model", "output=notes/out.h5ad")
    assert mentions(error, "cannot be created", "choose another output=")


PLACES = {
    "obs": (lambda adata: adata.obs.insert(0, "scperformer_label", "B"), "obs['scperformer_label']"),
    "obsm": (lambda adata: adata.obsm.update(X_scperformer=np.zeros((120, 2))), "obsm['X_scperformer']"),
    "uns": (lambda adata: adata.uns.update(scperformer={"a": 1}), "uns['scperformer']"),
}


@pytest.mark.parametrize("place", PLACES)
def test_keys_that_exist(place, counts_adata, write, model, refused):
    change, name = PLACES[place]
    change(counts_adata)
    error = refused("predict", write(counts_adata), "model_path=model")
    assert mentions(error, f"already has {name}", "replace_annotation=true", "key_added=")


# Models


@pytest.mark.parametrize("name", ["bundle.json", "model.safetensors", "genes.tsv", "cells.npz"])
@pytest.mark.parametrize("damage", ["missing", "cut", "garbage"])
def test_damaged_model(name, damage, sample, model, refused):
    file = model / name
    content = file.read_bytes()
    file.unlink()
    if damage != "missing":
        file.write_bytes(content[: len(content) // 2] if damage == "cut" else b"\xff\x00garbage")
    assert mentions(refused("predict", sample, "model_path=model"), "model", name)


def change_saved(model: Path, **entries) -> None:
    path = model / "bundle.json"
    info = json.loads(path.read_text())
    for name, value in entries.items():
        info[name] = info[name] | value if isinstance(value, dict) else value
    path.write_text(json.dumps(info))


CHANGES = {
    "labels are no list": {"labels": 3},
    "fewer labels": {"labels": ["B cell"]},
    "no configuration": {"config": None},
    "unknown option": {"config": {"tokens": {"colour": "red"}}},
    "unknown attention": {"config": {"attention": {"name": "telepathy"}}},
    "other size": {"config": {"model": {"dim": 8}}},
    "no origin": {"provenance": None},
    "no checksums": {"files": None},
}


@pytest.mark.parametrize("case", CHANGES)
def test_model_changed_by_hand(case, sample, model, refused):
    change_saved(model, **CHANGES[case])
    assert mentions(refused("predict", sample, "model_path=model"), "damaged model 'model'", "train it again")


@pytest.mark.parametrize("step", ["check", "preprocess", "predict"])
def test_model_of_a_newer_format(step, sample, model, refused):
    change_saved(model, format_version=99)
    assert mentions(refused(step, sample, "model_path=model"), "model format 99", "format 7", "update scperformer")


@pytest.mark.parametrize(
    ("step", "path"),
    [
        ("check", "nowhere"),
        ("preprocess", "nowhere"),
        *(("predict", path) for path in ("nowhere", "sample.h5ad", "folder")),
    ],
)
def test_no_model_there(step, path, sample, tmp_path, refused):
    (tmp_path / "folder").mkdir()
    assert mentions(refused(step, sample, f"model_path={path}"), f"at '{path}'", "a model folder", "scperformer train")


# Options


OPTIONS = {
    "unknown key": ("train", ["colour=red"], ("option colour", "--help' lists")),
    "unknown key in a group": ("train", ["trainer.max_epoch=5"], ("option trainer.max_epoch;", "trainer.max_epochs")),
    "unknown key added": ("train", ["+trainer.max_epoch=5"], ("option +trainer.max_epoch=5", "--help' lists")),
    "text for a number": ("train", ["trainer.max_epochs=many"], ("trainer.max_epochs=many", "a whole number")),
    "fraction for a number": ("train", ["seed=1.5"], ("seed=1.5", "a whole number")),
    "text for a switch": ("train", ["overwrite=perhaps"], ("overwrite=perhaps", "true or false")),
    "unknown choice": ("train", ["model=huge"], ("model=huge", "base, performer, pooled, scbert, tiny")),
    "number as choice": ("train", ["data=5"], ("data=5", "(default)")),
    "null as choice": ("train", ["data=null"], ("data=null", "'data' (default)", "leave data=... out")),
    "null in a sweep": ("train", ["-m", "data=default,null"], ("data=default,null", "'data' (default)")),
    "nothing as choice": ("train", ["optim="], ("optim=", "adamw")),
    "broken syntax": ("train", ["head.hidden=[1,"], ("head.hidden=[1,",)),
    "missing value": ("train", ["label_key=???"], ("no label_key", "label_key=...")),
    "interpolation": ("train", ["seed=${no_such}"], ("no_such",)),
    "no epochs": ("train", ["trainer.max_epochs=0"], ("trainer.max_epochs=0", "1 or more")),
    "all for validation": ("train", ["data.val_fraction=1"], ("data.val_fraction=1.0", "between 0 and 1")),
    "NaN": ("train", ["optim.lr=nan"], ("optim.lr=nan", "a number")),
    "unknown precision": ("train", ["trainer.precision=8"], ("trainer.precision=8", "32-true, bf16-mixed")),
    "unknown head": ("train", ["head.name=two"], ("head.name=two", "mean, cls, conv, weighted")),
    "unknown attention": (
        "train",
        ["attention=two"],
        ("attention=two", "a preset of 'attention' (conv, evo, favor, linformer, lsh, rbf, softmax, window)"),
    ),
    "attention by its full name": (
        "train",
        ["attention.name=two"],
        ("attention.name", "choose the mechanism with attention=NAME"),
    ),
    "no branch": (
        "train",
        ["model.linear=false", "model.encoder=false"],
        ("model.encoder=False", "model.linear or model.encoder on"),
    ),
    "too many tokens": ("train", ["attention=softmax", "attention.max_length=3"], ("at most 3", "attention=favor")),
    "filter of cells": ("train", ["data.min_genes=99999"], ("drops all 120 cells", "lower it")),
    "filter of genes": ("train", ["data.min_cells=99999"], ("drops all 200 genes", "lower it")),
    "unknown source": ("predict", ["source=Y"], ("source=Y", "layers/NAME")),
    "overlap": ("predict", ["min_overlap=2"], ("min_overlap=2.0", "0 to 1")),
    "confidence": ("predict", ["min_confidence=-0.1"], ("min_confidence=-0.1", "0 to 1")),
    "batch size": ("predict", ["batch_size=0"], ("batch_size=0", "1 or more")),
    "device": ("predict", ["device=tpu"], ("device=tpu", "auto, cpu, cuda")),
    "no key": ("predict", ["key_added="], ("key_added=''", "a name")),
    "slash in key": ("predict", ["key_added=a/b"], ("key_added='a/b'", "without '/'")),
    "cells of a picture": ("report", ["max_cells=1"], ("max_cells=1", "10 or more")),
    "unknown flag": ("predict", ["--model", "x"], ("'--model'", "option=value")),
    "flag without value": ("predict", ["--cfg"], ("--cfg without a value", "job")),
    "flag with a wrong value": ("predict", ["--cfg", "yaml"], ("--cfg yaml", "job")),
    "standard input": ("predict", ["-"], ("'-'", "a file")),
}
NEEDED = {"train": TRAIN, "predict": ("model_path=model",), "report": ()}


@pytest.mark.parametrize("case", OPTIONS)
def test_bad_options(case, sample, model, refused):
    step, options, words = OPTIONS[case]
    assert mentions(refused(step, sample, *NEEDED[step], *options), *words)


@pytest.mark.parametrize(
    ("step", "word"), [("check", "model=tiny"), ("preprocess", "model=tiny"), ("predict", "+model=tiny")]
)
def test_a_preset_where_a_trained_model_is_meant(step, word, sample, refused):
    error = refused(step, sample, word)
    assert mentions(error, "'model'", word, "name a trained model with model_path=FOLDER", "--help' lists")
    assert "use +" not in error


def test_no_gpu(sample, model, refused):
    import torch

    if torch.cuda.is_available() or torch.backends.mps.is_available():
        pytest.skip("there is a GPU")
    assert mentions(refused("train", sample, *TRAIN, "trainer=gpu"), "no GPU", "trainer=cpu")
    assert mentions(refused("predict", sample, "model_path=model", "device=cuda"), "without a GPU", "device=cpu")


@pytest.mark.parametrize("words", [("train", *TRAIN), ("pretrain",)], ids=["train", "pretrain"])
def test_a_missing_gpu_is_noticed_before_any_file_is_read(words, sample, command):
    import torch

    if torch.cuda.is_available() or torch.backends.mps.is_available():
        pytest.skip("there is a GPU")
    step, *options = words
    first, error = command(step, sample, *options, "trainer=gpu").err.splitlines()
    assert first.startswith(f"scperformer {step}")
    assert "no GPU" in error


@pytest.mark.parametrize(("step", "option"), [("train", "label_key"), ("evaluate", "truth_key")])
def test_required_option(step, option, sample, refused):
    assert mentions(refused(step, sample), f"no {option}", f"add {option}=...")


@pytest.mark.parametrize("step", OUTPUTS)
def test_no_input_file(step, refused):
    needed = {"train": ["label_key=x"], "evaluate": ["truth_key=x"]}
    assert mentions(refused(step, *needed.get(step, [])), "no input file", f"scperformer {step}")


def test_more_files_than_one(sample, refused):
    assert mentions(refused("preprocess", sample, sample), "2 input files", "exactly one file")
    assert mentions(refused("train", sample, sample, *NEEDED["train"]), "twice", "expected each file once")


def test_one_output_for_many_files(sample, model, refused):
    error = refused("predict", sample, "b.h5ad", "model_path=model", "output=x.h5ad")
    assert mentions(error, "output=x.h5ad", "a name with {sample} for several files")


def test_unknown_step(refused):
    said = refused("anotate", "sample.h5ad")
    assert mentions(said, "step 'anotate'", "preprocess, pretrain, train, predict", "--help")


# Annotated files


@pytest.mark.parametrize("step", NEEDS_ANNOTATION)
def test_not_annotated(step, sample, refused):
    error = refused(step, sample, *NEEDS_ANNOTATION[step])
    assert mentions(error, "no obs column 'scperformer_label'", "scperformer predict", str(sample))


@pytest.mark.parametrize("step", NEEDS_ANNOTATION)
def test_annotated_under_another_name(step, sample, refused):
    annotated_sample(key="second").write_h5ad(sample)
    assert mentions(refused(step, sample, *NEEDS_ANNOTATION[step]), "add key_added=second")


def test_wrong_truth_key_lists_those_there_are(sample, refused):
    annotated_sample().write_h5ad(sample)
    error = refused("evaluate", sample, "truth_key=celltype")
    assert mentions(error, "no column 'celltype'", "bulk_labels", "set truth_key=")


def test_truth_tables(sample, tmp_path, refused):
    annotated_sample().write_h5ad(sample)
    pd.DataFrame({"cell": ["nobody"], "truth": ["B"]}).to_csv(tmp_path / "truth.csv", index=False)
    evaluate = ("evaluate", sample, "truth_key=truth")
    assert mentions(refused(*evaluate, "truth_path=[none.csv]"), "no file none.csv", "a table of true labels")
    assert mentions(refused(*evaluate, "truth_path=[truth.csv,truth.csv]"), "1 tables", "truth_path")
    assert mentions(refused(*evaluate, "truth_path=[truth.csv]"), "none of the 140 cells", "'nobody'")
    error = refused("evaluate", sample, "truth_key=label", "truth_path=[truth.csv]")
    assert mentions(error, "no column 'label' in truth.csv", "one of truth")


def test_report_with_no_evaluation(sample, refused):
    annotated_sample().write_h5ad(sample)
    assert mentions(refused("report", sample, "evaluation=nowhere"), "no evaluation in nowhere", "scperformer evaluate")
