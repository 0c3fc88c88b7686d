"""Models from elsewhere: a sound one is imported and found by its name, anything else is refused on one line."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from support.refusal import refusal

from scperformer.importing.folders import import_into_library
from scperformer.model.content import INFO
from scperformer.model.folder import library_folder, resolve_model
from scperformer.model.tissues import collection


@pytest.fixture
def library(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("SCPERFORMER_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


@pytest.fixture
def model(tiny_model, tmp_path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "their"))


def name_of(model: Path) -> str:
    return json.loads((model / "bundle.json").read_text())["name"]


def packed(model: Path) -> Path:
    return Path(shutil.make_archive(str(model), "zip", model.parent, model.name))


def test_an_imported_model_is_found_by_its_name(model, library, command, counts_adata, write):
    ran = command("models", "import", packed(model))
    name = name_of(model)
    assert ran.code == 0, ran.err
    assert f"model_path={name}" in ran.err
    kept = {file.name for file in (library / name).iterdir()}
    assert {"bundle.json", "genes.tsv", "model.safetensors", "MODEL_CARD.md"} <= kept
    shutil.rmtree(model)
    ran = command("predict", write(counts_adata), f"model_path={name}")
    assert ran.code == 0, ran.err
    assert str(library / name) in ran.err
    ran = command("models", "list")
    assert f"{name}: 3 labels (B cell, Monocyte, T cell), 200 genes\n  {library / name}" in ran.out
    assert "(packaged)" in ran.out


def test_a_model_here_comes_before_an_imported_one(model, library, tmp_path, monkeypatch):
    import_into_library(model, library)
    monkeypatch.chdir(tmp_path)
    name = name_of(model)
    assert resolve_model(name) == (library / name, "imported")
    (tmp_path / name).mkdir(exist_ok=True)
    # what another tool has written, and the model was imported from
    (tmp_path / name / "model.pt").touch()
    assert resolve_model(name) == (library / name, "imported")
    (tmp_path / name / INFO).touch()
    assert resolve_model(name) == (Path(name), "given")
    assert resolve_model("../models") == (Path("../models"), "given")


def test_where_models_are(monkeypatch, tmp_path):
    monkeypatch.delenv("SCPERFORMER_MODELS", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert library_folder() == tmp_path / "scperformer" / "models"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert library_folder() == tmp_path / ".local" / "share" / "scperformer" / "models"


def test_a_model_of_the_same_name_is_kept(model, library, command, refused):
    assert command("models", "import", model).code == 0
    assert str(library / name_of(model)) in refused("models", "import", model)
    assert command("models", "import", model, "overwrite=true").code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["delete"], "action=delete"),
        (["import"], "0 words"),
        (["list", "x"], "1 words"),
        (["import", "nope"], "nope"),
    ],
)
def test_words_that_make_no_sense(words, said, library, refused):
    assert said in refused("models", *words)


@pytest.mark.parametrize("name", ["../evil", ".hidden", "a/b", "/tmp", "x" * 300])
def test_names_that_no_folder_can_have(name, model, library):
    info = json.loads((model / "bundle.json").read_text())
    (model / "bundle.json").write_text(json.dumps(info | {"name": name}))
    with refusal("model-name"):
        import_into_library(model, library)
    assert not library.exists()


def test_a_damaged_model_in_the_library_is_listed_as_such(model, library, command):
    import_into_library(model, library)
    os.truncate(library / name_of(model) / "model.safetensors", 100)
    ran = command("models", "list")
    assert ran.code == 0
    assert "cannot be used: damaged model" in ran.out


def test_a_damaged_model_card_is_shown(model, library, command):
    (model / "MODEL_CARD.md").write_bytes(b"# caf\xe9\n")
    ran = command("models", "show", model)
    assert ran.code == 0, ran.err
    assert "# caf\ufffd" in ran.out


def test_tissues_are_listed_as_a_table(library, command):
    ran = command("models", "list")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert "pbmc3k (packaged)" in lines[0]
    rows = [re.split(r"  +", line) for line in lines[lines.index("") :] if re.search(r"  +", line)]
    assert rows[0] == ["tissue", "age and species", "types", "study"]
    assert [row[0] for row in rows[1:]] == collection().tissues()["name"].tolist()
    num_types = len(collection().tissue("mouse lung").profiles)
    assert ["mouse lung", "adult mouse", str(num_types), "Han et al. 2018"] in rows
    assert rows[-13][3] == "Han et al. 2018, by orthologs"
    assert lines[-1].startswith("common types and mouse common types: ")
    assert max(map(len, lines[1:])) <= 100


@pytest.mark.parametrize(
    ("words", "name"),
    [(["pancreas"], "pancreas"), (["mouse_lung"], "mouse lung"), (["mouse", "lung"], "mouse lung")],
)
def test_the_types_of_a_tissue_and_their_studies_are_shown(words, name, library, command):
    ran = command("models", "show", *words)
    assert ran.code == 0
    tissue = collection().tissue(name)
    types, studies = re.split(r"\n\n(?=study 1)", ran.out)
    shown = [re.split(r"  +", line) for line in types.splitlines()[3:]]
    assert [row[:2] for row in shown] == [
        list(pair) for pair in zip(tissue.profiles.index, tissue.terms, strict=True)
    ]
    assert {row[2] for row in shown[: tissue.sources.count(tissue.sources[0])]} == {"1"}
    for number, study in enumerate(tissue.studies.itertuples(), start=1):
        assert f"study {number}: {study.age} {study.species} {study.tissue}" in studies
        assert f"  {study.title}\n  {study.url}, {study.licence}" in studies
        assert study.note in studies
    for needed in (
        "NanoString",
        "9698cc4",
        "https://creativecommons.org/licenses/by/4.0/",
        "Changed",
    ):
        assert needed in studies


def test_common_types_are_shown_with_their_calls(library, command):
    ran = command("models", "show", "common types")
    assert ran.code == 0
    rows = [re.split(r"  +", line) for line in ran.out.split("\n\n")[1].splitlines()[1:]]
    assert [row[0] for row in rows] == collection().tissue("common types").profiles.index.tolist()
    assert {row[0] for row in rows if row[2].endswith(" or unknown")} == set(
        collection().tissue("common types").others
    )
    assert "Vento-Tormo et al. 2018, Nature" in ran.out


def test_merged_types_are_shown(library, command):
    ran = command("models", "show", "liver")
    line = next(line for line in ran.out.splitlines() if line.startswith("hepatocyte, CPT1A high"))
    assert line.endswith("  hepatocyte, Hep2; hepatocyte, Hep4")


def test_a_model_of_the_name_of_a_tissue_comes_first(model, library, command):
    import_into_library(model, library)
    (library / name_of(model)).rename(library / "pancreas")
    ran = command("models", "show", "pancreas")
    assert ran.code == 0
    assert ran.out.startswith("pancreas: 3 labels")
    assert "pancreas (adult human): " in ran.out
    assert resolve_model("pancreas") == (library / "pancreas", "imported")


def test_a_name_that_nothing_has(library, refused):
    error = refused("models", "show", "mouse lungs")
    assert "no model or tissue 'mouse lungs'" in error
    assert "did you mean 'mouse lung'?" in error


@pytest.mark.parametrize(
    ("name", "option"), [("pancreas", "pancreas"), ("mouse_Lung", "mouse_lung")]
)
def test_a_tissue_is_no_model(name, option, library, refused, counts_adata, write):
    error = refused("predict", write(counts_adata), f"model_path={name}")
    assert error.startswith(f"error: the tissue '{name}' in place of a model; expected ")
    assert f"set tissue={option} instead" in error
