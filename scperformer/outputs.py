"""Write files and folders so that they appear complete or not at all."""

import os
import re
import shutil
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scperformer.errors import InputError

FAILED = ".failed.json"  # ending of a file in place of an output that there is not: sample, input and error
OTHER = "choose another output=..."


def _require_writable(folder: Path) -> None:
    if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"folder {folder} cannot be written", "a folder with write permission", OTHER)


def _require_replaceable(path: Path, overwrite: bool, marker: str | None, *, is_folder: bool) -> None:
    if not path.exists():
        return
    if path.is_dir() and not is_folder:
        raise InputError(f"{path} is a folder", "a file to write", "add a file name to output=...")
    if is_folder and not path.is_dir():
        raise InputError(f"{path} is a file", "a folder to write", OTHER)
    if is_folder and not any(path.iterdir()):
        return
    if not overwrite:
        raise InputError(f"{path} exists", "a new output", f"{OTHER}, or add overwrite=true")
    if is_folder:
        holds_us = Path.cwd().resolve().is_relative_to(path.resolve())
        if holds_us or (marker is not None and not (path / marker).is_file()):
            why = "is the folder you work in" if holds_us else f"is a folder without {marker}"
            raise InputError(f"{path} {why}, so it is not replaced", "an earlier output of this step", OTHER)
    elif not path.is_file():
        raise InputError(f"{path} is neither a file nor a folder", "a file", OTHER)


def require_absent(path: str | Path, overwrite: bool, marker: str | None = None) -> None:
    """Refuse an output that exists or cannot be written, before any work is done; an empty folder counts as absent.

    With `marker` the output is a folder, and only one that holds this file is replaced: it proves that the folder was
    written by us, so that `output=. overwrite=true` never deletes other work.
    """
    _require_replaceable(Path(path), overwrite, marker, is_folder=marker is not None)
    folder = Path(os.path.realpath(path)).parent
    _require_writable(next(there for there in (folder, *folder.parents) if there.exists()))


@contextmanager
def new_file(path: str | Path, overwrite: bool = False, scratch: Path | None = None) -> Iterator[Path]:
    """Give a temporary path; it becomes `path` when the block ends well, and is removed when it does not.

    It is beside `path`, or in the folder `scratch` of the same disk: a process that is killed leaves it there.
    Missing parent folders are made. A link is followed: the file it points to is replaced, not the link.
    """
    target = Path(os.path.realpath(path))
    require_absent(path, overwrite)
    temporary = _beside(target) if scratch is None else scratch / _beside(target).name
    try:
        yield temporary
        if not overwrite:
            require_absent(path, overwrite)  # it may have appeared while we were working
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(path: str | Path, overwrite: bool = False, marker: str | None = None) -> Iterator[Path]:
    """Give an empty temporary folder beside `path`; it becomes `path` when the block ends well, else it is removed.

    An existing folder is replaced as a whole (`marker`: see `require_absent`; None: whatever it holds).
    """
    target = Path(os.path.realpath(path))
    _require_replaceable(Path(path), overwrite, marker, is_folder=True)
    temporary, old = _beside(target), target.with_name(f".scperformer-old-{uuid.uuid4().hex}")
    temporary.mkdir()
    try:
        yield temporary
        _require_replaceable(Path(path), overwrite, marker, is_folder=True)
        if target.exists():
            os.replace(target, old)
        try:
            os.replace(temporary, target)
        except OSError:
            if old.exists():
                os.replace(old, target)
            raise
        shutil.rmtree(old, ignore_errors=True)  # only here: before, it may be the only copy
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _mark() -> str:
    """Return the start of names of temporary files, the same for all processes of this machine or container."""
    machine, space = re.sub(r"\W", "", socket.gethostname()), Path("/proc/self/ns/pid")
    return f".scperformer-{machine}_{space.stat().st_ino if space.exists() else 0}-"


def _beside(target: Path) -> Path:
    """Return an unused path in the folder of `target` (so that a rename is atomic), with the same suffix.

    The folder is made if it is missing. Temporary files of processes that have ended are removed, where possible.
    """
    folder, mark = target.parent, _mark()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"folder {folder} cannot be made ({error.strerror})", "a folder to write", OTHER) from error
    _require_writable(folder)
    for path in folder.glob(f"{mark}*"):
        process = path.name.removeprefix(mark).partition("-")[0]
        if process.isdigit():
            with suppress(OSError):  # a process or a file of another user
                try:
                    os.kill(int(process), 0)  # only asks whether the process exists
                except ProcessLookupError:
                    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
    return folder / f"{mark}{os.getpid()}-{uuid.uuid4().hex}{target.suffix}"
