"""Model folders in .zip archives, which may come from anywhere: the known files are copied out, nothing is extracted.

The names in an archive are never used as paths: a file is written only under one of the names in `KNOWN`, in the folder
of the model or in the subfolder of one of its studies.
"""

import errno
import lzma
import shutil
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


def copy_from_archive(path: Path, target: Path, expected: str = ARCHIVES) -> None:
    """Copy the known files of the one model folder in an archive into the empty folder `target`; leave others out.

    Archives that are damaged or too large, or hold no model folder or several, are refused: one of `expected` is
    wanted.
    """
    try:
        with zipfile.ZipFile(path) as zipped:
            files = {PurePosixPath(file.filename): file for file in zipped.infolist() if not file.is_dir()}
            if len(files) > MAX_FILES or sum(file.file_size for file in files.values()) > MAX_UNPACKED_BYTES:
                raise ValueError(f"more than {MAX_FILES:,} files or {MAX_UNPACKED_BYTES:,} bytes")
            found = [place.parent for place in files if place.name == INFO]
            roots = [folder for folder in found if not (STUDY.fullmatch(folder.name) and folder.parent in found)]
            if len(roots) != 1:
                raise ValueError(f"{len(roots) or 'no'} {INFO} in it")
            for place, file in files.items():
                part = str(place.parent.relative_to(roots[0])) if place.is_relative_to(roots[0]) else ""
                if place.name in KNOWN and (part == "." or STUDY.fullmatch(part)):
                    (target / part).mkdir(exist_ok=True)
                    with zipped.open(file) as source, (target / part / place.name).open("xb") as copy:
                        shutil.copyfileobj(source, copy)
    except ERRORS as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        reason = str(error).splitlines()[0].rstrip(":") if str(error) else type(error).__name__
        remedy = "pack the folder again, or unpack it yourself and import the folder"
        raise InputError(f"{path} cannot be unpacked ({reason[:200]})", expected, remedy) from error
