"""Bad input is refused with one line (found, expected, remedy) and exit code 2, and nothing is left behind."""

import shutil
from pathlib import Path

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
    "train": ("train", "bad.h5ad", *TRAIN),
    "predict": ("predict", "bad.h5ad", "model_path=model"),
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


def test_truncated_file(sample, problem, tmp_path):
    content = sample.read_bytes()
    (tmp_path / "bad.h5ad").write_bytes(content[: int(0.99 * len(content))])
    assert mentions(problem("predict"), "bad.h5ad is truncated", "copy or download it again")


@pytest.mark.parametrize(("step", "what"), [("train", "cell"), ("predict", "gene")])
def test_no_cells_or_genes(step, what, counts_adata, write, problem):
    empty = counts_adata[:0] if what == "cell" else counts_adata[:, :0]
    write(empty.copy(), "bad.h5ad")
    assert mentions(problem(step), f"no {what}s in bad.h5ad", f"at least one {what}")


# Labels and expression


LABELS = {
    "one label": (["B"] * 120, ("1 usable label", "two or more")),
    "numbers": (
        np.linspace(0, 1, 120),
        ("numbers with decimals", "expected labels", "set label_key="),
    ),
}


@pytest.mark.parametrize("case", LABELS)
def test_bad_labels(case, counts_adata, write, refused):
    values, words = LABELS[case]
    counts_adata.obs["cell_type"] = values
    assert mentions(refused("train", write(counts_adata), *TRAIN), *words)


EXPRESSION = {
    "NaN": (
        lambda x: np.where(np.arange(x.size).reshape(x.shape) == 7, np.nan, x),
        ("X: 1 NaN or infinite value",),
    ),
    "scaled": (
        lambda x: (x - x.mean(0)) / (x.std(0) + 1),
        ("negative values", "scaled or centred"),
    ),
}


@pytest.mark.parametrize(
    ("step", "case"), [*(("predict", case) for case in EXPRESSION), ("train", "scaled")]
)
def test_unusable_expression(step, case, counts_adata, write, problem):
    change, words = EXPRESSION[case]
    counts_adata.X = change(counts_adata.X.toarray()).astype(np.float32)
    write(counts_adata, "bad.h5ad")
    assert mentions(problem(step), "no usable expression in bad.h5ad", *words, "into X or layers")


def test_genes_without_names(counts_adata, write, problem):
    counts_adata.var_names = ["", "nan", *counts_adata.var_names[2:]]
    write(counts_adata, "bad.h5ad")
    for step in ("train", "predict"):
        assert mentions(
            problem(step),
            "2 genes of X of bad.h5ad have an empty name or NaN",
            "a name for every gene",
        )


def test_no_overlap_with_the_genes_of_the_model(counts_adata, write, problem):
    counts_adata.var_names = [f"ENSG{i:011d}" for i in range(counts_adata.n_vars)]
    write(counts_adata, "bad.h5ad")
    words = (
        "0 of 200 model genes (0.0 %)",
        "ENSG000",
        "GENE1",
        "at least 20 %",
        "Ensembl ids to gene symbols",
    )
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
    assert mentions(
        refused(step, path, *options, f"output={own}"), f"{own} exists", "choose another output="
    )
    error = refused(step, path, *options, f"output={other}", "overwrite=true")
    assert mentions(error, f"{other} is a {'file' if makes_folder else 'folder'}")
    if makes_folder:
        error = refused(step, path, *options, "output=out", "overwrite=true")
        assert mentions(error, "out is a folder without", "choose another output=")


# Models


@pytest.mark.parametrize("name", ["bundle.json", "model.safetensors", "cells.npz"])
def test_damaged_model(name, sample, model, refused):
    content = (model / name).read_bytes()
    (model / name).write_bytes(content[: len(content) // 2])
    assert mentions(refused("predict", sample, "model_path=model"), "model", name)


# Options


OPTIONS = {
    "unknown key": ("train", ["colour=red"], ("option colour", "--help' lists")),
    "text for a number": (
        "train",
        ["trainer.max_epochs=many"],
        ("trainer.max_epochs=many", "a whole number"),
    ),
    "broken syntax": ("train", ["head.hidden=[1,"], ("head.hidden=[1,",)),
    "NaN": ("train", ["optim.lr=nan"], ("optim.lr=nan", "a number")),
    "no branch": (
        "train",
        ["model.linear=false", "model.encoder=false"],
        ("model.linear or model.encoder on",),
    ),
    "too many tokens": (
        "train",
        ["attention=softmax", "attention.max_length=3"],
        ("at most 3", "attention=favor"),
    ),
    "filter of cells": ("train", ["data.min_genes=99999"], ("drops all 120 cells", "lower it")),
    "device": ("predict", ["device=tpu"], ("device=tpu", "auto, cpu, cuda")),
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
    assert mentions(
        refused("predict", sample, "model_path=model", "device=cuda"), "without a GPU", "device=cpu"
    )


def test_what_is_missing_on_the_command_line(sample, refused):
    for step, option, verb in (("train", "label_key", "set"), ("evaluate", "truth_key", "add")):
        assert mentions(refused(step, sample), f"no {option}", f"{verb} {option}=...")
        assert mentions(refused(step, f"{option}=x"), "no input file", f"scperformer {step}")
    assert mentions(
        refused("anotate", "sample.h5ad"), "step 'anotate'", "preprocess, pretrain, train", "--help"
    )
