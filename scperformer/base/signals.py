"""Signals end a command cleanly: unfinished outputs are removed, and one line reports the signal.

A signal raises an exception in the main thread, so that all open `with` blocks are closed. This file is imported first
and imports little: then a signal that comes while a command imports its libraries is handled in the same way.
"""

import gc
import os
import signal
import sys
import time
from contextlib import suppress
from types import FrameType
from typing import NoReturn

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_SIGNAL_SECONDS = 1.0  # further signals within this time are ignored: terminals and job managers often send several
# until a signal is raised again that came where Python cannot raise exceptions
RERAISE_SECONDS = 0.05
RESUME_NOTE = "the same command with resume=true continues it"  # added as a note to the exception where it holds

_received = 0  # the number of the last signal; 0: none
_received_at = 0.0  # its time


class EndedBySignal(SystemExit):
    """The command was ended by a signal other than SIGINT, which raises KeyboardInterrupt."""


def signal_received() -> bool:
    """Return whether a signal has come: it may have caused other errors, as in a partly imported library."""
    return _received > 0


def _raise_signal(number: int, _: FrameType | None) -> None:
    global _received, _received_at
    if number == signal.SIGALRM:  # set by `_raise_later`
        number = _received
    elif _received and time.monotonic() - _received_at < SAME_SIGNAL_SECONDS:
        return
    _received = number
    _received_at = time.monotonic()
    raise KeyboardInterrupt if number == signal.SIGINT else EndedBySignal(128 + number)


def _raise_later(unraisable: "sys.UnraisableHookArgs") -> None:
    """Raise a signal again that came in a callback of a library, where Python discards exceptions."""
    if not _received:
        sys.__unraisablehook__(unraisable)
    elif isinstance(unraisable.exc_value, KeyboardInterrupt | EndedBySignal):
        signal.setitimer(signal.ITIMER_REAL, RERAISE_SECONDS)


def handle_signals() -> None:
    """Turn signals that end a command into exceptions; signals that are ignored, as under nohup, stay ignored."""
    for number in ENDING_SIGNALS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _raise_signal)
    signal.signal(signal.SIGALRM, _raise_signal)
    sys.unraisablehook = _raise_later


def say_ended(error: BaseException) -> int:
    """Print one line about the signal that ended a command, with the notes of its exception; return the exit code."""
    number = signal.Signals(_received or signal.SIGINT)
    text = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
    if os.environ.get("LOCAL_RANK", "0") == "0":  # only one process of a distributed training
        with suppress(OSError):  # the terminal may be closed
            print("; ".join([text, *getattr(error, "__notes__", ())]), file=sys.stderr, flush=True)
    return 128 + number


def exit_process(code: int) -> NoReturn:
    """End the process; after an error without Python's cleanup, in which a damaged library would fail once more."""
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0)
    if code == 0:
        # Python's cleanup would search the objects of all libraries for cycles: half a second
        gc.freeze()
        sys.exit(0)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
