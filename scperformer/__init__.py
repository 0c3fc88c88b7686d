"""Cell-type annotation of single-cell RNA data with a Performer encoder, beside logistic regression as the baseline.

import scperformer as scp
model = scp.load_model("my_model")     # or scp.load_model() for the packaged one
scp.annotate(adata, model)
explained = scp.explain(adata, model)  # the part of each gene in the label of each cell
scp.train(adata, label_key="cell_type", output="my_model")
scp.pretrain([adata, more], output="my_encoder")  # then scp.train(..., overrides=["init=my_encoder"])
"""

from typing import Any

__version__ = "0.1.0"

# name -> its module
_HOME = {
    "load_model": "network.load",
    "annotate": "prediction.predict",
    "explain": "reports.explain",
    "train": "training.train",
    "pretrain": "training.pretrain",
    "register_attention": "attention",
    "Attention": "attention.base",
    "AttentionOptions": "attention.base",
}
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    # torch takes seconds to import: it loads with the first call that needs it.
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(f"scperformer.{_HOME[name]}"), name)
    raise AttributeError(f"module 'scperformer' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
