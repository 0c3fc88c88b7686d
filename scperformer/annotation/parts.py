"""Calls on disk: a part for each block of cells, so that memory stays flat and an interrupted run can be resumed."""

import fcntl
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from scperformer.base.errors import InputError
from scperformer.base.outputs import FolderKind, new_folder, output_named, remove_folder, why_not_ours
from scperformer.base.signals import RESUME_NOTE
from scperformer.model.arrays import read_arrays
from scperformer.training.calls import Calls

log = logging.getLogger(__name__)

UNFINISHED = ".unfinished"  # the part that is being written
IDENTITY = "run.json"  # input, model and options of the run; it also marks a folder that predict has made
OUTPUTS = ".scperformer-*"  # outputs that are being written
PARTS = FolderKind("parts of a prediction", more=(IDENTITY, "part-*.npz", UNFINISHED, OUTPUTS))
# The kinds of numbers (`dtype.kind`) of each array of a part.
ARRAY_KINDS = {
    "proba": "f",
    "embedding": "f",
    "baseline": "i",
    "empty": "b",
    "scores": "f",
    "draws": "f",
    "by_encoder": "b",
}
MAX_VALUES = 2**29  # in a part; a block of 100,000 cells and 1,000 labels has 100 million


class Parts:
    """A folder with a file for each finished part of a run: the calls of a block of cells."""

    def __init__(self, folder: Path, num_parts: int):
        self.folder = folder
        self.num_parts = num_parts

    def has(self, part: int) -> bool:
        """Return whether a part is finished."""
        return self._file(part).exists()

    @property
    def num_finished(self) -> int:
        return sum(self.has(part) for part in range(self.num_parts))

    def write(self, part: int, calls: Calls) -> None:
        """Write a finished part."""
        unfinished = self.folder / UNFINISHED
        with output_named(self.folder), unfinished.open("wb") as file:
            np.savez(file, **{field.name: getattr(calls, field.name) for field in fields(Calls)})
        os.replace(unfinished, self.folder / f"part-{part:06d}.npz")

    def read(self) -> Iterator[Calls]:
        """Yield the calls of all parts in order; refuse damaged parts."""
        for part in range(self.num_parts):
            try:
                calls = Calls(**read_arrays(self._file(part), ARRAY_KINDS, MAX_VALUES))
                if [array.shape[:1] for array in vars(calls).values()] != [(len(calls.proba),)] * len(ARRAY_KINDS):
                    raise ValueError("arrays of different numbers of cells")
            except (TypeError, ValueError) as error:
                found = f"damaged partial result {self._file(part)}"
                remedy = "run the same command without resume=true"
                raise InputError(found, "an intact file", remedy) from error
            yield calls

    def _file(self, part: int) -> Path:
        return self.folder / f"part-{part:06d}.npz"


@contextmanager
def partial_results(output: Path, identity: dict[str, str], num_parts: int, *, resume: bool) -> Iterator[Parts]:
    """Open the parts of a run; their folder is removed at the end, but kept with its finished parts after an error.

    Parameters
    ----------
    output
        The output of the run; the folder of the parts is `<output>.partial` beside it.
    identity
        Everything that the calls depend on.
    resume
        Keep the parts of an earlier, interrupted run.

    Raises
    ------
    InputError
        The earlier run (with `resume`) has another identity; or a folder that predict has not made is in the way.
    """
    folder = _folder_of(output)
    parts = Parts(folder, num_parts)
    if folder.exists():
        _take_over(parts, output, identity, resume)
    if not folder.exists():
        with new_folder(folder, PARTS) as unfinished:  # the folder appears together with its mark
            (unfinished / IDENTITY).write_text(json.dumps(identity), encoding="utf-8")
    with _locked(folder):
        try:
            yield parts
        except BaseException as error:
            _keep_or_remove(parts, error)
            raise
        _remove_folder(folder)


def _folder_of(output: Path) -> Path:
    """Return the folder of the parts of an output, which is on the same disk."""
    target = Path(os.path.realpath(output))
    return target.with_name(f"{target.name}.partial")


def remove_parts(output: Path) -> None:
    """Remove the parts of a finished output, if there are any."""
    _remove_folder(_folder_of(output))


def _take_over(parts: Parts, output: Path, identity: dict[str, str], resume: bool) -> None:
    """Resume from the folder of an earlier run, or remove it; refuse a folder that predict has not made."""
    folder = parts.folder
    why = why_not_ours(folder, PARTS) or ("" if _read_identity(folder) else f"has no {IDENTITY} of predict")
    if why:
        remedy = "move it away, or choose another output=..."
        raise InputError(f"{folder} is in the way: it {why}", f"nothing, or {PARTS.name}", remedy)
    with _locked(folder):  # another run may be using it
        if resume:
            _require_same_run(folder, identity)
            log.info("resuming %s: %d of %d parts are finished", output, parts.num_finished, parts.num_parts)
        else:
            log.info("the results of an interrupted run are dropped (resume=true would have kept them)")
            remove_folder(folder, PARTS)


def _keep_or_remove(parts: Parts, error: BaseException) -> None:
    """Keep the finished parts of a run that an error has ended, and say so; remove the folder if there are none."""
    num_finished = parts.num_finished
    if num_finished == 0 or parts.num_parts == 1:
        _remove_folder(parts.folder)
    elif isinstance(error, Exception):
        text = "interrupted: %d of %d parts are kept in %s; %s"
        log.warning(text, num_finished, parts.num_parts, parts.folder, RESUME_NOTE)
    else:  # ended by a signal: the note is shown with the error
        error.add_note(f"{num_finished} of {parts.num_parts} parts are kept in {parts.folder}; {RESUME_NOTE}")


def _remove_folder(folder: Path) -> None:
    """Remove the folder of a finished run if it exists; it stays if anything else has been put into it."""
    if folder.exists() and (why := why_not_ours(folder, PARTS)):
        log.warning("%s %s: it is not removed", folder, why)
    else:
        remove_folder(folder, PARTS)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder against other runs with the same output; the lock ends with the process."""
    with (folder / IDENTITY).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            found = f"another run that writes into {folder}"
            remedy = "wait for it, or choose another output=..."
            raise InputError(found, "one run at a time for each output", remedy) from error
        except OSError as error:  # some network disks have no locks
            log.debug("%s cannot be locked: %s", folder, error)
        yield


def _read_identity(folder: Path) -> dict[str, Any] | None:
    """Read the identity of the run that made a folder; None if predict has not made it."""
    try:
        content = json.loads((folder / IDENTITY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _require_same_run(folder: Path, identity: dict[str, str]) -> None:
    earlier = _read_identity(folder) or {}
    if earlier != identity:
        other = ", ".join(key for key in identity if earlier.get(key) != identity[key])
        found = f"partial results in {folder} of another run (other {other})"
        expected = "partial results of the same file, model and options"
        raise InputError(found, expected, "leave out resume=true to start anew")
