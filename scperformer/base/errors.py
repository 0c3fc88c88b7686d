"""`InputError`, for everything that a user can cause and fix: one line that says found, expected and remedy."""

import errno
import os
import re
import traceback
from collections.abc import Sequence
from pathlib import Path

MEMORY_REFUSED = re.compile(
    "can't allocate memory|failed to map segment|cannot allocate memory", re.IGNORECASE
)
# Control characters, marks that change the direction of text, and bytes of file names that are not UTF-8.
CONTROL_CHARACTERS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
MAX_PATH = 1000  # characters; Linux allows 4,096, and Python too few folders in each other for that
MAX_FILE_NAME = 255  # bytes
MAX_ERROR_LENGTH = 300  # characters of the message of an internal error
MAX_PART_LENGTH = 2000  # characters; a longer part of a message is cut in the middle


def one_line(text: str) -> str:
    """Return a text on one line, with control characters replaced."""
    return CONTROL_CHARACTERS.sub("\ufffd", " ".join(text.split()))


class InputError(ValueError):
    """Input that cannot be used: what was found, and where; what would have been accepted; what the user can do.

    `code` names the kind of error, such as `no-column`: it stays when the sentence changes. `fixes` are options of the
    same command, such as `species=mouse`; each of them alone would fix the error.
    """

    def __init__(
        self, code: str, found: str, expected: str, remedy: str, fixes: Sequence[str] = ()
    ):
        self.code = code
        self.found = found
        self.expected = expected
        self.remedy = remedy
        self.fixes = tuple(fixes)
        texts = (found, expected, remedy)
        parts = [
            text if len(text) <= MAX_PART_LENGTH else f"{text[:1500]} ... {text[-500:]}"
            for text in texts
        ]
        # Gene names, labels and paths are user data: a newline in one must not break the one-line promise.
        super().__init__(one_line("{}; expected {}: {}.".format(*parts)))

    def __reduce__(self) -> tuple[type, tuple]:
        # Pickled when a worker process raises it; by default only the message would be passed to `__init__`.
        return type(self), (self.code, self.found, self.expected, self.remedy, self.fixes)


def require_path(path: object) -> None:
    """Refuse a path that no file can have, or that is not valid UTF-8: it could not be written to files and reports."""
    if "\0" in str(path):
        found = f"a null character in the path {path}"
        raise InputError("path-null", found, "the path of a file or folder", "check it")
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        found = f"a name that is not UTF-8 ({path})"
        raise InputError(
            "path-encoding", found, "a name in UTF-8", "rename the file or folder"
        ) from error
    if len(str(path)) > MAX_PATH or any(
        len(os.fsencode(part)) > MAX_FILE_NAME for part in Path(str(path)).parts
    ):
        found = f"a path of {len(str(path)):,} characters"
        expected = f"at most {MAX_PATH:,} characters, and {MAX_FILE_NAME} bytes in each name"
        raise InputError("path-length", found, expected, "choose a shorter one")


class DiskFull(InputError):
    """The disk is full, or a file exceeds the size limit. Other inputs would fail as well, so they are not tried."""


def _errno_of(error: BaseException) -> int | None:
    """Return the errno of a system error; None for other errors."""
    # h5py writes it into messages, also of errors that are not an OSError; anndata wraps an OSError in its own error.
    in_text = re.search(r"(?:errno = |\[Errno )(\d+)", str(error))
    number = error.errno if isinstance(error, OSError) else None
    return int(in_text[1]) if number is None and in_text else number


def as_disk_full(error: BaseException, output: object = "") -> DiskFull | None:
    """Return an error caused by a full disk or the file size limit as a `DiskFull`; None for other errors."""
    where = f" ({output})" if output else ""
    number = None if isinstance(error, InputError) else _errno_of(error)
    if number in (errno.ENOSPC, errno.EDQUOT):
        remedy = "free some space, or choose another output=..."
        return DiskFull("disk-full", f"the disk is full{where}", "room for the output", remedy)
    if number == errno.EFBIG:
        remedy = "raise the limit (ulimit -f), or choose another output=..."
        return DiskFull(
            "file-size-limit",
            f"the output exceeds the file size limit{where}",
            "a higher limit",
            remedy,
        )
    return None


def as_input_error(error: BaseException) -> InputError | None:
    """Return a system error (disk, permissions, memory) as an `InputError`; None for other errors."""
    if isinstance(error, InputError):
        return error
    if type(error).__name__ == "OutOfMemoryError":  # of torch, which is not imported here
        remedy = (
            "lower trainer.batch_size or batch_size, or set model.checkpointing=true or device=cpu"
        )
        return InputError("no-gpu-memory", "the memory of the GPU ran out", "enough memory", remedy)
    # torch raises a plain RuntimeError if the system refuses memory, and Python an ImportError for a library.
    refused = isinstance(error, RuntimeError | ImportError) and MEMORY_REFUSED.search(str(error))
    if isinstance(error, MemoryError) or refused:
        remedy = (
            "use a machine with more memory, or lower threads, trainer.batch_size or batch_size"
        )
        return InputError("no-memory", "memory ran out", "enough memory", remedy)
    number = _errno_of(error)
    if number is None:
        return None
    path = error.filename if isinstance(error, OSError) and error.filename else ""
    where = f" ({path})" if path else ""
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        expected = "readable files and writable folders"
        return InputError(
            "no-permission", f"no permission{where}", expected, "check their owner and mode"
        )
    if full := as_disk_full(error, path):
        return full
    found = f"{os.strerror(number)}{where}"
    remedy = "check the disk, then run the step again"
    return InputError("system-error", found, "a disk that can be read and written", remedy)


def as_bug(error: Exception) -> str:
    """Return an error that no user can fix, and where it happened, on a line."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    reason = one_line(str(error))[:MAX_ERROR_LENGTH]
    place = f"{Path(where.filename).name}:{where.lineno}"
    return f"internal error: {type(error).__name__}: {reason} ({place}). This is a bug"
