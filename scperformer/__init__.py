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

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scperformer.api import (
        adapt,
        annotate,
        check,
        embed,
        evaluate,
        explain,
        models,
        pl,
        preprocess,
        pretrain,
        report,
        train,
    )
    from scperformer.api.classifier import PerformerClassifier
    from scperformer.attention import register_attention
    from scperformer.attention.base import Attention, AttentionOptions
    from scperformer.errors import InputError
    from scperformer.network.load import load_model

__version__ = "0.1.0"

# name -> its module
_HOME = {
    **dict.fromkeys(("check", "preprocess", "train", "annotate", "embed", "adapt", "evaluate", "explain"), "api"),
    **dict.fromkeys(("report", "pretrain", "models"), "api"),
    "load_model": "network.load",
    "PerformerClassifier": "api.classifier",
    "InputError": "errors",
    "register_attention": "attention",
    "Attention": "attention.base",
    "AttentionOptions": "attention.base",
}
__all__ = [
    "Attention",
    "AttentionOptions",
    "InputError",
    "PerformerClassifier",
    "__version__",
    "adapt",
    "annotate",
    "check",
    "embed",
    "evaluate",
    "explain",
    "load_model",
    "models",
    "pl",
    "preprocess",
    "pretrain",
    "register_attention",
    "report",
    "train",
]


def __getattr__(name: str) -> Any:
    # torch takes seconds to import: it loads with the first call that needs it.
    from importlib import import_module

    if name == "pl":
        return import_module("scperformer.api.pl")
    if name in _HOME:
        return getattr(import_module(f"scperformer.{_HOME[name]}"), name)
    raise AttributeError(f"module 'scperformer' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
