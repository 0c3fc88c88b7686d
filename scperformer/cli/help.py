"""What `scperformer --help` and `scperformer STEP --help` print: the options as a user reads them.

The meaning of an option is its comment: the lines above it in the dataclass, and the text behind it.
"""

import inspect
import re
import textwrap
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from importlib.metadata import version
from types import ModuleType
from typing import Any, get_args, get_type_hints

from scperformer.base.errors import InputError
from scperformer.cli.steps import BENCH, SCHEMAS, STEPS
from scperformer.config import training
from scperformer.config.options import ExpressionOptions, choices_of, is_option

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
  scperformer --plugin F STEP   an attention mechanism in a Python file: docs/own_mechanism.md"""
WIDTH = 116  # characters of a line of the list of options
INDENT = 34  # characters before the meaning of an option
MAX_DEFAULT_LENGTH = 40  # characters


# In these steps the first plain word sets an option; in all others it is an input file.
FIRST_WORDS = {"adapt": "model_path", "analyze": "analysis", "models": "action", "workflow": "sample_sheet"}
_GROUPS = [kind for name, kind in vars(training).items() if name.endswith("Config") and name != "NetworkOptions"]
GROUPS = {kind.word(): kind for kind in _GROUPS}  # data, tokens, ...
WITH_OPTIONS = {name: kind for name, kind in GROUPS.items() if any(map(is_option, fields(kind)))}
TABLES = {"files": ExpressionOptions} | SCHEMAS | WITH_OPTIONS  # the tables of docs/configuration.md
# Options of other programs, such as -o and -j, and the options here that mean the same.
USUAL_WORDS = {"o": "output", "out": "output", "outdir": "output", "i": "inputs", "input": "inputs", "j": "threads"}
USUAL_WORDS |= {"over_clustering": "clusters", "model": "model_path"}  # as CellTypist calls them
MIN_SIMILARITY = 0.75  # difflib's ratio of a wrong word and the option suggested for it: names of options are alike


@dataclass(frozen=True)
class OptionText:
    """An option of a step or group: its full name, its default as on the command line (or `required`), its meaning."""

    name: str
    default: str
    meaning: str


def _meanings(table: type) -> dict[str, str]:
    """Return the comment of each option of a dataclass, also of the options that it inherits."""
    comments: dict[str, str] = {}
    for part in reversed([part for part in table.__mro__ if part.__module__.startswith("scperformer.")]):
        above: list[str] = []
        for line in inspect.getsource(part).splitlines():
            option = re.match(r"    (\w+): [^#]*(?:# (.*))?$", line)
            if option:
                comments[option[1]] = " ".join([*above, option[2] or ""]).strip()
            above = [*above, line.strip(" #")] if line.startswith("    # ") else []
    return comments


def option_texts(name: str) -> list[OptionText]:
    """Return the options of a step without groups and `files`, or of one of these; the required ones first."""
    meanings = _meanings(TABLES[name])
    elsewhere = {"inputs", "attention", *GROUPS}
    if name == "files":
        elsewhere.add("overwrite")
    else:
        elsewhere |= {option.name for option in fields(TABLES["files"])} - {"overwrite"}
    prefix = f"{name}." if name in GROUPS else ""
    texts = []
    for option in fields(TABLES[name]):
        if not is_option(option) or (name not in GROUPS and option.name in elsewhere):
            continue
        value = option.default if option.default_factory is MISSING else option.default_factory()
        default = f"{value:g}" if isinstance(value, float) else str(value)
        # The first word is required although its option has a default.
        if value is MISSING or option.name == FIRST_WORDS.get(name):
            default = "required"
        elif value is None or isinstance(value, bool):
            default = "null" if value is None else str(value).lower()
        choices = choices_of(option)
        meaning = meanings[option.name] + (f" (one of {', '.join(choices)})" if choices else "")
        texts.append(OptionText(prefix + option.name, default, meaning))
    return sorted(texts, key=lambda option: (option.default != "required", option.name == "overwrite"))


@cache
def options_of(step: str) -> dict[str, tuple[Field, Any]]:
    """Return the field and the type of each option of a step by its full name; options of mechanisms are left out."""
    found: dict[str, tuple[Field, Any]] = {}
    hints = get_type_hints(SCHEMAS[step])
    for entry in fields(SCHEMAS[step]):
        kind = hints[entry.name]
        if is_dataclass(kind):
            inside = get_type_hints(kind)
            found |= {f"{entry.name}.{one.name}": (one, inside[one.name]) for one in fields(kind) if is_option(one)}
        else:
            found[entry.name] = (entry, kind)
    return found


@cache
def text_options(step: str) -> frozenset[str]:
    """Return the full names of the options of a step that take any text, such as the name of a file or a column."""
    return frozenset(
        name
        for name, (entry, kind) in options_of(step).items()
        if (kind is str or set(get_args(kind)) == {str, type(None)}) and not choices_of(entry)
    )


def closest_option(word: str, step: str) -> str:
    """Return the full name of the option of a step that a wrong word probably meant; "" if no name is similar."""
    wrong = word.lstrip("-+~").partition("=")[0].replace("-", "_")
    names = [name for name, (entry, _) in options_of(step).items() if is_option(entry)]
    usual = USUAL_WORDS.get(wrong, wrong)
    return usual if usual in names else next(iter(get_close_matches(usual, names, 1, MIN_SIMILARITY)), "")


def _purpose(module: ModuleType) -> str:
    """Return what a step does: the text after its name in the docstring of its file."""
    return (module.__doc__ or "").partition(": ")[2].partition(".\n")[0].removesuffix(".")


def program_text() -> str:
    """Return the usage of the program, with one line for each step."""
    steps = [f"  {step.USAGE.replace(' | ', '|'):<40}{_purpose(step)}" for step in STEPS.values()]
    return PROGRAM.format(version=version("scperformer"), steps="\n".join(steps))


def help_text(step: str, group: str | None = None) -> str:
    """Return the usage, examples and options of a step, or the options of one of its groups."""
    module = STEPS[step]
    step = "train" if step == BENCH else step
    groups = ["files"] if issubclass(SCHEMAS[step], ExpressionOptions) else []
    groups += [option.name for option in fields(SCHEMAS[step]) if option.name in WITH_OPTIONS]
    if group is not None and group not in groups:
        raise InputError(
            "unknown-group",
            f"'{group}' after --help",
            f"one of {', '.join(groups)}",
            f"try 'scperformer {step} --help'",
        )
    lines = [f"options of {group} (with their defaults):"]
    if group is None:
        lines = [f"scperformer {module.USAGE} [option=value ...]", f"  {_purpose(module)}", ""]
        lines += ["examples:", module.EXAMPLES, "", "options (with their defaults):"]
    for option in option_texts(group or step):
        default = "... (required)" if option.default == "required" else option.default[:MAX_DEFAULT_LENGTH]
        start = f"  {option.name}={default}".ljust(INDENT - 2) + "  "
        meaning = re.sub(r";? ?see docs/\S+", "", option.meaning)  # an installed package has no docs folder
        lines += textwrap.wrap(meaning, WIDTH, initial_indent=start, subsequent_indent=" " * INDENT)
    if group is None and groups:
        lines += ["", f"more options: scperformer {step} --help GROUP, with GROUP one of {', '.join(groups)}"]
    return "\n".join(lines)
