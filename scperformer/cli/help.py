"""What `scperformer --help` and `scperformer COMMAND --help` print."""

import re
import textwrap
from importlib.metadata import version
from types import ModuleType

from scperformer.base.errors import InputError
from scperformer.cli.steps import BENCH, STEPS
from scperformer.config.descriptions import WITH_OPTIONS, fields_of, option_texts
from scperformer.config.options import ExpressionOptions
from scperformer.config.steps import SCHEMAS

PROGRAM = """\
scperformer {version}: cell-type annotation of single-cell data

usage: scperformer COMMAND files... [option=value ...]

{steps}

examples:
  scperformer predict sample.h5ad                       # annotate; the tissue is inferred
  scperformer train reference.h5ad label_key=cell_type output=my_model
  scperformer predict sample.h5ad model_path=my_model output=out.h5ad

  scperformer COMMAND --help       examples and options of one command
  scperformer COMMAND --cfg job    every option of a command with its value
  scperformer --plugin F COMMAND   an attention mechanism in a Python file: docs/own_mechanism.md"""
WIDTH = 116  # characters of a line of the list of options
INDENT = 34  # characters before the meaning of an option
MAX_DEFAULT_LENGTH = 40  # characters


def _purpose(module: ModuleType) -> str:
    """Return what a step does: the text after its name in the docstring of its file."""
    return (module.__doc__ or "").partition(": ")[2].partition(".\n")[0].removesuffix(".")


def program_text() -> str:
    """Return the usage of the program, with one line for each step."""
    steps = [f"  {step.USAGE.replace(' | ', '|'):<41}{_purpose(step)}" for step in STEPS.values()]
    return PROGRAM.format(version=version("scperformer"), steps="\n".join(steps))


def help_text(step: str, group: str | None = None) -> str:
    """Return the usage, examples and options of a step, or the options of one of its groups."""
    module = STEPS[step]
    step = "train" if step == BENCH else step
    schema = SCHEMAS[step]
    of_step = dict.fromkeys(name.partition(".")[0] for name in fields_of(schema))
    groups = ["files"] * issubclass(schema, ExpressionOptions) + [
        name for name in of_step if name in WITH_OPTIONS
    ]
    if group is not None and group not in groups:
        expected, remedy = f"one of {', '.join(groups)}", f"try 'scperformer {step} --help'"
        raise InputError("unknown-group", f"'{group}' after --help", expected, remedy)
    lines = [f"options of {group} (with their defaults):"]
    if group is None:
        lines = [f"scperformer {module.USAGE} [option=value ...]", f"  {_purpose(module)}", ""]
        lines += ["examples:", module.EXAMPLES, "", "options (with their defaults):"]
    for option in option_texts(group or step):
        default = (
            "... (required)"
            if option.default == "required"
            else option.default[:MAX_DEFAULT_LENGTH]
        )
        start = f"  {option.name}={default}".ljust(INDENT - 2) + "  "
        # an installed package has no docs folder
        meaning = re.sub(r";? ?see docs/\S+", "", option.meaning)
        lines += textwrap.wrap(meaning, WIDTH, initial_indent=start, subsequent_indent=" " * INDENT)
    if group is None and groups:
        lines += [
            "",
            f"more options: scperformer {step} --help GROUP, with GROUP one of {', '.join(groups)}",
        ]
    return "\n".join(lines)
