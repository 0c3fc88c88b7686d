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


def require_absent(path: str | Path, overwrite: bool, marker: str | None = None) -> None:
    """Fail before any work is done when the output cannot be put at `path`.

    Parameters
    ----------
    path
        A file to be written, or with `marker` a folder. An empty folder counts as absent.
    overwrite
        True: something that exists may be replaced.
    marker
        A file that an existing folder must hold to be replaced. It proves that the folder was written by us, so
        that `output=. overwrite=true` never deletes other work.

    Raises
    ------
    InputError
        It exists and `overwrite` is off, is a folder instead of a file or the reverse, may not be replaced, or its
        folder cannot be written.
    """
    path = Path(path)
    if marker is None and path.is_dir():
        raise InputError(f"{path} is a folder", "a file to write", "add a file name to output=...")
    if marker is not None and path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file", "a folder to write", "choose another output=...")
    _require_replaceable(path, overwrite, marker)
    folder = Path(os.path.realpath(path)).parent
    _require_writable(next(there for there in (folder, *folder.parents) if there.exists()))


def _require_writable(folder: Path) -> None:
    if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(
            f"folder {folder} cannot be written", "a folder with write permission", "choose another output=..."
        )


def _require_replaceable(path: Path, overwrite: bool, marker: str | None) -> None:
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not overwrite:
        raise InputError(f"{path} exists", "a new output", "choose another output=..., or add overwrite=true")
    if path.is_dir():
        holds_us = Path.cwd().resolve().is_relative_to(path.resolve())
        if holds_us or (marker is not None and not (path / marker).is_file()):
            why = "is the folder you work in" if holds_us else f"is a folder without {marker}"
            raise InputError(
                f"{path} {why}, so it is not replaced",
                "an earlier output of this step",
                "choose another output=...",
            )
    elif not path.is_file():
        raise InputError(f"{path} is neither a file nor a folder", "a file", "choose another output=...")


@contextmanager
def new_file(path: str | Path, overwrite: bool = False, scratch: Path | None = None) -> Iterator[Path]:
    """A temporary path; becomes `path` when the block ends well, is removed when it does not.

    It is beside `path`, or in the folder `scratch` of the same disk: a process that is killed leaves it there.
    Missing parent folders are made. A link is followed: the file it points to is replaced, not the link.

    Raises
    ------
    InputError
        `path` exists and `overwrite` is off, is a folder, or its folder cannot be written.
    """
    target = Path(os.path.realpath(path))
    require_absent(path, overwrite)
    temporary = _beside(target)
    if scratch is not None:
        temporary = scratch / temporary.name
    try:
        yield temporary
        if not overwrite:
            require_absent(path, overwrite)  # it may have appeared while we were working
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(path: str | Path, overwrite: bool = False, marker: str | None = None) -> Iterator[Path]:
    """An empty temporary folder beside `path`; becomes `path` when the block ends well, else is removed.

    An existing folder is replaced as a whole (`marker`: see `require_absent`; None: whatever it holds).

    Raises
    ------
    InputError
        `path` exists and `overwrite` is off, is a file, or its parent cannot be written.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_dir():
        raise InputError(f"{path} is a file", "a folder to write", "choose another output=...")
    _require_replaceable(Path(path), overwrite, marker)
    temporary, old = _beside(target), target.with_name(f".scperformer-old-{uuid.uuid4().hex}")
    temporary.mkdir()
    try:
        yield temporary
        _require_replaceable(Path(path), overwrite, marker)
        if target.exists():
            os.replace(target, old)
        try:
            os.replace(temporary, target)
        except OSError:
            if old.exists():
                os.replace(old, target)
            raise
        shutil.rmtree(old, ignore_errors=True)  # only here: before, it may be the one copy that is left
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def make_parent(path: Path) -> Path:
    """Return the folder of an output; make it if it is missing.

    Raises
    ------
    InputError
        It cannot be made or written.
    """
    parent = path.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        remedy = "choose another output=..."
        raise InputError(f"folder {parent} cannot be made ({error.strerror})", "a folder to write", remedy) from error
    _require_writable(parent)
    return parent


def _beside(target: Path) -> Path:
    """Return an unused path in the folder of `target` (so that a rename is atomic), with the same suffix."""
    folder = make_parent(target)
    _remove_abandoned(folder)
    return folder / f"{_mark()}{os.getpid()}-{uuid.uuid4().hex}{target.suffix}"


def _mark() -> str:
    """Return the start of names of temporary files, the same for all processes of this machine or container."""
    machine = re.sub(r"\W", "", socket.gethostname())
    space = Path("/proc/self/ns/pid")
    return f".scperformer-{machine}_{space.stat().st_ino if space.exists() else 0}-"


def _remove_abandoned(folder: Path) -> None:
    """Remove the temporary files of processes that have ended, where possible."""
    for path in folder.glob(f"{_mark()}*"):
        number = path.name.removeprefix(_mark()).partition("-")[0]
        if number.isdigit() and not _is_alive(int(number)):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with suppress(OSError):
                    path.unlink()


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # a process of another user
        return True
    return True
