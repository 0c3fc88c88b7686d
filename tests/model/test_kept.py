import io
import zipfile

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from scperformer.model.kept import CELLS, KeptCells, read_kept


def kept_cells(are_counts: bool = True) -> KeptCells:
    rng = np.random.default_rng(0)
    values = rng.poisson(0.4, size=(30, 500)).astype(np.float32)
    values[4] = 0  # a cell without counts
    values[7, 499] = 70_000  # more than two bytes hold
    labels = np.arange(30) % 3
    return KeptCells(csr_matrix(values if are_counts else values * 1.5), labels, are_counts)


@pytest.mark.parametrize("are_counts", [True, False], ids=["counts", "relative"])
def test_kept_cells_are_read_as_they_were_written(tmp_path, are_counts):
    kept = kept_cells(are_counts)
    (tmp_path / CELLS).write_bytes(kept.to_bytes())
    found = read_kept(tmp_path, 500, 3)
    np.testing.assert_array_equal(found.values.toarray(), kept.values.toarray())
    np.testing.assert_array_equal(found.labels, kept.labels)
    assert found.are_counts == are_counts


def changed(**arrays: np.ndarray) -> bytes:
    with np.load(io.BytesIO(kept_cells().to_bytes())) as file:
        content = {name: file[name] for name in file.files} | arrays
    out = io.BytesIO()
    np.savez_compressed(out, **content)  # type: ignore[arg-type]
    return out.getvalue()


NUM = kept_cells().values.nnz
DAMAGED = {
    "unreadable": b"PK\x03\x04 and nothing else",
    "other labels": changed(labels=np.full(30, 2, dtype=np.uint8)),
    "do not fit": changed(lengths=np.zeros(30, dtype=np.uint8)),
    "genes that the model does not have": changed(steps=np.full(NUM, 400, dtype=np.uint16)),
    "values that are not above 0": changed(values=np.zeros(NUM, dtype=np.uint8)),
    "not fit": changed(values=np.full(NUM, "1")),
}


@pytest.mark.parametrize("found", DAMAGED)
def test_damaged_cells_are_refused(tmp_path, found):
    (tmp_path / CELLS).write_bytes(DAMAGED[found])
    with pytest.raises(ValueError, match=found):
        read_kept(tmp_path, 500, 3)


def test_objects_are_not_loaded(tmp_path):
    (tmp_path / CELLS).write_bytes(changed(labels=np.array([{}] * 30, dtype=object)))
    with pytest.raises(ValueError, match=r"pickle|unreadable"):
        read_kept(tmp_path, 500, 3)


def test_cells_that_would_fill_the_memory_are_refused_unpacked(tmp_path, monkeypatch):
    (tmp_path / CELLS).write_bytes(kept_cells().to_bytes())
    size = sum(part.file_size for part in zipfile.ZipFile(tmp_path / CELLS).infolist())
    monkeypatch.setattr("scperformer.model.arrays.MOST_UNPACKED", size - 1)
    with pytest.raises(ValueError, match="when unpacked"):
        read_kept(tmp_path, 500, 3)
