"""The .npz files of a model folder, kept cells and held-out calls: read as written, and refused if damaged."""

import io
import struct
import tracemalloc
import zipfile
from functools import partial

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from scperformer.model.arrays import (
    CELLS_FILE,
    HELD_OUT,
    HeldOut,
    ReferenceCells,
    read_held_out,
    read_reference_cells,
)
from scperformer.trust.novelty import NoveltyModel


def kept_cells(are_counts: bool = True) -> ReferenceCells:
    rng = np.random.default_rng(0)
    values = rng.poisson(0.4, size=(30, 500)).astype(np.float32)
    values[4] = 0  # a cell without counts
    values[7, 499] = 70_000  # more than two bytes hold
    labels = np.arange(30) % 3
    return ReferenceCells(csr_matrix(values if are_counts else values * 1.5), labels, are_counts)


def held_out_calls() -> HeldOut:
    rng = np.random.default_rng(0)
    normal = lambda *shape: rng.normal(size=shape)  # noqa: E731
    profile = {
        "weights": normal(50).astype(np.float32),
        "vectors": normal(50, 8).astype(np.float32),
    }
    profile |= {"means": normal(3, 8), "whitening": normal(3, 8, 8), "outside": np.ones((3, 2))}
    return HeldOut(
        normal(30, 3).astype(np.float32),
        np.arange(30) % 3,
        normal(30) ** 2,
        NoveltyModel(**profile),
    )


WRITTEN = {CELLS_FILE: kept_cells().to_bytes(), HELD_OUT: held_out_calls().to_bytes()}
READ = {
    CELLS_FILE: partial(read_reference_cells, num_genes=500, num_labels=3),
    HELD_OUT: partial(read_held_out, num_genes=50, num_labels=3),
}


@pytest.mark.parametrize("are_counts", [True, False], ids=["counts", "relative"])
def test_kept_cells_are_read_as_they_were_written(tmp_path, are_counts):
    reference_cells = kept_cells(are_counts)
    (tmp_path / CELLS_FILE).write_bytes(reference_cells.to_bytes())
    found = READ[CELLS_FILE](tmp_path)
    np.testing.assert_array_equal(found.values.toarray(), reference_cells.values.toarray())
    np.testing.assert_array_equal(found.labels, reference_cells.labels)
    assert found.are_counts == are_counts


def test_held_out_calls_are_read_as_they_were_written(tmp_path):
    (tmp_path / HELD_OUT).write_bytes(WRITTEN[HELD_OUT])
    written, read = (
        vars(each) | vars(each.novelty_model)
        for each in (held_out_calls(), READ[HELD_OUT](tmp_path))
    )
    for name in written.keys() - {"novelty_model"}:
        np.testing.assert_array_equal(read[name], written[name])
        assert read[name].dtype == written[name].dtype


def write_changed(folder, name: str, arrays: dict[str, np.ndarray]) -> None:
    with np.load(io.BytesIO(WRITTEN[name])) as file:
        content = {array: file[array] for array in file.files} | arrays
    np.savez_compressed(folder / name, **content)  # type: ignore[arg-type]


NUM = kept_cells().values.nnz
DAMAGED = {
    CELLS_FILE: {
        "do not fit": {"lengths": np.zeros(30, dtype=np.uint8)},
        "genes that the model does not have": {"steps": np.full(NUM, 400, dtype=np.uint16)},
        # sums would overflow
        "'cells.npz' with genes that": {"steps": np.full(NUM, 2**63, dtype=np.uint64)},
        "values that are not above 0": {"values": np.zeros(NUM, dtype=np.uint8)},
        "with labels of type object": {"labels": np.array([{}] * 30, dtype=object)},
    },
    HELD_OUT: {
        "standard deviation that is not above 0": {"outside": np.zeros((3, 2))},
        "not finite": {"means": np.full((3, 8), np.nan)},
        "labels that the model does not have": {"labels": np.full(30, 3, dtype=np.uint8)},
    },
}


@pytest.mark.parametrize(
    ("name", "found"), [(name, found) for name in DAMAGED for found in DAMAGED[name]]
)
def test_damaged_arrays_are_refused(tmp_path, name, found):
    write_changed(tmp_path, name, DAMAGED[name][found])
    with pytest.raises(ValueError, match=found):
        READ[name](tmp_path)


@pytest.mark.parametrize("name", READ)
def test_arrays_that_would_fill_the_memory_are_refused_unpacked(tmp_path, name, monkeypatch):
    (tmp_path / name).write_bytes(WRITTEN[name])
    size = sum(part.file_size for part in zipfile.ZipFile(tmp_path / name).infolist())
    monkeypatch.setattr("scperformer.model.arrays.MAX_UNPACKED", size - 1)
    with pytest.raises(ValueError, match="when unpacked"):
        READ[name](tmp_path)


def with_part(name: str, part: str, content: bytes) -> bytes:
    """Return an .npz file with other bytes for one of its arrays."""
    file = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(WRITTEN[name])) as old,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for info in old.infolist():
            new.writestr(
                info.filename, content if info.filename == f"{part}.npy" else old.read(info)
            )
    return file.getvalue()


def npy(header: str, content: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    size = struct.pack("<H" if version == b"\x01\x00" else "<I", len(header))
    return b"\x93NUMPY" + version + size + header.encode() + content


SOUND = "{'descr': '|u1', 'fortran_order': False, 'shape': (30,), }"
HEADERS = {
    "a cut header": npy(SOUND)[:40],
    "huge": npy(SOUND.replace("30,", f"{2**62},"), bytes(30)),
    "very long": npy("[" * 200_000, bytes(30), b"\x02\x00"),
    "a call": npy("__import__('os').abort()", bytes(30)),
}


@pytest.mark.parametrize("case", HEADERS)
def test_headers_that_lie_are_refused(tmp_path, case):
    name = CELLS_FILE
    (tmp_path / name).write_bytes(with_part(name, "labels", HEADERS[case]))
    tracemalloc.start()
    try:
        with pytest.raises(
            ValueError, match=f"'{name}' (unreadable|with labels of type|with parts)"
        ):
            READ[name](tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", READ)
def test_any_bytes_are_read_or_refused(tmp_path, name):
    rng = np.random.default_rng(0)
    for _ in range(150):
        content = np.frombuffer(WRITTEN[name], dtype=np.uint8).copy()
        places = rng.integers(len(content), size=rng.integers(1, 9))
        content[places] = rng.integers(256, size=len(places))
        (tmp_path / name).write_bytes(content.tobytes())
        try:
            READ[name](tmp_path)
        except ValueError as error:
            assert f"'{name}'" in str(error)  # noqa: PT017 - either may happen


def test_few_bytes_do_not_ask_for_much_memory(tmp_path):
    """Packed, this takes 64 KiB: its numbers are compared with the model before they are expanded."""
    many = {"steps": np.ones(2**25, dtype=np.uint8), "values": np.ones(2**25, dtype=np.uint8)}
    write_changed(tmp_path, CELLS_FILE, many)
    assert (tmp_path / CELLS_FILE).stat().st_size < 2**17
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="do not fit"):
            READ[CELLS_FILE](tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 3 * 2**25
    finally:
        tracemalloc.stop()
