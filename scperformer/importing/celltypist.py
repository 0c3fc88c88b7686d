"""CellTypist's models (.pkl): a logistic regression or SGD classifier, and the scaler before it, of scikit-learn.

A file is a mapping with `Model`, `Scaler_` and `description`, as since July 2021, of any version of NumPy and
scikit-learn.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scperformer.base.inputs import sha256
from scperformer.config.steps import ImportOptions
from scperformer.importing.foreign import ForeignModel
from scperformer.io.pickles import (
    NUMPY,
    Made,
    array_of,
    looks_like_pickle,
    plain_value,
    read_pickle,
    state_of,
)
from scperformer.model.bundle import NetworkConfig
from scperformer.model.saved_model import CLIP, STANDARDISED

NAME = "a model of CellTypist (.pkl)"
TARGET_SUM = 10_000.0  # CellTypist's cells are ln(1 + counts per 10,000 of all genes)
# Beside NumPy's: estimators, the loss of an SGD classifier, the state of a random generator, genes from pandas.
KNOWN = (
    *NUMPY,
    *("sklearn.", "numpy.random.", "_loss."),
    *("pandas.core.indexes.base._new_Index", "pandas.core.indexes.base.Index"),
)
FACTS = ("version", "date", "source", "url", "details")  # in the description
TESTED = (
    "scores and labels equal CellTypist 1.5.0 and 1.7.1 (scikit-learn 1.1.3, 1.7.2) on models made with "
    "these; no published model was at hand"
)


def is_it(path: Path) -> bool:
    """Whether a file may be such a model: it is a pickle."""
    return path.is_file() and looks_like_pickle(path)


def read(path: Path, cfg: ImportOptions, names: Mapping[str, list[str]]) -> ForeignModel:
    """Read a model of CellTypist : a ValueError says how it is damaged, or that it is another pickle."""
    content = read_pickle(path, KNOWN)
    if not isinstance(content, dict) or not {"Model", "Scaler_"} <= content.keys():
        raise ValueError("a pickle without a model and a scaler")
    model = content["Model"]
    classifier = state_of(model, "classifier", "classes_", "features", "coef_", "intercept_")
    labels = [str(label) for label in array_of(classifier["classes_"], "classes_").ravel()]
    genes = [str(gene) for gene in array_of(classifier["features"], "features").ravel()]
    weights = _linear(classifier, len(genes), len(labels))
    scaler = state_of(content["Scaler_"], "scaler", "scale_")
    deviation = _numbers(scaler["scale_"], "scale_")
    has_mean = bool(plain_value(scaler.get("with_mean", True), "with_mean"))
    mean = _numbers(scaler.get("mean_"), "mean_") if has_mean else np.zeros(len(genes))
    if deviation.shape != (len(genes),) or mean.shape != (len(genes),):
        raise ValueError(f"a scaler of {deviation.size} genes for {len(genes)} genes")
    if not (deviation > 0).all():
        raise ValueError("a scale of a gene that is not above 0")
    means = np.maximum(mean, 0)
    release = classifier.get("_sklearn_version")
    estimator = model.maker.rpartition(".")[2]
    about = description if isinstance(description := content.get("description"), dict) else {}
    facts = {name: str(plain_value(about.get(name), name) or "") for name in FACTS}
    return {
        "origin": {
            "tool": "CellTypist",
            "file": path.name,
            "sha256": sha256(path),
            "estimator": f"{estimator}, scikit-learn {release}"
            if isinstance(release, str)
            else estimator,
            "tested": TESTED,
            **{name: " ".join(text.split())[:500] for name, text in facts.items()},
        },
        "genes": genes,
        "labels": labels,
        "config": NetworkConfig(
            target_sum=TARGET_SUM, network={"name": STANDARDISED, "clip": CLIP}
        ),
        "weights": weights | {"mean": mean, "deviation": deviation},
        "gene_means": means if means.any() else None,
    }


def _linear(
    classifier: Mapping[str, Any], num_genes: int, num_labels: int
) -> dict[str, np.ndarray]:
    """Return the weights and intercepts of the classifier, a column for each label."""
    coefficients = _numbers(classifier["coef_"], "coef_")
    bias = _numbers(classifier["intercept_"], "intercept_").ravel()
    if bias.size == 1:  # also if no intercept was fitted
        bias = np.repeat(bias, len(coefficients))
    # Two labels have one row of coefficients, for the second label; the scores of the first are their negatives. Models
    # that `Model.subset` has cut to two labels keep two rows.
    if num_labels == 2 and coefficients.shape == (1, num_genes) and bias.shape == (1,):
        coefficients = np.concatenate([-coefficients, coefficients])
        bias = np.concatenate([-bias, bias])
    if coefficients.shape != (num_labels, num_genes) or bias.shape != (num_labels,):
        shapes = f"coefficients of shape {coefficients.shape} and {bias.size} intercepts"
        raise ValueError(f"{shapes} for {num_labels} labels and {num_genes} genes")
    return {"weight": np.ascontiguousarray(coefficients.T), "bias": bias}


def _numbers(value: Any, what: str) -> np.ndarray:
    """Return an array of finite numbers as float64; a single number has the shape (1,)."""
    is_array = isinstance(value, Made) and not value.maker.endswith(".scalar")
    array = array_of(value, what) if is_array else np.array([plain_value(value, what)])
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{what} that are not numbers")
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{what} that are not finite")
    return array
