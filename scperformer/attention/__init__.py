"""Attention between tokens: mechanisms behind one contract (base.py), chosen by name, and the encoder made of them."""
