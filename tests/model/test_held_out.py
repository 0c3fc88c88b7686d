import io
import zipfile

import numpy as np
import pytest

from scperformer.model.held_out import HELD_OUT, HeldOut, read_held_out


def held_out_calls() -> HeldOut:
    rng = np.random.default_rng(0)
    normal = lambda *shape: rng.normal(size=shape)  # noqa: E731
    profile = {"weights": normal(50).astype(np.float32), "vectors": normal(50, 8).astype(np.float32)}
    profile |= {"means": normal(3, 8), "whitening": normal(3, 8, 8), "outside": np.ones((3, 2))}
    return HeldOut(normal(30, 3).astype(np.float32), np.arange(30) % 3, normal(30) ** 2, profile)


def changed(**arrays: np.ndarray) -> bytes:
    with np.load(io.BytesIO(held_out_calls().to_bytes())) as file:
        content = {name: file[name] for name in file.files} | arrays
    out = io.BytesIO()
    np.savez_compressed(out, **content)  # type: ignore[arg-type]
    return out.getvalue()


def test_held_out_calls_are_read_as_they_were_written(tmp_path):
    calls = held_out_calls()
    (tmp_path / HELD_OUT).write_bytes(calls.to_bytes())
    found = read_held_out(tmp_path, 50, 3)
    written, read = (vars(each) | each.profile for each in (calls, found))
    for name in written.keys() - {"profile"}:
        np.testing.assert_array_equal(read[name], written[name])
        assert read[name].dtype == written[name].dtype


DAMAGED = {
    "unreadable": b"PK\x03\x04 and nothing else",
    "do not fit": changed(scores=np.zeros(29)),
    "that do not fit": changed(vectors=np.zeros((49, 8), dtype=np.float32)),
    "with parts that do not fit": changed(labels=np.full(30, "1")),
    "standard deviation that is not above 0": changed(outside=np.zeros((3, 2))),
    "not finite": changed(means=np.full((3, 8), np.nan)),
    "labels that the model does not have": changed(labels=np.full(30, 3, dtype=np.uint8)),
}


@pytest.mark.parametrize("found", DAMAGED)
def test_damaged_calls_are_refused(tmp_path, found):
    (tmp_path / HELD_OUT).write_bytes(DAMAGED[found])
    with pytest.raises(ValueError, match=found):
        read_held_out(tmp_path, 50, 3)


def test_objects_are_not_loaded(tmp_path):
    (tmp_path / HELD_OUT).write_bytes(changed(labels=np.array([{}] * 30, dtype=object)))
    with pytest.raises(ValueError, match=r"pickle|unreadable"):
        read_held_out(tmp_path, 50, 3)


def test_calls_that_would_fill_the_memory_are_refused_unpacked(tmp_path, monkeypatch):
    (tmp_path / HELD_OUT).write_bytes(held_out_calls().to_bytes())
    size = sum(part.file_size for part in zipfile.ZipFile(tmp_path / HELD_OUT).infolist())
    monkeypatch.setattr("scperformer.model.arrays.MOST_UNPACKED", size - 1)
    with pytest.raises(ValueError, match="when unpacked"):
        read_held_out(tmp_path, 50, 3)
