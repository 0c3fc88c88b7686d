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
    monkeypatch.setattr(module, "SECONDS_WITHOUT_COUNT", 0.04)
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


def timed(unit: str, total: int, *seconds: float) -> module.Progress:
    """A block whose updates of one step each have taken these seconds."""
    shown = module.Progress("training", total, unit)
    for each in seconds:
        shown.last = time.monotonic() - each
        shown.update()
    return shown


def test_lines_have_finished_steps_and_remaining_time(fast, caplog):
    caplog.set_level(logging.INFO, "scperformer")
    with progress("checking", total=3, unit="files") as files:
        files.update()
        with progress("a", total=8000, unit="cells") as cells:
            for _ in range(4):
                time.sleep(0.02)
                cells.update(1000)
            wait_for(lambda: "4,000" in "".join(caplog.messages))
    line = next(message for message in caplog.messages if "4,000" in message)
    assert re.fullmatch(r"2/3 a: 4,000 of 8,000 cells in 0\.\d s, about 0\.\d s left", line)


def test_steps_within_studies_and_conditions_are_numbered():
    with progress("fits", total=3, unit="conditions") as fits:
        fits.update()
        with progress("training the Performer") as shown:
            assert shown.line(20) == "condition 2/3 training the Performer: 20 s so far"
    with progress("models", total=2, unit="studies"), progress("fitting") as shown:
        assert shown.line(20) == "study 1/2 fitting: 20 s so far"


def test_the_time_left_is_that_of_the_steps_after_the_first():
    """The first step has a minute of compilation; two steps after it are the fewest to tell anything."""
    assert timed("steps", 100, 60).time_left == ""
    assert timed("steps", 100, 60, 0.25).time_left == ""
    assert timed("steps", 100, 60, *[0.25] * 19).time_left == "about 20 s left"
    assert timed("steps", 20, 60, *[0.25] * 19).time_left == ""


def test_steps_that_differ_have_no_time_left():
    """Nobody knows how many long ones come."""
    assert timed("files", 10, 25, 2, 2, 20).time_left == ""
    assert timed("files", 10, 25, 2.2, 1.8, 2).time_left == "about 12 s left"
    assert timed("files", 200, 25, *[2] * 25, 25, *[2] * 23).time_left == "about 6 min 10 s left"


def test_the_time_left_can_be_a_bound():
    shown = timed("cells", 10, 1, 2, 2)
    shown.bound = "at most"
    assert shown.time_left == "at most 14 s left"


def test_a_block_without_a_total_shows_its_elapsed_time(fast, caplog):
    caplog.set_level(logging.INFO, "scperformer")
    with progress("reading"):
        wait_for(lambda: caplog.messages)
    assert re.fullmatch(r"reading: 0\.\d s so far", caplog.messages[0])


def test_a_block_without_a_total_is_silent_at_first(fast, caplog, monkeypatch):
    """Its elapsed time says little, so the progress of the block around it is shown until then."""
    monkeypatch.setattr(module, "SECONDS_WITHOUT_COUNT", 60)
    caplog.set_level(logging.INFO, "scperformer")
    with progress("reading"):
        time.sleep(0.1)
    assert caplog.messages == []
    with progress("checking", total=3, unit="files"):
        time.sleep(0.1)
        assert caplog.messages == []  # nor has the one around it anything to tell
    with progress("checking", total=3, unit="files") as files:
        files.update()
        with progress("reading"):
            wait_for(lambda: caplog.messages)
    assert re.fullmatch(r"checking: 1 of 3 files in 0\.\d s", caplog.messages[0])


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
