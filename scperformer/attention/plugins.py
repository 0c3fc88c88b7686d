"""Attention mechanisms of other packages and of users' own files.

A package declares a mechanism as an entry point of the group `scperformer.attention`, which gives it a name. Other
mechanisms are named MODULE:CLASS by the user. A name in a model folder alone never imports a file: the user must allow
it.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from scperformer.attention.base import Attention
from scperformer.base.errors import InputError, one_line
from scperformer.config import PLUGINS

ENTRY_POINTS = "scperformer.attention"  # group of entry points
CONTRACT = "a subclass of scperformer.Attention with a dataclass Options"


class MustBeAllowed(InputError):
    """A mechanism that the user must allow; its name in a model folder does not make the model damaged."""


@contextmanager
def _own_files() -> Iterator[None]:
    """Let Python import files from the working folder within a block."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        yield
    finally:
        sys.path.remove(str(Path.cwd()))


def import_mechanism(name: str) -> type[Attention]:
    """Import the class of a mechanism, MODULE:CLASS; the module may be a file in the working folder."""
    module, _, attribute = name.partition(":")
    remedy = "check the name, and run the command in the folder of the file"
    try:
        with _own_files():
            mechanism = getattr(import_module(module), attribute)
    except Exception as error:  # any error may occur: the file is the user's own program
        reason = one_line(f"{type(error).__name__}: {error}")
        raise InputError(f"attention={name} cannot be imported ({reason})", CONTRACT, remedy) from error
    if not (isinstance(mechanism, type) and issubclass(mechanism, Attention) and hasattr(mechanism, "Options")):
        raise InputError(f"attention={name} is {type(mechanism).__name__} {attribute}", CONTRACT, remedy)
    return mechanism


def plugin(name: str) -> type[Attention] | None:
    """Return a mechanism among the entry points of installed packages or the names in $SCPERFORMER_PLUGINS, or None."""
    for entry in entry_points(group=ENTRY_POINTS, name=name):
        return import_mechanism(entry.value)
    if ":" in name and name in os.environ.get(PLUGINS, "").split(","):
        return import_mechanism(name)
    return None
