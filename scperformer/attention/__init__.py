"""Attention mechanisms, chosen by name; all of them fulfil the contract in base.py.

Files in reading order: base (the contract), softmax (the exact reference, and linformer), additive (linear attention,
and rbf), favor (with fused on a GPU), window (and evo), conv, lsh, registry (all of them by name, and those of others).
"""

from scperformer.attention.additive import Additive, KeySums
from scperformer.attention.base import Attention, AttentionOptions, Sizes
from scperformer.attention.favor import has_triton
from scperformer.attention.registry import (
    MECHANISMS,
    PluginProblem,
    all_mechanisms,
    attention_options,
    load_plugin,
    make_attention,
    register_attention,
    with_source,
)
