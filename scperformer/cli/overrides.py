"""Options as words of a command, `name=value` in the grammar of Hydra's overrides."""

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from scperformer.base.errors import InputError

NOT_TEXT = ("true", "false", "null", "nan", "inf")  # in any case: words that Hydra does not read as text


def without_interpolation(text: str) -> str:
    """Return a text in which OmegaConf replaces nothing: '${' is escaped, and so are backslashes before it."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", text)


def quoted(value: str) -> str:
    """Return a text as a Hydra value, whatever characters it holds."""
    # In Hydra's quoted strings backslashes are literal, except for those right before a quote.
    escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), without_interpolation(value))
    return f"'{escaped}'"


def _value(value: Any) -> str:
    """Return a text, a number, true, false or null as a Hydra value."""
    if isinstance(value, str | os.PathLike):
        return quoted(os.fspath(value))
    return json.dumps(value, default=lambda scalar: scalar.item())  # json does not know the scalars of NumPy


def option_word(name: str, value: Any) -> str:
    """Write `name=value` as one word of a command, whatever characters the value or values hold."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list | tuple | set | frozenset):
        return f"{name}=[{','.join(map(_value, value))}]"
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else ""
    plain = re.fullmatch(r"[A-Za-z_][a-zA-Z0-9_./-]*", text) and text.lower() not in NOT_TEXT
    return f"{name}={text if plain else _value(value)}"


def option_words(options: Mapping[str, Any]) -> list[str]:
    """Return options (full names -> values) as words of a command; refuse nested ones, and names that are no text."""
    for name, value in options.items():
        if not isinstance(name, str):
            raise InputError(f"option {name!r}", "the name of an option", "write it as a text")
        if isinstance(value, Mapping):
            remedy = f"write {{'{name}.{next(iter(value), 'NAME')}': ...}}"
            raise InputError(f"options inside of the option {name}", "the full name of each option", remedy)
    return [option_word(name, value) for name, value in options.items()]
