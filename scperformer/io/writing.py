"""Write HDF5 files so that a full disk, a limit on file sizes or Ctrl-C raises an error like any other.

If a write of libhdf5 fails, closing the file fails, too, and libhdf5 2.0 then crashes, at the latest at the end of the
process. So libhdf5 writes through a Python file that keeps the first error and drops all later writes. This costs no
time: 19 MB take 0.13 s with and without it.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
from anndata import AnnData
from anndata.io import write_elem

from scperformer.base.errors import InputError
from scperformer.io.own_files import NAME, WRITTEN_BY

MAX_KEPT_BYTES = 2**20  # larger writes are values of arrays, which libhdf5 does not read again


class _KeepsErrors(io.FileIO):
    """A file whose writes never fail; the first error is kept in `error`.

    After an error, small writes are kept in memory: libhdf5 would crash if it read other metadata than it has written.
    """

    def __init__(self, path: Path, mode: str):
        super().__init__(path, mode)
        self.error: BaseException | None = None
        # small writes after the error: position in the file, data
        self.kept: list[tuple[int, bytes]] = []

    def write_all(self, data: Any) -> None:
        """Write all data, although the system may write only a part at a time."""
        remaining = memoryview(data)
        while len(remaining):
            remaining = remaining[super().write(remaining) :]

    def write(self, data: Any) -> int:
        start = self.tell()
        try:
            if self.error is None:
                self.write_all(data)
        except BaseException as error:  # noqa: BLE001 - `hdf5_to_write` raises it
            self.error = error
        if self.error is not None and len(data) <= MAX_KEPT_BYTES:
            self.kept.append((start, bytes(data)))
        return len(data)

    def readinto(self, buffer: Any) -> int:
        start = self.tell()
        num_read = super().readinto(buffer)
        for position, data in self.kept:
            first, last = max(position, start), min(position + len(data), start + len(buffer))
            if first < last:
                buffer[first - start : last - start] = data[first - position : last - position]
        return len(buffer) if self.kept else num_read

    def truncate(self, size: int | None = None) -> int:
        try:
            if self.error is None:
                super().truncate(size)
        except BaseException as error:  # noqa: BLE001 - `hdf5_to_write` raises it
            self.error = error
        return size or 0


@contextmanager
def hdf5_to_write(path: Path, mode: str) -> Iterator[h5py.File]:
    """Open an HDF5 file for writing; the `mode` is "w" for a new file or "r+" for an existing file."""
    with _KeepsErrors(path, "r+" if mode == "r+" else "w+") as keeps_errors:
        try:
            with h5py.File(keeps_errors, mode) as file:
                yield file
        finally:
            if keeps_errors.error is not None:
                raise keeps_errors.error


def write_anndata(adata: AnnData, path: Path, **options: Any) -> None:
    """Write an AnnData as its `write_h5ad` does; `options` apply to datasets, such as `compression`."""
    adata.strings_to_categoricals()
    if adata.raw is not None:
        adata.strings_to_categoricals(adata.raw.var)
    with hdf5_to_write(path, "w") as file:
        try:
            write_elem(file, "/", adata, dataset_kwargs=options)
        except ValueError as error:
            if "embedded NULL" not in str(error):
                raise
            found = f"a text with a null character ({next(iter(getattr(error, '__notes__', [])), error)})"
            expected = "texts that HDF5 can hold"
            raise InputError(
                "null-character", found, expected, "write the output as .zarr, or clean it"
            ) from error


def mark_own(path: Path) -> None:
    """Mark an HDF5 file as ours, which other programs do not when they save its content (own_files.py)."""
    with hdf5_to_write(path, "r+") as file:
        file.attrs[WRITTEN_BY] = NAME
