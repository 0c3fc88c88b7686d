"""Archives of model folders: sound ones are unpacked, any other is refused on one line and writes nothing outside."""

import gzip
import io
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

from scperformer.errors import InputError
from scperformer.model import archive
from scperformer.model.archive import unpack
from scperformer.model.folder import INFO

KINDS = {"zip": "zip", "tar": "tar", "tar.gz": "gztar"}


@pytest.fixture
def model(tmp_path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / INFO).write_text("{}")
    (folder / "weights").write_bytes(bytes(range(256)) * 40)
    return folder


def packed(model: Path, ending: str) -> Path:
    return Path(shutil.make_archive(str(model), KINDS[ending], model.parent, model.name))


def unpacked(path: Path) -> Path:
    target = path.parent / "target"
    target.mkdir(exist_ok=True)
    return unpack(path, INFO, target)


@pytest.mark.parametrize("ending", KINDS)
def test_an_archive_gives_the_folder_that_was_packed(ending, model):
    folder = unpacked(packed(model, ending))
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {
        file.name: file.read_bytes() for file in model.iterdir()
    }


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, 1 if kind == tarfile.REGTYPE else 0
    return info


HOSTILE = {
    "parent": (entry("../../evil"), "lies outside"),
    "absolute": (entry("/etc/evil"), "lies outside"),
    "symlink": (entry("m/link", tarfile.SYMTYPE, "/etc/passwd"), "absolute path"),
    "symlink to a parent": (entry("m/link", tarfile.SYMTYPE, "../../secret"), "outside the destination"),
    "hard link": (entry("m/link", tarfile.LNKTYPE, "../secret"), "outside the destination"),
    "device": (entry("m/dev", tarfile.CHRTYPE), "is a special file"),
    "pipe": (entry("m/pipe", tarfile.FIFOTYPE), "is a special file"),
    "two models": (entry("n/bundle.json"), "2 bundle.json in it"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_tar(case, model, tmp_path):
    extra, reason = HOSTILE[case]
    (tmp_path / "secret").write_text("x")
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as file:
        file.add(model, "m")
        file.addfile(extra, io.BytesIO(b"x" * extra.size))
    with pytest.raises(InputError, match=reason):
        unpacked(tmp_path / "bad.tar.gz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.tar.gz", "model", "secret", "target"]


@pytest.mark.parametrize("name", ["../evil", "/evil", "m/../../evil"])
def test_hostile_zip(name, model):
    path = packed(model, "zip")
    with zipfile.ZipFile(path, "a") as file:
        file.writestr(name, "x")
    with pytest.raises(InputError, match="lies outside"):
        unpacked(path)


def test_a_link_in_a_zip_is_a_plain_file(tmp_path):
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as file:
        link = zipfile.ZipInfo("m/bundle.json")
        link.external_attr = 0o120777 << 16
        file.writestr(link, "/etc/passwd")
    found = unpacked(tmp_path / "model.zip") / INFO
    assert not found.is_symlink()
    assert found.read_text() == "/etc/passwd"


@pytest.mark.parametrize("ending", KINDS)
@pytest.mark.parametrize("share", [0.3, 0.7, 0.98])
def test_cut_archives(ending, share, model):
    path = packed(model, ending)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    if ending != "zip" and share > 0.9:
        assert (unpacked(path) / "weights").stat().st_size == 256 * 40  # a tar archive ends with zeros
        return
    with pytest.raises(InputError, match="cannot be unpacked"):
        unpacked(path)


def test_a_zip_of_zeros_is_refused_before_anything_is_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w") as file:
        file.writestr("m/bundle.json", "{}")
        file.writestr("m/model.safetensors", "0")
        file.infolist()[-1].file_size = 800 * 10**6  # as the directory of the archive declares it
    with pytest.raises(InputError, match="more than 1,000 files or 536,870,912 bytes"):
        unpacked(tmp_path / "bomb.zip")
    assert list((tmp_path / "target").iterdir()) == []


def test_declared_sizes_and_numbers_of_files_are_limited(model, monkeypatch):
    monkeypatch.setattr(archive, "MOST_BYTES", 10**4)
    for ending in ("zip", "tar.gz"):
        with pytest.raises(InputError, match="more than 1,000 files or 10,000 bytes"):
            unpacked(packed(model, ending))
    monkeypatch.setattr(archive, "MOST_BYTES", 10**6)
    monkeypatch.setattr(archive, "MOST_FILES", 1)
    with pytest.raises(InputError, match="more than 1 files"):
        unpacked(packed(model, "zip"))


def test_a_header_of_gigabytes_is_not_read(tmp_path):
    header = tarfile.TarInfo("m/bundle.json")
    header.type, header.size = tarfile.XHDTYPE, 2**33
    with gzip.open(tmp_path / "bomb.tar.gz", "wb") as file:
        file.write(header.tobuf(tarfile.GNU_FORMAT))
        file.write(bytes(2**20))
    with pytest.raises(InputError, match="a header of 8,589,934,592 bytes"):
        unpacked(tmp_path / "bomb.tar.gz")
