"""Write files and folders so that they appear complete or not at all, and remove only folders that we have made."""

import errno
import json
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from scperformer.base.errors import InputError, as_disk_full, require_path

FAILED_SUFFIX = ".failed.json"  # a file beside the outputs for each input that failed: its sample, path and error
MARK = ".scperformer.json"  # the file in each folder we make that says so
ANOTHER_OUTPUT = "choose another output=..."
NUM_SYNC_THREADS = 16  # files that are synced to the disk at the same time
MAX_REMOVALS = 40  # attempts to remove an unfinished folder
SECONDS_BETWEEN_REMOVALS = 0.05


@dataclass(frozen=True)
class FolderKind:
    """A kind of output folder. A folder is replaced or removed only if we have made everything in it."""

    name: str  # in its mark and in messages, such as "a model"
    more: tuple[str, ...] = ()  # patterns of names that may be added after its mark was written


def _names(folder: Path) -> list[str]:
    """Return the names in a folder and one level below it, without marks."""
    entries = [entry for part in ("*", "*/*") for entry in folder.glob(part)]
    return sorted(entry.relative_to(folder).as_posix() for entry in entries if entry.name != MARK)


def why_not_ours(folder: Path, kind: FolderKind) -> str | None:
    """Return why a folder was not made by us as a whole, for a message; None if it was."""
    try:
        content = json.loads((folder / MARK).read_bytes())
        if content["made_by"] != "scperformer" or content["kind"] != kind.name:
            return f"is a folder with {str(content['kind'])[:40]}"
        exact = set(content["names"])
    except FileNotFoundError:
        return f"is a folder without {MARK}"
    except (OSError, ValueError, KeyError, TypeError):
        return f"is a folder with an unusable {MARK}"
    for name in _names(folder):
        if name not in exact and not any(fnmatchcase(name, pattern) for pattern in kind.more):
            return f"holds {name}, which scperformer has not made"
    return None


def remove_folder(folder: Path, kind: FolderKind) -> None:
    """Remove a folder if it exists; refuse it unless we have made all of it."""
    if not folder.exists():
        return
    if why := why_not_ours(folder, kind):
        found = f"{folder} {why}, so it is not removed"
        raise InputError(
            "not-removed", found, f"a folder with {kind.name}", f"move it, or {ANOTHER_OUTPUT}"
        )
    shutil.rmtree(folder)


def require_absent(path: str | Path, overwrite: bool, kind: FolderKind | None = None) -> None:
    """Refuse an output that exists or cannot be written, before any work is done; an empty folder counts as absent.

    With `kind` the output is a folder. An existing one is replaced only if it is of this kind and we have made all of
    it, so that `output=. overwrite=true` never deletes other work.
    """
    require_path(path)
    _require_replaceable(Path(path), overwrite, kind)
    parents = Path(os.path.realpath(path)).parents
    folder = next(parent for parent in parents if parent.exists())
    if not folder.is_dir():
        raise InputError("not-a-folder", f"{folder} is a file", "a folder to write", ANOTHER_OUTPUT)
    if not os.access(folder, os.W_OK | os.X_OK):
        found = f"folder {folder} cannot be written"
        raise InputError("no-permission", found, "a folder with write permission", ANOTHER_OUTPUT)


def _require_replaceable(path: Path, overwrite: bool, kind: FolderKind | None) -> None:
    if not path.exists():
        return
    if kind is None and path.is_dir():
        raise InputError(
            "not-a-file", f"{path} is a folder", "a file to write", "add a file name to output=..."
        )
    if kind is not None and not path.is_dir():
        raise InputError("not-a-folder", f"{path} is a file", "a folder to write", ANOTHER_OUTPUT)
    if kind is not None and not any(path.iterdir()):
        return
    if not overwrite:
        raise InputError(
            "output-exists",
            f"{path} exists",
            "a new output",
            f"{ANOTHER_OUTPUT}, or add overwrite=true",
        )
    if kind is None and not path.is_file():
        raise InputError(
            "not-a-file", f"{path} is neither a file nor a folder", "a file", ANOTHER_OUTPUT
        )
    if kind is not None:
        is_working_folder = Path.cwd().resolve().is_relative_to(path.resolve())
        if why := "is the working folder" if is_working_folder else why_not_ours(path, kind):
            found = f"{path} {why}, so it is not replaced"
            raise InputError("not-replaced", found, f"a folder with {kind.name}", ANOTHER_OUTPUT)


@contextmanager
def output_named(path: str | Path) -> Iterator[None]:
    """Name the output in an error about a full disk: the system error names a temporary file, or none."""
    try:
        yield
    except Exception as error:
        if full := as_disk_full(error, path):
            raise full from error
        raise


@contextmanager
def new_file(
    path: str | Path, overwrite: bool = False, scratch: Path | None = None
) -> Iterator[Path]:
    """Yield a temporary path, which is renamed to `path` if the block succeeds and removed if it fails.

    It is in the folder of `path`, or in the folder `scratch` on the same disk; a killed process leaves it there.
    Missing parent folders are created. A symbolic link is followed: its target is replaced, not the link.
    """
    target = Path(os.path.realpath(path))
    require_absent(path, overwrite)
    temporary = (
        _temporary_path(target) if scratch is None else scratch / _temporary_path(target).name
    )
    try:
        with output_named(path):
            yield temporary
            _sync(temporary)
        if not overwrite:
            require_absent(path, overwrite)  # it may have been created in the meantime
        os.replace(temporary, target)
        _sync(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write a JSON file in place of an earlier one."""
    with new_file(path, overwrite=True) as temporary:
        temporary.write_text(
            json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )


@contextmanager
def scratch_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder on the disk of an output, which is removed at the end."""
    temporary = _temporary_path(Path(os.path.realpath(path)))
    temporary.mkdir()
    try:
        with output_named(path):
            yield temporary
    finally:
        for _ in range(MAX_REMOVALS):
            shutil.rmtree(temporary, ignore_errors=True)
            if not temporary.exists():
                break
            # after Ctrl-C, a thread of zarr may still add a file
            time.sleep(SECONDS_BETWEEN_REMOVALS)


@contextmanager
def new_folder(path: str | Path, kind: FolderKind, overwrite: bool = False) -> Iterator[Path]:
    """Yield an empty temporary folder, which is renamed to `path` if the block succeeds and removed if it fails.

    It gets our mark. An existing folder is replaced as a whole, provided that we have made all of it. A process that is
    killed between the two renames leaves the previous folder under the name `.scperformer-old-...`.
    """
    target = Path(os.path.realpath(path))
    require_absent(path, overwrite, kind)
    with scratch_folder(path) as temporary:
        yield temporary
        mark = {"made_by": "scperformer", "kind": kind.name, "names": _names(temporary)}
        (temporary / MARK).write_text(json.dumps(mark, indent=1) + "\n", encoding="ascii")
        with ThreadPoolExecutor(NUM_SYNC_THREADS) as pool:  # 500 files: 0.07 s; one by one: 1.5 s
            list(pool.map(_sync, (*temporary.rglob("*"), temporary)))
        _require_replaceable(Path(path), overwrite, kind)
        old = target.with_name(f".scperformer-old-{uuid.uuid4().hex}")
        try:
            if target.exists():
                os.replace(target, old)
            os.replace(temporary, target)
        except BaseException:  # Ctrl-C, too
            if old.exists() and not target.exists():
                os.replace(old, target)
            raise
        _sync(target.parent)
        shutil.rmtree(old, ignore_errors=True)  # not earlier: until here it may be the only copy


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Claim an output while it is made; refuse one that another process has claimed, on this or another machine.

    The claim is a lock of a file beside it, which ends with the process, even if it is killed. Network disks that are
    mounted without locks, and folders that cannot be written, have none.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    claim = path.with_name(f".scperformer-claim-{path.name}")
    with ExitStack() as at_end:
        with suppress(OSError, ImportError):  # Windows has no fcntl
            import fcntl

            while True:
                file = at_end.enter_context(claim.open("a+", encoding="utf-8", errors="replace"))
                try:  # processes that are forked do not inherit a lock of this kind, and cannot keep it
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except (BlockingIOError, PermissionError) as error:
                    file.seek(0)
                    found = f"{path}, which {file.read() or 'another process'} is writing"
                    remedy = f"wait until it has ended, or {ANOTHER_OUTPUT}"
                    raise InputError(
                        "output-claimed", found, "one process for an output", remedy
                    ) from error
                except OSError:  # a disk without locks
                    break
                if claim.exists() and os.path.samestat(os.fstat(file.fileno()), claim.stat()):
                    break  # else its last owner has removed it since it was opened
            at_end.callback(claim.unlink, missing_ok=True)
            file.truncate(0)
            # a disk may be full
            os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk: a power failure could leave an empty file."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:  # for example, a folder with write but not read permission
        return
    try:
        os.fsync(file)
    except OSError as error:
        # some network file systems cannot sync
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(file)


def _temporary_prefix() -> str:
    """Return the prefix of temporary names, the same for all processes on this machine or in this container."""
    machine = re.sub(r"\W", "", socket.gethostname())
    namespace = Path("/proc/self/ns/pid")  # process numbers are unique within it
    return f".scperformer-{machine}_{namespace.stat().st_ino if namespace.exists() else 0}-"


def temporary_name() -> str:
    """Return an unused name for a temporary file of this process, by which `is_left_over` knows it later."""
    return f"{_temporary_prefix()}{os.getpid()}-{uuid.uuid4().hex}"


def is_left_over(name: str) -> bool:
    """Return whether a temporary name is of a process of this machine that no longer runs."""
    prefix = _temporary_prefix()
    process = name.removeprefix(prefix).partition("-")[0]
    if not name.startswith(prefix) or not process.isdecimal():
        return False
    try:
        os.kill(int(process), 0)  # signal 0 only checks whether the process exists
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # of another user, or no number of a process
        return False
    return False


def _temporary_path(target: Path) -> Path:
    """Return an unused path in the folder of `target` (so that renaming is atomic), with the same suffix.

    The folder is created if it is missing. Temporary files of processes that no longer run are removed.
    """
    folder = target.parent
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob(f"{_temporary_prefix()}*"):
        if is_left_over(path.name):
            with suppress(OSError):  # it belongs to another user
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    return folder / f"{temporary_name()}{target.suffix}"
