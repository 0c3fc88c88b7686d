"""How a step runs in a process: its logging, its plugins, its call, and how an error ends it."""

import gc
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from scperformer.base.errors import as_bug, as_input_error, one_line
from scperformer.base.memory import GIVEN_BACK, freed_memory
from scperformer.config.options import Options

Config = TypeVar("Config", bound=Options)


def call(run: Callable[[Config], object], config: Config) -> None:
    """Call the function of a step with its configuration."""
    # to search modules for garbage again and again takes a tenth of the time of a short step
    gc.set_threshold(100_000)
    with freed_memory(GIVEN_BACK):
        run(config)


def load_plugins(files: list[str]) -> None:
    """Execute files, which register mechanisms of attention."""
    if files:
        from scperformer.attention.registry import load_plugin  # imports torch

        for file in files:
            load_plugin(file)


@contextmanager
def command_line(program: str, *words: str) -> Iterator[None]:
    """Set `sys.argv` for a block: Hydra reads it, and Lightning starts the other processes of a ddp run by it."""
    before = sys.argv
    sys.argv = [program, *words]
    try:
        yield
    finally:
        sys.argv = before


class _Format(logging.Formatter):
    """Format a record as one line without control characters; only warnings and errors begin with their level."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        indent = text[: len(text) - len(text.lstrip(" "))]
        # Word by word: `one_line` would merge several spaces, which align the columns of tables.
        text = indent + " ".join(map(one_line, text.lstrip(" ").split(" ")))
        return text if record.levelno <= logging.INFO else f"{record.levelname.lower()}: {text}"


def set_up_logging() -> None:
    """Send the log lines of this package (INFO and above) and warnings to standard error as plain lines."""
    warnings.formatwarning = lambda message, *_: f"warning: {one_line(str(message))}\n"
    handler = logging.StreamHandler()
    handler.setFormatter(_Format("%(message)s"))
    logger = logging.getLogger("scperformer")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


def refuse(error: Exception) -> int:
    """Print an error, or with SCPERFORMER_DEBUG=1 raise it; return 2 if the user can fix it, 1 if it is a bug."""
    if os.environ.get("SCPERFORMER_DEBUG") == "1":
        raise error
    if known := as_input_error(error):
        print(f"error: {known}", file=sys.stderr)
        return 2
    advice = "SCPERFORMER_DEBUG=1 before the command shows where it happened; please report it."
    print(f"{as_bug(error)}.\n{advice}", file=sys.stderr)
    return 1
