"""A model folder out of a zip or tar archive: nothing but plain files of one folder, of a limited size."""

import gzip
import io
import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from scperformer.errors import InputError

MOST_BYTES = 4 * 2**30  # unpacked; the largest models have some 100 MB
MOST_ENTRIES = 1000
MOST_AT_ONCE = 16 * 2**20  # bytes that an archive may make its reader hold: real headers have some 100
GZIP = b"\x1f\x8b"
UNPACK_ERRORS = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, gzip.BadGzipFile),
    *(EOFError, OSError, ValueError, NotImplementedError, RuntimeError),
)


class _Careful(io.RawIOBase):
    """A stream that is read in small pieces only: a header that claims gigabytes gets none."""

    def __init__(self, stream: IO[bytes]):
        self.stream = stream

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MOST_AT_ONCE:
            raise ValueError("a header of too many bytes")
        if self.stream.tell() > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES:,} bytes")
        return self.stream.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self.stream.seek(offset, whence)

    def tell(self) -> int:
        return self.stream.tell()

    def seekable(self) -> bool:
        return True


def is_archive(path: Path) -> bool:
    """Whether a file looks like a zip or tar archive, or is compressed with gzip; few bytes of it are read."""
    with path.open("rb") as file:
        start = file.read(512)
    return start.startswith(GZIP) or start[257:262] == b"ustar" or zipfile.is_zipfile(path)


def unpack(path: Path, marker: str, target: Path) -> None:
    """Write the files of the one folder of an archive that holds `marker` into the folder `target`.

    Raises
    ------
    InputError
        The archive is damaged or too large, or holds absolute paths, "..", links, devices, or no such folder.
    """
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                _write(((info, *_of_zip(info)) for info in archive.infolist()), archive.open, marker, target)
        else:
            with _tar(path) as archive:
                _write(((info, *_of_tar(info)) for info in archive), archive.extractfile, marker, target)
    except UNPACK_ERRORS as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        expected = "a zip or tar archive of one model folder: plain files, nothing else"
        raise InputError(f"{path} is not unpacked ({reason[:200]})", expected, "pack the folder anew") from error


@contextmanager
def _tar(path: Path) -> Iterator[tarfile.TarFile]:
    with path.open("rb") as file:
        is_packed = file.read(2) == GZIP
        file.seek(0)
        with (
            cast(IO[bytes], gzip.open(file) if is_packed else file) as stream,
            tarfile.open(fileobj=cast(IO[bytes], _Careful(stream)), mode="r:") as archive,
        ):
            yield archive


def _of_zip(info: zipfile.ZipInfo) -> tuple[str, int, bool]:
    kind = stat.S_IFMT(info.external_attr >> 16)
    is_plain = kind in (0, stat.S_IFREG, stat.S_IFDIR)
    if not is_plain:
        raise ValueError(f"'{info.filename}' is no plain file")
    return info.filename, info.file_size, info.is_dir()


def _of_tar(info: tarfile.TarInfo) -> tuple[str, int, bool]:
    if not (info.isreg() or info.isdir()) or info.issparse():
        raise ValueError(f"'{info.name}' is no plain file")
    return info.name, info.size, info.isdir()


def _write(entries: Iterator[tuple[Any, str, int, bool]], opened: Any, marker: str, target: Path) -> None:
    """Look at all entries, then write those of the folder of `marker`."""
    files: dict[PurePosixPath, tuple[Any, int]] = {}
    total = 0
    for number, (info, name, size, is_folder) in enumerate(entries, start=1):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
            raise ValueError(f"'{name}' lies outside of it")
        total += size
        if number > MOST_ENTRIES or total > MOST_BYTES:
            raise ValueError(f"more than {MOST_ENTRIES:,} files or {MOST_BYTES:,} bytes")
        if path in files:
            raise ValueError(f"'{name}' is in it twice")
        if not is_folder:
            files[path] = info, size
    folders = [path.parent for path in files if path.name == marker]
    if len(folders) != 1:
        raise ValueError(f"{len(folders) or 'no'} {marker} in it")
    for path, (info, size) in files.items():
        if path.parent == folders[0]:
            with opened(info) as stream, (target / path.name).open("xb") as file:
                shutil.copyfileobj(_Bounded(stream, size), file)


class _Bounded:
    """A stream that may not be longer than was said."""

    def __init__(self, stream: IO[bytes], size: int):
        self.stream, self.left = stream, size

    def read(self, size: int = -1, /) -> bytes:
        content = self.stream.read(size)
        self.left -= len(content)
        if self.left < 0:
            raise ValueError("a file longer than it says")
        return content
