"""Progress of long blocks: one bar on a terminal or in a notebook, an occasional log line elsewhere.

    with progress("sample.h5ad", total=8000, unit="cells") as shown:
        for cells in batches:
            ...
            shown.update(len(cells))

Blocks may be nested: the innermost is shown. In a log, a block is silent for its first ten seconds, and for its first
minute if nothing can be counted yet. A thread draws, so that progress is also shown during a single long call. Nothing
is shown if the level of the logger "scperformer" is ERROR, as in all but the first process of a distributed training.
"""

import logging
import math
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from scperformer.base.messages import in_time

log = logging.getLogger(__name__)

SECONDS_BETWEEN_DRAWS = 0.5
# The time before the first line of a block in a log, and the shortest between two; it grows to a tenth of the block's
# time so far.
SECONDS_BETWEEN_LINES = 10.0
SECONDS_WITHOUT_COUNT = 60.0  # in place of it while no step is done, or none is counted: such a line says little
SHARE_BETWEEN_LINES = 0.1
MAX_ERROR = 0.35  # standard error of the time left as a share of it: twice this is less than a factor of 2

# Units of blocks whose steps have blocks of their own, which are numbered with these words.
NUMBERED = {"files": "", "studies": "study ", "conditions": "condition "}
BAR = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{unit} [{elapsed}{postfix}]"  # tqdm's, with our time left

_open: list["Progress"] = []  # the open blocks, innermost last
_last_line = 0.0  # when any block wrote a line: many short blocks in a row also show progress
_lock = threading.RLock()


class Progress:
    """The progress of one block; `text` can be changed at any time."""

    def __init__(self, text: str, total: int | None, unit: str):
        self.text = text
        self.unit = unit
        self.num_done = 0
        self.total = None if total == 1 else total  # a bar with one step would stay at 0
        self.bound = "about"  # of the time left; "at most" if the block may end early, "at least" if it may last longer
        self.start = time.monotonic()
        self.last = self.start  # the last update
        self.num_updates = 0
        self.counted = (0, 0.0, 0.0)  # updates that show how long others will take: number, seconds and their squares
        self.bar: Any = None  # tqdm's bar while it is shown

    def update(self, num: int = 1) -> None:
        """Add to the number of finished steps."""
        with _lock:  # batches may be done in several threads
            now = time.monotonic()
            seconds = now - self.last
            self.last = now
            self.num_done += num
            self.num_updates += 1
            # Compilation, reading and fits come before the first step of a block: its time says nothing about others.
            if self.num_updates > 1:
                number, sum_of_seconds, sum_of_squares = self.counted
                self.counted = (number + 1, sum_of_seconds + seconds, sum_of_squares + seconds**2)

    @property
    def time_left(self) -> str:
        """The time left, as in "about 20 s left"; "" if the updates so far are too few, or differ too much, to tell."""
        number, seconds, squares = self.counted
        if not self.total or number < 2 or self.num_done >= self.total:
            return ""
        updates_left = (self.total - self.num_done) * self.num_updates / self.num_done
        mean = seconds / number
        variance = max(0.0, squares - number * mean**2) / (number - 1)
        if math.sqrt(variance * (1 / number + 1 / updates_left)) > MAX_ERROR * mean:
            return ""
        return f"{self.bound} {in_time(mean * updates_left)} left"

    def draw_bar(self) -> None:
        """Show or update the bar."""
        if self.bar is None:
            form = BAR if self.total else "{desc} [{elapsed}]"
            self.bar = _bar_class()(
                desc=self._label, total=self.total, unit=f" {self.unit}", leave=False, bar_format=form
            )
            self.bar.start_t -= time.monotonic() - self.start  # the block began before its first bar
        self.bar.n = self.num_done
        self.bar.total = self.total
        # A terminal may report 0 columns, which tqdm would take for a width; Python's function replaces it by 80.
        self.bar.ncols = shutil.get_terminal_size().columns
        self.bar.set_postfix_str(self.time_left, refresh=False)
        self.bar.set_description_str(self._label, refresh=True)

    @property
    def _label(self) -> str:
        """The text, after the number of the step in a block that is about several of them, as in "2/10 sample.h5ad"."""
        blocks = (each for each in _open if each.unit in NUMBERED and each is not self and (each.total or 0) > 1)
        return "".join(f"{NUMBERED[each.unit]}{each.num_done + 1}/{each.total} " for each in blocks) + self.text

    def line(self, seconds: float) -> str:
        """Return the log line after this many seconds."""
        if not self.total or not self.num_done:
            return f"{self._label}: {in_time(seconds)} so far"
        text = f"{self._label}: {self.num_done:,} of {self.total:,} {self.unit} in {in_time(seconds)}"
        return ", ".join(filter(None, [text, self.time_left]))

    def hide(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None


def is_interactive() -> bool:
    """Return whether a bar can be shown: on a terminal or in a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def _bar_class() -> Any:
    if "ipykernel" in sys.modules:
        from tqdm.auto import tqdm
    else:
        from tqdm import tqdm
    return tqdm


@contextmanager
def progress(text: str, total: int | None = None, unit: str = "") -> Iterator[Progress]:
    """Show the progress of a block.

    Parameters
    ----------
    text
        What the block does, or the name of its file.
    total
        Number of steps, which `update` counts; None if it is unknown.
    unit
        What the steps are, such as "cells".

    Yields
    ------
    The progress: the block calls its `update` and may change its `text`.
    """
    shown = Progress(text, total, unit)
    if log.getEffectiveLevel() >= logging.ERROR:
        yield shown
        return
    with ExitStack() as at_end:
        if not _open:
            at_end.enter_context(_drawing())
        with _lock:
            if _open:
                _open[-1].hide()
            _open.append(shown)
        try:
            yield shown
        finally:
            with _lock:
                _open.remove(shown)
                shown.hide()


@contextmanager
def _drawing() -> Iterator[None]:
    """Draw the open blocks repeatedly, in a thread; log lines appear above the bar."""
    global _last_line
    ended = threading.Event()
    _last_line = time.monotonic()

    def draw() -> None:
        while not ended.wait(SECONDS_BETWEEN_DRAWS):
            with _lock:
                if _open and is_interactive():
                    _open[-1].draw_bar()
                else:
                    _write_line()

    with ExitStack() as at_end:
        if is_interactive():
            from tqdm.contrib.logging import logging_redirect_tqdm

            ours = logging.getLogger("scperformer")
            at_end.enter_context(logging_redirect_tqdm([ours if ours.handlers else logging.getLogger()], _bar_class()))
        thread = threading.Thread(target=draw, name="scperformer progress", daemon=True)
        thread.start()
        at_end.callback(thread.join)
        at_end.callback(ended.set)
        yield


def _write_line() -> None:
    """Write a log line about the innermost block that has something to say, if it is time for one."""
    global _last_line
    now = time.monotonic()
    for shown in reversed(_open):
        seconds = now - shown.start
        pause = SECONDS_BETWEEN_LINES if shown.total and shown.num_done else SECONDS_WITHOUT_COUNT
        if seconds < pause:
            continue
        if now - _last_line >= max(pause, SHARE_BETWEEN_LINES * seconds):
            _last_line = now
            log.info("%s", shown.line(seconds))
        return


def say(text: str) -> None:
    """Print a text to standard output, above the bar if one is shown."""
    with _lock:
        if _open and _open[-1].bar is not None:
            _bar_class().write(text, file=sys.stdout)
            sys.stdout.flush()
        else:
            print(text, flush=True)
