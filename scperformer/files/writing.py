"""Write HDF5 files so that a full disk, a limit to the size of files or Ctrl-C is an error like any other.

If a write of libhdf5 fails, closing the file fails, too, and libhdf5 2.0 then crashes, at the latest at the end of the
process. So it writes through a Python file that keeps the first error and drops what comes after it. This takes no
longer: 0.13 s for 19 MB, as without it.
"""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
from anndata import AnnData
from anndata.io import write_elem

PAGE = 4096  # bytes
MOST_KEPT = 2**20  # bytes of a write; larger ones are values of arrays, which libhdf5 does not read again


class _KeepsErrors(io.FileIO):
    """A file that never says that a write has failed: `error` does.

    After an error, small writes are kept in memory: libhdf5 would crash if it read other metadata than it has written.
    """

    def __init__(self, path: Path, mode: str):
        super().__init__(path, mode)
        self.error: BaseException | None = None
        self.pages: dict[int, bytearray] = {}  # by their number in the file

    def write_all(self, data: Any) -> None:
        """Write all of it, where the system writes a part at a time."""
        left = memoryview(data)
        while len(left):
            left = left[super().write(left) :]

    def write(self, data: Any) -> int:
        start = self.tell()
        try:
            if self.error is None:
                self.write_all(data)
        except BaseException as error:  # noqa: BLE001 - `hdf5_to_write` raises it
            self.error = error
        if self.error is not None and len(data) <= MOST_KEPT:
            for number, page, within in _parts(start, len(data)):
                if number not in self.pages:
                    self.pages[number] = bytearray(os.pread(self.fileno(), PAGE, number * PAGE).ljust(PAGE, b"\0"))
                self.pages[number][page] = data[within]
        return len(data)

    def readinto(self, buffer: Any) -> int:
        start = self.tell()
        num_read = super().readinto(buffer)
        if not self.pages:
            return num_read
        for number, page, within in _parts(start, len(buffer)):
            if number in self.pages:
                buffer[within] = self.pages[number][page]
        return len(buffer)

    def truncate(self, size: int | None = None) -> int:
        try:
            if self.error is None:
                super().truncate(size)
        except BaseException as error:  # noqa: BLE001 - `hdf5_to_write` raises it
            self.error = error
        return size or 0


def _parts(start: int, size: int) -> Iterator[tuple[int, slice, slice]]:
    """Return the number of each page of a range of bytes, and its part of the range: in the page, in the range."""
    place = start
    while place < start + size:
        stop = min(start + size, (place // PAGE + 1) * PAGE)
        yield place // PAGE, slice(place % PAGE, place % PAGE + stop - place), slice(place - start, stop - start)
        place = stop


@contextmanager
def hdf5_to_write(path: Path, mode: str) -> Iterator[h5py.File]:
    """Open an HDF5 file to write it: "w", a new one, or "r+", one that is there."""
    with _KeepsErrors(path, "r+" if mode == "r+" else "w+") as kept:
        try:
            with h5py.File(kept, mode) as file:
                yield file
        finally:
            if kept.error is not None:
                raise kept.error


def write_anndata(adata: AnnData, path: Path, **options: Any) -> None:
    """Write an AnnData as its `write_h5ad` does; `options` are of its arrays, such as `compression`."""
    adata.strings_to_categoricals()
    if adata.raw is not None:
        adata.strings_to_categoricals(adata.raw.var)
    with hdf5_to_write(path, "w") as file:
        write_elem(file, "/", adata, dataset_kwargs=options)
