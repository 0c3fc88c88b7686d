"""Signals that end a command: unfinished outputs are removed, and one line says so.

A signal is raised in the main thread as an exception, which closes all open blocks on its way. This file imports little
and is imported first, so that a signal during the imports of a command ends it in the same way.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from types import FrameType
from typing import NoReturn

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_SIGNAL_SECONDS = (
    1.0  # after a signal, in which others count as the same: terminals and job managers often send several
)
RERAISE_SECONDS = 0.05  # seconds until a signal is raised again that came where Python cannot raise it
RESUME_NOTE = "the same command with resume=true continues it"  # a note of the exception, if that is so

_received, _when = 0, 0.0  # the last signal, and its time


class EndedBySignal(SystemExit):
    """The end of a command by another signal than SIGINT, which is a KeyboardInterrupt."""


def signal_received() -> bool:
    """Return whether a signal has come: other errors may then be due to it, such as one of a library half imported."""
    return _received > 0


def _end(number: int, _: FrameType | None) -> None:
    global _received, _when
    if number == signal.SIGALRM:
        number = _received
    elif _received and time.monotonic() - _when < SAME_SIGNAL_SECONDS:
        return
    _received = number
    _when = time.monotonic()
    raise KeyboardInterrupt if number == signal.SIGINT else EndedBySignal(128 + number)


def _not_raised(unraisable: "sys.UnraisableHookArgs") -> None:
    """Raise a signal again that came in a callback of a library, from which no exception gets out."""
    if not _received:
        sys.__unraisablehook__(unraisable)
    elif isinstance(unraisable.exc_value, KeyboardInterrupt | EndedBySignal):
        signal.setitimer(signal.ITIMER_REAL, RERAISE_SECONDS)


def handle_signals() -> None:
    """Raise signals that end a command as exceptions; those that are ignored, as by nohup, stay so."""
    for number in ENDING:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _end)
    signal.signal(signal.SIGALRM, _end)
    sys.unraisablehook = _not_raised


def say_ended(error: BaseException) -> int:
    """Print the line about a command that a signal ends, with the notes of its exception; return the exit code."""
    number = signal.Signals(_received or signal.SIGINT)
    text = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
    if os.environ.get("LOCAL_RANK", "0") == "0":  # not in the processes that help in a distributed training
        with suppress(OSError):  # the terminal is gone
            print("; ".join([text, *getattr(error, "__notes__", ())]), file=sys.stderr, flush=True)
    return 128 + number


def exit_process(code: int) -> NoReturn:
    """End the process; after an error at once.

    A library that was cut off while it was imported, or a file that HDF5 could not write, would fail again at the end.
    """
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0)
    if code == 0:
        sys.exit(0)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
