"""The configuration of the workflow and its sample sheet: what is read, and what is refused in one line."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.refusal import refusal

from scperformer.cli.compose import make_config
from scperformer.cli.workflow import workflow_folder
from scperformer.cli.workflow_config import Workflow, read_workflow, require_labelled
from scperformer.model.folder import PACKAGED_MODEL

REFERENCE = {"reference": "reference.h5ad", "sample_sheet": "samples.tsv"}
MODEL = {"model_path": "model", "sample_sheet": "samples.tsv"}


def read(config: Any) -> Workflow:
    return read_workflow(config, workflow_folder())


def write_sheet(name: str, *rows: str) -> None:
    """A sample sheet from rows whose fields are separated by one space."""
    Path(name).write_text("".join("\t".join(row.split(" ")) + "\n" for row in rows))


@pytest.fixture(autouse=True)
def user(tmp_path, monkeypatch) -> Path:
    """The working folder: a reference, three samples and a model, without content."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCPERFORMER_MODELS", str(tmp_path / "models"))
    for name in ("reference.h5ad", "a.h5ad", "b.h5ad", "c.h5ad"):
        (tmp_path / name).touch()
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("cell,cell_type\ncell0,B cell\n")
    (tmp_path / "model").mkdir()
    write_sheet(
        "samples.tsv",
        "sample path truth donor",
        "a a.h5ad a.csv d1",
        "b b.h5ad b.csv d2",
        "c c.h5ad ",
    )
    return tmp_path


def test_all_keys_have_defaults():
    workflow = read({})
    assert (workflow.references, workflow.samples, workflow.model) == ([], {}, "")
    cfg = workflow.cfg
    assert (cfg.label_key, workflow.output_dir, cfg.predict_jobs, cfg.gpu) == (
        "cell_type",
        "results",
        8,
        0,
    )
    assert read({"output_dir": None}) == workflow
    with refusal("workflow-config"):
        read({"predict-jobs": 1})


def test_without_samples_and_embedded_data_a_sheet_is_asked_for(tmp_path):
    with refusal("no-sample-sheet"):
        read_workflow({}, tmp_path / "snakefiles")


def test_samples_and_options_are_read():
    options = {"train": {"seed": 3}, "predict": ["clusters=auto", "alpha=0.1"]}
    workflow = read({**REFERENCE, "label_key": "type", "output_dir": "out/", "overrides": options})
    assert workflow.references == ["reference.h5ad"]
    assert workflow.samples["a"] == {"path": "a.h5ad", "truth": "a.csv", "donor": "d1"}
    assert workflow.samples["c"] == {"path": "c.h5ad"}
    assert (workflow.truth_key, workflow.output_dir) == ("type", "out")
    assert (workflow.options["train"], workflow.options["predict"]) == (
        ["seed=3"],
        ["clusters='auto'", "alpha=0.1"],
    )
    assert workflow.options["report"] == []


@pytest.mark.parametrize(
    "given", ["alpha=0.1 clusters='my leiden'", {"alpha": 0.1, "clusters": "my leiden"}]
)
def test_overrides_are_words_of_the_command_line_or_a_mapping(given):
    words = read(MODEL | overrides(predict=given)).options["predict"]
    options = make_config("predict", ["inputs=[a]", *words])
    assert (options.alpha, options.clusters) == (0.1, "my leiden")


def test_an_option_of_a_step_is_refused_with_the_place_where_it_goes(refused):
    error = refused("workflow", "samples.tsv", "clusters=leiden")
    assert 'write overrides: {predict: "clusters=..."} into a file for --config' in error


def test_the_tissue_and_the_least_confidence_go_to_predict():
    sheet = {"sample_sheet": "samples.tsv", "tissue": "mouse lung", "min_confidence": 0.9}
    words = read(sheet | overrides(predict={"min_confidence": 0.5, "alpha": 0.1})).options[
        "predict"
    ]
    options = make_config("predict", ["inputs=[a]", *words])
    assert (options.tissue, options.min_confidence, options.alpha) == ("mouse lung", 0.9, 0.1)
    with refusal("tissue-and-model", "mouse lung"):
        read(REFERENCE | {"tissue": "mouse lung"})
    with refusal("workflow-overrides", "overrides"):
        read(sheet | {"min_confidence": None} | overrides(predict={"min_confidence": 2}))


def test_references_without_the_labels_are_refused(counts_adata):
    counts_adata.write_h5ad("reference.h5ad")
    require_labelled(read(REFERENCE))
    require_labelled(read(MODEL))
    with refusal("no-column"):
        require_labelled(read(REFERENCE | {"label_key": "cel_type"}))
    with refusal("no-column"):
        require_labelled(
            read(REFERENCE | overrides(train={"label_keys": ["lineage", "cell_type"]}))
        )
    del counts_adata.obs["cell_type"]
    counts_adata.write_zarr("z.zarr")
    with refusal("no-column"):
        require_labelled(read(REFERENCE | {"reference": ["reference.h5ad", "z.zarr"]}))


def test_truth_without_its_column_is_refused(counts_adata):
    require_labelled(read(MODEL))
    with refusal("no-column"):
        require_labelled(read(MODEL | {"label_key": "type"}))
    counts_adata.write_h5ad("a.h5ad")
    write_sheet("samples.tsv", "sample path truth_key", "a a.h5ad cell_typ", "b b.h5ad ")
    with refusal("no-column"):
        require_labelled(read(MODEL))


def test_several_references_are_studies():
    workflow = read({"reference": ["reference.h5ad", "b.h5ad"], "sample_sheet": "samples.tsv"})
    assert workflow.references == ["reference.h5ad", "b.h5ad"]
    Path("other").mkdir()
    shutil.copy("b.h5ad", "other")
    with refusal("same-name-twice"):
        read({"reference": ["b.h5ad", "other/b.h5ad"], "sample_sheet": "samples.tsv"})


def test_models_are_found_by_name_as_in_predict(user):
    assert read({"model_path": "pbmc3k", "sample_sheet": "samples.tsv"}).model == str(
        PACKAGED_MODEL
    )
    shutil.copytree(PACKAGED_MODEL, user / "models/mine")
    assert read({"model_path": "mine", "sample_sheet": "samples.tsv"}).model == str(
        user / "models/mine"
    )
    with refusal("no-file"):
        read({"model_path": "pbmc4k", "sample_sheet": "samples.tsv"})


def test_without_a_model_the_tissue_of_each_sample_is_found(user, monkeypatch):
    samples = {"sample_sheet": "samples.tsv"}
    monkeypatch.delenv("SCPERFORMER_MODEL", raising=False)
    assert (read(samples).model, read(samples).references) == ("", [])
    monkeypatch.setenv("SCPERFORMER_MODEL", "model")
    assert read(samples).model == "model"
    assert read(REFERENCE).model == ""
    assert read(samples | overrides(predict=["tissue=pancreas"])).model == ""
    monkeypatch.setenv("SCPERFORMER_MODEL", "gone")
    with refusal("no-file"):
        read(samples)


def overrides(**steps):
    return {"overrides": steps}


IN_OVERRIDES, CONFIG = "workflow-overrides", "workflow-config"
REFUSED = {
    "unknown key": ({"refrence": "reference.h5ad"}, CONFIG, "'refrence'", "'reference'"),
    "no mapping": (["reference"], CONFIG),
    "wrong type": ({"label_key": ["a"]}, "bad-option", "label_key=[a]"),
    "unknown option": (
        overrides(predict=["batchsize=8"]),
        IN_OVERRIDES,
        "predict",
        "batchsize",
        "batch_size",
    ),
    "option by name": (
        overrides(predict={"batchsize": 8}),
        IN_OVERRIDES,
        "predict",
        "batchsize",
        "batch_size",
    ),
    "option of Hydra": (
        overrides(predict=["+hydra.callbacks.x._target_=os.system"]),
        IN_OVERRIDES,
        "_target_",
    ),
    "out of range": (overrides(predict={"alpha": 2}), IN_OVERRIDES, "predict", "alpha=2"),
    "options of an option": (
        overrides(train={"trainer": {"max_epochs": 3}}),
        IN_OVERRIDES,
        "'trainer.max_epochs'",
    ),
    "no number of GPUs": ({"gpu": "yes"}, "bad-option", "gpu=yes"),
    "too many GPUs": ({"gpu": 17}, "option-range", "gpu=17", "0 to 16"),
    "no jobs": ({"predict_jobs": 0}, "option-range", "predict_jobs=0"),
    "a word without value": (
        overrides(predict="alpha=0.1 leiden"),
        IN_OVERRIDES,
        "alpha=0.1 leiden",
    ),
    "an open quote": (overrides(predict="clusters='a"), IN_OVERRIDES, "No closing quotation"),
    "unknown option in words": (overrides(train="modle=tiny"), IN_OVERRIDES, "train", "modle"),
    "unknown step": (overrides(fit=["model=tiny"]), CONFIG, "'fit'", "preprocess, train, predict"),
    "braces": ({"output_dir": "a{b}"}, "output-dir-braces", "a{b}"),
    "blanks in the container": (
        {"container": "my images/a.sif"},
        "container-name",
        "my images/a.sif",
    ),
    "braces in the container": ({"container": "{sample}.sif"}, "container-name", "{sample}.sif"),
    "commands in the container": ({"container": "a.sif;touch"}, "container-name", "a.sif;touch"),
    "reference alone": ({"reference": "reference.h5ad"}, "no-sample-sheet"),
    "no reference": (REFERENCE | {"reference": "gone.h5ad"}, "no-file", "gone.h5ad"),
    "braces in the reference": (REFERENCE | {"reference": "{x}.h5ad"}, "path-braces", "{x}.h5ad"),
    "braces in the model": (MODEL | {"model_path": "my{m}"}, "path-braces", "my{m}"),
    "no sheet": (REFERENCE | {"sample_sheet": "gone.tsv"}, "no-file", "gone.tsv"),
    "two models": (REFERENCE | {"model_path": "model"}, "reference-and-model"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_config_is_refused(user, case):
    config, code, *values = REFUSED[case]
    (user / "{x}.h5ad").touch()
    (user / "my{m}").mkdir()
    with refusal(code, *values):
        read(config)


BAD_SHEETS = {
    "same sample twice": (
        ["sample path", "a a.h5ad", "a b.h5ad"],
        "sample-twice",
        "sample a",
        "samples.tsv",
    ),
    "illegal name": (["sample path", "a/b a.h5ad"], "sample-name", "'a/b'"),
    "missing file": (
        ["sample path", "a gone.h5ad"],
        "no-file",
        "gone.h5ad",
        "sample a in samples.tsv",
    ),
    "backslashes": (
        ["sample path", "a runs\\a.h5ad"],
        "no-file",
        "runs\\a.h5ad",
        "write / between folders",
    ),
    "missing truth": (
        ["sample path truth", "a a.h5ad x.csv"],
        "no-file",
        "x.csv",
        "truth of sample a",
    ),
    "unknown column": (["sample file", "a a.h5ad"], "sheet-row", "path", "sample=a, file=a.h5ad"),
    "no sample": (["sample path", " a.h5ad"], "sheet-row", "samples.tsv", "path=a.h5ad"),
    "two columns of a name": (
        ["sample path donor donor", "a a.h5ad x y"],
        "sheet-column",
        "'donor'",
        "samples.tsv",
    ),
    "capitals": (["Sample Path", "a a.h5ad"], "sheet-column", "'Sample'", "samples.tsv"),
    "no rows": (["sample path"], "no-samples", "samples.tsv"),
    "braces": (["sample path", "a {x}.h5ad"], "path-braces", "{x}.h5ad", "sample a in samples.tsv"),
    "mixed truth": (
        ["sample path truth truth_key", "a a.h5ad a.csv ", "b b.h5ad  label"],
        *("mixed-truth", "table column cell_type for a", "obs column label for b"),
    ),
}


@pytest.mark.parametrize("case", BAD_SHEETS)
def test_bad_sheet_is_refused(user, case):
    rows, code, *values = BAD_SHEETS[case]
    (user / "{x}.h5ad").touch()
    write_sheet("samples.tsv", *rows)
    with refusal(code, *values):
        read(REFERENCE)


def test_an_output_dir_with_folders_of_the_users_is_refused(user):
    """Snakemake removes the folders that rules make before it makes them anew: here the user's own `model`."""
    (user / "notes.txt").touch()
    with refusal("output-dir-taken"):
        read(REFERENCE | {"output_dir": "."})
    (user / "model").rmdir()
    assert read(REFERENCE | {"output_dir": "."}).output_dir == "."
