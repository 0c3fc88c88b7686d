"""Offsets of a query: differences of means within labels, which its cells are predicted without."""

import numpy as np

from scperformer.annotation.offsets import MIN_OF_LABEL, mean_difference


def test_offsets_are_those_within_labels_whatever_the_composition():
    rng = np.random.default_rng(0)
    centres, offset = rng.normal(size=(3, 4)), np.array([1.0, -2.0, 0.0, 0.5])
    labels, calls = np.repeat([0, 1, 2], [50, 30, 20]), np.repeat([0, 1, 2], [5, 5, 90])
    own, x = centres[labels], centres[calls] + offset
    np.testing.assert_allclose(mean_difference(x, calls, own, labels), offset, atol=1e-6)
    assert not np.allclose(x.mean(axis=0) - own.mean(axis=0), offset, atol=0.5)  # the plain difference of means


def test_offsets_are_weighted_by_the_reference_and_leave_out_labels_of_few_cells():
    own, labels = np.zeros((8, 1)), np.array([0] * 6 + [1] + [2])
    calls = np.repeat([0, 1, 2], [MIN_OF_LABEL, MIN_OF_LABEL, MIN_OF_LABEL - 1])
    x = np.repeat([[7.0], [14.0], [100.0]], [MIN_OF_LABEL, MIN_OF_LABEL, MIN_OF_LABEL - 1], axis=0)
    np.testing.assert_allclose(mean_difference(x, calls, own, labels), [(6 * 7 + 14) / 7])
    np.testing.assert_array_equal(mean_difference(x[:3], calls[:3], own, labels), [0])
