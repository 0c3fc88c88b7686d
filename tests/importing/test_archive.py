"""Archives of models: the known files are copied out of sound ones; others are refused, and nothing else is written."""

import shutil
import zipfile
from pathlib import Path

import pytest
from support.refusal import refusal

from scperformer.importing.folders import copy_from_archive

FILES = {
    "bundle.json": b"{}",
    "genes.tsv": b"gene\tmean\n",
    "model.safetensors": bytes(range(256)) * 40,
}


@pytest.fixture
def folder(tmp_path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    return folder


def packed(folder: Path) -> Path:
    return Path(shutil.make_archive(str(folder), "zip", folder.parent, folder.name))


def copied(path: Path) -> dict[str, bytes]:
    target = path.parent / "target"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    copy_from_archive(path, target)
    return {file.name: file.read_bytes() for file in target.iterdir()}


@pytest.mark.parametrize("prefix", ["", "a/b/c/"])
def test_the_folder_may_be_anywhere_in_the_archive(prefix, tmp_path):
    path = tmp_path / "model.zip"
    with zipfile.ZipFile(path, "w") as zipped:
        for name, content in FILES.items():
            zipped.writestr(f"{prefix}{name}", content)
    assert copied(path) == FILES


def test_files_of_other_names_are_left_out(folder):
    (folder / ".DS_Store").write_text("x")
    (folder / "run.sh").write_text("x")
    (folder / "inside").mkdir()
    (folder / "inside" / "genes.tsv").write_text("another")
    assert copied(packed(folder)) == FILES


@pytest.mark.parametrize("name", ["/evil", "m/../../evil", "../genes.tsv"])
def test_names_in_a_zip_never_lead_out(name, folder):
    path = packed(folder)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr(name, "x")
    before = sorted(path.parent.iterdir())
    assert copied(path) == FILES
    assert sorted(path.parent.iterdir()) == sorted([*before, path.parent / "target"])


def test_an_encrypted_zip_is_refused(folder):
    path = packed(folder)
    content = bytearray(path.read_bytes())
    # the flags, in headers and directory
    for signature, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = content.find(signature)
        while start >= 0:
            content[start + place] |= 1
            start = content.find(signature, start + 4)
    path.write_bytes(bytes(content))
    with refusal("bad-archive"):
        copied(path)


@pytest.mark.parametrize("content", [b"", b"\x80\x04garbage", b"PK\x05\x06" + bytes(18)])
def test_files_of_other_kinds(content, tmp_path):
    (tmp_path / "model.zip").write_bytes(content)
    with refusal("bad-archive"):
        copied(tmp_path / "model.zip")


def test_a_zip_of_zeros_is_refused_before_anything_is_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w") as file:
        file.writestr("m/bundle.json", "{}")
        file.writestr("m/model.safetensors", "0")
        file.infolist()[-1].file_size = 800 * 10**6  # as the directory of the archive declares it
    with refusal("bad-archive"):
        copied(tmp_path / "bomb.zip")
    assert list((tmp_path / "target").iterdir()) == []


def test_an_entry_without_a_name_is_left_out(folder):
    path = packed(folder)
    expected = copied(path)
    with zipfile.ZipFile(path, "a") as zipped:
        zipped.writestr("zzz/", b"")
    path.write_bytes(path.read_bytes().replace(b"zzz/", bytes(4)))
    assert copied(path) == expected
