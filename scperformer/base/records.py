"""Dataclasses made of plain values, such as JSON or uns, which may have been changed, be made by hand, or mean harm.

The fields of a dataclass are the keys; other keys have no effect. Types are those of `from_plain`.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, TypeAlias, Union, get_args, get_origin, get_type_hints

import numpy as np

from scperformer.base.messages import name_problem

Check: TypeAlias = tuple[Callable[[Any], bool], str]  # of a value, and the text that says which values pass it

KINDS = {str: "a text", int: "a number", float: "a number", bool: "a number", dict: "a mapping", list: "a list"}


def from_plain(kind: Any, value: Any, place: str) -> Any:
    """Return a value as a type; a ValueError says which entry, below `place`, is missing or of another kind.

    Types are dataclasses, texts, numbers, lists and mappings of these or of any objects, and these or None. `Annotated`
    types have a `Check`, or the kind in words.
    """
    if get_origin(kind) in (Union, UnionType):
        if value is None:
            return None
        kind = next(part for part in get_args(kind) if part is not type(None))
    if is_dataclass(kind):
        return _dataclass(kind, value, place)
    kind_of_all, parts = get_origin(kind) or kind, get_args(kind)
    expected = kind.__metadata__[0] if hasattr(kind, "__metadata__") else KINDS.get(kind_of_all, "")
    if kind_of_all is list and parts[0] is str:
        expected = "a list of texts"
    if isinstance(expected, str):
        found = _kind_of(value)
        is_list = isinstance(value, list) if expected == "a list" else np.shape(value) == (0,)
        is_fit = found == expected or (is_list and expected.startswith("a list"))
    else:
        fits, expected = expected
        found, is_fit = _kind_of(value), fits(value)
    if expected and not is_fit:
        raise ValueError(f"{place} is {found} instead of {expected}")
    if expected == "a list":
        return [from_plain(parts[0], each, f"{place}[{number}]") for number, each in enumerate(value)]
    if kind_of_all is dict and parts[1] not in (Any, object):
        for problem in filter(None, map(name_problem, value)):
            raise ValueError(f"{place} has a key that {problem}")
        return {name: from_plain(parts[1], each, f"{place}['{name[:80]}']") for name, each in value.items()}
    return value


@cache
def _entries(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Return the type of each field, and whether the field is required."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        entry.name: (hints[entry.name], entry.default is MISSING and entry.default_factory is MISSING)
        for entry in fields(kind)
    }


def _dataclass(kind: Any, value: Any, place: str) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError(f"{place} is {_kind_of(value)} instead of a mapping")
    made = {}
    for name, (hint, is_required) in _entries(kind).items():
        if name in value:
            made[name] = from_plain(hint, value[name], f"{place}['{name}']")
        elif is_required:
            raise ValueError(f"{place} has no '{name}'")
    try:
        return kind(**made)
    except ValueError as error:
        raise ValueError(f"{place}{error}") from error


def _kind_of(value: Any) -> str:
    """Return the kind of a value in words."""
    if isinstance(value, str | Mapping):
        return KINDS[str if isinstance(value, str) else dict]
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        return "a list"
    is_number = array.dtype.kind in "biuf"
    if array.ndim == 2 and is_number:
        return "a table of numbers"
    if array.ndim != 1:
        return "a number" if is_number and array.ndim == 0 else f"a value of type {type(value).__name__}"
    if all(isinstance(text, str) for text in array):
        return "a list of texts"
    return "a list of numbers" if is_number else "a list"
