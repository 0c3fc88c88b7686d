"""Identify inputs: checksums of their content, and a fingerprint that shows whether one was written meanwhile."""

import hashlib
from pathlib import Path

from scperformer.errors import InputError
from scperformer.files.tenx import MTX_FILE, find_matrix

ZARR_ROOTS = (".zgroup", ".zattrs", ".zmetadata", "zarr.json")


def sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file, as 64 hexadecimal digits."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksum(*paths: str | Path) -> str:
    """Return the SHA-256 of an input; of several inputs, the SHA-256 of their SHA-256s.

    An input of several files, such as a 10x or zarr folder, has the SHA-256 of their names and SHA-256s.
    """
    if len(paths) > 1:
        return hashlib.sha256(" ".join(map(checksum, paths)).encode()).hexdigest()
    path = Path(paths[0])
    if path.is_file() and not MTX_FILE.match(path.name):
        return sha256(path)
    if path.is_file() or not any((path / name).is_file() for name in ZARR_ROOTS):
        files = list(find_matrix(path))
    else:
        files = sorted(entry for entry in path.rglob("*") if entry.is_file())
    lines = "".join(f"{file.name if path.is_file() else file.relative_to(path)} {sha256(file)}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()


def fingerprint(path: str | Path) -> dict[Path, tuple[int, int, int]]:
    """Return the size, time of change and inode of a file, or of every file in a folder."""
    path = Path(path)
    files = sorted(entry for entry in path.rglob("*") if entry.is_file()) if path.is_dir() else [path]
    seen = {file: file.stat() for file in files if file.exists()}
    return {file: (state.st_size, state.st_mtime_ns, state.st_ino) for file, state in seen.items()}


def require_unchanged(path: str | Path, seen: dict[Path, tuple[int, int, int]]) -> None:
    """Refuse an input that was changed, replaced or removed since `fingerprint` gave `seen`."""
    if fingerprint(path) != seen:
        expected = "the same input from beginning to end"
        raise InputError(f"{path} was changed while it was read", expected, "run the step again and leave it alone")
