"""Model folders in archives, which may come from anywhere: the known files are copied out, nothing is ever extracted.

`extractall` of tarfile, also with its data filter, has been made to write outside of its folder by long paths through
links (CVE-2025-4517). Here the names in an archive are never used as paths: a file is written only under one of the
names in `KNOWN`, in the folder of the model or in that of one of its studies. An archive with anything but plain files
and folders is refused.
"""

import errno
import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from scperformer.base.errors import InputError
from scperformer.model.content import INFO
from scperformer.model.folder import KNOWN, STUDY

ARCHIVES = "a model folder, or a .zip, .tar or .tar.gz of one"
ZIP, GZIP = (b"PK\x03\x04", b"PK\x05\x06"), b"\x1f\x8b"  # first bytes
MAX_UNPACKED_BYTES = 512 * 2**20  # of all files of an archive, unpacked; the largest models have some 100 MB
MAX_FILES = 1000
# Bytes of a header without a file, such as one with a long name. tarfile reads it as a whole, and before Python 3.11.10
# takes a time for it that grows with the square of its length (CVE-2024-6232).
MAX_HEADER_BYTES = 2**14
PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)
ERRORS = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, RuntimeError)


class _File(NamedTuple):
    """A plain file in an archive."""

    name: str
    size: int  # bytes, as declared; reading gives no more than these
    open: Callable[[], IO[bytes] | None]


class _SafeHeader(tarfile.TarInfo):
    """The header of a tar entry; long ones are refused before tarfile reads them into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_SafeHeader":
        info = super().frombuf(buf, encoding, errors)
        if info.size < 0 or (not info.isreg() and info.size > MAX_HEADER_BYTES):
            raise ValueError(f"a header of {info.size:,} bytes")
        return info


def _files_in_zip(zipped: zipfile.ZipFile) -> Iterator[_File]:
    for info in zipped.infolist():
        kind = stat.S_IFMT(info.external_attr >> 16)  # 0: packed on a system without kinds of files
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise ValueError(f"'{info.filename}' is neither a file nor a folder")
        if not info.is_dir():
            yield _File(info.filename, info.file_size, lambda info=info: zipped.open(info))  # type: ignore[misc]


def _files_in_tar(tar: tarfile.TarFile) -> Iterator[_File]:
    for info in tar:
        if info.size < 0:  # by an extended header; tarfile would go back, and read the same entries for ever
            raise ValueError(f"'{info.name}' of {info.size:,} bytes")
        if not info.isdir() and (info.type not in PLAIN or info.issparse()):
            raise ValueError(f"'{info.name}' is neither a file nor a folder")
        if not info.isdir():
            yield _File(info.name, info.size, lambda info=info: tar.extractfile(info))  # type: ignore[misc]


def _files_of_model(files: Iterable[_File]) -> dict[str, _File]:
    """Return the known files of the one model folder in an archive by their names, after a look at all entries."""
    total = 0
    found: dict[PurePosixPath, _File] = {}
    for number, file in enumerate(files, start=1):
        path = PurePosixPath(file.name)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"'{file.name}' lies outside of its folder")
        total += file.size
        if number > MAX_FILES or total > MAX_UNPACKED_BYTES:
            raise ValueError(f"more than {MAX_FILES:,} files or {MAX_UNPACKED_BYTES:,} bytes")
        if path.name in KNOWN and found.setdefault(path, file) is not file:
            raise ValueError(f"'{file.name}' is in it twice")
    with_info = [path.parent for path in found if path.name == INFO]
    # Folders of studies lie in that of their model.
    folders = [folder for folder in with_info if not (STUDY.fullmatch(folder.name) and folder.parent in with_info)]
    if len(folders) != 1:
        raise ValueError(f"{len(folders) or 'no'} {INFO} in it")
    own = {path: path.relative_to(folders[0]) for path in found if path.is_relative_to(folders[0])}
    is_of_model = {path: len(name.parts) == 1 or bool(STUDY.fullmatch(str(name.parent))) for path, name in own.items()}
    return {own[path].as_posix(): found[path] for path, is_kept in is_of_model.items() if is_kept}


def _copy(files: dict[str, _File], target: Path) -> None:
    for name, file in files.items():
        source = file.open()
        assert source is not None, "plain files alone are left"
        (target / name).parent.mkdir(exist_ok=True)  # of a study; `_files_of_model` knows the names
        with source, (target / name).open("xb") as copy:
            shutil.copyfileobj(source, copy)


def copy_from_archive(path: Path, target: Path, expected: str = ARCHIVES) -> None:
    """Copy the known files of the one model folder in an archive into the empty folder `target`.

    The first bytes show the kind of the archive. Files of other names are left out. `expected` is what the errors say
    that could be there instead.

    Raises
    ------
    InputError
        The archive is damaged or too large; holds no model folder or several; or holds links, devices, sparse files, a
        file twice, or names that lead out of its folder.
    """
    try:
        with path.open("rb") as file:
            start = file.read(4)
        if start in ZIP:
            with zipfile.ZipFile(path) as zipped:
                _copy(_files_of_model(_files_in_zip(zipped)), target)
        else:
            mode = "r:gz" if start.startswith(GZIP) else "r:"
            with tarfile.open(path, mode, tarinfo=_SafeHeader) as tar:  # type: ignore[call-overload]
                _copy(_files_of_model(_files_in_tar(tar)), target)
    except ERRORS as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        reason = str(error).splitlines()[0].rstrip(":") if str(error) else type(error).__name__
        remedy = "pack the folder again, or unpack it yourself and import the folder"
        found = f"{path} cannot be unpacked ({reason[:200]})"
        raise InputError(found, f"{expected}, with plain files only", remedy) from error
