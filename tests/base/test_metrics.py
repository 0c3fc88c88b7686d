"""Scores compared with scikit-learn and with tables computed by hand."""

import numpy as np
import pytest
from sklearn import metrics as reference

from scperformer.base.metrics import class_scores, confusion_matrix, score, scores

TABLE = np.array([[8, 1, 0, 1], [2, 6, 0, 0], [0, 2, 0, 0], [0, 0, 0, 0]])


def random_labels(seed: int, num_labels: int, num_cells: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    names = np.array([f"type {number}" for number in range(num_labels)], dtype=object)
    truth = names[rng.integers(num_labels, size=num_cells)]
    guess = names[rng.integers(num_labels, size=num_cells)]
    return truth, np.where(rng.random(num_cells) < 0.6, truth, guess)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("num_labels", "num_cells"), [(2, 9), (5, 200), (30, 400), (40, 30)])
def test_scores_equal_scikit_learn(seed, num_labels, num_cells):
    truth, predicted = random_labels(seed, num_labels, num_cells)
    ours = score(truth, predicted)
    present = np.unique(truth)
    theirs = [
        reference.accuracy_score(truth, predicted),
        reference.f1_score(truth, predicted, labels=present, average="macro", zero_division=0),
        reference.f1_score(truth, predicted, average="weighted", zero_division=0),
    ]
    # Both divide the same integers in float64; only the order of sums over labels can differ.
    np.testing.assert_allclose(list(ours.values()), theirs, rtol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_classes_and_confusion_equal_scikit_learn(seed):
    truth, predicted = random_labels(seed, 6, 150)
    labels = sorted(set(truth), reverse=True)
    table = confusion_matrix(truth, predicted, labels)
    np.testing.assert_array_equal(
        table, reference.confusion_matrix(truth, predicted, labels=labels)
    )
    ours = class_scores(table)
    theirs = reference.precision_recall_fscore_support(truth, predicted, labels=labels)
    for mine, other in zip(
        (ours["precision"], ours["recall"], ours["f1"], ours["support"]), theirs, strict=True
    ):
        np.testing.assert_allclose(mine, other, rtol=1e-12)


def test_labels_without_cells_do_not_change_the_scores():
    wider = np.zeros((6, 6), dtype=np.int64)
    wider[:4, :4] = TABLE
    assert scores(wider) == scores(TABLE)
    assert np.isnan(class_scores(wider)["f1"][4:]).all()


def test_no_cells_give_nan():
    assert np.isnan(
        [scores(np.zeros((3, 3), dtype=np.int64))["accuracy"], score([], [])["macro_f1"]]
    ).all()


def test_unlisted_label_is_refused():
    with pytest.raises(ValueError, match="2 labels"):
        confusion_matrix(["A", "Z"], ["A", "B"], ["A", "B"])
