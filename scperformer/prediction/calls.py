"""Calls of cells by a model; finished blocks are kept on disk, so that memory stays flat and a run can be resumed."""

import fcntl
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.base.errors import InputError
from scperformer.base.outputs import (
    FolderKind,
    new_folder,
    output_named,
    put_in_place,
    remove_folder,
    require_absent,
    why_not_ours,
)
from scperformer.base.signals import RESUME_NOTE
from scperformer.cells import Query
from scperformer.config import PredictConfig
from scperformer.model import read_arrays
from scperformer.network import Cells, Model, choose_device, predict_cells, torch_state_kept
from scperformer.trust import Profile, cell_draws

log = logging.getLogger(__name__)

UNFINISHED = ".unfinished"  # the part that is being written
IDENTITY = "run.json"  # input, model and options of the parts; also the mark of a folder that predict has made
NAMES = (IDENTITY, "part-*.npz", UNFINISHED, ".scperformer-*")  # the last: of an output that is being written
PARTS = FolderKind("parts of a prediction", more=NAMES)
ARRAY_KINDS = {"proba": "f", "embedding": "f", "baseline": "i", "empty": "b", "scores": "f", "draws": "f"}  # of numbers
MOST_VALUES = 2**29  # of a part; a block of 100,000 cells and 1,000 labels has 100 million


@dataclass
class Calls:
    """Calls of N cells."""

    proba: np.ndarray  # float32 N x C, each row adds up to 1
    embedding: np.ndarray  # float32 N x D
    baseline: np.ndarray  # int32 N, label index by logistic regression
    empty: np.ndarray  # bool N, whether a cell expresses none of the model's genes
    scores: np.ndarray  # float64 N, of novelty (trust/novelty.py); NaN without held-out calls
    draws: np.ndarray  # float64 N, 0 to 1, for sets of labels (trust/conformal.py)


def call_block(
    x: csr_matrix, model: Model, cfg: PredictConfig, query: Query, done: Callable[[int], None] | None = None
) -> Calls:
    """Call aligned cells of a file; the calls of a cell do not depend on the other cells.

    `done` is called with the number of cells of each finished batch.

    Raises
    ------
    InputError
        A cell has more tokens than the model's attention takes.
    """
    cells = Cells(x, model.tokens, measured=query.measured)
    model.network.require_length(int(cells.lengths.max(initial=0)), f"a cell of {query.path}")
    with torch_state_kept(cfg.threads):
        device = choose_device(cfg.device, cfg.precision)
        proba, embedding = predict_cells(model.network, cells, cfg.batch_size, device, cfg.precision, done)
    baseline = model.baseline.predict(x).astype(np.int32)
    held_out = model.saved.held_out
    scores = np.full(x.shape[0], np.nan)
    if held_out is not None:
        scores = Profile(**held_out.profile).scores(x)
    return Calls(proba, embedding, baseline, np.diff(x.indptr) == 0, scores, cell_draws(x))


def parts_of(share: str | None, num_parts: int) -> range:
    """Return the numbers of the parts that belong to a share such as `2/8`; all parts for None."""
    number, count = map(int, (share or "1/1").split("/"))
    return range(num_parts * (number - 1) // count, num_parts * number // count)


class Partial:
    """A folder with one file for each finished part of `num_parts`: the calls of a block.

    `shares` are more folders, of other processes that each made some of the parts; they are only read.
    """

    def __init__(self, folder: Path, num_parts: int, shares: Sequence[Path] = ()):
        self.folder = folder
        self.num_parts = num_parts
        self.shares = shares

    def has(self, part: int) -> bool:
        """Return whether a part is finished."""
        return self._file(part).exists()

    @property
    def num_finished(self) -> int:
        return sum(self.has(part) for part in range(self.num_parts))

    def write(self, part: int, calls: Calls) -> None:
        """Keep a finished part."""
        unfinished = self.folder / UNFINISHED
        with output_named(self.folder), unfinished.open("wb") as file:
            np.savez(file, **{field.name: getattr(calls, field.name) for field in fields(Calls)})
        os.replace(unfinished, self.folder / f"part-{part:06d}.npz")

    def read(self) -> Iterator[Calls]:
        """Return all parts in order; a damaged one is refused."""
        for part in range(self.num_parts):
            try:
                calls = Calls(**read_arrays(self._file(part), ARRAY_KINDS, MOST_VALUES))
                if [array.shape[:1] for array in vars(calls).values()] != [(len(calls.proba),)] * len(ARRAY_KINDS):
                    raise ValueError("other numbers of cells")
            except (TypeError, ValueError) as error:
                found = f"damaged partial result {self._file(part)}"
                remedy = "run the same command without resume=true"
                raise InputError(found, "it as it was written", remedy) from error
            yield calls

    def keep_as(self, output: Path, overwrite: bool) -> None:
        """Make the folder itself the output, in place of an earlier one that is wholly ours."""
        require_absent(output, overwrite, PARTS)
        put_in_place(self.folder, output)

    def _file(self, part: int) -> Path:
        files = [folder / f"part-{part:06d}.npz" for folder in (self.folder, *self.shares)]
        return next((file for file in files if file.exists()), files[0])


@contextmanager
def partial_results(
    output: Path, identity: dict[str, str], num_parts: int, *, resume: bool, shares: Sequence[Path] = ()
) -> Iterator[Partial]:
    """Make the folder of the parts of a run; it is removed at the end, but kept with its finished parts after an error.

    Parameters
    ----------
    output
        The output of the run; the folder of the parts is `<output>.partial` beside it.
    identity
        Everything that the calls depend on.
    resume
        Keep the parts of an earlier run that was cut off.
    shares
        Folders that hold all the parts already.

    Raises
    ------
    InputError
        With `resume`, the earlier run had another identity; the shares have another one or are incomplete; or a folder
        that predict has not made is in the way.
    """
    output = Path(os.path.realpath(output))  # parts are on the disk of the output, so that they can be renamed to it
    folder = output.with_name(f"{output.name}.partial")
    partial = Partial(folder, num_parts, shares)
    for share in shares:
        if _identity(share) is None:
            remedy = "name what 'scperformer predict ... share=K/N' has written"
            raise InputError(f"{share} in shares", "a folder with a share of the calls", remedy)
        _require_same(share, identity, "make all shares again, with the same file, model and options")
    if shares and (missing := num_parts - partial.num_finished):
        found = f"shares that lack {missing} of {num_parts} parts"
        raise InputError(found, "all shares of the file, 1/N to N/N", "name those that are not there, too")
    if folder.exists():
        why = why_not_ours(folder, PARTS) or ("" if _identity(folder) else f"has no {IDENTITY} of predict")
        if why:
            remedy = "move it away, or choose another output=..."
            raise InputError(f"{folder} is in the way: it {why}", f"nothing, or {PARTS.name}", remedy)
        with _locked(folder):  # not while another run uses it
            if resume:
                _require_same(folder, identity, "leave out resume=true to start anew")
                num = partial.num_finished
                log.info("going on where %s was cut off: %d of %d parts are there", output, num, num_parts)
            else:
                log.info("the results of a run that was cut off are dropped (resume=true would have kept them)")
                remove_folder(folder, PARTS)
    elif resume and num_parts > 1:
        log.info("nothing to resume: %s is made from the start", output)
    if not folder.exists():
        with new_folder(folder, PARTS) as unfinished:  # it appears with its mark in it
            (unfinished / IDENTITY).write_text(json.dumps(identity), encoding="utf-8")
    with _locked(folder):
        try:
            yield partial
        except BaseException as error:
            num = partial.num_finished
            if num == 0 or num_parts == 1:
                _remove_parts(folder)
            elif isinstance(error, Exception):
                log.warning("cut off: %d of %d parts are kept in %s; %s", num, num_parts, folder, RESUME_NOTE)
            else:  # ended by a signal
                error.add_note(f"{num} of {num_parts} parts are kept in {folder}; {RESUME_NOTE}")
            raise
        _remove_parts(folder)


def _remove_parts(folder: Path) -> None:
    """Remove the folder of a run that has ended, if it is there; it stays if it has got other files meanwhile."""
    if folder.exists() and (why := why_not_ours(folder, PARTS)):
        log.warning("%s %s: it stays", folder, why)
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


def _identity(folder: Path) -> dict[str, Any] | None:
    """Read the identity of the run that made a folder; None if predict has not made it."""
    try:
        content = json.loads((folder / IDENTITY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _require_same(folder: Path, identity: dict[str, str], remedy: str) -> None:
    earlier = _identity(folder) or {}
    if earlier != identity:
        other = ", ".join(key for key in identity if earlier.get(key) != identity[key])
        found = f"partial results in {folder} of another run (other {other})"
        raise InputError(found, "the file, model and options that it was started with", remedy)
