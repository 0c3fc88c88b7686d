"""Attention between tokens: mechanisms behind one contract (base.py), chosen by name, and the encoder made of them.

- additive: Linear attention: keys only enter as sums of phi(k) v^T, so that cost and memory are linear in the
  tokens.
- base: The contract of every attention mechanism.
- conv: Performer attention plus attention of fixed length between convolved queries, keys and values.
- encoder: The encoder: layers of attention between the tokens and a feed-forward network on each.
- favor: Performer attention (FAVOR+, generalized attention): random features of a kernel; cost linear in the
  tokens.
- fused: Exponential features on a GPU without storing phi: each of the two sums is a softmax attention, in tiles
  (Triton).
- fused_causal: Causal attention with exponential features on a GPU without storing phi, in blocks of tokens (Triton).
- lsh: Reformer attention: tokens are sorted by a hash of their query, which is also their key, and attend to
  neighbours.
- norm: Layer norm on a GPU: with the sum before it and the rounding after it in one pass over the tokens (Triton).
- registry: The mechanisms by name: scperformer's own, and plugins.
- softmax: Exact softmax attention, the reference for all mechanisms, and Linformer, with projected keys and values.
- tokens: Turn expression into tokens, and tokens into vectors: a gene embedding plus an expression embedding.
- window: Attention to neighbouring tokens, with scores that are convolved with learned kernels once (window) or
  more (evo).
"""
