"""The command line: `scperformer STEP files... option=value...`; parse, compose, call the step's run function."""

import gc
import importlib
import logging
import os
import re
import signal
import sys
import textwrap
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

from scperformer.base.errors import InputError, as_input_error, one_line
from scperformer.base.memory import GIVEN_BACK, freed_memory
from scperformer.base.messages import did_you_mean
from scperformer.base.progress import progress
from scperformer.base.signals import EndedBySignal, say_ended, signal_received

log = logging.getLogger(__name__)

STEPS = {  # the module with run_<step>, and the default name of the output of each run of a sweep
    "check": ("reports.check", "check.json"),
    "preprocess": ("cells.preprocess", "prepared.h5ad"),
    "pretrain": ("training.pretrain", "encoder"),
    "train": ("training.train", "model"),
    "predict": ("prediction.predict", "annotated.h5ad"),
    "adapt": ("fitting.adapt", "adapted"),
    "evaluate": ("reports.evaluate", "evaluation"),
    "report": ("reports.report", "report.html"),
    "explain": ("explanations.explain", "explanation"),
    "analyze": ("explanations.analyze", "analysis"),
    "models": ("command.models", "models"),
    "workflow": ("command.workflow", "results"),
}
FIRST_WORDS = {
    "adapt": "model_path",
    "analyze": "analysis",
    "models": "action",
    "workflow": "samples",
}  # the option that the first plain word sets, if not a file
# Usage, purpose and examples of each step.
TEXTS = """\
check FILE...
describe files, and check if a model can annotate them
  scperformer check sample.h5ad
  scperformer check *.h5ad model_path=my_model
  scperformer check filtered_feature_bc_matrix counts.csv.gz sample.loom
  scperformer check reference.h5ad label_key=cell_type
  scperformer check sample.h5ad --json                  # for programs

preprocess FILE
filter, normalise and log-transform a file
  scperformer preprocess reference.h5ad output=prepared.h5ad
  scperformer preprocess sample.h5ad source=layers/counts data.min_genes=200
  scperformer preprocess sample.h5ad model_path=my_model    # genes aligned to the model's

pretrain FILE...
train an encoder on unlabelled cells
  scperformer pretrain corpus/*.h5ad output=my_encoder
  scperformer pretrain a.h5ad b.h5ad tokens=scbert trainer.max_epochs=10 output=my_encoder
  scperformer pretrain a.h5ad genes_path=genes.txt masking.share=0.3
  scperformer pretrain more.h5ad init=my_encoder output=my_second_encoder

train REFERENCE label_key=COLUMN
train a model on a labelled reference
  scperformer train reference.h5ad label_key=cell_type output=my_model
  scperformer train reference.h5ad label_key=cell_type model=small trainer.max_epochs=5
  scperformer train reference.h5ad label_key=cell_type -m model=tiny,small seed=0,1
  scperformer train reference.h5ad label_key=cell_type output=my_model resume=true
  scperformer train reference.h5ad label_key=cell_type data.split=group data.split_key=donor
  scperformer train reference.h5ad label_key=cell_type init=my_encoder init_mode=last_layer
  scperformer train reference.h5ad label_key=cell_type conditions.genes=panel.txt      # a model for one panel
  scperformer train reference.h5ad label_keys=[lineage,cell_type]       # a tree: unsafe calls back off
presets: model=coexpression|tiny|small|base|scbert  tokens=continuous|bins|scbert  attention=favor|softmax
         head=weighted|mean|cls|conv  trainer=cpu|gpu|ddp  logger=all|csv|none

predict FILE...
annotate the cells of files
  scperformer predict sample.h5ad                       # packaged model -> sample.annotated.h5ad
  scperformer predict sample.h5ad model_path=my_model output=out.h5ad
  scperformer predict run1.h5ad run2.h5ad model_path=my_model min_confidence=0.5
  scperformer predict runs/*.h5ad output_dir=annotated keep_going=true    # go on if some files are refused
  scperformer predict sample.h5ad clusters=leiden deny_labels=[DC,Platelet]   # also a label of each cluster
  scperformer predict sample.h5ad --json                # what was written, for programs
  scperformer predict panel.h5ad model_path=my_model adapt=false   # the model as it is, whatever the file lacks

adapt MODEL FILE
adapt a model to the genes and the depth of a file
  scperformer adapt my_model sample.h5ad output=shallow_model
  scperformer adapt my_model panel.txt output=panel_model          # one gene a line

evaluate ANNOTATED... truth_key=COLUMN
compare with true labels, beside logistic regression
  scperformer evaluate sample.annotated.h5ad truth_key=cell_type output=evaluation
  scperformer evaluate a.h5ad b.h5ad truth_key=cell_type truth_path=[a.csv,b.csv] output=evaluation

report ANNOTATED...
make one HTML page about annotated files
  scperformer report sample.annotated.h5ad output=report.html
  scperformer report a.h5ad b.h5ad evaluation=evaluation output=report.html

explain ANNOTATED
find the genes on which calls depend
  scperformer explain sample.annotated.h5ad                        # -> sample.annotated.explanation/
  scperformer explain sample.annotated.h5ad cells=all output=why
  scperformer explain sample.annotated.h5ad label=NK               # what speaks for or against this label

analyze spectrum|approximation FILE
analyse the attention of a trained model
  scperformer analyze spectrum sample.h5ad model_path=my_model          # -> sample.spectrum/
  scperformer analyze spectrum sample.h5ad num_cells=20 max_tokens=1024 output=spectrum
  scperformer analyze approximation sample.h5ad model_path=my_model sizes=[64,256,1024]

models list | show | import | export | pull
list models, or get one from somewhere else
  scperformer models list
  scperformer models show pbmc3k
  scperformer models import a_model.zip                  # checked; then model_path=NAME finds it
  scperformer models import their_model output=shared    # for SCPERFORMER_MODELS=shared
  scperformer models export my_model my_model.zip        # with the lines for a registry
  scperformer models pull lung registry=models.yaml      # the only command that goes out

workflow SAMPLES
annotate many samples with Snakemake, and make one report
  scperformer workflow samples.tsv reference=reference.h5ad label_key=cell_type
  scperformer workflow samples.tsv model_path=my_model -- -n          # show the jobs and run none
  scperformer workflow --config my.yaml -- --cores 16                 # words after -- are for snakemake
  scperformer workflow samples.tsv model_path=my_model -- --profile my_cluster"""
PROGRAM = """\
scperformer {version}: cell-type annotation of single-cell data

usage: scperformer STEP files... [option=value ...]

{steps}

examples:
  scperformer predict sample.h5ad                       # annotate with the packaged model
  scperformer train reference.h5ad label_key=cell_type output=my_model
  scperformer predict sample.h5ad model_path=my_model output=out.h5ad

  scperformer STEP --help       examples and options of one step
  scperformer STEP --cfg job    every option of a step with the value it would have
  scperformer STEP --config F   options from a YAML file, as for the workflow
  scperformer STEP ... -m a=1,2 run a step once per value (a sweep)"""
HELP = dict(zip(STEPS, TEXTS.split("\n\n"), strict=True))

OVERRIDE = re.compile(r"[+~]*[A-Za-z_][\w./@-]*=|~[A-Za-z_]")  # option=value, +option=value, ~option
FLAGS = {"-m": None, "--cfg": "job", "--config-dir": "FOLDER"}  # of Hydra, each with a value that it takes
MOST_NAMED = 3  # files in the first line
# Lightning adds these to the words of the other processes of a ddp run, for programs that Hydra starts.
FROM_LIGHTNING = ("hydra.run.dir=", "hydra.output_subdir=", "hydra.job.name=")
CONFIG = "--config"  # its value is a YAML file with options
SHORT = {"--json": "json=true"}  # flags that are options


def to_overrides(words: list[str], step: str) -> list[str]:
    """Turn the words after the step, in any order, into overrides and `inputs=[...]`, and then flags.

    Plain words are input files, whatever characters they hold; the first one sets an option of some steps.
    """
    # Hydra takes a while to import: help answers at once.
    from scperformer.config import closest_option, option_word, quoted, read_options, text_options

    first_word = FIRST_WORDS.get(step)
    overrides = []
    files = []
    flags = []
    given = []
    rest = iter(words)
    for word in rest:
        if word == "--" and step == "workflow":  # the other words are for snakemake
            overrides.append(option_word("snakemake", list(rest)))
            break
        if word == CONFIG:
            given.append(next(rest, ""))
            if not given[-1]:
                raise InputError(f"{CONFIG} without a value", f"{CONFIG} FILE", "add the name of a YAML file")
            continue
        word = SHORT.get(word, word)
        option, _, value = word.partition("=")
        if word.startswith("-"):
            if word not in FLAGS:
                name = closest_option(word, step)
                remedy = f"write {name}=VALUE" if name else "write a file name that starts with '-' as ./-name"
                if word in ("-v", "--verbose"):
                    remedy = "leave it out: every step says what it does"
                raise InputError(f"'{word}'", "a file, option=value, --help, --config FILE, --cfg job or -m", remedy)
            flags += [word] if FLAGS[word] is None else [word, next(rest, "")]
            if not flags[-1] or (word == "--cfg" and flags[-1] not in ("job", "hydra", "all")):
                found = f"{word} {flags[-1] or 'without a value'}"
                raise InputError(found, f"{word} {FLAGS[word]}", "add the value that it takes")
        elif not OVERRIDE.match(word) or Path(word).exists():
            files.append(word)
        elif option in text_options(step) and value not in ("", "null") and value[0] not in "'\"" and "-m" not in words:
            overrides.append(f"{option}={quoted(value)}")
        else:
            overrides.append(word)
    if "--cfg" in flags and "-m" in flags:
        raise InputError(" ".join(flags), "--cfg job without -m", "leave one of them out")
    named = {word.lstrip("+~").partition("=")[0] for word in overrides}
    if step == "workflow":  # snakemake reads the file
        overrides = [*(option_word("configfile", path) for path in given), *overrides]
        given = []
    for path in given:
        read, inputs = read_options(path, step)
        read = [word for word in read if word.partition("=")[0] not in named]  # the command line goes before the file
        log.info("%s: %s", path, " ".join([*([] if files else inputs), *read]) or f"no option of '{step}'")
        overrides = read + overrides
        files = files or inputs
    if first_word is not None and files and not any(word.startswith(f"{first_word}=") for word in overrides):
        overrides.append(f"{first_word}={quoted(files.pop(0))}")
    if files:
        overrides.append(f"inputs=[{','.join(quoted(file) for file in files)}]")
    return overrides + flags


def help_text(step: str, group: str | None = None) -> str:
    """Return the usage, examples and options of a step, or the options of one of its groups."""
    from scperformer.config import groups_of, option_texts

    groups = groups_of(step)
    if group is not None and group not in groups:
        raise InputError(f"'{group}' after --help", f"one of {', '.join(groups)}", f"try 'scperformer {step} --help'")
    lines = []
    if group is None:
        usage, about, examples = HELP[step].split("\n", 2)
        lines += [f"scperformer {usage} [option=value ...]", f"  {about}", "", "examples:", examples, ""]
    lines.append("options (with their defaults):" if group is None else f"options of {group} (with their defaults):")
    for option in option_texts(group or step, FIRST_WORDS.get(step)):
        given = f"  {option.name}{'' if option.default == 'required' else '='}{option.default:.40}"
        given = given.replace("required", "=... (required)")
        meaning = re.sub(r";? ?see docs/\S+", "", option.meaning)
        lines += textwrap.wrap(meaning, 116, initial_indent=f"{given:<32}  ", subsequent_indent=" " * 34)
    if group is None and groups:
        lines += ["", f"more options: scperformer {step} --help GROUP, with GROUP one of {', '.join(groups)}"]
    return "\n".join(lines)


def import_function(module: str, name: str) -> Callable[[Any], object]:
    """Import a function of this package; Python does not look for garbage among its modules, now or later.

    They live as long as the process. To look through them takes a sixth of the CPU time of a short prediction.
    """
    gc.disable()
    try:
        function = getattr(importlib.import_module(f"scperformer.{module}"), name)
        if not gc.get_freeze_count():  # else this is a later job of a sweep, whose garbage must not stay
            gc.freeze()
    finally:
        gc.enable()
    return function


def _run(name: str, config: Any) -> None:
    with freed_memory(GIVEN_BACK), progress(f"scperformer {name}"):
        import_function(STEPS[name][0], f"run_{name}")(config)


def first_line(step: str, words: list[str]) -> str:
    """Return the step, its files and its options in short; it is logged before anything slow is imported."""
    of_flags = [after for flag, after in pairwise(words) if flag == CONFIG or FLAGS.get(flag)]
    files = [word for word in words if not (word.startswith("-") or OVERRIDE.match(word) or word in of_flags)]
    options = [word for word in words if word not in files]
    named = files if len(files) <= MOST_NAMED else [f"{len(files)} files"]
    return f"scperformer {step}: {', '.join([*named, *options])}"


def own_presets(flags: list[str]) -> Path | None:
    """Return the folder of --config-dir, or None; refuse one that does not exist."""
    named = [Path(value) for flag, value in pairwise(flags) if flag == "--config-dir"]
    if named and not named[-1].is_dir():
        raise InputError(f"no folder {named[-1]}", "a folder of presets, as in docs/configuration.md", "check its path")
    return named[-1] if named else None


def run_step(name: str, words: list[str]) -> int:
    """Make the configuration of a step and run the step, once or as a sweep; return the exit code."""
    from scperformer.config import command_line, hand_to_hydra, make_config, tree_of_words, yaml_text

    overrides = to_overrides(words, name)
    num_flags = next((place for place, word in enumerate(overrides) if word in FLAGS), len(overrides))
    flags = overrides[num_flags:]
    overrides = overrides[:num_flags]
    own = own_presets(flags)
    shown = dict(pairwise(flags)).get("--cfg")
    if shown is None:
        log.info("%s", first_line(name, words))
    elif shown == "job":
        print(yaml_text(tree_of_words(name, overrides, own)), end="")
        return 0
    else:
        hand_to_hydra(name, overrides, ["--cfg", shown], lambda: None, own)
        return 0
    if "-m" in flags:
        return run_sweep(name, words, overrides, own)
    overrides = [word for word in overrides if not word.startswith(FROM_LIGHTNING)]
    with command_line(sys.argv[0], name, *words):
        _run(name, make_config(name, overrides, own))
    return 0


def run_sweep(name: str, words: list[str], overrides: list[str], own: Path | None) -> int:
    """Run a step once for each combination of values; print the table of the runs, and return the exit code."""
    from scperformer.command.sweep import Sweep
    from scperformer.config import hand_to_hydra

    option = "hydra.sweep.dir="
    overrides = [f"{option}multirun/{time.strftime('%Y-%m-%d_%H-%M-%S')}", *overrides]
    folder = [word.removeprefix(option).strip("'\"") for word in overrides if word.startswith(option)][-1]
    sweep = Sweep(Path(folder))
    program = sys.argv[0]
    presets = [word for pair in pairwise(words) if pair[0] == "--config-dir" for word in pair]

    def run_job() -> None:
        """Run one job of the sweep, perhaps in a process that a cluster has started under another name."""
        from scperformer.config import command_line, make_config, quoted, sweep_job

        set_up_logging()
        folder, chosen = sweep_job()
        log.info("%s: %s", folder, " ".join(word for word in chosen if not word.startswith("inputs=")))
        try:
            with sweep.job(folder, chosen) as wrote:
                config = make_config(name, chosen, own)
                config = replace(config, output=str(folder / Path(config.output or STEPS[name][1]).name))
                wrote(config.output)
                # The other processes of a ddp run start this job alone, not the sweep again.
                with command_line(program, name, *chosen, f"output={quoted(config.output)}", *presets):
                    _run(name, config)
        except Exception as error:  # noqa: BLE001 - the other jobs of the sweep run all the same
            refuse(error)

    try:
        with sweep.to_its_end():
            hand_to_hydra(name, overrides, ["-m"], run_job, own)
    finally:
        if sweep.rows:
            print(sweep.markdown(), flush=True)
    return 2 if sweep.num_failed else 0


class _Format(logging.Formatter):
    """Print the text of a record on one line; only warnings and errors begin with their level."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        indent = text[: len(text) - len(text.lstrip(" "))]
        text = indent + " ".join(map(one_line, text.lstrip(" ").split(" ")))  # columns stay where they are
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
    """Print an error as one line and return its exit code: 2 if the user can fix it, 1 if it is a bug."""
    if os.environ.get("SCPERFORMER_DEBUG") == "1":
        raise error
    if known := as_input_error(error):
        print(f"error: {known}", file=sys.stderr)
        return 2
    where = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{type(error).__name__}: {one_line(str(error))[:300]} ({Path(where.filename).name}:{where.lineno})"
    advice = "SCPERFORMER_DEBUG=1 before the command shows where it happened; please report it."
    print(f"internal error: {text}. This is a bug.\n{advice}", file=sys.stderr)
    return 1


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit code.

    0: done; 2: an error that the user can fix; 1: a bug; 141: a broken pipe; 130, 143, 129: ended by a signal.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell: `2>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - until the end of the process
    try:
        code = run_words(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader has seen enough, as in `scperformer check x.h5ad | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it at its end
        return 128 + signal.SIGPIPE
    except (KeyboardInterrupt, EndedBySignal) as error:
        return say_ended(error)


def run_words(words: list[str]) -> int:
    """Print help or run a step; return the exit code."""
    if not words or words[0] in ("-h", "--help", "help"):
        steps = "\n".join("  {:<40}{}".format(*text.splitlines()) for text in HELP.values())
        print(PROGRAM.format(version=version("scperformer"), steps=steps))
        return 0
    if words[0] == "--version":
        print(version("scperformer"))
        return 0
    step, *rest = words
    try:
        if step not in STEPS:
            remedy = f"{did_you_mean(step, STEPS)}'scperformer --help' shows examples"
            raise InputError(f"step '{step}'", f"one of {', '.join(STEPS)}", remedy)
        if "-h" in rest or "--help" in rest:
            flag = next(place for place, word in enumerate(rest) if word in ("-h", "--help"))
            print(help_text(step, next(iter(rest[flag + 1 :]), None)))
            return 0
        set_up_logging()
        return run_step(step, rest)
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - every other error ends here, as one line
        return say_ended(error) if signal_received() else refuse(error)
