"""Checks of options: each refusal is one line that names the option, its value and the values it can have."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from scperformer.errors import InputError

Rule = tuple[Callable[[Any], bool], str]  # whether a value can be used; which values can
ABOVE_ZERO: Rule = (lambda value: value > 0, "a number above 0")
ABOVE_ZERO_OR_NULL: Rule = (lambda value: value > 0, "a number above 0, or null")
ZERO_OR_MORE: Rule = (lambda value: value >= 0, "0 or more")
ONE_OR_MORE: Rule = (lambda value: value >= 1, "1 or more")
BELOW_ONE: Rule = (lambda value: 0 <= value < 1, "0 or more and below 1")
SHARE: Rule = (lambda value: 0 <= value <= 1, "a share from 0 to 1")
SEED: Rule = (lambda value: 0 <= value < 2**32, "0 to 2**32 - 1")
NAME: Rule = (lambda value: bool(value.strip()), "a name")


def one_of(*choices: str) -> Rule:
    """Return the rule that a value is one of `choices`."""
    return (lambda value: value in choices, "one of " + ", ".join(choices))


def option(default: Any, rule: Rule) -> Any:
    """Return a field of an `Options` class with a default value and a rule for its values; None breaks no rule."""
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata={"rule": rule})
    return field(default=default, metadata={"rule": rule})


@dataclass(kw_only=True)
class Options:
    """Options that are checked when they are made, each by the rule of its field."""

    prefix: ClassVar[str] = ""  # of their names in messages, such as "data."

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if "rule" in entry.metadata and value is not None:
                fits, expected = entry.metadata["rule"]
                require(fits(value), f"{self.prefix}{entry.name}", value, expected)


def require(ok: bool, option: str, value: object, expected: str) -> None:
    """Refuse the value of an option unless `ok`."""
    if not ok:
        shown = repr(value) if isinstance(value, str) and not value.strip() else value
        raise InputError(f"{option}={shown}", expected, f"set {option} accordingly")


Schema = TypeVar("Schema")


def checked(schema: type[Schema], values: dict[str, Any], prefix: str) -> Schema:
    """Make a dataclass of options from plain values.

    Raises
    ------
    InputError
        A name that the dataclass does not have, a value of another type, or one out of range.
    """
    types = get_type_hints(schema)
    for name, value in values.items():
        if name not in types:
            known = ", ".join(f"{prefix}{field.name}" for field in fields(schema)) or "none"  # type: ignore[arg-type]
            raise InputError(f"option {prefix}{name}", f"an option that exists ({known})", "leave it out")
        kind = list if get_origin(types[name]) is list else types[name]
        kinds = (int, kind) if float in (kind, *get_args(kind)) else kind  # whole numbers are numbers, too
        ok = isinstance(value, kinds) and (kind is bool or not isinstance(value, bool))
        require(ok, f"{prefix}{name}", value, f"a value of type {getattr(kind, '__name__', kind)}")
        require(not isinstance(value, float) or isfinite(value), f"{prefix}{name}", value, "a finite number")
    return schema(**values)
