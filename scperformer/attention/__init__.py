"""Attention mechanisms by name; each in a file of its own, all behind the contract in base.py."""

from scperformer.attention.base import Attention
from scperformer.attention.favor import Favor
from scperformer.attention.softmax import Softmax

MECHANISMS: dict[str, type[Attention]] = {
    "favor": Favor,
    "softmax": Softmax,
}

__all__ = ["MECHANISMS", "Attention"]
