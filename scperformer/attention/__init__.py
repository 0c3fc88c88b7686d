"""Attention: mechanisms by name, all behind the contract in base.py.

Files in reading order: base (the contract), softmax (the exact reference, and linformer), additive (linear attention,
and rbf), favor (with fused on a GPU), window (and evo), conv, lsh.
"""

from typing import Any

import torch

from scperformer.attention.additive import Additive, KeySums, Rbf
from scperformer.attention.base import Attention, Sizes
from scperformer.attention.conv import Conv
from scperformer.attention.favor import Favor, PublishedFavor, has_triton
from scperformer.attention.lsh import Lsh
from scperformer.attention.softmax import Linformer, Softmax
from scperformer.attention.window import Evo, Window
from scperformer.config import checked
from scperformer.errors import InputError

MECHANISMS: dict[str, type[Attention]] = {
    mechanism.__name__.lower(): mechanism for mechanism in (Conv, Evo, Favor, Linformer, Lsh, Rbf, Softmax, Window)
}


def attention_options(attention: dict[str, Any]) -> tuple[type[Attention], Any]:
    """Return the class of a mechanism and its checked options, given `name` and options that differ from the defaults.

    Unknown mechanisms, unknown options, and values of another type or out of range are refused.
    """
    options = dict(attention)
    name = options.pop("name", None)
    if name not in MECHANISMS:
        raise InputError(f"attention={name}", f"one of {', '.join(MECHANISMS)}", "choose with attention=NAME")
    mechanism = MECHANISMS[name]
    checked_options = checked(mechanism.Options, options, "attention.")
    is_published = isinstance(checked_options, Favor.Options) and checked_options.is_published
    return PublishedFavor if is_published else mechanism, checked_options


def make_attention(attention: dict[str, Any], sizes: Sizes, generator: torch.Generator) -> Attention:
    """Make a mechanism from its name and options; errors as in `attention_options`."""
    mechanism, options = attention_options(attention)
    return mechanism(sizes, options, generator)
