"""Files that are read: their kind and SHA-256, and the names beside one that does not exist."""

import csv
import hashlib
import io
import os
import re
import stat
from itertools import islice
from pathlib import Path

from scperformer.base.messages import did_you_mean

MAX_NAMES = 2000  # beside a missing file, to find the one that was meant


def special_kind(path: str | Path) -> str:
    """Return the kind of a path that has no end or blocks its reader: a device, a pipe or a socket; "" for others."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # nothing there, or no path at all
        return ""
    kinds = {
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "")


def sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file, as 64 hexadecimal digits."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def table_rows(text: str) -> list[list[str]]:
    """Return the fields of each line of a small table, without blanks around them.

    Tabs, semicolons (as Excel writes them where commas are for decimals) or commas separate them: the first line shows
    which.
    """
    delimiter = max("\t;,", key=text.partition("\n")[0].count)
    return [
        [field.strip() for field in row]
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    ]


def how_to_find(path: str | Path) -> str:
    """Return the remedy for a file that does not exist: the name that was meant, or to download a URL."""
    if re.match(r"\w{2,}:/", str(path)):
        return "download it first, and give the path of the copy"
    return f"{did_you_mean(Path(path).name, names_beside(Path(path)))}check the path"


def names_beside(path: Path) -> list[str]:
    """Return the names of files and folders in the same folder as a path that may not exist."""
    return (
        [other.name for other in islice(path.parent.iterdir(), MAX_NAMES)]
        if path.parent.is_dir()
        else []
    )
