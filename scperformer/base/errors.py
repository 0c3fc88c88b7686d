"""The one error that a user can cause and fix: found, expected, remedy, on one line."""

import errno
import os
import re
from collections.abc import Sequence

# Characters that steer a terminal or turn the direction of text, and bytes of names that are not UTF-8.
CONTROL_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
MAX_PART_LENGTH = 2000  # characters of what was found, expected, or is to be done


def one_line(text: str) -> str:
    """Return a text on one line, without characters that steer a terminal."""
    return CONTROL_CHARACTERS.sub("\ufffd", " ".join(text.split()))


class InputError(ValueError):
    """Input that cannot be used; the message is one line with found (value and place), expected and remedy (action).

    `fixes` are options of the same command, such as `species=mouse`, each of which would fix the error.
    """

    def __init__(self, found: str, expected: str, remedy: str, fixes: Sequence[str] = ()):
        self.found = found
        self.expected = expected
        self.remedy = remedy
        self.fixes = tuple(fixes)
        parts = [
            text if len(text) <= MAX_PART_LENGTH else f"{text[:1500]} ... {text[-500:]}"
            for text in (found, expected, remedy)
        ]
        # Gene names, labels and paths are user data: a newline in one must not break the one-line promise.
        super().__init__(one_line("{}; expected {}: {}.".format(*parts)))

    def __reduce__(self) -> tuple[type, tuple]:
        return type(self), (self.found, self.expected, self.remedy, self.fixes)  # a pool of processes sends it


def require_utf8(path: object) -> None:
    """Refuse a path whose bytes are no UTF-8: files, records and reports could not hold its name."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"a name that is not UTF-8 ({path})", "a name in UTF-8", "rename the file or folder"
        ) from error


class DiskFull(InputError):
    """A full disk, or a limit to the size of files: no error of an input, so that other inputs are not tried."""


def _number(error: BaseException) -> int | None:
    """Return the number of an error of the system (errno), or None."""
    # h5py hides it in its text, also in errors that are no OSError; anndata puts its own words around an OSError.
    hidden = re.search(r"errno = (\d+)|\[Errno (\d+)\]", str(error))
    number = error.errno if isinstance(error, OSError) else None
    return int(hidden[1] or hidden[2]) if number is None and hidden else number


def as_disk_full(error: BaseException, output: object = "") -> DiskFull | None:
    """Return the error of a full disk, or of a limit to the size of files, as a `DiskFull`; None for any other."""
    where = f" ({output})" if output else ""
    number = None if isinstance(error, InputError) else _number(error)
    if number in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"the disk is full{where}", "room for the output", "free some, or choose another output=...")
    if number == errno.EFBIG:
        remedy = "raise the limit (ulimit -f), or choose another output=..."
        return DiskFull(f"files may not become so large here{where}", "room for the output", remedy)
    return None


def as_input_error(error: BaseException) -> InputError | None:
    """Return an error of the machine (disk, permissions, memory) as an `InputError`; None for any other error."""
    if isinstance(error, InputError):
        return error
    text = str(error)
    # torch has no class of its own for memory that the system refuses.
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "can't allocate memory" in text):
        remedy = "close other programs, take a larger machine, or lower threads, trainer.batch_size or batch_size"
        return InputError("memory ran out", "enough of it", remedy)
    number = _number(error)
    if number is None:
        return None
    named = error.filename if isinstance(error, OSError) and error.filename else ""
    if full := as_disk_full(error, named):
        return full
    where = f" ({named})" if named else ""
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return InputError(f"no permission{where}", "files to read and folders to write", "check who owns them")
    reason = os.strerror(number)
    return InputError(f"{reason}{where}", "a disk that can be read and written", "check it, then run the step again")
