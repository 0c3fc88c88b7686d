"""Damage on which libhdf5 hangs or crashes causes an error of one line, as a child process inspects each file first."""

import os
import re
import signal
import struct
import sys
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest
from support.inputs import WRITERS, same
from support.logs import said
from support.refusal import refusal

import scperformer
from scperformer.base import child
from scperformer.io import hdf5_guard
from scperformer.io.read import read_cells, require_readable
from scperformer.io.safety import READ_ERRORS

linux = pytest.mark.skipif(sys.platform != "linux", reason="files are only inspected on Linux")


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """One second of CPU time is more than enough for small files; no file has been inspected before."""
    monkeypatch.setattr(child, "CPU_SECONDS", 1)
    monkeypatch.setattr(hdf5_guard, "_inspected", set())


def with_heaps_of_zeros(path: Path) -> Path:
    """Set all objects in the heaps of strings to zero, with their sizes: libhdf5 never reaches the next object."""
    content = bytearray(path.read_bytes())
    for heap in re.finditer(b"GCOL", content):
        size = int.from_bytes(content[heap.start() + 8 : heap.end() + 12], "little")
        content[heap.start() + 16 : heap.start() + size] = bytes(size - 16)
    path.write_bytes(content)
    return path


@linux
def test_a_command_on_a_file_on_which_libhdf5_hangs(
    counts_adata, write, tiny_model, command, tmp_path
):
    path = with_heaps_of_zeros(write(counts_adata))
    ran = command("predict", path, f"model_path={tiny_model}")
    assert ran.code == 2
    *_, line = ran.err.splitlines()
    assert line.startswith(f"error: {path} is damaged (the HDF5 library hangs on it); expected")
    assert os.listdir(tmp_path) == [path.name]


@linux
def test_a_string_of_4_gib(cells, tmp_path):
    path = WRITERS["h5ad"](cells, tmp_path)
    with h5py.File(path) as file:
        # of the entries (length, address, number) of the strings
        place = file["obs/_index"].id.get_offset()
    content = bytearray(path.read_bytes())
    assert struct.unpack_from("<I", content, place) == (len(cells.obs_names[0]),)
    struct.pack_into("<I", content, place, 2**32 - 1)
    path.write_bytes(content)
    with refusal("damaged-file"):
        read_cells(path)


@linux
@pytest.mark.parametrize(("num", "size"), [(1, 10**9), (4, 2**27 - 1)], ids=["one", "several"])
def test_datasets_that_declare_far_more_than_they_store(num, size, cells, tmp_path):
    path = WRITERS["h5ad"](cells, tmp_path)
    with h5py.File(path, "r+") as file:
        file.create_dataset(
            "uns/zeros", shape=(10**5,), chunks=(1000,), compression="gzip", dtype="f8"
        )
    assert require_readable(path) == "h5ad"
    with h5py.File(path, "r+") as file:
        for number in range(num):
            file.create_dataset(
                f"uns/{number}", shape=(size,), chunks=(2**20,), dtype="f4", fillvalue=1.0
            )
    with refusal("damaged-file"):
        require_readable(path)


@linux
def test_a_long_string_that_is_repeated(cells, tmp_path, monkeypatch):
    monkeypatch.setattr(hdf5_guard, "STRINGS_AT_ONCE", 100)
    monkeypatch.setattr(child, "CPU_SECONDS", 30)
    path = WRITERS["h5ad"](cells, tmp_path)
    with h5py.File(path, "r+") as file:
        texts = file.create_dataset(
            "uns/texts", data=np.array(["x" * 2**20] + ["y"] * 2000, dtype=object)
        )
        place = texts.id.get_offset()
    content = bytearray(path.read_bytes())
    # all entries refer to the long string
    content[place : place + 16 * 2001] = content[place : place + 16] * 2001
    path.write_bytes(content)
    with refusal("damaged-file"):
        require_readable(path)


ENDS = {
    "crash": (lambda path: os.kill(os.getpid(), signal.SIGSEGV), "SIGSEGV"),
    "memory": (lambda path: bytearray(2 * child.EXTRA_MEMORY), "memory"),
}


@linux
@pytest.mark.parametrize("case", ENDS)
def test_each_way_in_which_the_child_ends(case, cells, tmp_path, monkeypatch, capfd):
    inspect, text = ENDS[case]
    monkeypatch.setattr(hdf5_guard, "inspect", inspect)
    with refusal("damaged-file", text):
        read_cells(WRITERS["h5ad"](cells, tmp_path))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("reason", ["no fork", "no process", "no limits"])
def test_files_are_read_if_they_cannot_be_inspected(reason, cells, tmp_path, monkeypatch, caplog):
    def refuse(*args):
        raise OSError(11, "no more processes")

    if reason == "no fork":
        monkeypatch.setattr(hdf5_guard, "CAN_FORK", False)
    elif reason == "no process":
        monkeypatch.setattr(os, "fork", refuse)
    else:
        monkeypatch.setattr("resource.setrlimit", refuse)
    assert same(read_cells(WRITERS["h5ad"](cells, tmp_path)), cells)
    assert bool(said(caplog, "open_hdf5")) == (reason != "no fork")


def test_no_other_function_opens_hdf5_files_of_users():
    package = Path(scperformer.__file__).parent
    places = {
        str(path.relative_to(package)): path.read_text().count("h5py.File(path")
        for path in package.rglob("*.py")
        if "h5py.File(" in path.read_text()
    }
    assert places == {"io/hdf5_guard.py": 2, "io/writing.py": 0}  # writing.py only writes outputs


TEXTS = np.array(["one", "two"], dtype=object)
RECORD = np.dtype([("text", h5py.string_dtype()), ("number", "i4")])
STRINGS = {
    "attribute of the file": lambda file: file.attrs.update(a="text"),
    "attribute of a dataset": lambda file: file.create_dataset("a", data=1).attrs.update(a="text"),
    "scalar": lambda file: file.create_dataset("a", data="text"),
    "table": lambda file: file.create_dataset("a", data=TEXTS.reshape(1, 2)),
    "chunks": lambda file: file.create_dataset("a", data=TEXTS, chunks=(1,), compression="gzip"),
    "last block": lambda file: file.create_dataset(
        "a", shape=(5,), dtype=h5py.string_dtype()
    ).write_direct(TEXTS, dest_sel=np.s_[3:]),
    "records": lambda file: file.create_dataset("a", data=np.array([("one", 1)], dtype=RECORD)),
}


@pytest.mark.parametrize("case", STRINGS)
def test_every_kind_of_string_is_inspected(case, tmp_path, monkeypatch):
    errors = []

    @contextmanager
    def keep_errors():
        try:
            yield
        except READ_ERRORS as error:
            errors.append(str(error))

    monkeypatch.setattr(hdf5_guard, "_ignore_damage", keep_errors)
    monkeypatch.setattr(hdf5_guard, "STRINGS_AT_ONCE", 2)
    path = tmp_path / "strings.h5"
    with h5py.File(path, "w") as file:
        STRINGS[case](file)
    hdf5_guard.inspect(path)
    assert errors == []
    path.write_bytes(path.read_bytes().replace(b"GCOL", b"LOCG"))
    hdf5_guard.inspect(path)
    assert len(errors) == 1
    assert "global heap" in errors[0]
