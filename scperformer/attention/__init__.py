"""Attention mechanisms, chosen by name; all of them fulfil the contract in base.py.

Files in reading order: base (the contract), softmax (the exact reference, and linformer), additive (linear attention,
and rbf), favor (with fused on a GPU), window (and evo), conv, lsh, plugins (mechanisms of other packages and users).
"""

from typing import Any

import torch

from scperformer.attention.additive import Additive, KeySums, Rbf
from scperformer.attention.base import Attention, AttentionOptions, Sizes
from scperformer.attention.conv import Conv
from scperformer.attention.favor import Favor, PublishedFavor, has_triton
from scperformer.attention.lsh import Lsh
from scperformer.attention.plugins import MustBeAllowed, import_mechanism, plugin
from scperformer.attention.softmax import Linformer, Softmax
from scperformer.attention.window import Evo, Window
from scperformer.base.errors import InputError
from scperformer.config import PLUGINS, checked

MECHANISMS: dict[str, type[Attention]] = {
    mechanism.__name__.lower(): mechanism for mechanism in (Conv, Evo, Favor, Linformer, Lsh, Rbf, Softmax, Window)
}


def register_attention(mechanism: type[Attention], name: str | None = None) -> type[Attention]:
    """Register a mechanism as attention=NAME, by default the name of its class in lower case; also a class decorator.

    The class fulfils the contract of `Attention` and has a dataclass `Options(AttentionOptions)`.
    """
    MECHANISMS[name or mechanism.__name__.lower()] = mechanism
    return mechanism


def allow_attention(name: str) -> None:
    """Import and register a mechanism as MODULE:CLASS; only for names given by the user, not by a model folder."""
    if ":" in name and name not in MECHANISMS:
        register_attention(import_mechanism(name), name)


def attention_options(attention: dict[str, Any]) -> tuple[type[Attention], Any]:
    """Return the class of a mechanism and its options, given its `name` and the options that are not defaults.

    Unknown mechanisms and options are refused, and values of another type or out of range.
    """
    options = dict(attention)
    name = options.pop("name", None)
    mechanism = MECHANISMS.get(name) or plugin(str(name))
    if mechanism is None:
        expected = f"one of {', '.join(MECHANISMS)}, or a plug-in"
        if ":" in str(name):
            remedy = f"set {PLUGINS}={name} if you trust this file, and run the command in its folder"
            raise MustBeAllowed(f"attention={name}", expected, remedy)
        raise InputError(f"attention={name}", expected, "choose with attention=NAME")
    checked_options = checked(mechanism.Options, options, "attention.")
    is_published = isinstance(checked_options, Favor.Options) and checked_options.is_published
    return PublishedFavor if is_published else mechanism, checked_options


def make_attention(attention: dict[str, Any], sizes: Sizes, generator: torch.Generator) -> Attention:
    """Build a mechanism from its name and options; raises the errors of `attention_options`."""
    mechanism, options = attention_options(attention)
    return mechanism(sizes, options, generator)
