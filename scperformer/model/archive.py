"""Unpack a model folder from a zip, tar or tar.gz archive that may come from anywhere."""

import errno
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from scperformer.errors import InputError

MOST_BYTES = 512 * 2**20  # of all files, unpacked; the largest models have some 100 MB
MOST_FILES = 1000
MOST_HEADER = 2**20  # bytes of a header without a file, such as one with a long name; tarfile reads it as a whole
GZIP = b"\x1f\x8b"
UNPACK_ERRORS = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
    *(EOFError, OSError, ValueError, NotImplementedError, RuntimeError),
)


class _SmallHeader(tarfile.TarInfo):
    """The header of a tar entry; long ones are refused before tarfile reads them into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_SmallHeader":
        info = super().frombuf(buf, encoding, errors)
        if not info.isreg() and info.size > MOST_HEADER:
            raise ValueError(f"a header of {info.size:,} bytes")
        return info


def unpack(path: Path, marker: str, target: Path) -> Path:
    """Unpack an archive into the empty folder `target`, and return the one folder in it that holds `marker`.

    An archive that is damaged or too large, or has files outside of its folder, links that lead out of it or devices,
    is refused.
    """
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as zipped:
                _require_small((info.filename, info.file_size) for info in zipped.infolist())
                zipped.extractall(target)  # never writes more of a file than its declared size
        else:
            if not hasattr(tarfile, "data_filter"):
                raise ValueError("Python before 3.11.4 cannot unpack tar archives safely")
            with path.open("rb") as file:
                mode = "r:gz" if file.read(len(GZIP)) == GZIP else "r:"
            with tarfile.open(path, mode, tarinfo=_SmallHeader) as tar:  # type: ignore[call-overload]
                _require_small((info.name, info.size) for info in tar)  # ends at the first header that is too large
                tar.extractall(target, filter="data")
        folders = [file.parent for file in target.rglob(marker)]
        if len(folders) != 1:
            raise ValueError(f"{len(folders) or 'no'} {marker} in it")
        return folders[0]
    except UNPACK_ERRORS as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        reason = str(error).splitlines()[0].rstrip(":") if str(error) else type(error).__name__
        expected = "a model folder, or a .zip, .tar or .tar.gz of one with plain files only"
        remedy = "pack the folder again, or unpack it yourself and import the folder"
        raise InputError(f"{path} cannot be unpacked ({reason[:200]})", expected, remedy) from error


def _require_small(entries: Iterable[tuple[str, int]]) -> None:
    """Look at the declared names and sizes of all files before any of them is unpacked."""
    total = 0
    for number, (name, size) in enumerate(entries, start=1):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"'{name}' lies outside of its folder")
        total += size
        if number > MOST_FILES or total > MOST_BYTES:
            raise ValueError(f"more than {MOST_FILES:,} files or {MOST_BYTES:,} bytes")
