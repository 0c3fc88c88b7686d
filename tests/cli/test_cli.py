"""The command line: help, files and options in any order and of any name, exit codes, no litter."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import anndata as ad
import pytest
import torch
from support import forked
from support.refusal import refusal

from scperformer.cli.arguments import sort_words
from scperformer.cli.compose import make_config
from scperformer.cli.steps import STEPS
from scperformer.config.descriptions import option_texts
from scperformer.config.steps import SCHEMAS
from scperformer.model.folder import PACKAGED_MODEL

AWKWARD = [
    *(
        "a b.h5ad",
        "a,b.h5ad",
        "n=5.h5ad",
        "overwrite=true.h5ad",
        "it's.h5ad",
        'say "hi".h5ad',
        "$HOME ${x}.h5ad",
    ),
    *(
        "[1] {2} (3).h5ad",
        "Größe 细胞.h5ad",
        "back\\slash.h5ad",
        "~tilde.h5ad",
        "#1 50% & more!.h5ad",
    ),
]


@pytest.fixture
def sample(counts_adata, write) -> Path:
    return write(counts_adata)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# Help


@pytest.mark.parametrize("words", [[], ["--help"]])
def test_help_names_every_step(command, words):
    ran = command(*words)
    assert (ran.code, ran.err) == (0, "")
    assert all(f"\n  {step} " in ran.out for step in STEPS)
    assert max(map(len, ran.out.splitlines())) <= 100


@pytest.mark.parametrize("step", STEPS)
def test_help_of_a_step_shows_examples(command, step):
    ran = command(step, "some.h5ad", "--help")
    assert (ran.code, ran.err) == (0, "")
    assert f"scperformer {step} " in ran.out
    assert STEPS[step].EXAMPLES in ran.out


@pytest.mark.parametrize("step", STEPS)
def test_examples_are_valid_commands(step):
    """Every example is of its step: its options exist and take these values."""
    for line in STEPS[step].EXAMPLES.splitlines():
        if line.strip().startswith("scperformer"):
            words = line.partition("#")[0].split()[1:]
            plain = [
                word.split(",")[0] if "=" in word and "[" not in word else word for word in words
            ]
            assert plain[0] == step
            step_of_options = "train" if step == "bench" else step
            config = make_config(step_of_options, sort_words(plain[1:], step_of_options)[0])
            assert isinstance(config, SCHEMAS[step_of_options]), line


# Words


def test_files_stand_anywhere_among_the_options():
    wanted = (
        ["min_confidence=0.5", "batch_size=8", "inputs=['a.h5ad','b.h5ad']"],
        {"--cfg": "job"},
    )
    assert (
        sort_words(
            ["a.h5ad", "min_confidence=0.5", "b.h5ad", "batch_size=8", "--cfg", "job"], "predict"
        )
        == wanted
    )
    assert (
        sort_words(
            ["--cfg", "job", "min_confidence=0.5", "a.h5ad", "batch_size=8", "b.h5ad"], "predict"
        )
        == wanted
    )
    # longer than a file name may be
    long = f"deny_labels=[{','.join(f'label_{number}' for number in range(60))}]"
    assert sort_words([long, "a.h5ad"], "predict")[0] == [long, "inputs=['a.h5ad']"]


def test_a_home_folder_is_found_in_options_where_no_shell_looks_for_it(monkeypatch):
    monkeypatch.setenv("HOME", "/srv/me")
    words = [
        "~/a.h5ad",
        "truth_path=[~/a.csv,~/b.csv]",
        "output=~/o",
        "truth_key=~a",
        "evaluation=x~/y",
    ]
    wanted = [
        "truth_path=[/srv/me/a.csv,/srv/me/b.csv]",
        "output='/srv/me/o'",
        "truth_key='~a'",
        "evaluation=x~/y",
    ]
    assert sort_words(words, "evaluate")[0] == [*wanted, "inputs=['/srv/me/a.h5ad']"]


def test_words_are_quoted_when_they_are_the_users_own():
    words = [
        "label_key=cell type",
        "output=it's",
        "model=tiny",
        "tissue='as is'",
        "init=null",
        "genes_path=",
    ]
    wanted = ["label_key='cell type'", r"output='it\'s'", *words[2:]]
    assert sort_words(words, "train") == (wanted, {})
    several = ["attention=favor,softmax", "label_key=a,b"]
    assert sort_words(several, "train", several=True) == (several, {})


@pytest.mark.parametrize(
    ("words", "code", "remedy"),
    [
        (["-x"], "bad-argument", "./-name"),
        (["--output"], "bad-argument", "output=VALUE"),
        (["output", "=", "x"], "blank-in-option", "output=VALUE"),
        (["-o"], "bad-argument", "output=VALUE"),
        (["-m"], "bad-argument", "'scperformer bench'"),
        (["--cfg"], "flag-value", "--cfg job"),
        (["--cfg", "all of it"], "flag-value", "--cfg all of it"),
        (["--config-dir"], "flag-value", "--config-dir FOLDER"),
        (["--plugin", "a.py"], "bad-argument", "scperformer --plugin FILE predict"),
    ],
)
def test_flags_that_are_refused(words, code, remedy):
    with refusal(code, remedy):
        sort_words(["a.h5ad", *words], "predict")


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["predcit", "a.h5ad"], "did you mean 'predict'? "),
        (["anotate", "a.h5ad"], "did you mean 'predict'? "),
        (["analyse", "a.h5ad"], "did you mean 'analyze'? "),
        (["predict", "a.h5ad", "model_pth=mine"], "did you mean model_path? "),
        (["train", "a.h5ad", "label_key=x", "model.dept=2"], "did you mean model.depth? "),
        (
            ["train", "a.h5ad", "label_key=x", "seed=1,2"],
            "or train once for each value by 'scperformer bench'",
        ),
        (["predict", "--help", "model"], "'model' after --help; expected one of files"),
        (["train", "a.h5ad", "label_key=x", "model=tyni"], "did you mean 'tiny'? "),
        (["train", "a.h5ad", "label_key=x", "data.split=strat"], "did you mean 'stratified'? "),
        (["predict", "Reference.h5ad"], "did you mean 'reference.h5ad'? check the path"),
        (
            ["predict", "reference.h5ad", "model_path=my_modle"],
            "did you mean 'my_model'? set model_path",
        ),
    ],
)
def test_words_that_are_nearly_right(command, words, remedy, cells, write, tmp_path):
    write(cells, "reference.h5ad")
    (tmp_path / "my_model").mkdir()
    ran = command(*words)
    assert ran.code == 2
    assert remedy in ran.err


def test_help_lists_every_option_with_its_default(command):
    text = command("train", "--help").out
    assert "  label_key=null " in text
    assert "  truth_key=... (required)" in command("evaluate", "--help").out
    assert "  seed=0 " in text
    assert re.search(r"more options: .* model, ", text)
    assert "  model.depth=1 " in command("train", "--help", "model").out
    options = {
        line.partition("=")[0].strip() for line in text.splitlines() if re.match(r"  \w+=", line)
    }
    assert options >= {option.name for option in option_texts("train")}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (place % 3 > 0))
        for place, name in enumerate(AWKWARD)
    ],
)
def test_awkward_names_of_files(command, counts_adata, write, name):
    """As input and as output: check reads the very file, and writes to the very name."""
    write(counts_adata, name)
    ran = command("preprocess", "data.min_genes=1", name, f"output=out {name}")
    assert ran.code == 0, ran.err
    assert f"out {name}" in os.listdir()


# Running


def test_config_is_shown_and_nothing_runs(command, tmp_path):
    ran = command(
        "train",
        "none.h5ad",
        "label_key=celltype",
        "model=tiny",
        "trainer.max_epochs=7",
        "--cfg",
        "job",
    )
    assert (ran.code, ran.err) == (0, "")
    assert all(
        line in ran.out
        for line in ("label_key: celltype", "dim: 32", "max_epochs: 7", "- none.h5ad")
    )
    assert names(tmp_path) == []


def test_predict_writes_one_file_beside_the_input(command, sample, tiny_model, tmp_path):
    ran = command("predict", sample, f"model_path={tiny_model}", "key_added=mine")
    assert ran.code == 0
    assert ran.out == ""
    assert "3 labels: B cell, Monocyte, T cell" in ran.err
    assert names(tmp_path) == ["sample.annotated.h5ad", "sample.h5ad"]
    annotated = ad.read_h5ad(tmp_path / "sample.annotated.h5ad")
    assert set(annotated.obs["mine_label"]) <= {"B cell", "Monocyte", "T cell"}
    assert list(annotated.uns) == ["mine"]
    again = command(
        "predict", tmp_path / "sample.annotated.h5ad", f"model_path={tiny_model}", "key_added=mine"
    )
    assert again.code == 2
    both = command(
        "predict",
        tmp_path / "sample.annotated.h5ad",
        f"model_path={tiny_model}",
        "output=both.h5ad",
    )
    assert both.code == 0
    assert {"mine", "scperformer"} == set(ad.read_h5ad(tmp_path / "both.h5ad").uns)


def test_the_page_on_formats_names_everything_written(command, sample, tiny_model, tmp_path):
    """docs/formats.md against the files themselves: annotation, model folder, evaluation."""
    page = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
    words = (sample, f"model_path={tiny_model}", "key_added=KEY", "alpha=0.2", "output=a.h5ad")
    assert command("predict", *words).code == 0
    assert (
        command(
            "evaluate", "a.h5ad", "key_added=KEY", "truth_key=cell_type", "output=evaluation"
        ).code
        == 0
    )
    annotated = ad.read_h5ad(tmp_path / "a.h5ad")
    written = [name for name in [*annotated.obs, *annotated.obsm] if "KEY" in name]
    for name, value in annotated.uns["KEY"].items():
        encoder = isinstance(value, dict) and name != "versions"
        written += [f"{name}/{part}" for part in value] if encoder else [name]
    saved = json.loads((tiny_model / "bundle.json").read_text())
    metrics = json.loads((tmp_path / "evaluation" / "metrics.json").read_text())
    for entries in (saved, saved["metrics"], saved["provenance"], metrics):
        written += entries
    written += names(tiny_model) + names(tmp_path / "evaluation")
    assert [name for name in written if f"`{name}`" not in page] == []


def test_packaged_model(command, pbmc, write):
    ran = command("predict", write(pbmc), "adapt=false")
    assert ran.code == 0, ran.err
    labels = json.loads((PACKAGED_MODEL / "bundle.json").read_text())["labels"]
    assert f"model {PACKAGED_MODEL.name} (packaged" in ran.err
    assert ", ".join(labels) in ran.err
    found = ad.read_h5ad("sample.annotated.h5ad").obs
    # sorted cells, where the labels of both data sets mean the same
    b_cells = found["bulk_labels"] == "CD19+ B"
    assert (found["scperformer_label"][b_cells] == "B").mean() > 0.8
    assert (found["scperformer_label"][~b_cells] == "B").mean() < 0.05


ERRORS = {
    "full disk": (
        OSError(28, "No space left", "/data/out"),
        "error: the disk is full (/data/out); expected ",
    ),
    "full disk of HDF5": (
        OSError("Can't write data (errno = 28, error"),
        "error: the disk is full;",
    ),
    "no permission": (
        PermissionError(13, "Permission denied", "x"),
        "error: no permission (x); expected ",
    ),
    "read-only": (OSError(30, "Read-only file system", "x"), "error: no permission (x)"),
    "broken disk": (OSError(5, "Input/output error"), "error: Input/output error; expected "),
    "memory": (MemoryError(), "error: memory ran out; expected "),
    "memory of a GPU": (
        torch.OutOfMemoryError("CUDA out of memory"),
        "error: the memory of the GPU ran out",
    ),
    "memory of torch": (
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you"),
        "error: memory ran out; ",
    ),
    "memory of a library": (
        ImportError("x.so: failed to map segment from shared object"),
        "error: memory ran out; ",
    ),
    "a bug": (KeyError("a\nb"), "internal error: KeyError: 'a\\nb' (mock.py:"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_no_traceback_reaches_a_user(command, sample, monkeypatch, name):
    error, line = ERRORS[name]
    monkeypatch.setattr("scperformer.annotation.predict.annotate_file", Mock(side_effect=error))
    ran = command("predict", sample)
    assert ran.code == (1 if name == "a bug" else 2)
    assert f"\n{line}" in ran.err
    assert "Traceback" not in ran.err
    monkeypatch.setenv("SCPERFORMER_DEBUG", "1")
    with pytest.raises(type(error)):
        command("predict", sample)


def test_exit_code_of_a_process(tmp_path):
    ran = forked.run("scperformer", "preprocess", "none.h5ad", cwd=tmp_path)
    assert ran.returncode == 2
    first, *_, line = ran.stderr.splitlines()  # a slow machine says that it goes on
    assert first == "scperformer preprocess none.h5ad"
    assert line.startswith("error: no file none.h5ad; expected an h5ad file, 10x .h5")
    assert line.endswith(": check the path.")
    assert names(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "code"), [("| head -n 1", 141), ("2>&- > out", 0), (">&- 2>&-", 0)]
)
def test_pipes_that_close_are_quiet(end, code, sample, tiny_model, tmp_path):
    files = " ".join([str(sample)] * 3)
    line = f"{sys.executable} -m scperformer check {files} model_path={tiny_model} {end}; exit ${{PIPESTATUS[0]}}"
    ran = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert ran.returncode in (code, 0), ran.stderr
    assert not re.search(
        r"^(error|internal error|Traceback|Exception|BrokenPipeError)", ran.stderr, re.MULTILINE
    )
