"""The finished parts of a prediction on disk, so that memory stays flat and a run that was cut off can go on."""

import json
import logging
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from scperformer.errors import InputError
from scperformer.outputs import make_parent, new_file

log = logging.getLogger(__name__)

IDENTITY = "run.json"  # what the parts are of; also the mark of a folder that is ours


@dataclass
class Calls:
    """What a model says of N cells.

    proba : float32 N x C, each row adds up to 1
    embedding : float32 N x D
    baseline : int32 N, label index by logistic regression
    empty : bool N, whether a cell expresses none of the model's genes
    """

    proba: np.ndarray
    embedding: np.ndarray
    baseline: np.ndarray
    empty: np.ndarray


class Partial:
    """A folder with one file for each finished part.

    Parameters
    ----------
    folder
        Beside the output, named after it.
    num_parts
        Of the whole run.
    """

    def __init__(self, folder: Path, num_parts: int):
        self.folder = folder
        self.num_parts = num_parts

    def has(self, part: int) -> bool:
        """Whether this part is finished."""
        return self._file(part).exists()

    @property
    def num_finished(self) -> int:
        return sum(self.has(part) for part in range(self.num_parts))

    def write(self, part: int, calls: Calls) -> None:
        """Keep a finished part."""
        with new_file(self._file(part), overwrite=True) as temporary, temporary.open("wb") as file:
            np.savez(file, **{field.name: getattr(calls, field.name) for field in fields(Calls)})

    def read(self) -> Iterator[Calls]:
        """All parts in order.

        Raises
        ------
        InputError
            One of them is damaged.
        """
        for part in range(self.num_parts):
            try:
                with np.load(self._file(part), allow_pickle=False) as arrays:
                    calls = Calls(**{field.name: arrays[field.name] for field in fields(Calls)})
            except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
                remedy = "run the same command without resume=true"
                raise InputError(
                    f"damaged partial result {self._file(part)}", "it as it was written", remedy
                ) from error
            yield calls

    def _file(self, part: int) -> Path:
        return self.folder / f"part-{part:06d}.npz"


@contextmanager
def partial_results(output: Path, identity: dict[str, str], num_parts: int, resume: bool) -> Iterator[Partial]:
    """The parts of a run; removed when the block ends well, kept when it does not and any part is finished.

    Parameters
    ----------
    output
        What the run writes; the folder of the parts is `<output>.partial` beside it.
    identity
        What the results depend on.
    resume
        Keep the parts of an earlier run that was cut off.

    Raises
    ------
    InputError
        With `resume`, the earlier run was another one; or something that is not ours is in the way.
    """
    folder = make_parent(output) / f"{output.name}.partial"
    partial = Partial(folder, num_parts)
    _require_ours(folder)
    if resume and (folder / IDENTITY).exists():
        _require_same(folder, identity)
        log.info("going on where %s was cut off: %d of %d parts are there", output, partial.num_finished, num_parts)
    else:
        if folder.exists():
            log.info("the results of an earlier run that was cut off are dropped (resume=true would have kept them)")
            shutil.rmtree(folder)
        elif resume and num_parts > 1:
            log.info("nothing to resume: %s is made from the start", output)
        _make(folder, identity)
    try:
        yield partial
    except BaseException:
        num = partial.num_finished
        if num == 0 or num_parts == 1:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            remedy = "the same command with resume=true goes on from there"
            log.warning("cut off: %d of %d parts are kept in %s; %s", num, num_parts, folder, remedy)
        raise
    shutil.rmtree(folder)


def _make(folder: Path, identity: dict[str, str]) -> None:
    folder.mkdir()
    try:
        (folder / IDENTITY).write_text(json.dumps(identity), encoding="utf-8")
    except OSError:  # a full disk: half a folder would be in the way of the next run
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _require_ours(folder: Path) -> None:
    if folder.exists() and not (folder / IDENTITY).is_file():
        found = f"{folder} is in the way and not ours"
        raise InputError(found, f"a folder with {IDENTITY}, or nothing", "move it away, or choose another output=...")


def _require_same(folder: Path, identity: dict[str, str]) -> None:
    try:
        earlier = json.loads((folder / IDENTITY).read_text(encoding="utf-8"))
    except ValueError:
        earlier = None
    if earlier != identity:
        other = ", ".join(key for key in identity if not isinstance(earlier, dict) or earlier.get(key) != identity[key])
        raise InputError(
            f"partial results in {folder} of another run (other {other})",
            "the file, model and options that it was started with",
            "leave out resume=true to start anew",
        )
