"""Cell-type annotation of single-cell RNA data with a Performer encoder, beside logistic regression as the baseline.

import scperformer as scp
scp.check("sample.h5ad")                               # can it be annotated?
scp.train(adata, label_key="cell_type", output="my_model")
model = scp.load_model("my_model")                     # or scp.load_model() for the packaged one
scp.annotate(adata, model)                             # adata.obs["scperformer_label"], ...
scp.curate(adata, {"3": "plasmablast"})                # your names of clusters: adata.obs["scperformer_curated"]
scp.evaluate(adata, truth_key="cell_type").scores
scp.explain(adata, model).genes                        # the genes behind the labels
scp.pl.embedding(adata)
"""

import sys

# `python -m scperformer` puts the working folder first in the path, where a file such as yaml.py would be imported.
# While Python looks for the module, -m stands in argv for its name.
if (
    sys.argv[:1] == ["-m"]
    and "scperformer" in sys.orig_argv[-len(sys.argv)]
    and not sys.flags.safe_path
):
    del sys.path[0]

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scperformer import pl as pl
    from scperformer.adaptation.load import load_model as load_model
    from scperformer.api import adapt as adapt
    from scperformer.api import annotate as annotate
    from scperformer.api import check as check
    from scperformer.api import curate as curate
    from scperformer.api import embed as embed
    from scperformer.api import evaluate as evaluate
    from scperformer.api import explain as explain
    from scperformer.api import import_model as import_model
    from scperformer.api import models as models
    from scperformer.api import pretrain as pretrain
    from scperformer.api import report as report
    from scperformer.api import tokens as tokens
    from scperformer.api import train as train
    from scperformer.attention.base import Attention as Attention
    from scperformer.attention.base import AttentionOptions as AttentionOptions
    from scperformer.attention.linear_attention import LinearAttention as LinearAttention
    from scperformer.attention.registry import register_attention as register_attention
    from scperformer.base.errors import InputError as InputError

__version__ = version("scperformer")

# torch takes seconds to import: a name loads with its first use, from one of these modules.
_MODULES = {
    "api": (
        *("adapt", "annotate", "check", "curate", "embed", "evaluate", "explain", "import_model"),
        *("models", "pretrain", "report", "tokens", "train"),
    ),
    "attention.linear_attention": ("LinearAttention",),
    "attention.base": ("Attention", "AttentionOptions"),
    "attention.registry": ("register_attention",),
    "base.errors": ("InputError",),
    "adaptation.load": ("load_model",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = ["pl", *_MODULE_OF]


def __getattr__(name: str) -> Any:
    if name == "pl":
        return import_module("scperformer.pl")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'scperformer' has no attribute '{name}'")
    value = getattr(import_module(f"scperformer.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
