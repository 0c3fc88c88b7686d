"""The command line: `scperformer STEP files... option=value...` calls `run` in cli/STEP.py."""

import gc
import json
import logging
import os
import shlex
import signal
import sys
import time
import traceback
import warnings
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from scperformer.base.errors import InputError, as_input_error, one_line
from scperformer.base.memory import GIVEN_BACK, freed_memory
from scperformer.base.messages import did_you_mean
from scperformer.base.signals import EndedBySignal, say_ended, signal_received
from scperformer.cli.compose import command_line, config_of_tree, hand_to_hydra, make_config
from scperformer.cli.help import help_text, program_text
from scperformer.cli.overrides import quoted
from scperformer.cli.steps import STEPS
from scperformer.cli.train import print_estimate
from scperformer.cli.words import ESTIMATE, PLUGIN, own_presets, sort_words

log = logging.getLogger(__name__)

# In a sweep with trainer=ddp, Lightning appends these words to the command that starts each further process.
FROM_LIGHTNING = ("hydra.run.dir=", "hydra.output_subdir=", "hydra.job.name=")
MAX_ERROR_LENGTH = 300  # characters of the message of an internal error
MAX_LINE_LENGTH = 300  # characters of the line that a command logs first


def _run(name: str, config: Any) -> None:
    """Call the function of a step with its configuration."""
    gc.set_threshold(100_000)  # to search modules for garbage again and again takes a tenth of the time of a short step
    with freed_memory(GIVEN_BACK):
        STEPS[name].run(config)


def load_plugins(files: list[str]) -> None:
    """Execute files, which register mechanisms of attention."""
    if files:
        from scperformer.attention.registry import load_plugin  # imports torch

        for file in files:
            load_plugin(file)


def run_step(name: str, words: list[str], plugins: list[str]) -> int:
    """Run a step, once or as a sweep (-m), or print its configuration (--cfg); return the exit code.

    `plugins` are files with mechanisms of attention. Raises SystemExit with the exit code of Snakemake if that fails.
    """
    if name == "workflow" and plugins:
        remedy = "install the mechanism as a package, as docs/own_mechanism.md says"
        raise InputError(f"{PLUGIN} with a workflow", "installed mechanisms alone", remedy)
    load_plugins(plugins)
    overrides, flags = sort_words(words, name)
    own = own_presets(flags)
    if "--cfg" in flags:
        hand_to_hydra(name, overrides, ["--cfg", flags["--cfg"]], lambda _: None, own)
        return 0
    if ESTIMATE in flags:
        print_estimate(make_config(name, overrides, own))
        return 0
    line = shlex.join(["scperformer", name, *words])
    log.info("%s", line if len(line) <= MAX_LINE_LENGTH else f"{line[:MAX_LINE_LENGTH]} ...")
    if "-m" in flags:
        if not STEPS[name].swept_output:
            raise InputError(f"'{name}' with -m", f"one run of the {name}", "leave -m out")
        return run_sweep(name, overrides, own, plugins)
    overrides = [word for word in overrides if not word.startswith(FROM_LIGHTNING)]
    with command_line(sys.argv[0], *_plugin_words(plugins), name, *words):
        _run(name, make_config(name, overrides, own))
    return 0


def run_sweep(name: str, overrides: list[str], own: Path | None, plugins: list[str]) -> int:
    """Run a step once for each combination of values, and print the table of the runs; return 2 if a run has failed.

    `overrides` are options of the step and of Hydra, `own` is the user's folder of presets, `plugins` are files with
    mechanisms of attention.
    """
    from scperformer.cli.sweep import RUN_RECORD, all_jobs, sweep_table, table_text, write_table

    sweep_dir = "hydra.sweep.dir="
    # A folder that the user gives comes later in the list, and the last word counts.
    sweep_words = [f"{sweep_dir}multirun/{time.strftime('%Y-%m-%d_%H-%M-%S')}", "hydra.output_subdir=.hydra"]
    overrides = [*sweep_words, *overrides]
    given = [word.removeprefix(sweep_dir).strip("'\"") for word in overrides if word.startswith(sweep_dir)][-1]
    sweeps = [Path(given)]  # and as Hydra has resolved it: the user's may contain ${now:...}
    program = sys.argv[0]  # in a job that a cluster starts, sys.argv is submitit's
    presets = [] if own is None else ["--config-dir", str(own)]

    def run_job(tree: Any) -> None:
        """Run one job of the sweep, in this process or in one that a cluster has started."""
        from hydra.core.hydra_config import HydraConfig

        set_up_logging()
        load_plugins(plugins)
        job = HydraConfig.get()
        folder = Path(job.runtime.output_dir)
        sweeps.append(folder.parent)
        chosen = list(job.overrides.task)
        log.info("%s: %s", folder, " ".join(word for word in chosen if not word.startswith("inputs=")))
        record = {"output": "", "seconds": 0.0, "error": "interrupted"}
        start = time.perf_counter()
        try:
            config = config_of_tree(name, tree)
            config = replace(config, output=str(folder / Path(config.output or STEPS[name].swept_output).name))
            record["output"] = os.path.relpath(config.output, folder.parent)
            # The further processes of a ddp run are started from sys.argv: they run this job, not the sweep again.
            words = [*_plugin_words(plugins), name, *chosen, f"output={quoted(config.output)}", *presets]
            with command_line(program, *words):
                _run(name, config)
            record["error"] = ""
        except Exception as error:  # noqa: BLE001 - the other jobs of the sweep run all the same
            record["error"] = one_line(str(error)) or type(error).__name__
            refuse(error)
        finally:
            record["seconds"] = round(time.perf_counter() - start, 1)
            (folder / RUN_RECORD).write_text(json.dumps(record), encoding="utf-8")

    try:
        with all_jobs(sweeps[0]):
            hand_to_hydra(name, overrides, ["-m"], run_job, own)
    finally:
        folder = min((os.path.relpath(sweeps[-1]), str(sweeps[-1])), key=len)
        table = sweep_table(Path(folder))
        if len(table):
            write_table(table, Path(folder))
            print(table_text(table, Path(folder)), flush=True)
    return 2 if (table["status"] == "failed").any() else 0


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
    """Print an error and return its exit code: 2 if the user can fix it, 1 if it is a bug.

    With SCPERFORMER_DEBUG=1, raise the error instead: its traceback is shown.
    """
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
    SIGHUP.

    Raises
    ------
    SystemExit
        Snakemake failed (`cli.workflow.run`).
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


def _plugin_words(files: list[str]) -> list[str]:
    """Return the words that name files with mechanisms, before the step."""
    return [word for file in files for word in (PLUGIN, file)]


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
                raise InputError(" ".join(words), f"{PLUGIN} FILE.py STEP ...", "add what is missing")
            plugins.append(words[1])
            words = words[2:]
        step, *rest = words
        if step not in STEPS:
            remedy = f"{did_you_mean(step, STEPS)}'scperformer --help' shows examples"
            raise InputError(f"step '{step}'", f"one of {', '.join(STEPS)}", remedy)
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
