"""Progress: lines in a log, and one bar on a terminal."""

import io
import logging
import re
import sys
import time
from collections.abc import Callable

import pytest

from scperformer.base import progress as module
from scperformer.base.progress import progress, say


class Terminal(io.StringIO):
    """A terminal that keeps the text written to it."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def fast(monkeypatch):
    """Draw and write lines hundreds of times as often."""
    monkeypatch.setattr(module, "SECONDS_BETWEEN_DRAWS", 0.001)
    monkeypatch.setattr(module, "SECONDS_BETWEEN_LINES", 0.01)
    monkeypatch.setattr(module, "SECONDS_WITHOUT_TOTAL", 0.04)
    logging.getLogger("scperformer").setLevel(logging.INFO)


@pytest.fixture
def terminal(fast, monkeypatch) -> Callable[[], Terminal]:
    """Return a function that makes standard error a terminal; call it in the test, as pytest replaces it before."""

    def start() -> Terminal:
        monkeypatch.setattr(sys, "stderr", Terminal())
        return sys.stderr

    return start


def wait_for(condition) -> None:
    for _ in range(5000):
        if condition():
            return
        time.sleep(0.001)
    raise AssertionError("nothing was shown")


def test_lines_have_finished_steps_and_remaining_time(fast, caplog):
    caplog.set_level(logging.INFO, "scperformer")
    with progress("checking", total=3, unit="files") as files:
        files.update()
        with progress("a.h5ad", total=8000, unit="cells") as cells:
            cells.update(1000)
            time.sleep(0.02)
            cells.update(1000)
            wait_for(lambda: "left" in "".join(caplog.messages))
    line = next(message for message in caplog.messages if "left" in message)
    assert re.fullmatch(r"2/3 a\.h5ad: 2,000 of 8,000 cells in 0\.\d s, about 0\.\d s left", line)


def test_the_time_left_is_that_of_the_steps_after_the_first():
    shown = module.Progress("training", 100, "steps")
    shown.start -= 60  # a minute of compilation
    shown.update(5)
    shown.first = (shown.first[0] - 5, 5)
    assert shown.line(65).endswith("5 of 100 steps in 1 min 05 s")  # too few for a guess
    shown.update(20)
    assert shown.line(65).endswith("about 19 s left")  # 20 steps in 5 s, and 75 more


def test_a_block_without_a_total_shows_its_elapsed_time(fast, caplog):
    caplog.set_level(logging.INFO, "scperformer")
    with progress("reading"):
        wait_for(lambda: caplog.messages)
    assert re.fullmatch(r"reading: 0\.\d s so far", caplog.messages[0])


def test_a_block_without_a_total_is_silent_at_first(fast, caplog, monkeypatch):
    """Its elapsed time says little, so the progress of the block around it is shown until then."""
    monkeypatch.setattr(module, "SECONDS_WITHOUT_TOTAL", 60)
    caplog.set_level(logging.INFO, "scperformer")
    with progress("reading"):
        time.sleep(0.1)
    assert caplog.messages == []
    with progress("checking", total=3, unit="files"), progress("reading"):
        wait_for(lambda: caplog.messages)
    assert re.fullmatch(r"checking: 0 of 3 files in 0\.\d s", caplog.messages[0])


def test_the_bar_shows_the_innermost_block(terminal):
    """Log lines appear above it; at the end of the block it is removed, and the outer block is shown again."""
    terminal = terminal()
    logging.getLogger("scperformer").handlers[:] = [logging.StreamHandler(terminal)]
    with progress("files", total=2, unit="files"):
        with progress("cells", total=10, unit="cells") as cells:
            cells.update(5)
            wait_for(lambda: "1/2 cells:  50%" in terminal.getvalue())
            logging.getLogger("scperformer.test").warning("a line")
        terminal.truncate(0)
        wait_for(lambda: "files:   0%" in terminal.getvalue())
        assert "cells:" not in terminal.getvalue()
    assert re.search(r"\r +\r$", terminal.getvalue())


def test_printed_text_appears_above_the_bar(terminal, capsys):
    terminal = terminal()
    with progress("reading"):
        wait_for(lambda: "reading [" in terminal.getvalue())
        say("found")
        text = terminal.getvalue()
    assert re.search(r"\r +\r", text)  # the bar was cleared before the text
    assert capsys.readouterr().out == "found\n"


def test_nothing_is_shown_in_other_processes_of_a_distributed_training(terminal):
    terminal = terminal()
    logging.getLogger("scperformer").setLevel(logging.ERROR)
    with progress("reading") as shown:
        time.sleep(0.05)
        shown.update()
    assert terminal.getvalue() == ""


def test_an_error_ends_the_block(terminal):
    terminal()
    with pytest.raises(ValueError, match="bad"), progress("reading"):
        raise ValueError("bad")
    assert module._open == []
