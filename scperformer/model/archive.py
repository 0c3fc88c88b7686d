"""Model folders in .zip archives, which may come from anywhere: the known files are copied out, nothing is extracted.

The names in an archive are never used as paths: a file is written only under one of the names in `KNOWN`, in the folder
of the model or in that of one of its studies. An archive with anything but plain files and folders is refused.
"""

import errno
import lzma
import shutil
import stat
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from scperformer.base.errors import InputError
from scperformer.model.content import INFO
from scperformer.model.folder import KNOWN, STUDY

ARCHIVES = "a model folder, or a .zip of one"
MAX_UNPACKED_BYTES = 512 * 2**20  # of all files of an archive, unpacked; the largest models have some 100 MB
MAX_FILES = 1000
ERRORS = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, RuntimeError)


def _files_of_model(zipped: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the known files of the one model folder in an archive by their names, after a look at all entries."""
    total = 0
    found: dict[PurePosixPath, zipfile.ZipInfo] = {}
    for number, file in enumerate(zipped.infolist(), start=1):
        path = PurePosixPath(file.filename)
        kind = stat.S_IFMT(file.external_attr >> 16)  # 0: packed on a system without kinds of files
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise ValueError(f"'{file.filename}' is neither a file nor a folder")
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"'{file.filename}' lies outside of its folder")
        total += file.file_size
        if number > MAX_FILES or total > MAX_UNPACKED_BYTES:
            raise ValueError(f"more than {MAX_FILES:,} files or {MAX_UNPACKED_BYTES:,} bytes")
        if path.name in KNOWN and not file.is_dir() and found.setdefault(path, file) is not file:
            raise ValueError(f"'{file.filename}' is in it twice")
    with_info = [path.parent for path in found if path.name == INFO]
    # Folders of studies lie in that of their model.
    folders = [folder for folder in with_info if not (STUDY.fullmatch(folder.name) and folder.parent in with_info)]
    if len(folders) != 1:
        raise ValueError(f"{len(folders) or 'no'} {INFO} in it")
    own = {path: path.relative_to(folders[0]) for path in found if path.is_relative_to(folders[0])}
    is_of_model = {path: len(name.parts) == 1 or bool(STUDY.fullmatch(str(name.parent))) for path, name in own.items()}
    return {own[path].as_posix(): found[path] for path, is_kept in is_of_model.items() if is_kept}


def copy_from_archive(path: Path, target: Path, expected: str = ARCHIVES) -> None:
    """Copy the known files of the one model folder in an archive into the empty folder `target`.

    Files of other names are left out. `expected` is what the errors say that could be there instead.

    Raises
    ------
    InputError
        The archive is damaged or too large; holds no model folder or several; or holds links, devices, a file
        twice, or names that lead out of its folder.
    """
    try:
        with zipfile.ZipFile(path) as zipped:
            for name, file in _files_of_model(zipped).items():
                (target / name).parent.mkdir(exist_ok=True)  # of a study; `_files_of_model` knows the names
                with zipped.open(file) as source, (target / name).open("xb") as copy:
                    shutil.copyfileobj(source, copy)
    except ERRORS as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        reason = str(error).splitlines()[0].rstrip(":") if str(error) else type(error).__name__
        remedy = "pack the folder again, or unpack it yourself and import the folder"
        found = f"{path} cannot be unpacked ({reason[:200]})"
        raise InputError(found, f"{expected}, with plain files only", remedy) from error
