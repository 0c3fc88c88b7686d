"""The command line: `scperformer STEP files... option=value...`; parse, compose, call the step's run function.

Positional files become the option `inputs`; everything else is left to Hydra (overrides, --cfg job, -m).
Nothing heavy is imported before a step needs it, so that help answers at once.
"""

import importlib
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from scperformer import __version__
from scperformer.errors import InputError, explained, one_line

log = logging.getLogger(__name__)

# step -> module with run_<step>, one line of help, usage
STEPS = {
    "check": ("reports.check", "say what files hold and whether they can be annotated", "check FILE..."),
    "preprocess": ("dataset.preprocess", "filter, normalise and log-transform a file", "preprocess FILE"),
    "pretrain": ("training.pretrain", "train an encoder on unlabelled cells", "pretrain FILE..."),
    "train": ("training.train", "train a model on a labelled reference", "train REFERENCE label_key=COLUMN"),
    "predict": ("prediction.predict", "annotate the cells of files", "predict FILE..."),
    "evaluate": (
        "reports.evaluate",
        "compare with the truth, beside logistic regression",
        "evaluate ANNOTATED... truth_key=COLUMN",
    ),
    "report": ("reports.report", "make one HTML page about annotated files", "report ANNOTATED..."),
    "analyze": ("reports.analyze", "look into the attention of a trained model", "analyze spectrum|approximation FILE"),
    "models": ("network.library", "import a model from somewhere else, or list models", "models import PATH | list"),
}
# Steps whose first plain word is no file -> the option that it sets.
FIRST_WORDS = {"analyze": "analysis", "models": "action"}

EXAMPLES = {
    "check": """\
  scperformer check sample.h5ad
  scperformer check *.h5ad model_path=my_model
  scperformer check filtered_feature_bc_matrix counts.csv.gz sample.loom
  scperformer check reference.h5ad label_key=cell_type
  scperformer check sample.h5ad --json                  # for machines""",
    "preprocess": """\
  scperformer preprocess reference.h5ad output=prepared.h5ad
  scperformer preprocess sample.h5ad source=layers/counts data.min_genes=200
  scperformer preprocess sample.h5ad model_path=my_model    # genes aligned to the model's""",
    "pretrain": """\
  scperformer pretrain corpus/*.h5ad output=my_encoder
  scperformer pretrain a.h5ad b.h5ad tokens=scbert trainer.max_epochs=10 output=my_encoder
  scperformer pretrain a.h5ad genes_path=genes.txt masking.share=0.3
  scperformer pretrain more.h5ad init=my_encoder output=my_second_encoder""",
    "train": """\
  scperformer train reference.h5ad label_key=cell_type output=my_model
  scperformer train reference.h5ad label_key=cell_type model=small trainer.max_epochs=5
  scperformer train reference.h5ad label_key=cell_type -m attention=favor,softmax seed=0,1
  scperformer train reference.h5ad label_key=cell_type output=my_model resume=true
  scperformer train reference.h5ad label_key=cell_type --estimate      # how long, how much memory
  scperformer train reference.h5ad label_key=cell_type data.split=group data.split_key=donor
  scperformer train reference.h5ad label_key=cell_type init=my_encoder init_mode=last_layer
presets: model=tiny|small|base|scbert  tokens=continuous|bins|scbert  attention=favor|softmax
         head=mean|cls|conv  trainer=cpu|gpu|ddp  logger=all|csv|none""",
    "predict": """\
  scperformer predict sample.h5ad                       # packaged model -> sample.annotated.h5ad
  scperformer predict sample.h5ad model_path=my_model output=out.h5ad
  scperformer predict run1.h5ad run2.h5ad model_path=my_model min_confidence=0.5
  scperformer predict runs/*.h5ad keep_going=true       # those that can be; what is wrong with the others""",
    "evaluate": """\
  scperformer evaluate sample.annotated.h5ad truth_key=cell_type output=evaluation
  scperformer evaluate a.h5ad b.h5ad truth_key=cell_type truth_path=[a.csv,b.csv] output=evaluation""",
    "report": """\
  scperformer report sample.annotated.h5ad output=report.html
  scperformer report a.h5ad b.h5ad evaluation=evaluation output=report.html""",
    "analyze": """\
  scperformer analyze spectrum sample.h5ad model_path=my_model          # -> sample.spectrum/
  scperformer analyze spectrum sample.h5ad num_cells=20 max_tokens=1024 output=spectrum
  scperformer analyze approximation sample.h5ad model_path=my_model sizes=[64,256,1024]""",
    "models": """\
  scperformer models import a_model.zip                  # checked; then model_path=NAME finds it
  scperformer models import their_model output=shared    # for SCPERFORMER_MODELS=shared
  scperformer models list""",
}

# Values of these are the user's own words and may hold any character.
TEXT_OPTIONS = (
    *("output", "model_path", "evaluation", "label_key", "truth_key", "key_added", "source", "title"),
    *("init", "genes_path", "model.gene2vec_path", "data.split_key", "data.rare_label_name"),
)
OVERRIDE = re.compile(r"[+~]*[A-Za-z_][\w./@-]*=|~[A-Za-z_]")  # option=value, +option=value, ~option
# Hydra's flags that make sense here and the values they take: these, none, or any.
CFG = ("job", "hydra", "all")
FLAGS: dict[str, tuple[str, ...] | None] = {
    "-m": (),
    "--multirun": (),
    "--cfg": CFG,
    "-c": CFG,
    "--resolve": (),
    "--config-dir": None,
    "-cd": None,
}
SHORT = {"--estimate": "estimate=true", "--json": "json=true"}  # flags that are options
# What a run of a sweep writes into its folder when no output is named.
SWEEP_OUTPUTS = {
    "check": "check.json",
    "preprocess": "prepared.h5ad",
    "pretrain": "encoder",
    "train": "model",
    "predict": "annotated.h5ad",
    "evaluate": "evaluation",
    "report": "report.html",
    "analyze": "analysis",
    "models": "models",
}


def help_text() -> str:
    """The help of the whole program."""
    steps = "\n".join(f"  {usage:<40}{about}" for _, about, usage in STEPS.values())
    return f"""\
scperformer {__version__}: cell-type annotation of single-cell data

usage: scperformer STEP files... [option=value ...]

{steps}

examples:
  scperformer predict sample.h5ad                       # annotate with the packaged model
  scperformer train reference.h5ad label_key=cell_type output=my_model
  scperformer predict sample.h5ad model_path=my_model output=out.h5ad

  scperformer STEP --help       examples of one step
  scperformer STEP --cfg job    every option of a step with its value
  scperformer STEP ... -m a=1,2 run a step once per value (a sweep)"""


def step_help(step: str) -> str:
    """The help of one step: usage, examples, where to see its options."""
    _, about, usage = STEPS[step]
    return f"""\
scperformer {usage} [option=value ...]
  {about}

examples:
{EXAMPLES[step]}

options: scperformer {step} --cfg job"""


def to_overrides(words: list[str], first_word: str | None = None) -> list[str]:
    """Command-line words as Hydra arguments: plain words are input files, whatever characters they hold.

    Parameters
    ----------
    words
        Everything after the step, in any order.
    first_word
        The option that the first plain word is the value of, instead of a file; None: all of them are files.

    Returns
    -------
    Overrides as given (values that are text quoted), then `inputs=[...]` if there were files, then flags.

    Raises
    ------
    InputError
        A flag that does not exist, or one without the value that it needs.
    """
    from scperformer.config import group_names, quoted  # Hydra takes a while to import: help answers at once

    sweep = "-m" in words or "--multirun" in words
    is_text = {*TEXT_OPTIONS, *group_names()}
    overrides, files, flags = [], [], []
    rest = iter(words)
    for word in rest:
        word = SHORT.get(word, word)
        option, _, value = word.partition("=")
        if word.startswith("-"):
            flags += _flag(word, rest)
        elif not OVERRIDE.match(word) or Path(word).is_file():
            files.append(word)
        elif option in is_text and value not in ("", "null") and value[0] not in "'\"" and not sweep:
            overrides.append(f"{option}={quoted(value)}")
        else:
            overrides.append(word)
    if first_word is not None and files and not any(word.startswith(f"{first_word}=") for word in overrides):
        overrides.append(f"{first_word}={quoted(files.pop(0))}")
    if files:
        overrides.append(f"inputs=[{','.join(quoted(file) for file in files)}]")
    return overrides + flags


def _flag(flag: str, rest: Iterator[str]) -> list[str]:
    """A flag, with the value that follows it."""
    if flag not in FLAGS:
        expected = "a file, option=value, --help, --cfg job or -m"
        raise InputError(f"'{flag}'", expected, "write a file name that starts with '-' as ./-name")
    choices = FLAGS[flag]
    if choices == ():
        return [flag]
    value = next(rest, None)
    if value is None or (choices is not None and value not in choices):
        expected = ", ".join(choices or ["a folder"])
        raise InputError(f"{flag} {value or 'without a value'}", expected, f"write {flag} {(choices or ['FOLDER'])[0]}")
    return [flag, value]


def _own_presets(words: list[str]) -> list[str]:
    """The flag that names the user's folder of presets, with its value, if it is among the words."""
    return [word for pair in pairwise(words) if pair[0] in ("--config-dir", "-cd") for word in pair]


class _Refused(SystemExit):
    """An input error that has been printed."""


def run_step(step: str, words: list[str]) -> None:
    """Compose the configuration of a step with Hydra and run it, once or as a sweep."""
    import hydra

    from scperformer.config import (
        OVERRIDE_ERRORS,
        conf_dir,
        override_error,
        quoted,
        register_schemas,
        require_choices,
        sweep_folder,
        sweep_job,
        to_config,
    )
    from scperformer.sweep import Sweep

    typed = list(sys.argv)
    overrides = to_overrides(words, FIRST_WORDS.get(step))
    sweep = Sweep()
    if {"-m", "--multirun"} & set(overrides):
        sweep.folder, overrides = sweep_folder(overrides)

    def task(cfg) -> None:
        # Lightning starts the other processes of a ddp run from sys.argv: give it back what the user typed.
        sys.argv = [typed[0], step, *words]
        set_up_logging()  # a job of a sweep that a cluster runs begins here
        job = sweep_job()
        try:
            if job is None:
                _run(step, to_config(cfg, step))
                return
            folder, chosen = job
            log.info("%s: %s", folder, " ".join(word for word in chosen if not word.startswith("inputs=")))
            with sweep.job(folder, chosen) as run:
                config = to_config(cfg, step)
                name = Path(config.output).name if config.output else SWEEP_OUTPUTS[step]
                config = replace(config, output=str(folder / name))
                run.wrote(config.output)
                # In a sweep they are to run this job, not another sweep.
                output = f"output={quoted(config.output)}"
                sys.argv = [typed[0], step, *chosen, output, *_own_presets(words)]
                _run(step, config)
        except Exception as error:
            code = refuse(error)
            if job is None:
                # Hydra announces every exception of a job with a line of its own, but lets SystemExit pass.
                raise _Refused(code) from error

    register_schemas()
    sys.argv = [typed[0], *overrides]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors reach main() instead of being printed and swallowed
    try:
        require_choices(overrides)
        with sweep.to_its_end():
            hydra.main(config_path=str(conf_dir()), config_name=step, version_base="1.3")(task)()
    except OVERRIDE_ERRORS as error:
        raise override_error(error, step, overrides) from error
    finally:
        sys.argv = typed
        if sweep.rows:
            print(sweep.markdown(), flush=True)
    if sweep.num_failed:
        raise _Refused(2)


def _run(step: str, config: Any) -> None:
    module, name = ("training.estimate", "estimate") if getattr(config, "estimate", False) else (STEPS[step][0], step)
    getattr(importlib.import_module(f"scperformer.{module}"), f"run_{name}")(config)


class _Format(logging.Formatter):
    """Plain lines; only what is not plain information says what it is."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        indent = text[: len(text) - len(text.lstrip(" "))]
        text = indent + " ".join(map(one_line, text.lstrip(" ").split(" ")))  # columns stay where they are
        return text if record.levelno <= logging.INFO else f"{record.levelname.lower()}: {text}"


def refuse(error: Exception) -> int:
    """Print an error as one line; the exit code that goes with it: 2 if the user can mend it, 1 if it is our fault."""
    if os.environ.get("SCPERFORMER_DEBUG") == "1":
        raise error
    known = explained(error)
    if known is not None:
        print(f"error: {known}", file=sys.stderr)
        return 2
    text = one_line(str(error))[:300]
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(where.filename).name}:{where.lineno}"
    print(f"internal error: {type(error).__name__}: {text} ({place}). This is our fault.", file=sys.stderr)
    print("SCPERFORMER_DEBUG=1 before the command shows where; please report it.", file=sys.stderr)
    return 1


def set_up_logging() -> None:
    """Send our own log lines (INFO and above) to standard error, and warnings as plain lines like them."""
    warnings.formatwarning = lambda message, *_: f"warning: {one_line(str(message))}\n"
    handler = logging.StreamHandler()
    handler.setFormatter(_Format("%(message)s"))
    logger = logging.getLogger("scperformer")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


def main(argv: list[str] | None = None) -> int:
    """Run the command line; the exit code is 0, 2 for what the user can mend, as one line says, or 1 for our faults."""
    words = sys.argv[1:] if argv is None else argv
    if not words or words[0] in ("-h", "--help", "help"):
        print(help_text())
        return 0
    if words[0] == "--version":
        print(__version__)
        return 0
    step, *rest = words
    try:
        if step not in STEPS:
            known = ", ".join(STEPS)
            raise InputError(f"step '{step}'", f"one of {known}", "'scperformer --help' shows examples")
        if "-h" in rest or "--help" in rest:
            print(step_help(step))
            return 0
        set_up_logging()
        run_step(step, rest)
    except _Refused as refused:
        return int(refused.code or 0)
    except Exception as error:  # noqa: BLE001 - see run_step
        return refuse(error)
    return 0
