"""Cell-type annotation of single-cell RNA data with a Performer encoder, beside logistic regression as the baseline.

import scperformer as scp
scp.check("sample.h5ad")                               # can it be annotated?
scp.train(adata, label_key="cell_type", output="my_model")
model = scp.load_model("my_model")                     # or scp.load_model() for the packaged one
scp.annotate(adata, model)                             # adata.obs["scperformer_label"], ...
scp.evaluate(adata, truth_key="cell_type").scores
scp.explain(adata, model).genes                        # the genes behind the labels
scp.pl.embedding(adata)
"""

import sys

# `python -m scperformer` puts the working folder first in the path, where a file such as yaml.py would be imported.
# While Python looks for the module, -m stands in argv for its name.
if sys.argv[:1] == ["-m"] and "scperformer" in sys.orig_argv[-len(sys.argv)] and not sys.flags.safe_path:
    del sys.path[0]

from importlib.metadata import version

import lazy_loader

# torch takes seconds to import: the names of __init__.pyi load with the first use of them.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = version("scperformer")
