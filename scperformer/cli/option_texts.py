"""The options of each step as a user reads them: their defaults and meanings, and the one that a wrong word meant.

The meaning of an option is its comment: the lines above it in the dataclass, and the text behind it.
"""

import inspect
import re
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, get_args, get_type_hints

from scperformer.cli.steps import SCHEMAS
from scperformer.config import training
from scperformer.config.options import ExpressionOptions, choices_of, is_option

_GROUPS = [kind for name, kind in vars(training).items() if name.endswith("Config") and name != "NetworkConfig"]
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


def _default_text(option: Field, first_word: str | None) -> str:
    """Return the default of an option as on the command line, or `required`; `first_word` as in `option_texts`."""
    value = option.default if option.default_factory is MISSING else option.default_factory()
    # The first word is required although its option has a default; `models` alone lists the models.
    if value is MISSING or (option.name == first_word and first_word != "action"):
        return "required"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def option_texts(name: str, first_word: str | None = None) -> list[OptionText]:
    """Return the options of a step, of a group, or of `files`: required options first, `overwrite` last.

    Groups, and the options of files, are not repeated among the options of a step. `first_word`: the option that the
    first plain word of the step sets.
    """
    meanings = _meanings(TABLES[name])
    elsewhere = {"inputs", "attention", *GROUPS}
    if name == "files":
        elsewhere.add("overwrite")
    else:
        elsewhere |= {option.name for option in fields(TABLES["files"])} - {"overwrite"}
    prefix = f"{name}." if name in GROUPS else ""
    texts = []
    for option in fields(TABLES[name]):
        if is_option(option) and (name in GROUPS or option.name not in elsewhere):
            choices = choices_of(option)
            meaning = meanings[option.name] + (f" (one of {', '.join(choices)})" if choices else "")
            texts.append(OptionText(prefix + option.name, _default_text(option, first_word), meaning))
    return sorted(texts, key=lambda option: (option.default != "required", option.name == "overwrite"))


def groups_of(step: str) -> list[str]:
    """Return the groups of options that a step has; `files` has the options that replace the detection of a file."""
    names = [option.name for option in fields(SCHEMAS[step])]
    reads = issubclass(SCHEMAS[step], ExpressionOptions)
    return [*(["files"] if reads else []), *(name for name in names if name in WITH_OPTIONS)]


def closest_option(word: str, step: str) -> str:
    """Return the full name of the option of a step that a wrong word probably meant; "" if no name is similar."""
    wrong = word.lstrip("-+~").partition("=")[0].replace("-", "_")
    names = [option.name for option in fields(SCHEMAS[step]) if is_option(option)]
    names += [
        f"{group}.{option.name}"
        for group in set(names) & GROUPS.keys()
        for option in fields(GROUPS[group])
        if is_option(option)
    ]
    usual = USUAL_WORDS.get(wrong, wrong)
    return usual if usual in names else next(iter(get_close_matches(usual, names, 1, MIN_SIMILARITY)), "")


@cache
def text_options(step: str) -> frozenset[str]:
    """Return the full names of the options of a step that take any text, such as the name of a file or a column."""
    return frozenset(_text_options(SCHEMAS[step]))


def _text_options(table: Any, prefix: str = "") -> list[str]:
    names = []
    hints = get_type_hints(table)
    for option in fields(table):
        kind = hints[option.name]
        is_text = kind is str or set(get_args(kind)) == {str, type(None)}
        if is_dataclass(kind):
            names += _text_options(kind, f"{option.name}.")
        elif is_text and not choices_of(option):
            names.append(prefix + option.name)
    return names
