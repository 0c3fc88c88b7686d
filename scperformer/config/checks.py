"""Checks of options: each refusal is one line that names the option, its value and what it can be."""

from dataclasses import fields
from math import isfinite
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from scperformer.errors import InputError


def require(ok: bool, option: str, value: object, expected: str) -> None:
    """Refuse the value of an option unless `ok`."""
    if not ok:
        raise InputError(f"{option}={value}", expected, f"set {option} accordingly")


def require_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse the value of an option unless it is one of `choices`."""
    require(value in choices, option, value, "one of " + ", ".join(choices))


Schema = TypeVar("Schema")


def checked(schema: type[Schema], values: dict[str, Any], prefix: str) -> Schema:
    """A dataclass of options from plain values.

    Raises
    ------
    InputError
        A name that the dataclass does not have, a value of another type, or one out of range.
    """
    types = get_type_hints(schema)
    for name, value in values.items():
        if name not in types:
            known = ", ".join(f"{prefix}{field.name}" for field in fields(schema)) or "none"  # type: ignore[arg-type]
            raise InputError(
                f"option {prefix}{name}",
                f"an option that is there ({known})",
                "leave it out",
            )
        kind = list if get_origin(types[name]) is list else types[name]
        whole_numbers_too = float in (kind, *get_args(kind))
        ok = isinstance(value, (int, kind) if whole_numbers_too else kind) and (
            kind is bool or not isinstance(value, bool)
        )
        require(ok, f"{prefix}{name}", value, f"a value of type {getattr(kind, '__name__', kind)}")
        require(not isinstance(value, float) or isfinite(value), f"{prefix}{name}", value, "a finite number")
    return schema(**values)
