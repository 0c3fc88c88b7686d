"""What `scperformer --help` and `scperformer STEP --help` print."""

import re
import textwrap
from importlib.metadata import version

from scperformer.base.errors import InputError
from scperformer.cli.option_texts import groups_of, option_texts
from scperformer.cli.steps import STEPS
from scperformer.cli.words import FIRST_WORDS

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
  scperformer --plugin F STEP   an attention mechanism in a Python file: docs/own_mechanism.md
  scperformer STEP ... -m a=1,2 run a step once per value (a sweep)"""
WIDTH = 116  # characters of a line of the list of options
INDENT = 34  # characters before the meaning of an option
MAX_DEFAULT_LENGTH = 40  # characters


def program_text() -> str:
    """Return the usage of the program, with one line for each step."""
    lines = [f"  {step.usage.replace(' | ', '|'):<40}{step.purpose}" for step in STEPS.values()]
    steps = "\n".join(lines)
    return PROGRAM.format(version=version("scperformer"), steps=steps)


def help_text(step: str, group: str | None = None) -> str:
    """Return the usage, examples and options of a step, or the options of one of its groups.

    Raises
    ------
    InputError
        The step has no such group.
    """
    groups = groups_of(step)
    if group is not None and group not in groups:
        raise InputError(f"'{group}' after --help", f"one of {', '.join(groups)}", f"try 'scperformer {step} --help'")
    lines = []
    if group is None:
        text = STEPS[step]
        lines += [
            f"scperformer {text.usage} [option=value ...]",
            f"  {text.purpose}",
            "",
            "examples:",
            text.examples,
            "",
        ]
    lines.append("options (with their defaults):" if group is None else f"options of {group} (with their defaults):")
    for option in option_texts(group or step, FIRST_WORDS.get(step)):
        default = "... (required)" if option.default == "required" else option.default[:MAX_DEFAULT_LENGTH]
        start = f"  {option.name}={default}".ljust(INDENT - 2) + "  "
        meaning = re.sub(r";? ?see docs/\S+", "", option.meaning)  # an installed package has no docs folder
        lines += textwrap.wrap(meaning, WIDTH, initial_indent=start, subsequent_indent=" " * INDENT)
    if group is None and groups:
        lines += ["", f"more options: scperformer {step} --help GROUP, with GROUP one of {', '.join(groups)}"]
    return "\n".join(lines)
