"""Models from elsewhere: a sound one is imported and found by its name, anything else is refused on one line."""

import dataclasses
import hashlib
import json
import os
import re
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from scperformer.base.errors import InputError
from scperformer.base.inputs import sha256
from scperformer.importing import import_model
from scperformer.model import (
    INFO,
    PACKAGED_MODEL,
    library_folder,
    read_model,
    read_registry,
    registry_place,
    resolve_model,
    write_model,
)

KINDS = {"zip": "zip", "tar": "tar", "tar.gz": "gztar"}


@pytest.fixture
def library(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("SCPERFORMER_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


@pytest.fixture
def model(tiny_model, tmp_path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "their"))


def name_of(model: Path) -> str:
    return json.loads((model / "bundle.json").read_text())["name"]


def packed(model: Path, ending: str) -> Path:
    return Path(shutil.make_archive(str(model), KINDS[ending], model.parent, model.name))


def test_an_imported_model_is_found_by_its_name(model, library, command, counts_adata, write):
    ran = command("models", "import", packed(model, "zip"))
    name = name_of(model)
    assert ran.code == 0, ran.err
    assert f"use it with model_path={name}" in ran.err
    kept = {file.name for file in (library / name).iterdir()}
    assert {"bundle.json", "genes.tsv", "model.safetensors", "MODEL_CARD.md"} <= kept
    shutil.rmtree(model)
    ran = command("predict", write(counts_adata), f"model_path={name}")
    assert ran.code == 0, ran.err
    assert f"model '{name}' is the imported one: {library / name}" in ran.err
    ran = command("models", "list")
    assert f"{name}: 3 labels (B cell, Monocyte, T cell), 200 genes\n  {library / name}" in ran.out
    assert "(packaged)" in ran.out


def test_the_cells_that_a_model_keeps_are_imported(model, library):
    target = import_model(model, library)
    assert (target / "cells.npz").read_bytes() == (model / "cells.npz").read_bytes()


def test_damaged_kept_cells_are_refused(model, library):
    """With a checksum that fits: they would be read by the first file that needs them."""
    (model / "cells.npz").write_bytes(b"no archive")
    info = json.loads((model / "bundle.json").read_text())
    info["files"]["cells.npz"] = sha256(model / "cells.npz")
    (model / "bundle.json").write_text(json.dumps(info))
    with pytest.raises(InputError, match=r"damaged model .*: 'cells.npz' unreadable"):
        import_model(model, library)
    assert not library.exists()


def test_the_list_of_models_shows_the_tissue(model, library, command):
    info = json.loads((model / "bundle.json").read_text())
    info["provenance"]["tissue"] = "bone marrow"
    (model / "bundle.json").write_text(json.dumps(info))
    assert command("models", "import", model).code == 0
    ran = command("models", "list")
    assert f"(B cell, Monocyte, T cell), 200 genes, tissue bone marrow\n  {library}" in ran.out


def test_a_model_here_comes_before_an_imported_one(model, library, tmp_path, monkeypatch):
    import_model(model, library)
    monkeypatch.chdir(tmp_path)
    name = name_of(model)
    assert resolve_model(name) == (library / name, "imported")
    (tmp_path / name).mkdir(exist_ok=True)
    (tmp_path / name / "model.pt").touch()  # what another tool has written, and the model was imported from
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


def test_a_model_of_the_same_name_is_kept(model, library, command):
    assert command("models", "import", model).code == 0
    ran = command("models", "import", model)
    assert ran.code == 2
    assert "exists; expected a new output" in ran.err
    assert command("models", "import", model, "overwrite=true").code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("delete",), "action=delete; expected one of list, show, import, export, pull"),
        (("import",), "0 words after 'models import'; expected a model folder, archive or file"),
        (("list", "x"), "1 words after 'models list'; expected none"),
        (("import", "nothing"), "no file or folder nothing"),
    ],
)
def test_words_that_make_no_sense(words, said, library, command):
    ran = command("models", *words)
    assert ran.code == 2
    assert said in ran.err


@pytest.mark.parametrize("name", ["../evil", ".hidden", "a/b", "/tmp", "x" * 300])
def test_names_that_no_folder_can_have(name, model, library):
    info = json.loads((model / "bundle.json").read_text())
    (model / "bundle.json").write_text(json.dumps(info | {"name": name}))
    with pytest.raises(InputError, match="a name that a folder can have"):
        import_model(model, library)
    assert not library.exists()


def test_a_file_of_another_kind_is_no_model(library, tmp_path):
    (tmp_path / "model.pt").write_bytes(b"garbage")
    with pytest.raises(InputError, match=r"cannot be unpacked .*; expected a model folder, or a \.zip"):
        import_model(tmp_path / "model.pt", library)


def test_a_damaged_model_in_the_library_is_listed_as_such(model, library, command):
    import_model(model, library)
    os.truncate(library / name_of(model) / "model.safetensors", 100)
    ran = command("models", "list")
    assert ran.code == 0
    assert "cannot be used: damaged model" in ran.out


def test_a_damaged_model_card_is_shown(model, library, command):
    (model / "MODEL_CARD.md").write_bytes(b"# caf\xe9\n")
    ran = command("models", "show", model)
    assert ran.code == 0, ran.err
    assert "# caf\ufffd" in ran.out


def test_an_encoder_is_imported(model, library, command, tmp_path):
    saved = read_model(model)
    encoder = dataclasses.replace(
        saved,
        name="enc",
        kind="encoder",
        labels=[],
        ontology_term_ids=[],
        held_out=None,
        config=saved.config | {"masking": {"share": 0.3}},
        metrics={"loss": 0.1, "naive_loss": 0.2, "num_val_cells": 9},
        provenance=saved.provenance | {"corpus": [{"name": "a.h5ad", "num_cells": 90, "input": "counts from X"}]},
        weights={name: array for name, array in saved.weights.items() if name.startswith("model.encoder.")},
    )
    write_model(encoder, tmp_path / "enc")
    assert command("models", "import", "enc").code == 0
    ran = command("models", "list")
    assert "enc: encoder without labels" in ran.out


# Registries


def entry_of(archive: Path, name: str, url: str) -> dict:
    content = archive.read_bytes()
    about = {"name": name, "tissue": "blood", "labels": ["a", "b"], "genes": 200, "licence": "CC0"}
    return about | {"url": url, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


@pytest.fixture
def registry(model, tmp_path, library, monkeypatch) -> Path:
    """A registry with one model, whose archive is a file of this machine."""
    archive = packed(model, "zip")
    path = tmp_path / "registry.json"
    path.write_text(json.dumps({"models": [entry_of(archive, name_of(model), archive.as_uri())]}))
    monkeypatch.setenv("SCPERFORMER_REGISTRY", str(path))
    return path


@pytest.fixture
def server(tmp_path):
    """A server of the test's folder, and the paths that were asked for."""
    asked = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            asked.append(self.path)

        def do_GET(self):
            if self.path == "/moved":
                self.send_response(302)
                self.send_header("Location", "ftp://elsewhere/x")
                self.end_headers()
            else:
                super().do_GET()

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path)))
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_port}", asked
    httpd.shutdown()
    httpd.server_close()


def changed(registry: Path, **values) -> None:
    content = json.loads(registry.read_text())
    content["models"][0] |= values
    registry.write_text(json.dumps(content))


def test_a_known_model_is_pulled_and_found_by_its_name(model, registry, library, command, counts_adata, write):
    name = name_of(model)
    sample = write(counts_adata)
    ran = command("predict", sample, f"model_path={name}")
    assert ran.code == 2
    assert f"'scperformer models pull {name}' downloads it" in ran.err
    assert (
        f"{name} (not pulled): 2 labels (a, b), 200 genes, tissue blood, licence CC0" in command("models", "list").out
    )
    assert command("models", "show", name).out.startswith(f"{name} (not pulled)")
    assert command("models", "pull", name).code == 0
    assert read_model(library / name).hash == read_model(model).hash
    assert command("predict", sample, f"model_path={name}").code == 0
    assert "not pulled" not in command("models", "list").out
    assert f"# {name}" in command("models", "show", name).out
    again = command("models", "pull", name)
    assert (again.code, "exists" in again.err, "downloads" in again.err) == (2, True, False)


def test_only_pull_goes_out(model, registry, library, command, server):
    address, asked = server
    name = name_of(model)
    changed(registry, url=f"{address}/their.zip")
    place = f"registry={address}/registry.json"
    assert command("models", "list", place).code == 0
    assert command("models", "show", "pbmc3k", place).code == 0
    assert command("models", "list").code == 0
    assert asked == []
    assert command("models", "pull", name, place).code == 0
    assert asked == ["/registry.json", "/their.zip"]
    assert (library / name / INFO).is_file()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sha256": "0" * 64}, "expected .* bytes and 0000"),
        ({"size": 10}, "has more than 10 bytes"),
        ({"size": 10**8}, "expected 100,000,000 bytes"),
        ({"url": "ADDRESS/none.zip"}, "cannot be downloaded .HTTP Error 404"),
        ({"url": "ADDRESS/moved"}, "cannot be downloaded|the address ftp"),
        (
            {"url": "http://example.org/x.zip"},
            "the address http://example.org/x.zip; expected one that starts with https",
        ),
        ({"url": "http://127.0.0.1:9/x.zip"}, "cannot be downloaded"),
    ],
)
def test_what_is_not_as_the_registry_says_is_refused(model, registry, library, command, server, values, message):
    """And a model of this name that is there already stays as it was."""
    name = values.get("name", name_of(model))
    shutil.copytree(model, library / name)
    before = {file.name: file.read_bytes() for file in (library / name).iterdir()}
    changed(
        registry,
        **{key: str(value).replace("ADDRESS", server[0]) if key == "url" else value for key, value in values.items()},
    )
    ran = command("models", "pull", name, "overwrite=true")
    assert ran.code == 2
    assert re.search(message, ran.err), ran.err
    assert {file.name: file.read_bytes() for file in (library / name).iterdir()} == before
    assert [folder.name for folder in library.iterdir()] == [name]


def test_a_pulled_model_is_called_as_in_the_registry(model, registry, library, command, counts_adata, write):
    changed(registry, name="lung")
    ran = command("models", "pull", "lung")
    assert ran.code == 0, ran.err
    assert f"its author calls the model '{name_of(model)}'" in ran.err
    assert read_model(library / "lung").hash == read_model(model).hash
    ran = command("predict", write(counts_adata), "model_path=lung")
    assert "model lung (imported, " in ran.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("models: 3", "cannot be read"),
        ("models: [{name: a, licens: x}]", "did you mean 'licence'"),
        ("models: [{name: a}, {name: a}]", "a twice"),
        ("models: [{name: a, url: 'https://x'}]", "a without a sha256"),
        ("models: [{name: a}]", "model 'my_model' and the registry .*; expected one of a"),
        ("!!python/object/apply:os.getcwd []", "cannot be read"),
    ],
)
def test_wrong_registries_are_refused(library, tmp_path, command, content, message):
    (tmp_path / "r.yaml").write_text(content)
    ran = command("models", "pull", "my_model", "registry=r.yaml")
    assert ran.code == 2
    assert re.search(message, ran.err), ran.err


def test_an_exported_model_can_be_pulled(model, library, command, tmp_path):
    ran = command("models", "export", model, "out.zip")
    assert ran.code == 0, ran.err
    entry = json.loads(ran.out) | {"url": (tmp_path / "out.zip").as_uri()}
    (tmp_path / "r.json").write_text(json.dumps({"models": [entry]}))
    assert command("models", "pull", entry["name"], "registry=r.json").code == 0
    assert read_model(library / entry["name"]).hash == read_model(model).hash
    assert command("models", "export", "no_model", "other.zip").code == 2


def test_a_model_is_exported_under_the_name_and_with_the_facts_that_are_given(model, library, command, tmp_path):
    """The entry that is printed is complete: as it is, a registry with it gives the same model back."""
    address = (tmp_path / "lung.zip").as_uri()
    words = ("name=lung", "species=human", "tissue=lung", "licence=CC BY 4.0", f"url={address}")
    ran = command("models", "export", model, "lung.zip", *words)
    assert ran.code == 0, ran.err
    entry = json.loads(ran.out)
    (tmp_path / "r.json").write_text(json.dumps({"models": [entry]}))
    assert command("models", "pull", "lung", "registry=r.json").code == 0
    pulled = read_model(library / "lung")
    assert (pulled.name, pulled.tissue, pulled.provenance["licence"]) == ("lung", "lung", "CC BY 4.0")
    assert (entry["species"], entry["genes"], entry["labels"]) == ("human", 200, pulled.labels)
    before = read_model(model)
    assert {name: array.tobytes() for name, array in pulled.weights.items()} == {
        name: array.tobytes() for name, array in before.weights.items()
    }
    assert (library / "lung" / "cells.npz").read_bytes() == (model / "cells.npz").read_bytes()
    assert (library / "lung" / "MODEL_CARD.md").read_text().startswith("# lung\n")
    ran = command("models", "export", "lung", "again.zip")
    again = json.loads(ran.out)
    assert {name: again[name] for name in again if name not in ("url", "size", "sha256")} == {
        name: entry[name] for name in entry if name not in ("url", "size", "sha256")
    }


def test_an_entry_says_what_it_does_not_state(model, command):
    info = json.loads((model / "bundle.json").read_text())
    (model / "bundle.json").write_text(json.dumps(info | {"name": "model"}))
    assert "add name=..., tissue=..., licence=..." in command("models", "export", model, "model.zip").err
    (model / "bundle.json").write_text(json.dumps(info))
    ran = command("models", "export", model, "out.zip")
    assert "add tissue=..., licence=..." in ran.err
    assert command("models", "import", model, "url=https://x").code == 2


def test_files_without_a_time_are_exported(model, command):
    """Reproducible builds set the times of files to 1970, which a .zip cannot record."""
    os.utime(model / "genes.tsv", (0, 0))
    ran = command("models", "export", model, "out.zip")
    assert ran.code == 0, ran.err


def test_the_packaged_registry_is_what_the_package_has(monkeypatch):
    monkeypatch.delenv("SCPERFORMER_REGISTRY", raising=False)
    (entry,) = read_registry(registry_place(None)).values()
    saved = read_model(PACKAGED_MODEL)
    assert (entry.name, entry.tissue, entry.genes) == (saved.name, saved.tissue, len(saved.genes))
    assert entry.labels == saved.labels
    assert entry.url == ""
