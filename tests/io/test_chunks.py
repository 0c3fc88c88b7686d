"""Values of compressed arrays are those that h5py reads, whatever compressed them."""

import zlib

import h5py
import numpy as np
import pytest

from scperformer.io import chunks
from scperformer.io.chunks import read_span

NUM = 1000
SPANS = [
    (0, NUM),
    (0, 0),
    (5, 6),
    (99, 101),
    (100, 200),
    (150, 950),
    (700, 700),
    (900, 5000),
    (400, 300),
]
HOW = {
    "gzip": {"compression": "gzip", "chunks": (100,)},
    "gzip, last chunk in part": {"compression": 9, "chunks": (333,)},
    "shuffled gzip": {"compression": "gzip", "shuffle": True, "chunks": (70,)},
    "lzf": {"compression": "lzf", "chunks": (100,)},
    "with checksums": {"compression": "gzip", "fletcher32": True, "chunks": (100,)},
    "scaled": {"scaleoffset": 0, "chunks": (100,)},
    "chunks alone": {"chunks": (100,)},
    "contiguous": {},
}


@pytest.mark.parametrize("dtype", ["float32", "int64", ">i4", "uint8", "bool"])
@pytest.mark.parametrize("how", HOW)
def test_a_span_of_values_is_what_h5py_reads(how, dtype, tmp_path):
    values = np.random.default_rng(0).poisson(3, NUM).astype(dtype)
    if how == "scaled" and dtype == "bool":
        return
    with h5py.File(tmp_path / "file.h5", "w") as file:
        array = file.create_dataset("array", data=values, **HOW[how])
        for start, stop in SPANS:
            found, expected = read_span(array, start, stop), array[start:stop]
            np.testing.assert_array_equal(found, expected, strict=True)
            assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("shuffle", [False, True])
def test_gzip_is_not_left_to_h5py(shuffle, tmp_path, monkeypatch):
    with h5py.File(tmp_path / "file.h5", "w") as file:
        array = file.create_dataset(
            "array", data=np.arange(NUM), compression="gzip", shuffle=shuffle, chunks=(64,)
        )
        monkeypatch.setattr(h5py.Dataset, "__getitem__", None)
        np.testing.assert_array_equal(read_span(array, 10, 900), np.arange(10, 900))


def test_chunks_that_are_missing_damaged_or_not_compressed_are_left_to_h5py(tmp_path):
    how = {"shape": (NUM,), "chunks": (100,), "compression": "gzip", "dtype": "int32"}
    with h5py.File(tmp_path / "file.h5", "w") as file:
        file.create_dataset("missing", fillvalue=7, **how)[:100] = 1
        plain = file.create_dataset("plain", **how)
        plain.id.write_direct_chunk((0,), np.arange(100, dtype=np.int32).tobytes(), filter_mask=1)
        damaged = file.create_dataset("damaged", **how)
        damaged[:] = np.arange(NUM)
        damaged.id.write_direct_chunk((100,), b"no gzip")
    with h5py.File(tmp_path / "file.h5") as file:
        np.testing.assert_array_equal(read_span(file["missing"], 50, 150), [1] * 50 + [7] * 50)
        np.testing.assert_array_equal(read_span(file["plain"], 50, 100), np.arange(50, 100))
        np.testing.assert_array_equal(read_span(file["damaged"], 0, 100), np.arange(100))
        with pytest.raises(OSError, match="filter"):
            read_span(file["damaged"], 0, 200)


def test_a_chunk_that_decompresses_to_more_than_its_size_is_left_to_h5py(tmp_path):
    with h5py.File(tmp_path / "file.h5", "w") as file:
        array = file.create_dataset(
            "array", shape=(100,), chunks=(100,), dtype="int32", compression="gzip"
        )
        array.id.write_direct_chunk((0,), zlib.compress(bytes(10**6)))
        assert chunks._decompressed(array, 0, 100, False) is None
