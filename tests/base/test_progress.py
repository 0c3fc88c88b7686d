"""Progress: lines in a log, and bars on a terminal."""

import io
import logging
import re
import sys
import time
from types import ModuleType, SimpleNamespace

import pytest
from support.logs import said

from scperformer.base import progress as module
from scperformer.base.progress import progress


@pytest.fixture
def fast(monkeypatch, caplog):
    """Write lines hundreds of times as often."""
    monkeypatch.setattr(module, "SECONDS_BETWEEN_LINES", 0.01)
    caplog.set_level(logging.INFO, "scperformer")


class Terminal(io.StringIO):
    """A terminal that keeps the text written to it."""

    def isatty(self) -> bool:
        return True


def test_a_log_has_lines_with_finished_steps_and_the_time_left(fast, caplog):
    with (
        progress("checking", total=3, unit="files"),
        progress("a", total=8000, unit="cells") as cells,
    ):
        for _ in range(4):
            time.sleep(0.02)
            cells.update(1000)
    assert said(caplog, "progress.write", "a", "4,000", "8,000", "cells", "00:00")


def test_a_long_block_without_steps_has_one_line_in_a_log(fast, caplog):
    with progress("fitting"):
        time.sleep(0.1)
    [line] = caplog.messages
    assert "fitting" in line


def test_a_terminal_shows_bars_that_disappear_and_log_lines_above_them(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    logger = logging.getLogger("scperformer")
    monkeypatch.setattr(logger, "handlers", [logging.StreamHandler(terminal)])
    with progress("fitting"), progress("cells", total=10, unit="cells") as cells:
        time.sleep(0.15)
        cells.update(5)
        logger.warning("a line")
    text = terminal.getvalue()
    assert "fitting" in text
    assert re.search(r"cells:  50%\|.*\| 5/10 ", text)
    assert re.search(r"\r +\ra line\n", text.replace("\x1b[A", ""))
    assert re.search(r"\r +\r$", text)


@pytest.mark.parametrize("has_widgets", [True, False])
def test_a_notebook_with_widgets_shows_its_own_bars_of_blocks_with_steps(
    has_widgets, fast, monkeypatch, caplog
):
    """A text bar would be a screen of red lines; without widgets there are lines in the log."""
    made = []

    class Bar(module.tqdm):
        def __init__(self, **style):
            made.append((style["desc"], style["disable"]))
            super().__init__(**style)

    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    monkeypatch.setitem(sys.modules, "tqdm.notebook", SimpleNamespace(tqdm=Bar))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: has_widgets or None)
    with progress("fitting"), progress("cells", total=10, unit="cells") as cells:
        time.sleep(0.02)
        cells.update(5)
    assert made == ([("fitting", True), ("cells", False)] if has_widgets else [])
    assert bool(said(caplog, "progress.write", "cells", 5, 10)) != has_widgets


def test_nothing_is_shown_in_other_processes_of_a_distributed_training(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    logging.getLogger("scperformer").setLevel(logging.ERROR)
    with progress("reading", total=2) as shown:
        shown.update()
    assert terminal.getvalue() == ""
