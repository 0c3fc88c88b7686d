"""The steps as functions of Python: keywords instead of words, files or AnnData objects, and objects as results.

Each function makes the same options as the command line, from its keywords and from `options`, a mapping of the full
names in docs/configuration.md: `options={"trainer.max_epochs": 5}`. Their defaults are those of the step. No function
changes an AnnData but `annotate`, which adds to it. Files in reading order: keywords, making (models), using (them);
classifier, the estimator of scikit-learn; pl, the plots.
"""

import lazy_loader

# The estimator imports scikit-learn, the plots import scanpy: each loads with its first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
