"""Which files scperformer has written: overwrite=true replaces these alone, so that no file of a user is lost.

A file that another program has saved since counts as the user's: it may hold work of theirs.
"""

import csv
import gzip
import json
import re
import zipfile
import zlib
from pathlib import Path

import h5py

from scperformer.base.errors import InputError, require_path
from scperformer.base.outputs import FolderKind, require_absent
from scperformer.io.hdf5_guard import open_hdf5

WRITTEN_BY = "written_by"  # attribute of an HDF5 file; other programs write a new file without it
NAME = "scperformer"
GZIP_NAME = NAME.encode() + b"\0"  # of the content, in the header of a packed .rds
CREATOR = f"<dc:creator>{NAME}</dc:creator>".encode()  # of a workbook; Excel adds who saved it last
CORE = "docProps/core.xml"
PAGE = (b"<!doctype html>", f'<meta name="generator" content="{NAME} '.encode())
FINDINGS = {"model", "files"}  # the keys of the JSON of `check`
CLUSTERS = ["cluster", "cells", "calls", "confidence", "looks_like", "markers", "name"]
CALLED = ("call", "label", "confidence")  # columns of every table of calls, after their prefix
MAX_START_BYTES = 2**20  # of a line, or of what is read of a page or workbook


def require_replaceable(
    path: str | Path, overwrite: bool, kind: FolderKind | None = None, *, option: str = "output"
) -> None:
    """Refuse an output as `require_absent`, and a file that scperformer has not written, also with `overwrite`."""
    require_path(path)
    file = Path(path)
    if file.is_file() and kind is None and not is_own(file):
        expected, remedy = "a new file, or one of scperformer", f"choose another {option}=..."
        if not overwrite:
            raise InputError(
                "output-exists", f"{path} exists, which scperformer did not write", expected, remedy
            )
        found = f"{path}, which scperformer did not write or another program has changed, so it is not replaced"
        raise InputError("not-replaced", found, expected, f"{remedy}, or move the file")
    require_absent(path, overwrite, kind)


def is_own(path: Path) -> bool:
    """Return whether scperformer has written a file and no other program has saved it since; true if it is empty."""
    if path.stat().st_size == 0:
        return True
    try:
        if h5py.is_hdf5(path):
            with open_hdf5(path) as hdf5:
                return hdf5.attrs.get(WRITTEN_BY) == NAME
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as book, book.open(CORE) as core:
                text = core.read(MAX_START_BYTES)
            return CREATOR in text and b"lastModifiedBy" not in text
        with path.open("rb") as plain:
            start = plain.read(MAX_START_BYTES)
        if start[:2] == b"\x1f\x8b":
            if start[3] & 8 and start[10:].startswith(GZIP_NAME):
                return True
            with gzip.open(path) as packed:
                start = packed.read(MAX_START_BYTES)
        if start.startswith(b'{\n "model": ') and set(json.loads(path.read_bytes())) == FINDINGS:
            return True
        return (start.startswith(PAGE[0]) and PAGE[1] in start) or _is_table(start)
    except (
        InputError,
        OSError,
        EOFError,
        KeyError,
        ValueError,
        zlib.error,
        zipfile.BadZipFile,
        csv.Error,
    ):
        return False


def _is_table(start: bytes) -> bool:
    """Return whether a text begins with the columns of calls or of clusters, and no others stand before or after."""
    line, end, rest = start.partition(b"\n")
    text = line.decode("utf-8")
    if not end or text.endswith("\r"):  # as spreadsheets on Windows save it
        return False
    names = next(csv.reader([text], delimiter="\t" if "\t" in text else ","), [])
    if names == CLUSTERS:
        # no cluster has the name that a person gave
        return re.fullmatch(rb"(.*[,\t]\n)*", rest) is not None
    if len(names) < 2 or names[0] != "cell" or not names[1].endswith(f"_{CALLED[0]}"):
        return False
    prefix = names[1].removesuffix(CALLED[0])
    return names[-1].startswith(prefix) and {f"{prefix}{name}" for name in CALLED} <= set(names)
