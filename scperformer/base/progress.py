"""Signs of progress: one bar on a terminal or in a notebook, elsewhere a line in the log from time to time.

    with progress("sample.h5ad", total=8000, unit="cells") as shown:
        for cells in batches:
            ...
            shown.update(len(cells))

Blocks may be inside one another: the innermost one is shown. A block without a total shows how long it takes already. A
thread draws, so that there are signs during a long call, too. Nothing is shown if the level of the logger "scperformer"
is ERROR, as in the processes that help in a distributed training.
"""

import logging
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
# In a log: the seconds to the next line; longer blocks get a line whenever a tenth of their time has passed.
SECONDS_BETWEEN_LINES = 2.5
SHARE_BETWEEN_LINES = 0.1

_open: list["Progress"] = []  # the last one is shown
_said = 0.0  # the time of the last line, of any block: many short blocks are not silent together
_lock = threading.RLock()


class Progress:
    """The progress of one block; `text` can be changed at any time."""

    def __init__(self, text: str, total: int | None, unit: str):
        self.text = text
        self.unit = unit
        self.num_done = 0
        self.total = None if total == 1 else total  # a bar of one step would stay at 0
        self.start = time.monotonic()
        self.bar: Any = None  # of tqdm, while it is shown

    def update(self, num: int = 1) -> None:
        """Add to the number of things that are done."""
        with _lock:  # batches may be done in several threads
            self.num_done += num

    def draw(self) -> None:
        """Show the bar, or write a line if it is time for one."""
        global _said
        now = time.monotonic()
        if is_interactive():
            if self.bar is None:
                form = None if self.total else "{desc} [{elapsed}]"
                self.bar = _bar_class()(
                    desc=self._place + self.text, total=self.total, unit=f" {self.unit}", leave=False, bar_format=form
                )
                self.bar.start_t -= now - self.start  # the block began before its first bar
            self.bar.n = self.num_done
            self.bar.total = self.total
            self.bar.ncols = (
                shutil.get_terminal_size().columns
            )  # a terminal may say 0, which tqdm would take for a width
            self.bar.set_description_str(self._place + self.text, refresh=True)
        elif now - _said >= max(SECONDS_BETWEEN_LINES, SHARE_BETWEEN_LINES * (now - self.start)):
            _said = now
            log.info("%s", self.line(now - self.start))

    @property
    def _place(self) -> str:
        """The number of the file, as in "2/10 ", in a block about several."""
        several = (each for each in _open if each.unit == "files" and each is not self and (each.total or 0) > 1)
        return "".join(f"{each.num_done + 1}/{each.total} " for each in several)

    def line(self, seconds: float) -> str:
        """Return the line in a log after this time."""
        if not self.total:
            return f"{self._place}{self.text}: {in_time(seconds)} so far"
        text = f"{self._place}{self.text}: {self.num_done:,} of {self.total:,} {self.unit} in {in_time(seconds)}"
        left = seconds * (self.total - self.num_done) / max(self.num_done, 1)
        return text if self.num_done == 0 else f"{text}, about {in_time(left)} left"

    def hide(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None


def is_interactive() -> bool:
    """Whether a bar can be shown: on a terminal or in a notebook."""
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
        What the block does, such as the name of its file.
    total
        Number of things to do, which `update` counts; None if it is not known.
    unit
        What is counted, such as "cells".

    Yields
    ------
    The progress, whose `update` and `text` the block uses.
    """
    shown = Progress(text, total, unit)
    if log.getEffectiveLevel() >= logging.ERROR:
        yield shown
        return
    with ExitStack() as at_end:
        if not _open:
            at_end.enter_context(_drawn())
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
def _drawn() -> Iterator[None]:
    """Draw the innermost block again and again, in a thread; log lines appear above the bar."""
    global _said
    ended = threading.Event()
    _said = time.monotonic()

    def draw() -> None:
        while not ended.wait(SECONDS_BETWEEN_DRAWS):
            with _lock:
                if _open:
                    _open[-1].draw()

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


def say(text: str) -> None:
    """Print a text to standard output, above a bar that may be there."""
    with _lock:
        if _open and _open[-1].bar is not None:
            _bar_class().write(text, file=sys.stdout)
            sys.stdout.flush()
        else:
            print(text, flush=True)
