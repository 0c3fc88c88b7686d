"""The model as an estimator of scikit-learn: cells as rows of a matrix, for its pipelines and cross-validations."""

import math
from collections.abc import Mapping
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from anndata import AnnData
from scipy.sparse import csr_matrix
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_non_negative, validate_data

from scperformer.annotation.predict import call_all
from scperformer.cells.detect import detect_expression
from scperformer.cells.query import find_query
from scperformer.cli.compose import config_from
from scperformer.cli.train import run as run_train
from scperformer.model.load import load_model
from scperformer.training.adapt import Adapted

LABEL = "label"
# All cells and genes are used: the user has chosen them, and they may be few. The model is used for the same genes.
USUAL = {"data.min_genes": 0, "data.min_cells": 0, "ontology": "none", "logger": "none", "keep_cells": 1}


class PerformerClassifier(ClassifierMixin, BaseEstimator):
    """A cell-type model as a classifier: rows of X are cells, columns are genes.

    `check_estimator` of scikit-learn passes but for the checks in `EXPECTED_FAILED_CHECKS`, which names the reasons.

    Parameters
    ----------
    input_kind
        Kind of the values of X: counts; linear (such as TPM); log1p, their logarithm; or auto, found when it is fitted.
    model
        Preset of the encoder: performer, pooled, tiny, base or scbert.
    seed
        Of every random choice.
    options
        More options of `train` by their full names, such as `{"trainer.max_epochs": 5}`.

    Attributes
    ----------
    classes_
        The labels, sorted.
    n_features_in_, feature_names_in_
        The number of genes, and their names if X has had any (a DataFrame); else they are numbered.
    model_
        The model, as from `load_model`; its labels are the places in `classes_`.

    Examples
    --------
    >>> from sklearn.model_selection import cross_val_score
    >>> cross_val_score(PerformerClassifier("counts"), adata.X, adata.obs["cell_type"])  # doctest: +SKIP
    """

    def __init__(
        self,
        input_kind: str = "auto",
        *,
        model: str = "performer",
        seed: int = 0,
        options: Mapping[str, Any] | None = None,
    ):
        self.input_kind = input_kind
        self.model = model
        self.seed = seed
        self.options = options

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        return tags

    def fit(self, X: Any, y: npt.ArrayLike) -> "PerformerClassifier":
        """Train on N cells x G genes, dense or sparse, not negative, and N labels.

        Raises
        ------
        InputError
            A ValueError: an option is wrong, or the values cannot be used.
        """
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype="numeric")
        check_non_negative(X, type(self).__name__)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"one class in y ({self.classes_[0]!r}); at least two are needed")
        cells = self._cells(X)
        cells.obs[LABEL] = pd.Categorical(codes.astype(str))
        found = detect_expression(cells, "X", self.input_kind)
        self._found: dict[str, Any] = {"source": "X", "input_kind": found.kind}
        if found.log_base is not None:
            base = "e" if found.log_base == math.e else f"{found.log_base:g}"
            self._found |= {"input_total": found.total, "input_base": base}
        with TemporaryDirectory(prefix="scperformer-") as temporary:
            named = {"label_key": LABEL, "model": self.model, "seed": self.seed, "output": f"{temporary}/model"}
            given = USUAL | self._found | dict(self.options or {}) | named
            cfg = config_from("train", {"inputs": ["X"]} | given)
            self.model_ = load_model(run_train(cfg, cells))
        return self

    def predict_proba(self, X: Any) -> npt.NDArray[np.float32]:
        """Return the probability of each class for N cells: N x C, columns as in `classes_`."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype="numeric", reset=False)
        check_non_negative(X, type(self).__name__)
        cfg = config_from("predict", {"inputs": ["X"], "adapt": "false", "min_overlap": 0} | self._found)
        query = find_query(self._cells(X), self.model_.saved, cfg)
        proba = np.concatenate([calls.proba for calls in call_all(Adapted(self.model_, query, {}), cfg)])
        return proba[:, np.argsort([int(label) for label in self.model_.saved.labels])]

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the most probable class of N cells."""
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]

    def _cells(self, X: Any) -> AnnData:
        genes = getattr(self, "feature_names_in_", [f"gene {number}" for number in range(1, X.shape[1] + 1)])
        names = [str(number) for number in range(X.shape[0])]
        obs = pd.DataFrame(index=names)
        var = pd.DataFrame(index=pd.Index(genes, dtype=object))
        return AnnData(csr_matrix(X, dtype=np.float32), obs=obs, var=var)


# Checks of scikit-learn that cannot pass, and why: for `check_estimator(expected_failed_checks=...)`.
EXPECTED_FAILED_CHECKS = {
    "check_classifiers_train": "cells are scaled to the same total: the two features of its cells become one",
}
