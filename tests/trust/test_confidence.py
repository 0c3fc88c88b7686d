"""Calibration of confidences, compared with scikit-learn and with a loop."""

import numpy as np
import pytest
from sklearn.calibration import calibration_curve

from scperformer.trust.confidence import calibration_error, reliability_curve


@pytest.fixture
def calls():
    """Overconfident calls: confidences, and whether each call is right, with the probability confidence^2."""
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.2, 1, 4000)
    return confidence, rng.random(4000) < confidence**2


def test_the_curve_equals_that_of_scikit_learn(calls):
    confidence, right = calls
    curve = reliability_curve(confidence, right)
    accuracy, mean = calibration_curve(right, confidence, n_bins=15)
    np.testing.assert_allclose(curve["accuracy"], accuracy)
    np.testing.assert_allclose(curve["confidence"], mean)
    assert curve["num_cells"].sum() == 4000


def test_the_error_equals_a_loop_over_bins(calls):
    confidence, right = calls
    total = 0.0
    for number in range(15):
        chosen = (confidence >= number / 15) & (confidence < (number + 1) / 15)
        if chosen.any():
            total += chosen.mean() * abs(right[chosen].mean() - confidence[chosen].mean())
    assert calibration_error(confidence, right) == pytest.approx(total)
    assert total > 0.1  # p - p^2 has the mean .15 here
