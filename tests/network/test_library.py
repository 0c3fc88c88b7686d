"""Models from elsewhere: a sound one is imported and found by its name, anything else is refused on one line."""

import gzip
import io
import json
import os
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

from scperformer.errors import InputError
from scperformer.model import archive as archives
from scperformer.model.folder import library_folder, resolve_model
from scperformer.network.library import import_model


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
    kind = {"zip": "zip", "tar": "tar", "tar.gz": "gztar"}[ending]
    return Path(shutil.make_archive(str(model), kind, model.parent, model.name))


@pytest.mark.parametrize("how", ["folder", "zip", "tar", "tar.gz"])
def test_an_imported_model_is_found_by_its_name(how, model, library, command, counts_adata, write):
    path = model if how == "folder" else packed(model, how)
    ran = command("models", "import", path)
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


def test_a_folder_here_comes_before_an_imported_model(model, library, tmp_path, monkeypatch):
    import_model(model, library)
    monkeypatch.chdir(tmp_path)
    name = name_of(model)
    assert resolve_model(name) == (library / name, "imported")
    (tmp_path / name).mkdir()
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
        ((), "no action; expected import or list"),
        (("delete",), "action 'delete'; expected import or list"),
        (("import",), "no input file"),
        (("list", "x"), "'x' after 'models list'"),
        (("import", "nothing"), "no file or folder nothing"),
    ],
)
def test_words_that_make_no_sense(words, said, library, command):
    ran = command("models", *words)
    assert ran.code == 2
    assert said in ran.err


# Archives that are none, or hostile


def tar_of(model: Path, path: Path, *extras: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        archive.add(model, "m")
        for extra in extras:
            archive.addfile(extra, io.BytesIO(b"x" * extra.size))
    return path


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, 1 if kind == tarfile.REGTYPE else 0
    return info


HOSTILE = {
    "parent": (entry("../../evil"), "lies outside"),
    "absolute": (entry("/etc/evil"), "lies outside"),
    "backslash": (entry("..\\evil"), "lies outside"),
    "symlink": (entry("m/link", tarfile.SYMTYPE, "/etc/passwd"), "no plain file"),
    "hard link": (entry("m/link", tarfile.LNKTYPE, "m/bundle.json"), "no plain file"),
    "device": (entry("m/dev", tarfile.CHRTYPE), "no plain file"),
    "pipe": (entry("m/pipe", tarfile.FIFOTYPE), "no plain file"),
    "twice": (entry("m/bundle.json"), "is in it twice"),
    "two models": (entry("n/bundle.json"), "2 bundle.json in it"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_tar(case, model, library, tmp_path):
    extra, said = HOSTILE[case]
    path = tar_of(model, tmp_path / "bad.tar.gz", extra)
    with pytest.raises(InputError, match=said):
        import_model(path, library)
    assert not library.exists()


@pytest.mark.parametrize("name", ["../evil", "/evil", "m/../../evil"])
def test_hostile_zip(name, model, library, tmp_path):
    path = packed(model, "zip")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, "x")
    with pytest.raises(InputError, match="lies outside"):
        import_model(path, library)
    with zipfile.ZipFile(path, "w") as archive:
        link = zipfile.ZipInfo("m/bundle.json")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(InputError, match="no plain file"):
        import_model(path, library)
    assert not library.exists()


@pytest.mark.parametrize("ending", ["zip", "tar", "tar.gz"])
@pytest.mark.parametrize("share", [0.3, 0.7, 0.98])
def test_cut_archives(ending, share, model, library, tmp_path):
    path = packed(model, ending)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    if ending == "tar" and share > 0.9:
        return  # a tar archive ends with zeros that nobody needs
    with pytest.raises(InputError, match=r"is not unpacked|neither a folder nor an archive|damaged model"):
        import_model(path, library)
    assert not library.exists()


def test_bombs(model, library, tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MOST_BYTES", 10**6)
    (model / "zeros").write_bytes(bytes(2 * 10**6))
    for ending in ("zip", "tar.gz"):
        with pytest.raises(InputError, match="more than"):
            import_model(packed(model, ending), library)
    (model / "zeros").unlink()
    monkeypatch.setattr(archives, "MOST_ENTRIES", 2)
    with pytest.raises(InputError, match="more than 2 files"):
        import_model(packed(model, "zip"), library)


def test_a_header_that_wants_gigabytes_gets_none(library, tmp_path):
    header = tarfile.TarInfo("m/bundle.json")
    header.type, header.size = tarfile.XHDTYPE, 2**33
    with gzip.open(tmp_path / "bomb.tar.gz", "wb") as file:
        file.write(header.tobuf(tarfile.GNU_FORMAT))
        file.write(bytes(2**20))
    with pytest.raises(InputError, match=r"too many bytes|neither a folder"):
        import_model(tmp_path / "bomb.tar.gz", library)


@pytest.mark.parametrize("name", ["../evil", ".hidden", "a/b", "/tmp", "x" * 300])
def test_names_that_no_folder_can_have(name, model, library):
    info = json.loads((model / "bundle.json").read_text())
    (model / "bundle.json").write_text(json.dumps(info | {"name": name}))
    with pytest.raises(InputError, match="a name that a folder can have"):
        import_model(model, library)
    assert not library.exists()


def test_a_file_of_another_kind_is_no_model(library, tmp_path):
    (tmp_path / "model.pt").write_bytes(b"\x80\x04garbage")
    with pytest.raises(InputError, match="neither a folder nor an archive"):
        import_model(tmp_path / "model.pt", library)


def test_a_damaged_model_in_the_library_is_listed_as_such(model, library, command):
    import_model(model, library)
    os.truncate(library / name_of(model) / "model.safetensors", 100)
    ran = command("models", "list")
    assert ran.code == 0
    assert "cannot be used: damaged model" in ran.out


def test_an_encoder_is_imported(counts_adata, write, library, command):
    ran = command("pretrain", write(counts_adata), "model=tiny", "trainer.max_epochs=1", "logger=none", "output=enc")
    assert ran.code == 0, ran.err
    assert command("models", "import", "enc").code == 0
    ran = command("models", "list")
    assert "enc: encoder without labels" in ran.out
