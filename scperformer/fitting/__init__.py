"""Fits of both branches to labelled cells in seconds, and their scales, by evidence on cells that a fit has not seen.

Files in reading order: linear (the linear branch, logistic regression), performer (the default encoder), evidence
(held-out calls and scales of both), condition (the genes and the depth of a file), adapted and expected_accuracy (a
model fitted again for them, and what to expect of it), shift (how far a file is from the reference), repeats (cells of
the reference in a file), imported (models of other tools with labelled cells), adapt (when a model is fitted again),
calls (of a block of cells). Training fits a reference; prediction fits the cells that a model keeps, reduced to the
genes and the depth of a file.
"""

import lazy_loader

# `check` asks for the condition of a file, and needs no torch: each file loads with the first use of a name of it.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
