"""The options of each step as a user reads them: their defaults and meanings, and the one that a wrong word meant.

The meaning of an option is its comment: the lines above it in the dataclass, and the text behind it.
"""

import inspect
import re
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, get_args, get_type_hints

from scperformer.config import groups, steps

GROUPS = {name.removesuffix("Config").lower(): part for name, part in vars(groups).items() if name.endswith("Config")}
TABLES = {"files": steps.ExpressionOptions} | steps.SCHEMAS | GROUPS
USUAL_WORDS = {"o": "output", "out": "output", "outdir": "output", "i": "inputs", "input": "inputs", "j": "threads"}


@dataclass(frozen=True)
class OptionText:
    """An option of a step or group: its full name, its default as on the command line (or `required`), its meaning."""

    name: str
    default: str
    meaning: str


def _meanings(table: type) -> dict[str, str]:
    """Return the comment of each option of a dataclass, and of its base classes."""
    found: dict[str, str] = {}
    for part in reversed([part for part in table.__mro__ if part.__module__.startswith("scperformer.")]):
        above: list[str] = []
        for line in inspect.getsource(part).splitlines():
            option = re.match(r"    (\w+): [^#]*(?:# (.*))?$", line)
            if option:
                found[option[1]] = " ".join([*above, option[2] or ""]).strip()
            above = [*above, line.strip(" #")] if line.startswith("    # ") else []
    return found


def _default(option: Field, first_word: str | None) -> str:
    value = option.default if option.default_factory is MISSING else option.default_factory()
    if value is MISSING or option.name == first_word != "action":  # `models` alone lists the models
        return "required"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def option_texts(name: str, first_word: str | None = None) -> list[OptionText]:
    """Return the options of a step, of a group, or of `files`, required ones first.

    Groups, and the options of files, are not repeated among the options of a step. `first_word`: the option that the
    first plain word of the step sets.
    """
    meanings = _meanings(TABLES[name])
    elsewhere = {"inputs", "attention", *GROUPS} | ({"overwrite"} if name == "files" else set())
    if name != "files":
        elsewhere |= {option.name for option in fields(TABLES["files"])} - {"overwrite"}
    found = []
    for option in fields(TABLES[name]):
        if name in GROUPS or option.name not in elsewhere:
            prefix = f"{name}." if name in GROUPS else ""
            choices = option.metadata.get("rule", (None, ""))[1]
            text = f"{meanings[option.name]} ({choices})" if choices.startswith("one of ") else meanings[option.name]
            found.append(OptionText(prefix + option.name, _default(option, first_word), text))
    return sorted(found, key=lambda option: (option.default != "required", option.name == "overwrite"))


def groups_of(step: str) -> list[str]:
    """Return the names of the groups of options that a step has; `files` are those that replace the detection."""
    names = [option.name for option in fields(steps.SCHEMAS[step])]
    reads = issubclass(steps.SCHEMAS[step], steps.ExpressionOptions)
    return [*(["files"] if reads else []), *(name for name in names if name in GROUPS)]


def closest_option(word: str, step: str) -> str:
    """Return the option of a step whose name is most like a wrong word, or nothing."""
    wrong = word.lstrip("-+~").partition("=")[0].replace("-", "_")
    names = [option.name for option in fields(steps.SCHEMAS[step])]
    names += [f"{group}.{option.name}" for group in set(names) & GROUPS.keys() for option in fields(GROUPS[group])]
    usual = USUAL_WORDS.get(wrong, wrong)
    return usual if usual in names else next(iter(get_close_matches(usual, names, 1, 0.75)), "")


@cache
def text_options(step: str) -> frozenset[str]:
    """Return the full names of the options of a step whose values are any text, such as names of files and columns."""
    return frozenset(_text_options(steps.SCHEMAS[step]))


def _text_options(table: Any, prefix: str = "") -> list[str]:
    names = []
    for option, kind in ((option, get_type_hints(table)[option.name]) for option in fields(table)):
        choices = option.metadata.get("rule", (None, ""))[1]
        is_text = kind is str or set(get_args(kind)) == {str, type(None)}
        if is_dataclass(kind):
            names += _text_options(kind, f"{option.name}.")
        elif is_text and not choices.startswith("one of "):
            names.append(prefix + option.name)
    return names
