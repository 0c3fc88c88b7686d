"""Calls on disk: a part for each block of cells, so that memory stays flat and an interrupted run can be continued."""

import fcntl
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from scperformer.annotation.finished import why_other
from scperformer.base.errors import InputError
from scperformer.base.outputs import FolderKind, new_folder, output_named, remove_folder, why_not_ours
from scperformer.base.signals import RESUME_NOTE
from scperformer.training.calls import Calls

log = logging.getLogger(__name__)

UNFINISHED = ".unfinished"  # the part that is being written
IDENTITY = "run.json"  # what the calls depend on
OUTPUTS = ".scperformer-*"  # outputs that are being written
PARTS = FolderKind("parts of a prediction", more=(IDENTITY, "part-*.npz", UNFINISHED, OUTPUTS))


class Parts:
    """A folder with a file for each finished part of a run: the calls of a block of cells."""

    def __init__(self, folder: Path, num_parts: int):
        self.folder = folder
        self.num_parts = num_parts

    def file(self, part: int) -> Path:
        """Return the path of a part, which exists if the part is finished."""
        return self.folder / f"part-{part:06d}.npz"

    @property
    def missing(self) -> list[int]:
        """The parts that are not finished."""
        return [part for part in range(self.num_parts) if not self.file(part).exists()]

    def write(self, part: int, calls: Calls) -> None:
        """Write a finished part."""
        unfinished = self.folder / UNFINISHED
        with output_named(self.folder), unfinished.open("wb") as file:
            np.savez(file, **{field.name: getattr(calls, field.name) for field in fields(Calls)})
        os.replace(unfinished, self.file(part))

    def read(self) -> Iterator[Calls]:
        """Yield the calls of all parts in order; refuse damaged parts."""
        for part in range(self.num_parts):
            try:
                with np.load(self.file(part)) as arrays:
                    calls = Calls(**arrays)
            except (OSError, ValueError, TypeError, EOFError, BadZipFile) as error:
                found = f"damaged partial result {self.file(part)}"
                raise InputError(found, "an intact file", "run the same command without resume=true") from error
            yield calls


@contextmanager
def partial_results(output: Path, identity: dict[str, Any], num_parts: int, *, resume: bool) -> Iterator[Parts]:
    """Open the parts of a run; their folder is removed at the end, but kept with its finished parts after an error.

    Parameters
    ----------
    output
        The output of the run; the folder of the parts is `<output>.partial` beside it.
    identity
        Everything that the calls depend on.
    resume
        Continue an earlier, interrupted run.

    Raises
    ------
    InputError
        The earlier run (with `resume`) has another identity; or another run or folder is in the way.
    """
    folder = _folder_of(output)
    parts = Parts(folder, num_parts)
    if folder.exists():
        why = why_not_ours(folder, PARTS)
        if why is None and not (folder / IDENTITY).is_file():
            why = f"has no {IDENTITY}"
        if why is not None:
            remedy = "move it away, or choose another output=..."
            raise InputError(f"{folder} is in the way: it {why}", f"nothing, or {PARTS.name}", remedy)
        with _locked(folder):
            _continue_or_remove(parts, output, identity, resume)
    if not folder.exists():
        with new_folder(folder, PARTS) as unfinished:  # the folder appears together with its mark
            (unfinished / IDENTITY).write_text(json.dumps(identity), encoding="utf-8")
    with _locked(folder):
        try:
            yield parts
        except BaseException as error:
            num_finished = num_parts - len(parts.missing)
            if num_finished == 0 or num_parts == 1:
                remove_parts(output)
            else:
                note = f"{num_finished} of {num_parts} parts are kept in {folder}; {RESUME_NOTE}"
                # The note of a signal is shown with its error.
                log.warning("interrupted: %s", note) if isinstance(error, Exception) else error.add_note(note)
            raise
        remove_parts(output)


def _folder_of(output: Path) -> Path:
    """Return the folder of the parts of an output, which is on the same disk."""
    target = Path(os.path.realpath(output))
    return target.with_name(f"{target.name}.partial")


def remove_parts(output: Path) -> None:
    """Remove the parts of an output, if there are any; they stay if anything else has been put into their folder."""
    folder = _folder_of(output)
    if folder.exists() and (why := why_not_ours(folder, PARTS)):
        log.warning("%s %s: it is not removed", folder, why)
    else:
        remove_folder(folder, PARTS)


def _continue_or_remove(parts: Parts, output: Path, identity: dict[str, Any], resume: bool) -> None:
    """Remove the parts of an earlier run, or with `resume` check that they are of the same run."""
    if not resume:
        log.info("the results of an interrupted run are dropped (resume=true would have kept them)")
        remove_folder(parts.folder, PARTS)
        return
    try:
        earlier = dict(json.loads((parts.folder / IDENTITY).read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        earlier = {}
    if why := why_other(identity, earlier):
        found = f"partial results in {parts.folder} of another run ({why})"
        raise InputError(found, "partial results of the same file, model and options", "leave out resume=true")
    num_finished = parts.num_parts - len(parts.missing)
    log.info("resuming %s: %d of %d parts are finished", output, num_finished, parts.num_parts)


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
