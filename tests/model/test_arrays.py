"""The .npz files of a model folder, kept cells and held-out calls: read as written, and refused if damaged."""

import io
import zipfile
from functools import partial

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from scperformer.model.held_out import HELD_OUT, HeldOut, read_held_out
from scperformer.model.kept import CELLS, KeptCells, read_kept


def kept_cells(are_counts: bool = True) -> KeptCells:
    rng = np.random.default_rng(0)
    values = rng.poisson(0.4, size=(30, 500)).astype(np.float32)
    values[4] = 0  # a cell without counts
    values[7, 499] = 70_000  # more than two bytes hold
    labels = np.arange(30) % 3
    return KeptCells(csr_matrix(values if are_counts else values * 1.5), labels, are_counts)


def held_out_calls() -> HeldOut:
    rng = np.random.default_rng(0)
    normal = lambda *shape: rng.normal(size=shape)  # noqa: E731
    profile = {"weights": normal(50).astype(np.float32), "vectors": normal(50, 8).astype(np.float32)}
    profile |= {"means": normal(3, 8), "whitening": normal(3, 8, 8), "outside": np.ones((3, 2))}
    return HeldOut(normal(30, 3).astype(np.float32), np.arange(30) % 3, normal(30) ** 2, profile)


WRITTEN = {CELLS: kept_cells().to_bytes(), HELD_OUT: held_out_calls().to_bytes()}
READ = {
    CELLS: partial(read_kept, num_genes=500, num_labels=3),
    HELD_OUT: partial(read_held_out, num_genes=50, num_labels=3),
}


@pytest.mark.parametrize("are_counts", [True, False], ids=["counts", "relative"])
def test_kept_cells_are_read_as_they_were_written(tmp_path, are_counts):
    kept = kept_cells(are_counts)
    (tmp_path / CELLS).write_bytes(kept.to_bytes())
    found = READ[CELLS](tmp_path)
    np.testing.assert_array_equal(found.values.toarray(), kept.values.toarray())
    np.testing.assert_array_equal(found.labels, kept.labels)
    assert found.are_counts == are_counts


def test_held_out_calls_are_read_as_they_were_written(tmp_path):
    (tmp_path / HELD_OUT).write_bytes(WRITTEN[HELD_OUT])
    written, read = (vars(each) | each.profile for each in (held_out_calls(), READ[HELD_OUT](tmp_path)))
    for name in written.keys() - {"profile"}:
        np.testing.assert_array_equal(read[name], written[name])
        assert read[name].dtype == written[name].dtype


def write_changed(folder, name: str, arrays: dict[str, np.ndarray]) -> None:
    with np.load(io.BytesIO(WRITTEN[name])) as file:
        content = {array: file[array] for array in file.files} | arrays
    np.savez_compressed(folder / name, **content)  # type: ignore[arg-type]


NUM = kept_cells().values.nnz
DAMAGED = {
    CELLS: {
        "other labels": {"labels": np.full(30, 2, dtype=np.uint8)},
        "do not fit": {"lengths": np.zeros(30, dtype=np.uint8)},
        "not fit": {"values": np.full(NUM, "1")},
        "genes that the model does not have": {"steps": np.full(NUM, 400, dtype=np.uint16)},
        "values that are not above 0": {"values": np.zeros(NUM, dtype=np.uint8)},
        "pickle": {"labels": np.array([{}] * 30, dtype=object)},
    },
    HELD_OUT: {
        "do not fit": {"scores": np.zeros(29)},
        "that do not fit": {"vectors": np.zeros((49, 8), dtype=np.float32)},
        "with parts that do not fit": {"labels": np.full(30, "1")},
        "standard deviation that is not above 0": {"outside": np.zeros((3, 2))},
        "not finite": {"means": np.full((3, 8), np.nan)},
        "labels that the model does not have": {"labels": np.full(30, 3, dtype=np.uint8)},
        "pickle": {"labels": np.array([{}] * 30, dtype=object)},
    },
}


@pytest.mark.parametrize(("name", "found"), [(name, found) for name in DAMAGED for found in DAMAGED[name]])
def test_damaged_arrays_are_refused(tmp_path, name, found):
    write_changed(tmp_path, name, DAMAGED[name][found])
    with pytest.raises(ValueError, match=found):
        READ[name](tmp_path)


@pytest.mark.parametrize("name", READ)
def test_other_bytes_are_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"PK\x03\x04 and nothing else")
    with pytest.raises(ValueError, match="unreadable"):
        READ[name](tmp_path)


@pytest.mark.parametrize("name", READ)
def test_arrays_that_would_fill_the_memory_are_refused_unpacked(tmp_path, name, monkeypatch):
    (tmp_path / name).write_bytes(WRITTEN[name])
    size = sum(part.file_size for part in zipfile.ZipFile(tmp_path / name).infolist())
    monkeypatch.setattr("scperformer.model.arrays.MOST_UNPACKED", size - 1)
    with pytest.raises(ValueError, match="when unpacked"):
        READ[name](tmp_path)
