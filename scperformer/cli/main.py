"""The command line: `scperformer STEP files... option=value...` calls `run` in cli/STEP.py."""

import gc
import logging
import os
import shlex
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from difflib import get_close_matches
from importlib.metadata import version
from pathlib import Path
from typing import Any

from scperformer.base.errors import InputError, as_input_error, one_line
from scperformer.base.memory import GIVEN_BACK, freed_memory
from scperformer.base.messages import MIN_SIMILARITY, did_you_mean
from scperformer.base.signals import EndedBySignal, say_ended, signal_received
from scperformer.cli import bench
from scperformer.cli.arguments import ESTIMATE, PLUGIN, own_presets, plugin_words, sort_words
from scperformer.cli.compose import command_line, hand_to_hydra, make_config
from scperformer.cli.help import help_text, program_text
from scperformer.cli.steps import BENCH, STEPS, USUAL_STEPS
from scperformer.cli.train import print_estimate

log = logging.getLogger(__name__)

MAX_ERROR_LENGTH = 300  # characters of the message of an internal error
MAX_LINE_LENGTH = 300  # characters of the line that a command logs first


def call(run: Callable[[Any], object], config: Any) -> None:
    """Call the function of a step with its configuration."""
    gc.set_threshold(100_000)  # to search modules for garbage again and again takes a tenth of the time of a short step
    with freed_memory(GIVEN_BACK):
        run(config)


def load_plugins(files: list[str]) -> None:
    """Execute files, which register mechanisms of attention."""
    if files:
        from scperformer.attention.registry import load_plugin  # imports torch

        for file in files:
            load_plugin(file)


def run_step(name: str, words: list[str], plugins: list[str]) -> int:
    """Run a step, or print its configuration (--cfg); return the exit code. `plugins` are files with mechanisms."""
    if name == "workflow" and plugins:
        remedy = "install the mechanism as a package, as docs/own_mechanism.md says"
        raise InputError("plugin-in-workflow", f"{PLUGIN} with a workflow", "installed mechanisms alone", remedy)
    load_plugins(plugins)
    is_bench = name == BENCH
    name = "train" if is_bench else name
    overrides, flags = sort_words(words, name, several=is_bench)
    own = own_presets(flags)
    if is_bench and (wrong := flags.keys() & {"--cfg", ESTIMATE}):
        raise InputError(
            "bench-arguments",
            f"bench with {min(wrong)}",
            "'train' with one value of each option",
            "ask for one of its runs",
        )
    if "--cfg" in flags:
        hand_to_hydra(name, overrides, ["--cfg", flags["--cfg"]], lambda _: None, own)
        return 0
    if ESTIMATE in flags:
        print_estimate(make_config(name, overrides, own))
        return 0
    line = shlex.join(["scperformer", BENCH if is_bench else name, *words])
    log.info("%s", line if len(line) <= MAX_LINE_LENGTH else f"{line[:MAX_LINE_LENGTH]} ...")
    if is_bench:
        return bench.run(overrides, own, plugins)
    with command_line(sys.argv[0], *plugin_words(plugins), name, *words):
        call(STEPS[name].run, make_config(name, overrides, own))
    return 0


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
    where = traceback.extract_tb(error.__traceback__)[-1]
    reason = one_line(str(error))[:MAX_ERROR_LENGTH]
    text = f"{type(error).__name__}: {reason} ({Path(where.filename).name}:{where.lineno})"
    advice = "SCPERFORMER_DEBUG=1 before the command shows where it happened; please report it."
    print(f"internal error: {text}. This is a bug.\n{advice}", file=sys.stderr)
    return 1


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit code.

    0: done; 2: an error that the user can fix; 1: a bug; 141: a broken pipe; 130, 143, 129: ended by SIGINT, SIGTERM,
    SIGHUP. A SystemExit has the code of Snakemake.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell: `2>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - until the end of the process
    try:
        code = run_words(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader has seen enough, as in `scperformer check x.h5ad | head`
        # Python flushes standard output when it exits, which would fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (KeyboardInterrupt, EndedBySignal) as error:
        return say_ended(error)


def run_words(words: list[str]) -> int:
    """Print help or run a step; return the exit code."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(program_text())
        return 0
    if words[0] == "--version":
        print(version("scperformer"))
        return 0
    try:
        plugins = []
        while words[0] == PLUGIN:
            if len(words) < 3:
                raise InputError("bad-argument", " ".join(words), f"{PLUGIN} FILE.py STEP ...", "add what is missing")
            plugins.append(words[1])
            words = words[2:]
        step, *rest = words
        if step not in STEPS:
            near = next(iter(get_close_matches(step.lower(), [*STEPS, *USUAL_STEPS], 1, MIN_SIMILARITY)), step)
            remedy = f"{did_you_mean(USUAL_STEPS.get(near, near), STEPS)}'scperformer --help' shows examples"
            raise InputError("unknown-command", f"step '{step}'", f"one of {', '.join(STEPS)}", remedy)
        own_words = rest[: rest.index("--")] if step == "workflow" and "--" in rest else rest  # others are snakemake's
        for place, word in enumerate(own_words):
            if word in ("-h", "--help"):
                print(help_text(step, next(iter(own_words[place + 1 :]), None)))
                return 0
        set_up_logging()
        return run_step(step, rest, plugins)
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - every other error ends here, as one line
        return say_ended(error) if signal_received() else refuse(error)
