"""The estimator of scikit-learn: its contract, kinds of input, pickles."""

import pickle

import numpy as np
import pandas as pd
import pytest
from conftest import make_counts
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

import scperformer as scp
from scperformer.base.errors import InputError
from scperformer.classifier import EXPECTED_FAILED_CHECKS

FEW_STEPS = {"trainer.max_steps": 30}  # a twentieth


@pytest.fixture(scope="module")
def cells():
    return make_counts()


@pytest.fixture(scope="module")
def fitted(cells):
    frame = pd.DataFrame(cells.X.toarray(), columns=cells.var_names)
    return scp.PerformerClassifier("counts", options=FEW_STEPS).fit(frame[::2], cells.obs["cell_type"].to_numpy()[::2])


def test_it_calls_cells(fitted, cells):
    frame, truth = pd.DataFrame(cells.X.toarray(), columns=cells.var_names), cells.obs["cell_type"].to_numpy()
    assert fitted.classes_.tolist() == ["B cell", "Monocyte", "T cell"]
    assert fitted.score(frame[1::2], truth[1::2]) > 0.9
    proba = fitted.predict_proba(frame[1::2])
    np.testing.assert_allclose(proba.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(fitted.classes_[proba.argmax(axis=1)], fitted.predict(frame[1::2]))
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(frame[frame.columns[::-1]])


def test_its_calls_are_those_of_its_model(fitted, cells):
    query = cells[1::2].copy()
    scp.annotate(query, fitted.model_, options={"input_kind": "counts", "adapt": "false"})
    frame = pd.DataFrame(query.X.toarray(), columns=query.var_names)
    places = query.obs["scperformer_label"].astype(int).to_numpy()
    np.testing.assert_array_equal(fitted.classes_[places], fitted.predict(frame))


def test_a_pickle_gives_the_same_calls(fitted, cells):
    frame = pd.DataFrame(cells.X.toarray(), columns=cells.var_names)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(frame), fitted.predict_proba(frame))


def test_clones_have_the_same_options_and_no_fit():
    options = {"input_kind": "log1p", "model": "tiny", "seed": 4, "options": {"logger": "none"}}
    copy = clone(scp.PerformerClassifier(**options))
    assert copy.get_params() == options
    with pytest.raises(InputError, match="option nothing"):
        clone(copy).set_params(options={"nothing": 1}).fit(np.eye(4), [0, 0, 1, 1])


@pytest.mark.slow
def test_dense_and_sparse_counts_and_logarithms(cells):
    truth = cells.obs["cell_type"].to_numpy()
    unfitted = scp.PerformerClassifier("counts")
    dense, sparse = (clone(unfitted).fit(x, truth) for x in (cells.X.toarray(), cells.X))
    np.testing.assert_array_equal(dense.predict_proba(cells.X), sparse.predict_proba(cells.X.toarray()))
    linear = cells.X.multiply(1e4 / cells.X.sum(axis=1)).tocsr()
    logarithms = scp.PerformerClassifier("log1p", options={"input_total": 1e4}).fit(linear.log1p(), truth)
    assert (logarithms.predict(linear.log1p()) == dense.predict(cells.X)).mean() > 0.95


@pytest.mark.slow
def test_contract_of_scikit_learn():
    classifier = scp.PerformerClassifier("linear", options=FEW_STEPS)
    found = check_estimator(classifier, on_skip=None, on_fail=None, expected_failed_checks=EXPECTED_FAILED_CHECKS)
    failed = {result["check_name"]: repr(result["exception"]) for result in found if result["status"] == "failed"}
    assert failed == {}, failed
    assert {result["check_name"] for result in found if result["status"] == "xfail"} == EXPECTED_FAILED_CHECKS.keys()
