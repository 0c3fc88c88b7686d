"""Read parts of arrays on disk; what gzip has compressed, outside of the lock of HDF5, so that several threads can.

h5py lets one thread at a time read and decompress. Here it only reads the compressed chunks.
"""

import zlib
from typing import Any

import h5py
import numpy as np

GZIP = [1]  # identifiers of the filters of HDF5, in the order in which they were applied
SHUFFLED_GZIP = [2, 1]  # the first bytes of all values, then the second ones, and so on


def read_span(array: Any, start: int, stop: int) -> np.ndarray:
    """Return the values `start` to `stop` of an array of one dimension, of h5py or zarr."""
    if isinstance(array, h5py.Dataset) and array.chunks and array.dtype.kind in "iuf":
        plist = array.id.get_create_plist()
        filters = [plist.get_filter(number)[0] for number in range(plist.get_nfilters())]
        if filters in (GZIP, SHUFFLED_GZIP):
            start, stop, _ = slice(start, stop).indices(len(array))
            parts = _decompressed(array, start, stop, filters == SHUFFLED_GZIP)
            if parts is not None:
                return parts
    return array[start:stop]


def _decompressed(
    array: h5py.Dataset, start: int, stop: int, is_shuffled: bool
) -> np.ndarray | None:
    """Return values of a dataset whose chunks gzip has compressed; None: a chunk is missing, or is not so."""
    [length] = array.chunks
    values = np.empty(max(0, stop - start), dtype=array.dtype)
    size = length * array.dtype.itemsize
    for first in range(start - start % length, stop, length):
        try:
            skipped_filters, raw = array.id.read_direct_chunk((first,))
            unzip = zlib.decompressobj()
            content = unzip.decompress(raw, size + 1)
        except (OSError, RuntimeError, ValueError, zlib.error):
            return None
        if skipped_filters or len(content) != size or not unzip.eof:
            return None
        chunk = np.frombuffer(content, np.uint8)
        if is_shuffled:
            chunk = np.ascontiguousarray(chunk.reshape(array.dtype.itemsize, length).T)
        inside = chunk.reshape(-1).view(array.dtype)[max(start - first, 0) : stop - first]
        values[max(first - start, 0) :][: len(inside)] = inside
    return values
