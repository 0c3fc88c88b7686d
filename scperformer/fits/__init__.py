"""Fits of both branches of a model, out-of-fold evidence, and the choice of their options; also to refit a model."""
