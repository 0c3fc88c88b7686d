"""Mechanisms of other packages and of users' own files, beside those of this room.

A mechanism is known by name if its package declares it as an entry point of the group `scperformer.attention`, or as
MODULE:CLASS if the user names it so. The name in a model folder alone imports no file: `predict` needs the user's word.
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

GROUP = "scperformer.attention"  # of entry points
CONTRACT = "a class that derives from scperformer.Attention and has dataclass Options"


class MustBeAllowed(InputError):
    """A mechanism that the user has to allow; in a model folder its name is no damage."""


@contextmanager
def _own_files() -> Iterator[None]:
    """Let Python import files of the working folder, as it does for a script that lies there."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        yield
    finally:
        sys.path.remove(str(Path.cwd()))


def import_mechanism(name: str) -> type[Attention]:
    """Import the class of a mechanism named as MODULE:CLASS; the module may be a file in the working folder."""
    module, _, attribute = name.partition(":")
    remedy = "check the name, and run the command in the folder of the file"
    try:
        with _own_files():
            found = getattr(import_module(module), attribute)
    except Exception as error:  # of any kind: the file is the user's own program
        reason = one_line(f"{type(error).__name__}: {error}")
        raise InputError(f"attention={name} cannot be imported ({reason})", CONTRACT, remedy) from error
    if not (isinstance(found, type) and issubclass(found, Attention) and hasattr(found, "Options")):
        raise InputError(f"attention={name} is {type(found).__name__} {attribute}", CONTRACT, remedy)
    return found


def plugin(name: str) -> type[Attention] | None:
    """Find a mechanism among the entry points of installed packages and the names in SCPERFORMER_PLUGINS."""
    for entry in entry_points(group=GROUP, name=name):
        return import_mechanism(entry.value)
    if ":" in name and name in os.environ.get(PLUGINS, "").split(","):
        return import_mechanism(name)
    return None
