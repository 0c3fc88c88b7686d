"""Bad input is refused with one line (found, expected, remedy) and exit code 2, and nothing is left behind."""

import json
import os
import re
import shutil
from pathlib import Path

import anndata as ad
import numpy as np
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


EVERY_STEP = {
    "check": ("check", "bad.h5ad", "model_path=model"),
    "preprocess": ("preprocess", "bad.h5ad"),
    "train": ("train", "bad.h5ad", *TRAIN),
    "predict": ("predict", "bad.h5ad", "model_path=model"),
    "evaluate": ("evaluate", "bad.h5ad", "truth_key=cell_type"),
    "report": ("report", "bad.h5ad"),
}
each_step = pytest.mark.parametrize("step", EVERY_STEP)


@pytest.fixture
def problem(refused, command, model):
    """Return the problem that a step reports about bad.h5ad."""

    def run(step: str) -> str:
        error = refused(*EVERY_STEP[step])
        # check is a report about any number of files: the problems of each are in it.
        return command(*EVERY_STEP[step]).out if step == "check" else error

    return run


# Files that cannot be read


@each_step
def test_files_that_are_none(step, problem, tmp_path):
    bad = tmp_path / "bad.h5ad"
    assert mentions(problem(step), "no file bad.h5ad", "check the path")
    bad.write_bytes(b"cell,gene\n1,2\n")
    assert mentions(problem(step), "bad.h5ad is not an HDF5 file", "an h5ad file", "write_h5ad")
    bad.write_bytes(b"")
    assert mentions(problem(step), "bad.h5ad is empty")
    bad.unlink()
    bad.mkdir()
    assert mentions(problem(step), "bad.h5ad is a folder", "name the h5ad file itself")


@pytest.mark.parametrize(("step", "share"), [("check", 0.5), ("train", 0.2), ("predict", 0.0005), ("predict", 0.99)])
def test_truncated_file(step, share, sample, problem, tmp_path):
    content = sample.read_bytes()
    (tmp_path / "bad.h5ad").write_bytes(content[: int(share * len(content))])
    assert mentions(problem(step), "bad.h5ad is truncated", "copy or download it again")


@pytest.mark.parametrize("what", ["cell", "gene"])
@pytest.mark.parametrize("step", ["check", "train", "predict"])
def test_no_cells_or_genes(step, what, counts_adata, write, problem):
    empty = counts_adata[:0] if what == "cell" else counts_adata[:, :0]
    write(empty.copy(), "bad.h5ad")
    assert mentions(problem(step), f"no {what}s in bad.h5ad", f"at least one {what}")


def test_bad_files_do_not_stop_the_others_when_told_to_keep_going(counts_adata, write, model, tmp_path, command):
    write(counts_adata, "a.h5ad")
    (tmp_path / "b.h5ad").write_text("no h5ad file")
    write(counts_adata[:, :3].copy(), "c.h5ad")
    write(counts_adata[:7].copy(), "d.h5ad")
    files = [f"{name}.h5ad" for name in "abcd"]
    run = command("predict", *files, "model_path=model", "output_dir=out", "keep_going=true")
    assert run.code == 2
    lines = [line for line in run.err.splitlines() if line.startswith("error: ")]
    assert re.match(r"error: b\.h5ad: .*b\.h5ad.*; expected ", lines[0]), lines
    assert re.match(r"error: c\.h5ad: .*; expected ", lines[1]), lines
    assert lines[2].startswith("error: 2 of 4 files that cannot be annotated: b.h5ad, c.h5ad; expected ")
    made = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert [name.rpartition(".")[2] for name in made] == ["h5ad", "json", "json", "h5ad"]
    assert "scperformer_label" in ad.read_h5ad(tmp_path / "out" / made[-1]).obs


# Labels and expression


LABELS = {
    "single cells": ([f"Solo{i}" for i in range(120)], ("no labelled val cell", "cells on both sides", "add cells")),
    "no labels": ([np.nan] * 120, ("no cell of", "labelled cells")),
    "one label": (["B"] * 120, ("1 usable label", "two or more")),
    "numbers": (np.linspace(0, 1, 120), ("numbers with decimals", "expected labels", "set label_key=")),
}


@pytest.mark.parametrize("case", LABELS)
def test_bad_labels(case, counts_adata, write, refused):
    values, words = LABELS[case]
    counts_adata.obs["cell_type"] = values
    assert mentions(refused("train", write(counts_adata), *TRAIN), *words)


def test_wrong_label_key_lists_those_there_are(counts_adata, write, refused):
    counts_adata.obs["donor"] = np.repeat(["d1", "d2"], 60)
    error = refused("train", write(counts_adata), "label_key=celltype")
    assert mentions(error, "no column 'celltype'", "cell_type (3 values), donor (2 values)", "set label_key=")


EXPRESSION = {
    "NaN": (lambda x: np.where(np.arange(x.size).reshape(x.shape) == 7, np.nan, x), ("X: 1 NaN or infinite value",)),
    "negative": (lambda x: x - (np.arange(x.size).reshape(x.shape) == 7) * (x + 3), ("negative values down to -3",)),
    "scaled": (lambda x: (x - x.mean(0)) / (x.std(0) + 1), ("negative values", "scaled or centred")),
}


@pytest.mark.parametrize(("step", "case"), [*(("predict", case) for case in EXPRESSION), ("train", "scaled")])
def test_unusable_expression(step, case, counts_adata, write, problem):
    change, words = EXPRESSION[case]
    counts_adata.X = change(counts_adata.X.toarray()).astype(np.float32)
    write(counts_adata, "bad.h5ad")
    assert mentions(problem(step), "no usable expression in bad.h5ad", *words, "into X or layers")


def test_genes_without_names(counts_adata, write, problem):
    counts_adata.var_names = ["", "nan", *counts_adata.var_names[2:]]
    write(counts_adata, "bad.h5ad")
    for step in ("train", "predict"):
        assert mentions(problem(step), "2 genes of X of bad.h5ad have an empty name or NaN", "a name for every gene")


def test_no_overlap_with_the_genes_of_the_model(counts_adata, write, problem):
    counts_adata.var_names = [f"ENSG{i:011d}" for i in range(counts_adata.n_vars)]
    write(counts_adata, "bad.h5ad")
    words = ("0 of 200 model genes (0.0 %)", "ENSG000", "GENE1", "at least 20 %", "Ensembl ids to gene symbols")
    for step in ("check", "predict"):
        assert mentions(problem(step), *words)


# Outputs


NEEDS_ANNOTATION = {"evaluate": ("truth_key=bulk_labels",), "report": ()}
OUTPUTS = {"preprocess": (), "predict": ("model_path=model",), "train": TRAIN, **NEEDS_ANNOTATION}
each_output = pytest.mark.parametrize("step", OUTPUTS)


def input_for(step: str, sample: Path) -> Path:
    if step in NEEDS_ANNOTATION:
        annotated_sample().write_h5ad(sample)
    return sample


@each_output
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
@each_output
def test_folder_without_permission(step, sample, model, tmp_path, refused):
    folder = tmp_path / "readonly"
    folder.mkdir(mode=0o500)
    error = refused(step, input_for(step, sample), *OUTPUTS[step], f"output={folder / 'out'}")
    assert mentions(error, "cannot be written", "write permission")


def test_keys_that_exist(counts_adata, write, model, refused):
    counts_adata.obs["scperformer_label"] = "B"
    error = refused("predict", write(counts_adata), "model_path=model")
    assert mentions(error, "already has obs['scperformer_label']", "replace_annotation=true", "key_added=")


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


def test_model_of_a_newer_format(sample, model, refused):
    path = model / "bundle.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format_version": 99}))
    assert mentions(refused("predict", sample, "model_path=model"), "model format 99", "update scperformer")


@pytest.mark.parametrize("path", ["nowhere", "sample.h5ad", "folder"])
def test_no_model_there(path, sample, tmp_path, refused):
    (tmp_path / "folder").mkdir()
    error = refused("predict", sample, f"model_path={path}")
    assert mentions(error, f"at '{path}'", "a model folder", "scperformer train")


@pytest.mark.parametrize("step", NEEDS_ANNOTATION)
def test_not_annotated(step, sample, refused):
    error = refused(step, sample, *NEEDS_ANNOTATION[step])
    assert mentions(error, "no obs column 'scperformer_call'", "scperformer predict", str(sample))


# Options


OPTIONS = {
    "unknown key": ("train", ["colour=red"], ("option colour", "--help' lists")),
    "unknown key in a group": ("train", ["trainer.max_epoch=5"], ("option trainer.max_epoch=5;", "trainer.max_epochs")),
    "text for a number": ("train", ["trainer.max_epochs=many"], ("trainer.max_epochs=many", "a whole number")),
    "text for a switch": ("train", ["overwrite=perhaps"], ("overwrite=perhaps", "true or false")),
    "unknown choice": ("train", ["model=huge"], ("model=huge", "base, performer, pooled, scbert, tiny")),
    "broken syntax": ("train", ["head.hidden=[1,"], ("head.hidden=[1,",)),
    "missing value": ("train", ["label_key=???"], ("no label_key", "label_key=...")),
    "interpolation": ("train", ["seed=${no_such}"], ("no_such",)),
    "no epochs": ("train", ["trainer.max_epochs=0"], ("trainer.max_epochs=0", "1 or more")),
    "NaN": ("train", ["optim.lr=nan"], ("optim.lr=nan", "a number")),
    "no branch": ("train", ["model.linear=false", "model.encoder=false"], ("model.linear or model.encoder on",)),
    "too many tokens": ("train", ["attention=softmax", "attention.max_length=3"], ("at most 3", "attention=favor")),
    "filter of cells": ("train", ["data.min_genes=99999"], ("drops all 120 cells", "lower it")),
    "unknown source": ("predict", ["source=Y"], ("source=Y", "layers/NAME")),
    "overlap": ("predict", ["min_overlap=2"], ("min_overlap=2.0", "0 to 1")),
    "device": ("predict", ["device=tpu"], ("device=tpu", "auto, cpu, cuda")),
    "slash in key": ("predict", ["key_added=a/b"], ("key_added='a/b'", "without '/'")),
    "unknown flag": ("predict", ["--model", "x"], ("'--model'", "option=value")),
    "flag with a wrong value": ("predict", ["--cfg", "yaml"], ("--cfg yaml", "job")),
    "standard input": ("predict", ["-"], ("'-'", "a file")),
    "one output for two files": ("predict", ["b.h5ad", "output=a.h5ad"], ("{sample}",)),
}
NEEDED = {"train": TRAIN, "predict": ("model_path=model",)}


@pytest.mark.parametrize("case", OPTIONS)
def test_bad_options(case, sample, model, refused):
    step, options, words = OPTIONS[case]
    assert mentions(refused(step, sample, *NEEDED[step], *options), *words)


def test_no_gpu(sample, model, refused):
    import torch

    if torch.cuda.is_available() or torch.backends.mps.is_available():
        pytest.skip("there is a GPU")
    assert mentions(refused("train", sample, *TRAIN, "trainer=gpu"), "no GPU", "trainer=cpu")
    assert mentions(refused("predict", sample, "model_path=model", "device=cuda"), "without a GPU", "device=cpu")


def test_what_is_missing_on_the_command_line(sample, refused):
    for step, option in (("train", "label_key"), ("evaluate", "truth_key")):
        assert mentions(refused(step, sample), f"no {option}", f"add {option}=...")
        assert mentions(refused(step, f"{option}=x"), "no input file", f"scperformer {step}")
    assert mentions(refused("anotate", "sample.h5ad"), "step 'anotate'", "preprocess, pretrain, train", "--help")
