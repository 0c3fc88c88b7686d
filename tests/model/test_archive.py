"""Archives of models: the known files are copied out of sound ones; others are refused, and nothing else is written."""

import gzip
import io
import os
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from scperformer.base.errors import InputError
from scperformer.model import archive, copy_from_archive

FORMATS = {"zip": "zip", "tar": "tar", "tar.gz": "gztar"}
FILES = {"bundle.json": b"{}", "genes.tsv": b"gene\tmean\n", "model.safetensors": bytes(range(256)) * 40}


@pytest.fixture
def folder(tmp_path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    return folder


def packed(folder: Path, ending: str) -> Path:
    return Path(shutil.make_archive(str(folder), FORMATS[ending], folder.parent, folder.name))


def copied(path: Path) -> dict[str, bytes]:
    target = path.parent / "target"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    copy_from_archive(path, target)
    return {file.name: file.read_bytes() for file in target.iterdir()}


@pytest.mark.parametrize("ending", FORMATS)
def test_the_files_of_a_model_are_copied(ending, folder):
    assert copied(packed(folder, ending)) == FILES


@pytest.mark.parametrize("ending", FORMATS)
def test_the_first_bytes_show_the_kind(ending, folder, tmp_path):
    assert copied(packed(folder, ending).rename(tmp_path / "model.download")) == FILES


def test_a_tar_that_ends_with_a_zip_is_a_tar(folder):
    """As a model folder packed by `tar cf`, whose last file is an .npz: zipfile.is_zipfile takes it for a zip."""
    with zipfile.ZipFile(folder / "held_out.npz", "w") as file:
        file.writestr("x.npy", "x")
    path = folder.parent / "model.tar"
    with tarfile.open(path, "w") as tar:
        for name in (*FILES, "held_out.npz"):
            tar.add(folder / name, f"model/{name}")
    assert zipfile.is_zipfile(path)
    assert copied(path).keys() == {*FILES, "held_out.npz"}


@pytest.mark.parametrize("prefix", ["", "./", "a/b/c/", "odd name é/"])
@pytest.mark.parametrize("ending", ["zip", "tar"])
def test_the_folder_may_be_anywhere_in_the_archive(prefix, ending, tmp_path):
    path = tmp_path / f"model.{ending}"
    if ending == "zip":
        with zipfile.ZipFile(path, "w") as zipped:
            for name, content in FILES.items():
                zipped.writestr(f"{prefix}{name}", content)
    else:
        with tarfile.open(path, "w") as tar:
            for name, content in FILES.items():
                tar.addfile(member(f"{prefix}{name}", size=len(content)), io.BytesIO(content))
    assert copied(path) == FILES


@pytest.mark.parametrize("ending", FORMATS)
def test_files_of_other_names_are_left_out(ending, folder):
    (folder / ".DS_Store").write_text("x")
    (folder / "run.sh").write_text("x")
    (folder / "inside").mkdir()
    (folder / "inside" / "genes.tsv").write_text("another")
    assert copied(packed(folder, ending)) == FILES


def member(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", *, size: int = 0, headers: dict[str, str] | None = None
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = link
    info.size = size
    info.pax_headers = headers or {}
    return info


NO_FILE = "is neither a file nor a folder"
MEMBERS = {
    "parent": (member("../evil"), "lies outside"),
    "parent inside": (member("m/../../evil"), "lies outside"),
    "parent of a known name": (member("../bundle.json"), "lies outside"),
    "absolute": (member("/srv/evil"), "lies outside"),
    "absolute known name": (member("/bundle.json"), "lies outside"),
    "link": (member("m/genes.tsv", tarfile.SYMTYPE, "/etc/passwd"), NO_FILE),
    "link to a parent": (member("m/link", tarfile.SYMTYPE, "../../secret"), NO_FILE),
    "link to a folder": (member("m/link", tarfile.SYMTYPE, "/"), NO_FILE),
    "link inside": (member("m/link", tarfile.SYMTYPE, "bundle.json"), NO_FILE),
    "hard link": (member("m/cells.npz", tarfile.LNKTYPE, "/etc/passwd"), NO_FILE),
    "hard link to a parent": (member("m/link", tarfile.LNKTYPE, "../secret"), NO_FILE),
    "hard link inside": (member("m/cells.npz", tarfile.LNKTYPE, "m/bundle.json"), NO_FILE),
    "character device": (member("m/cells.npz", tarfile.CHRTYPE), NO_FILE),
    "block device": (member("m/disk", tarfile.BLKTYPE), NO_FILE),
    "pipe": (member("m/MODEL_CARD.md", tarfile.FIFOTYPE), NO_FILE),
    "contiguous file": (member("m/cells.npz", tarfile.CONTTYPE), NO_FILE),
    "sparse file": (member("m/cells.npz", tarfile.GNUTYPE_SPARSE), NO_FILE),
    "sparse file by its header": (
        member("m/cells.npz", headers={"GNU.sparse.map": "0,1", "GNU.sparse.size": "1"}),
        NO_FILE,
    ),
    "unknown kind": (member("m/odd", b"Q"), NO_FILE),
    "two models": (member("n/bundle.json"), "2 bundle.json in it"),
    "a model in a model": (member("m/old/bundle.json"), "2 bundle.json in it"),
    "a file twice": (member("m/genes.tsv"), "'m/genes.tsv' is in it twice"),
    "a file twice by another path": (member("m//./genes.tsv"), "is in it twice"),
    "a file twice by an extended header": (member("m/x", headers={"path": "m/genes.tsv"}), "is in it twice"),
    "size below zero": (member("m/odd", headers={"size": "-512"}), "of -512 bytes"),
    "size beyond the archive": (member("m/odd", headers={"size": "100000000"}), "cannot be unpacked"),
    "size beyond the limit": (member("m/odd", headers={"size": str(2**40)}), "more than 1,000 files"),
}


@pytest.mark.parametrize("where", ["first", "last"])
@pytest.mark.parametrize("case", MEMBERS)
def test_hostile_members_of_a_tar_are_refused(case, where, folder, tmp_path):
    extra, reason = MEMBERS[case]
    (tmp_path / "secret").write_text("x")
    path = tmp_path / "bad.tar.gz"
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        if where == "first":
            tar.addfile(extra)
        tar.add(folder, "m")
        if where == "last":
            tar.addfile(extra)
            tar.addfile(member("m/end"))
    with pytest.raises(InputError, match=reason):
        copied(path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["bad.tar.gz", "model", "secret", "target"]
    assert list((tmp_path / "target").iterdir()) == []


def test_long_paths_through_links_do_not_leave_the_folder(folder, tmp_path):
    """CVE-2025-4517: the data filter of tarfile resolves links by realpath, which gives up beyond PATH_MAX."""
    goal = tmp_path / "goal"
    goal.mkdir()
    long = "d" * 247
    place = ""
    with tarfile.open(tmp_path / "evil.tar", "w") as tar:
        for step in "abcdefghijklmnop":
            tar.addfile(member(os.path.join(place, long), tarfile.DIRTYPE))
            tar.addfile(member(os.path.join(place, step), tarfile.SYMTYPE, long))
            place = os.path.join(place, long)
        far = os.path.join("a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p", "l" * 254)
        tar.addfile(member(far, tarfile.SYMTYPE, "../" * 16))
        tar.addfile(member("escape", tarfile.SYMTYPE, f"{far}{'/..' * 9}{goal}"))
        tar.addfile(member("escape/bundle.json", size=2), io.BytesIO(b"{}"))
        tar.add(folder, "m")
    with pytest.raises(InputError, match=NO_FILE):
        copied(tmp_path / "evil.tar")
    assert list(goal.iterdir()) == []
    assert list((tmp_path / "target").iterdir()) == []


@pytest.mark.parametrize("name", ["../evil", "/evil", "m/../../evil", "../bundle.json", "/genes.tsv"])
def test_names_in_a_zip_that_lead_out_are_refused(name, folder):
    path = packed(folder, "zip")
    with zipfile.ZipFile(path, "a") as file:
        file.writestr(name, "x")
    with pytest.raises(InputError, match="lies outside"):
        copied(path)


@pytest.mark.parametrize("kind", [0o120777, 0o020666, 0o060666, 0o010666, 0o140666])
def test_entries_of_a_zip_that_are_no_files_are_refused(kind, folder):
    path = packed(folder, "zip")
    with zipfile.ZipFile(path, "a") as file:
        entry = zipfile.ZipInfo("model/cells.npz")
        entry.external_attr = kind << 16
        file.writestr(entry, "/etc/passwd")
    with pytest.raises(InputError, match=NO_FILE):
        copied(path)


def test_a_file_twice_in_a_zip_is_refused(folder):
    path = packed(folder, "zip")
    with zipfile.ZipFile(path, "a") as file, pytest.warns(UserWarning, match="Duplicate name"):
        file.writestr("model/genes.tsv", "x")
    with pytest.raises(InputError, match="twice"):
        copied(path)


def test_an_encrypted_zip_is_refused(folder):
    path = packed(folder, "zip")
    content = bytearray(path.read_bytes())
    for signature, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # the flags, in headers and directory
        start = content.find(signature)
        while start >= 0:
            content[start + place] |= 1
            start = content.find(signature, start + 4)
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match="encrypted"):
        copied(path)


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("share", [0.3, 0.7, 0.98])
def test_cut_archives(ending, share, folder):
    path = packed(folder, ending)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    if ending != "zip" and share > 0.9:  # a tar ends with zeros
        assert copied(path) == FILES
        return
    with pytest.raises(InputError, match="cannot be unpacked"):
        copied(path)


@pytest.mark.parametrize("content", [b"", b"\x80\x04garbage", b"PK\x03\x04", b"\x1f\x8b", b"PK\x05\x06" + bytes(18)])
def test_files_of_other_kinds(content, tmp_path):
    (tmp_path / "model.zip").write_bytes(content)
    with pytest.raises(InputError, match="cannot be unpacked"):
        copied(tmp_path / "model.zip")


def test_a_zip_of_zeros_is_refused_before_anything_is_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w") as file:
        file.writestr("m/bundle.json", "{}")
        file.writestr("m/model.safetensors", "0")
        file.infolist()[-1].file_size = 800 * 10**6  # as the directory of the archive declares it
    with pytest.raises(InputError, match="more than 1,000 files or 536,870,912 bytes"):
        copied(tmp_path / "bomb.zip")
    assert list((tmp_path / "target").iterdir()) == []


def test_a_zip_that_declares_less_than_it_holds(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("m/bundle.json", "{}")
        file.writestr("m/model.safetensors", bytes(10**7))
        file.infolist()[-1].file_size = 100
    with pytest.raises(InputError, match="cannot be unpacked"):
        copied(tmp_path / "bomb.zip")
    assert sum(path.stat().st_size for path in (tmp_path / "target").iterdir()) <= 102


def test_sizes_and_numbers_of_files_are_limited(folder, monkeypatch):
    monkeypatch.setattr(archive, "MAX_UNPACKED_BYTES", 10**4)
    for ending in ("zip", "tar.gz"):
        with pytest.raises(InputError, match="more than 1,000 files or 10,000 bytes"):
            copied(packed(folder, ending))
    monkeypatch.setattr(archive, "MAX_UNPACKED_BYTES", 10**6)
    monkeypatch.setattr(archive, "MAX_FILES", 1)
    with pytest.raises(InputError, match="more than 1 files"):
        copied(packed(folder, "zip"))


def tar_header(kind: bytes, size: int) -> bytes:
    header = tarfile.TarInfo("m/bundle.json")
    header.type = kind
    header.size = abs(size)
    made = bytearray(header.tobuf(tarfile.GNU_FORMAT))
    if size < 0:  # as base 256, with the sum of the bytes anew
        made[124:136] = b"\xff" + bytes([255] * 3) + struct.pack(">q", size)
        made[148:156] = b" " * 8
        made[148:156] = b"%06o\0 " % sum(made)
    return bytes(made)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
@pytest.mark.parametrize("size", [2**33, -1024])
def test_headers_that_would_be_read_for_ever(kind, size, tmp_path):
    with gzip.open(tmp_path / "bomb.tar.gz", "wb") as file:
        file.write(tar_header(kind, size))
        file.write(bytes(2**20))
    with pytest.raises(InputError, match=f"a header of {size:,} bytes"):
        copied(tmp_path / "bomb.tar.gz")


def many(tar: tarfile.TarFile) -> None:
    for number in range(2000):
        tar.addfile(member(f"m/{number}"))


def encoder(tar: tarfile.TarFile) -> None:
    for _number in range(2000):  # a chain of extended headers without a file
        tar.fileobj.write(tar_header(tarfile.XHDTYPE, 0))  # type: ignore[union-attr]


@pytest.mark.parametrize(("write", "reason"), [(many, "more than 1,000 files"), (encoder, "cannot be unpacked")])
def test_many_entries(write: Callable[[tarfile.TarFile], None], reason: str, tmp_path):
    with tarfile.open(tmp_path / "bomb.tar", "w") as tar:
        write(tar)
    with pytest.raises(InputError, match=reason):
        copied(tmp_path / "bomb.tar")
