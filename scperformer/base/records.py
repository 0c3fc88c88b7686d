"""Dataclasses made of plain values, such as JSON or uns, which may have been changed, be made by hand, or mean harm."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from types import UnionType
from typing import Any, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from scperformer.base.messages import name_problem

T = TypeVar("T")
# of a value, and the text that says which values pass it
Check: TypeAlias = tuple[Callable[[Any], bool], str]

VALUE_KINDS = {
    str: "a text",
    int: "a number",
    float: "a number",
    bool: "a number",
    dict: "a mapping",
    list: "a list",
}
_types_of = cache(partial(get_type_hints, include_extras=True))


def from_plain(kind: type[T], value: Any, place: str) -> T:
    """Return a value as a type; a ValueError says which entry, below `place`, is missing or of another kind.

    Types are dataclasses, texts, numbers, lists and mappings of these or of any objects, and these or None. `Annotated`
    types have a `Check`, or the kind in words. Keys that a dataclass does not have are left out.
    """
    converted: Any = value
    hint: Any = kind
    if get_origin(hint) in (Union, UnionType):
        hint = next(part for part in get_args(hint) if part is not type(None))
        if value is None:
            return converted
    origin, parts = get_origin(hint) or hint, get_args(hint)
    expected = (
        hint.__metadata__[0] if hasattr(hint, "__metadata__") else VALUE_KINDS.get(origin, "")
    )
    if is_dataclass(hint):
        expected = VALUE_KINDS[dict]
    elif origin is list and parts[0] is str:
        expected = "a list of texts"
    kind_of_value = _kind_of(value)
    if isinstance(expected, str):
        is_list = isinstance(value, list) if expected == "a list" else np.shape(value) == (0,)
        is_fit = (
            kind_of_value == expected or (is_list and expected.startswith("a list")) or not expected
        )
    else:
        fits, expected = expected
        is_fit = fits(value)
    if not is_fit:
        raise ValueError(f"{place} is {kind_of_value} instead of {expected}")
    if is_dataclass(hint):
        converted = _dataclass(hint, value, place)
    elif expected == "a list":
        converted = [
            from_plain(parts[0], each, f"{place}[{number}]") for number, each in enumerate(value)
        ]
    elif origin is dict and parts[1] not in (Any, object):
        if problem := next(filter(None, map(name_problem, value)), None):
            raise ValueError(f"{place} has a key that {problem}")
        converted = {
            name: from_plain(parts[1], each, f"{place}['{name[:80]}']")
            for name, each in value.items()
        }
    return converted


def _dataclass(kind: Any, value: Mapping[str, Any], place: str) -> Any:
    types = _types_of(kind)
    values = {}
    for entry in fields(kind):
        if entry.name in value:
            values[entry.name] = from_plain(
                types[entry.name], value[entry.name], f"{place}['{entry.name}']"
            )
        elif entry.default is MISSING and entry.default_factory is MISSING:
            raise ValueError(f"{place} has no '{entry.name}'")
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{place}{error}") from error


def _kind_of(value: Any) -> str:
    if isinstance(value, str | Mapping):
        return VALUE_KINDS[str if isinstance(value, str) else dict]
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        return "a list"
    is_number = array.dtype.kind in "biuf"
    if array.ndim == 2 and is_number:
        return "a table of numbers"
    if array.ndim != 1:
        return (
            "a number"
            if is_number and array.ndim == 0
            else f"a value of type {type(value).__name__}"
        )
    if all(isinstance(text, str) for text in array):
        return "a list of texts"
    return "a list of numbers" if is_number else "a list"
