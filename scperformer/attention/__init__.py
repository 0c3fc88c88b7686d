"""Attention: mechanisms by name, each in a file of its own, all behind the contract in base.py.

Files in reading order: base (the contract), softmax (the exact reference), additive (what linear attention shares),
favor (with random_directions and, on a GPU, fused), rbf, linformer, window, evo, conv, lsh.
"""

from typing import Any

import torch

from scperformer.attention.additive import Additive, KeySums
from scperformer.attention.base import Attention, Sizes
from scperformer.attention.conv import Conv
from scperformer.attention.evo import Evo
from scperformer.attention.favor import Favor, FavorOptions, PublishedFavor, has_triton
from scperformer.attention.linformer import Linformer
from scperformer.attention.lsh import Lsh
from scperformer.attention.rbf import Rbf
from scperformer.attention.softmax import Softmax
from scperformer.attention.window import Window
from scperformer.config import checked
from scperformer.errors import InputError

MECHANISMS: dict[str, type[Attention]] = {
    "conv": Conv,
    "evo": Evo,
    "favor": Favor,
    "linformer": Linformer,
    "lsh": Lsh,
    "rbf": Rbf,
    "softmax": Softmax,
    "window": Window,
}


def attention_options(attention: dict[str, Any]) -> tuple[type[Attention], Any]:
    """Return the class of a mechanism and its checked options, given `name` and options that differ from the defaults.

    Raises
    ------
    InputError
        No such mechanism, it has no such option, or an option's value is of another type or out of range.
    """
    options = dict(attention)
    name = options.pop("name", None)
    if name not in MECHANISMS:
        raise InputError(f"attention={name}", f"one of {', '.join(MECHANISMS)}", "choose with attention=NAME")
    mechanism = MECHANISMS[name]
    checked_options: Any = checked(mechanism.Options, options, "attention.")
    is_published = isinstance(checked_options, FavorOptions) and checked_options.is_published
    return PublishedFavor if is_published else mechanism, checked_options


def make_attention(attention: dict[str, Any], sizes: Sizes, generator: torch.Generator) -> Attention:
    """Make a mechanism from its name and options; errors as in `attention_options`."""
    mechanism, options = attention_options(attention)
    return mechanism(sizes, options, generator)
