"""Attention mechanisms that are not part of scperformer: a registry by name, which no option can extend.

Classes come from `register_attention` in Python, from the flag --plugin FILE of the command line, or from entry points
of installed packages. An option only chooses among their names.
"""

from dataclasses import is_dataclass
from importlib.metadata import entry_points
from typing import Any

from scperformer.base.errors import InputError, one_line

ENTRY_POINTS = "scperformer.attention"  # group of entry points
CONTRACT = "a subclass of scperformer.Attention with a dataclass Options, all of whose options have defaults"

_REGISTERED: dict[str, Any] = {}


def register_mechanism(name: str, mechanism: Any) -> None:
    """Register the class of a mechanism by its name, in place of an earlier class of this name."""
    try:
        is_usable = is_dataclass(mechanism.Options()) and callable(mechanism.forward)
    except (AttributeError, TypeError):
        is_usable = False
    if not is_usable:
        found = f"the mechanism {name}, {one_line(repr(mechanism))}"
        raise InputError("not-a-mechanism", found, CONTRACT, "see docs/own_mechanism.md")
    _REGISTERED[name] = mechanism


def registered_mechanism(name: str) -> Any:
    """Return the class that is registered by this name or is an entry point of this name, or None."""
    for entry in () if name in _REGISTERED else entry_points(group=ENTRY_POINTS, name=name):
        try:
            mechanism = entry.load()
        except Exception as error:  # any error may occur: it is a program of another package
            reason = one_line(f"{type(error).__name__}: {error}")
            found = f"attention={name}, {entry.value} of an installed package, cannot be imported ({reason})"
            raise InputError(
                "mechanism-import", found, CONTRACT, "repair or remove that package"
            ) from error
        register_mechanism(name, mechanism)
    return _REGISTERED.get(name)


def registered_names() -> list[str]:
    """Return the names of all registered mechanisms and entry points, sorted."""
    return sorted({*_REGISTERED, *entry_points(group=ENTRY_POINTS).names})
