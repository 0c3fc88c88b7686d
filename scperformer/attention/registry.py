"""The mechanisms by name: scperformer's own, and plugins.

Plugins are classes given in Python, files named by the flag --plugin of the command line, and entry points of installed
packages. A name alone never imports a file.
"""

import hashlib
import inspect
import sys
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from scperformer.attention.base import Attention, Sizes
from scperformer.attention.favor import Favor, PublishedFavor
from scperformer.attention.softmax import Softmax
from scperformer.base import lab
from scperformer.base.errors import InputError, one_line
from scperformer.config.mechanisms import (
    CONTRACT,
    register_mechanism,
    registered_mechanism,
    registered_names,
)
from scperformer.config.options import checked
from scperformer.config.training import Mechanism

OUTSIDE_LAB: dict[str, type[Attention]] = {"favor": Favor, "softmax": Softmax}
MECHANISMS = sorted([*OUTSIDE_LAB, *lab.MECHANISMS])  # names of scperformer's own


class PluginProblem(InputError):
    """A model needs a mechanism that is not there, or that has another source: the model itself is not damaged."""


def register_attention(mechanism: type[Attention], name: str | None = None) -> type[Attention]:
    """Register a mechanism as attention=NAME, by default the name of its class in lower case; also a class decorator.

    The class fulfils the contract of `Attention` and has a dataclass `Options(AttentionOptions)`. Other classes, and
    the names of scperformer's own mechanisms, are refused.
    """
    if not (isinstance(mechanism, type) and issubclass(mechanism, Attention)):
        found = f"the mechanism {one_line(repr(mechanism))}"
        raise InputError("not-a-mechanism", found, CONTRACT, "see docs/own_mechanism.md")
    name = name or mechanism.__name__.lower()
    if name in MECHANISMS:
        found = f"a mechanism called {name}"
        raise InputError(
            "mechanism-name",
            found,
            "a name that scperformer does not use itself",
            "rename the class",
        )
    register_mechanism(name, mechanism)
    return mechanism


def load_plugin(file: str) -> None:
    """Execute a Python file and register the mechanisms that it defines; refuse a file that fails or defines none."""
    name = f"scperformer_plugin_{Path(file).stem}"
    spec = (
        spec_from_file_location(name, file)
        if Path(file).suffix == ".py" and Path(file).is_file()
        else None
    )
    if spec is None or spec.loader is None:
        raise InputError(
            "no-plugin", f"--plugin {file}", "a Python file (.py) that exists", "check its path"
        )
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look for their module there
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # any error may occur: the file is the user's own program
        reason = one_line(f"{type(error).__name__}: {error}")
        found = f"--plugin {file} cannot be executed ({reason})"
        raise InputError("plugin-fails", found, CONTRACT, "correct it") from error
    defined = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Attention) and value.__module__ == name
    ]
    if not defined:
        raise InputError(
            "empty-plugin",
            f"--plugin {file} without a mechanism",
            CONTRACT,
            "see docs/own_mechanism.md",
        )
    for mechanism in defined:
        register_attention(mechanism)


def source_hash(mechanism: type[Attention]) -> str:
    """Return the SHA-256 of the file in which a class is defined; in a script or notebook, of the class alone."""
    try:
        if mechanism.__module__ != "__main__":
            source = Path(inspect.getfile(mechanism)).read_text(encoding="utf-8")
        else:
            source = _source_in_main(mechanism)
    except (OSError, TypeError, ValueError) as error:
        found = f"the mechanism {mechanism.__name__}, whose source Python cannot read"
        remedy = "write it into a file and import it"
        raise InputError("mechanism-source", found, "a class in a file", remedy) from error
    return hashlib.sha256(source.encode()).hexdigest()


def _source_in_main(mechanism: type[Attention]) -> str:
    try:
        return inspect.getsource(mechanism)
    # Python finds the methods of a class in a notebook, and not the class
    except (OSError, TypeError):
        return "".join(
            inspect.getsource(value)
            for value in vars(mechanism).values()
            if isinstance(value, FunctionType)
        )


def mechanism_class(name: str) -> type[Attention] | None:
    """Return the class of scperformer's own mechanism or of a plugin, or None."""
    if name in lab.MECHANISMS:
        return lab.from_lab(name)
    return OUTSIDE_LAB.get(name) or registered_mechanism(name)


def attention_options(attention: Mapping[str, Any]) -> tuple[type[Attention], Any]:
    """Return the class of a mechanism and its options, given its `name` and the options that are not defaults.

    `source` is the hash of the source with which a model was trained. Unknown mechanisms and options are refused,
    a different source, and values of a wrong type or out of range.
    """
    options = dict(attention)
    name = str(options.pop("name", None))
    source = options.pop("source", None)
    mechanism = mechanism_class(name)
    if mechanism is None:
        expected = f"one of {', '.join([*MECHANISMS, *registered_names()])}"
        if source is None:
            raise InputError(
                "unknown-mechanism", f"attention={name}", expected, "choose with attention=NAME"
            )
        remedy = "name its file with --plugin FILE.py, install its package, or call register_attention in Python"
        found = f"a model with attention={name}, a mechanism that is not there"
        raise PluginProblem("unknown-mechanism", found, expected, remedy)
    if source is not None and source != source_hash(mechanism):
        expected = f"the source with which this model was trained (SHA-256 {str(source)[:12]})"
        found = f"a different source of attention={name}"
        raise PluginProblem(
            "mechanism-source", found, expected, "use that source, or train the model again"
        )
    checked_options = checked(mechanism.Options, options, "attention.")
    is_published = isinstance(checked_options, Favor.Options) and checked_options.is_published
    return PublishedFavor if is_published else mechanism, checked_options


def all_mechanisms() -> dict[str, type[Attention]]:
    """Return the classes of all mechanisms by their names."""
    return {
        name: kind for name in [*MECHANISMS, *registered_names()] if (kind := mechanism_class(name))
    }


def with_source(attention: Mechanism) -> Mechanism:
    """Add the hash of its source to the options of a mechanism that is not part of scperformer."""
    if attention["name"] in MECHANISMS:
        return attention
    mechanism, _ = attention_options(attention)
    return attention | {"source": source_hash(mechanism)}


def make_attention(
    attention: Mapping[str, Any], sizes: Sizes, generator: torch.Generator
) -> Attention:
    """Build a mechanism from its name and options; raises the errors of `attention_options`."""
    mechanism, options = attention_options(attention)
    return mechanism(sizes, options, generator)
