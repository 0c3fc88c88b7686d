"""Options as words of a command, `name=value` in the grammar of Hydra's overrides: written, and read again."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scperformer.base.errors import InputError

NOT_TEXT = ("true", "false", "null", "nan", "inf")  # in any case: words that Hydra does not read as text
SWITCH = {  # in lower case: what Hydra converts to true or false where an option is one of the two
    **dict.fromkeys(("true", "yes", "on", "y", "1"), True),
    **dict.fromkeys(("false", "no", "off", "n", "0"), False),
}


def quoted(value: str) -> str:
    """Return a text as a Hydra value, whatever characters it holds."""
    # '${' would interpolate: it is escaped, and so are backslashes before it.
    value = re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
    # In Hydra's quoted strings backslashes are literal, except for those right before a quote.
    escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), value)
    return f"'{escaped}'"


def _plain(value: Any) -> str:
    """Return a number, true, false or null as a Hydra value."""
    return json.dumps(value, default=lambda scalar: scalar.item())  # json does not know the scalars of NumPy


def option_word(name: str, value: Any) -> str:
    """Write `name=value` as one word of a command, whatever characters the value or values hold."""
    if isinstance(value, list | tuple | set | frozenset):
        items = (quoted(os.fspath(item)) if isinstance(item, str | os.PathLike) else _plain(item) for item in value)
        return f"{name}=[{','.join(items)}]"
    if not isinstance(value, str | os.PathLike):  # a number, true, false or null
        return f"{name}={_plain(value)}"
    text = os.fspath(value)
    plain = re.fullmatch(r"[A-Za-z_][a-zA-Z0-9_./-]*", text) and text.lower() not in NOT_TEXT
    return f"{name}={text if plain else quoted(text)}"


def require_flat(options: Mapping[str, Any]) -> None:
    """Refuse nested options, and names that are not text: each option needs its full name, such as `model.dim`."""
    for name, value in options.items():
        if not isinstance(name, str):
            raise InputError(f"option {name!r}", "the name of an option", "write it as a text")
        if isinstance(value, Mapping):
            remedy = f"write {{'{name}.{next(iter(value), 'NAME')}': ...}}"
            raise InputError(f"options inside of the option {name}", "the full name of each option", remedy)


def option_words(options: Mapping[str, Any]) -> list[str]:
    """Return options (full names -> values) as words of a command."""
    require_flat(options)
    return [option_word(name, value) for name, value in options.items()]


@dataclass(frozen=True)
class Word:
    """A word `name=value` of a command, parsed."""

    text: str  # the whole word, as given
    name: str
    value: Any  # with `several`, the list of the values
    several: bool = False  # has the values of a sweep: separated by commas, or a range
    changes: bool = True  # False: +name=value or ~name, which add or remove options, or name@package=value


def read_words(words: Sequence[str]) -> list[Word]:
    """Parse words by Hydra's grammar; refuse a word that does not follow it."""
    from hydra import version  # Hydra takes a quarter of a second to import
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import OverrideType, Sweep
    from hydra.errors import HydraException

    version.setbase("1.3")  # Hydra warns without it
    parser = OverridesParser.create()
    parsed = []
    for text in words:
        try:
            override = parser.parse_override(text)
            several = override.is_sweep_override()
            value = override.value()
            if several:
                value = list(override.sweep_iterator()) if override.is_discrete_sweep() else [value]
                value = [override._convert_value(item) for item in value]
        except (HydraException, ValueError) as error:
            reason = " ".join(str(error).partition("\nSee https")[0].split())
            raise InputError(f"{text} ({reason})", "option=value", "put quotes around a text") from error
        assert several or not isinstance(value, Sweep)
        changes = override.type == OverrideType.CHANGE and override.package is None
        parsed.append(Word(text, override.key_or_group, value, several, changes))
    return parsed


def interpolated(value: Any, text: str) -> Any:
    """Replace ${oc.env:NAME} and the like in a value of the command line, as Hydra does; `quoted` prevents it.

    `text` is the whole word, for errors.
    """
    if isinstance(value, list):
        return [interpolated(item, text) for item in value]
    if not isinstance(value, str) or "${" not in value:
        return value
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return OmegaConf.create({"value": value}).value
    except OmegaConfBaseException as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{text} ({reason})", "a value", "write the value itself") from error
