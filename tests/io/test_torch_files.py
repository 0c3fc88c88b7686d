"""Files that torch has saved are read bit for bit, and nothing in them is executed."""

import os
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import torch
from support.refusal import refusal

from scperformer.importing.folders import import_into_library
from scperformer.io.pickles import read_in_child
from scperformer.io.torch_files import is_torch_file, read_torch

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
)


def read(content, tmp_path):
    torch.save(content, tmp_path / "saved.pt")
    assert is_torch_file(tmp_path / "saved.pt")
    return read_torch(tmp_path / "saved.pt")


def test_tensors_of_all_types_and_strides_are_read_bit_for_bit(tmp_path):
    whole = torch.arange(24).reshape(4, 6)
    tensors = {str(dtype): (whole - 5).to(dtype) for dtype in DTYPES}
    tensors |= {
        "bool": whole > 3,
        "transposed": whole.T,
        "part": whole[1:3, ::2],
        "expanded": whole[0, :1],
    }
    tensors |= {
        "number": torch.tensor(3.5),
        "empty": torch.zeros(0, 3),
        "parameter": torch.nn.Parameter(whole / 7),
    }
    found = read(
        {"state": OrderedDict(tensors), "epoch": 3, "name": "x", "list": [1.5, None]}, tmp_path
    )
    assert (found["epoch"], found["name"], found["list"]) == (3, "x", [1.5, None])
    assert found["state"].keys() == tensors.keys()
    for name, tensor in tensors.items():
        expected = tensor.detach().numpy()
        assert (found["state"][name].dtype, found["state"][name].shape) == (
            expected.dtype,
            expected.shape,
        )
        np.testing.assert_array_equal(found["state"][name], expected)


class Hostile:
    def __reduce__(self):
        return os.system, ("touch executed",)


@pytest.mark.parametrize("place", ["beside the tensors", "as a tensor's sizes"])
def test_nothing_is_executed(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = {"state": {"x": torch.zeros(2)}, "other": Hostile()}
    if place == "as a tensor's sizes":
        content = {"state": {Hostile(): torch.zeros(2)}}
    with pytest.raises(ValueError, match=r"a pickle with '(posix|nt)\.system'"):
        read(content, tmp_path)
    assert not (tmp_path / "executed").exists()


DAMAGE = {
    "shorter numbers": ("saved/data/0", b"\0" * 28),
    "no numbers": ("saved/data/0", None),
    "no pickle": ("saved/data.pkl", b"not a pickle"),
    "two pickles": ("other/data.pkl", b"\x80\x02}."),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_archives_are_refused(case, tmp_path):
    read({"x": torch.ones(8)}, tmp_path)
    entry, changed = DAMAGE[case]
    path = tmp_path / "saved.pt"
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()} | {entry: changed}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            if content is not None:
                archive.writestr(name, content)
    with pytest.raises(ValueError, match="do not fit"):
        read_in_child(lambda: read_torch(path), path.stat().st_size)


def test_an_archive_of_old_torch_is_refused(tmp_path):
    file = tmp_path / "saved.pt"
    torch.save({"x": torch.ones(2)}, file, _use_new_zipfile_serialization=False)
    assert is_torch_file(file)
    with pytest.raises(ValueError, match=r"before 1\.6"):
        read_torch(file)


def leaf_of(levels: int, last: bytes = b"}") -> bytes:
    """A pickle of mappings, each of which has the one before it twice: 2 ** levels leaves."""
    body = last + b"q\x00"
    for level in range(1, levels + 1):
        before = b"h" + bytes([level - 1])
        body += (
            b"}q"
            + bytes([level])
            + b"(X\x01\x00\x00\x00a"
            + before
            + b"X\x01\x00\x00\x00b"
            + before
            + b"u"
        )
    return b"\x80\x02" + body + b"0" * (levels + 1) + b"h" + bytes([levels])


KEY = b"X\x09\x00\x00\x00attr_dict"
ENDLESS = {
    "in itself": b"\x80\x02}q\x00" + KEY + b"h\x00s.",
    "200,000 levels": b"\x80\x02" + b"}X\x01\x00\x00\x00a" * 200_000 + b"}" + b"s" * 200_000 + b".",
    "32 levels that share one another": leaf_of(32) + b".",
    "weights that share one another": leaf_of(32) + b"0}X\x10\x00\x00\x00model_state_dicth\x20s.",
}


@pytest.mark.parametrize("case", ENDLESS)
def test_mappings_without_end_are_refused_in_one_line(case, tmp_path):
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
        archive.writestr("archive/data.pkl", ENDLESS[case])
        archive.writestr("archive/version", "3")
    with refusal("foreign-model"):
        import_into_library(tmp_path / "model.pt", tmp_path / "library")
    assert not (tmp_path / "library").exists()


def test_a_tensor_that_is_larger_than_all_memory(tmp_path):
    """It refers to a single number, again and again."""
    torch.save({"model_state_dict": {"x": torch.zeros(1).expand(10**12)}}, tmp_path / "model.pt")
    with refusal("foreign-model"):
        import_into_library(tmp_path / "model.pt", tmp_path / "library")
