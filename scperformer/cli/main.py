"""The command line: `scperformer COMMAND files... option=value...` calls `run` in cli/COMMAND.py."""

import logging
import os
import shlex
import signal
import sys
from difflib import get_close_matches
from importlib.metadata import version

from scperformer.base.errors import InputError
from scperformer.base.messages import MIN_SIMILARITY, did_you_mean
from scperformer.base.signals import EndedBySignal, say_ended, signal_received
from scperformer.cli.arguments import CFG, ESTIMATE, PLUGIN, own_presets, plugin_words, sort_words
from scperformer.cli.compose import make_config, print_config
from scperformer.cli.help import help_text, program_text
from scperformer.cli.running import call, command_line, load_plugins, refuse, set_up_logging
from scperformer.cli.steps import ALIASES, BENCH, STEPS
from scperformer.cli.train import print_estimate

log = logging.getLogger(__name__)

MAX_LINE_LENGTH = 300  # characters of the line that a command logs first


def run_step(name: str, words: list[str], plugins: list[str]) -> int:
    """Run a step, or print its configuration (--cfg); return the exit code. `plugins` are files with mechanisms."""
    if name == "workflow" and plugins:
        remedy = "install the mechanism as a package, as docs/own_mechanism.md says"
        raise InputError(
            "plugin-in-workflow", f"{PLUGIN} with a workflow", "installed mechanisms alone", remedy
        )
    load_plugins(plugins)
    is_bench = name == BENCH
    options, flags = sort_words(words, "train" if is_bench else name, several=is_bench)
    presets = own_presets(flags)
    if CFG in flags and not is_bench:
        print_config(name, options, presets)
        return 0
    if ESTIMATE in flags:
        print_estimate(make_config(name, options, presets))
        return 0
    line = shlex.join(["scperformer", name, *words])
    if CFG not in flags:
        log.info("%s", line if len(line) <= MAX_LINE_LENGTH else f"{line[:MAX_LINE_LENGTH]} ...")
    if is_bench:
        return STEPS[BENCH].run(
            options, presets, plugins, [CFG, flags[CFG]] if CFG in flags else []
        )
    with command_line(sys.argv[0], *plugin_words(plugins), name, *words):
        call(STEPS[name].run, make_config(name, options, presets))
    return 0


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
                expected = f"{PLUGIN} FILE.py COMMAND ..."
                raise InputError("bad-argument", " ".join(words), expected, "add what is missing")
            plugins.append(words[1])
            words = words[2:]
        step, *rest = words
        if step not in STEPS:
            near = next(
                iter(get_close_matches(step.lower(), [*STEPS, *ALIASES], 1, MIN_SIMILARITY)), step
            )
            remedy = (
                f"{did_you_mean(ALIASES.get(near, near), STEPS)}'scperformer --help' shows examples"
            )
            raise InputError(
                "unknown-command", f"step '{step}'", f"one of {', '.join(STEPS)}", remedy
            )
        # others are snakemake's
        ours = rest[: rest.index("--")] if step == "workflow" and "--" in rest else rest
        for place, word in enumerate(ours):
            if word in ("-h", "--help"):
                print(help_text(step, next(iter(ours[place + 1 :]), None)))
                return 0
        set_up_logging()
        return run_step(step, rest, plugins)
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - every other error ends here, as one line
        return say_ended(error) if signal_received() else refuse(error)
