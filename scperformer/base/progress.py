"""Progress of long blocks: tqdm's bar on a terminal or in a notebook, an occasional log line elsewhere.

with progress("sample.h5ad", total=8000, unit="cells") as shown:
    for cells in batches:
        ...
        shown.update(len(cells))
"""

import importlib
import importlib.util
import logging
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

log = logging.getLogger(__name__)

SECONDS_BETWEEN_LINES = 120.0  # in a log, and before the first line of a block
NOTEBOOK_DELAY = 1.0  # seconds
LINE = "{desc}: {n:,} of {total:,}{unit} in {elapsed}, {remaining} left"


class _Log:
    """A file for tqdm that writes to the log."""

    def write(self, text: str) -> None:
        if text.strip():
            log.info("%s", text.strip())


@contextmanager
def progress(text: str, total: int | None = None, unit: str = "") -> Iterator[tqdm]:
    """Show the progress of a block: a bar on a terminal or in a notebook, else log lines; nothing if the log is off.

    `text` is what the block does, or the name of its file. `total` is the number of steps, which `update` of the
    yielded bar counts in `unit`s. If it is None, a log has one line, if the block lasts.
    """
    # The level is ERROR in all but the first process of a distributed training.
    style: dict[str, Any] = {"disable": log.getEffectiveLevel() >= logging.ERROR}
    with ExitStack() as at_end:
        bar: type[tqdm] = tqdm
        if "ipykernel" in sys.modules and importlib.util.find_spec("ipywidgets"):
            bar = importlib.import_module("tqdm.notebook").tqdm
            # A saved notebook keeps a line of each bar: only of blocks that last and tell their steps.
            style |= {"delay": NOTEBOOK_DELAY, "disable": style["disable"] or total is None}
        elif sys.stderr.isatty():
            ours = logging.getLogger("scperformer")
            at_end.enter_context(
                logging_redirect_tqdm([ours if ours.handlers else logging.getLogger()])
            )
            # A terminal may report the size 0, for which tqdm shows nothing; Python's function replaces it by 80 x 24.
            columns, lines = shutil.get_terminal_size()
            style |= {"bar_format": None if total else "{desc}", "ncols": columns, "nrows": lines}
        elif total:
            pause = SECONDS_BETWEEN_LINES
            style |= {"bar_format": LINE, "file": _Log(), "position": 0, "smoothing": 0}
            style |= {"delay": pause, "mininterval": pause, "miniters": 1}
        else:
            timer = threading.Timer(SECONDS_BETWEEN_LINES, log.info, ("%s ...", text))
            timer.daemon = True
            timer.start()
            at_end.callback(timer.cancel)
            style["disable"] = True
        yield at_end.enter_context(
            bar(desc=text, total=total, unit=f" {unit}", leave=False, **style)
        )


def say(text: str) -> None:
    """Print a text to standard output, above the bar if one is shown."""
    tqdm.write(text, file=sys.stdout)
    sys.stdout.flush()
