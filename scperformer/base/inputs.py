"""Files that are read: their SHA-256, and the names beside one that does not exist."""

import hashlib
from itertools import islice
from pathlib import Path

MAX_NAMES = 2000  # beside a missing file, to find the one that was meant


def sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file, as 64 hexadecimal digits."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def names_beside(path: Path) -> list[str]:
    """Return the names of files and folders in the same folder as a path that may not exist."""
    return [other.name for other in islice(path.parent.iterdir(), MAX_NAMES)] if path.parent.is_dir() else []
