import numpy as np
import pytest

from scperformer.trust.fusion import fuse

RNG = np.random.default_rng(0)
HALF = np.array([0.5, 0.5])


def probabilities(num_cells: int, num_labels: int) -> np.ndarray:
    return RNG.dirichlet(np.ones(num_labels), size=num_cells)


def test_models_with_the_same_labels_are_averaged():
    parts = [probabilities(20, 3) for _ in range(3)]
    weights = np.array([0.5, 0.3, 0.2])
    expected = sum(weight * part for weight, part in zip(weights, parts, strict=True))
    np.testing.assert_allclose(
        fuse(parts, [np.eye(3, dtype=bool)] * 3, weights), expected, atol=1e-6
    )


def test_a_label_that_one_model_alone_knows_has_the_probability_which_that_model_gives_it():
    first = np.array([[0.9, 0.06, 0.04], [0.1, 0.6, 0.3]])  # platelet, B, T
    second = np.array([[0.8, 0.2], [0.5, 0.5]])  # B, T: it has never seen a platelet
    joint = fuse([first, second], [np.eye(3, dtype=bool), np.eye(3, dtype=bool)[1:]], HALF)
    np.testing.assert_allclose(joint[:, 0], [0.9, 0.1], atol=1e-3)
    # What is left is shared by the mean of the models.
    np.testing.assert_allclose(
        joint[0, 1:], [(0.06 + 0.1 * 0.8) / 2, (0.04 + 0.1 * 0.2) / 2], atol=2e-3
    )
    np.testing.assert_allclose(joint.sum(axis=1), 1, atol=1e-6)


def test_a_coarse_label_is_divided_as_the_other_model_does():
    fine = np.array([[0.6, 0.2, 0.2]])  # naive T, memory T, B
    coarse = np.array([[0.9, 0.1]])  # T, B
    joint = fuse(
        [fine, coarse], [np.eye(3, dtype=bool), np.array([[1, 1, 0], [0, 0, 1]], dtype=bool)], HALF
    )
    np.testing.assert_allclose(joint[0, :2].sum(), 0.85, atol=1e-4)
    assert joint[0, 0] / joint[0, 1] == pytest.approx(3, abs=0.01)


def test_a_cell_does_not_depend_on_the_others():
    parts = [probabilities(50, 3), probabilities(50, 2)]
    meanings = [np.eye(4, dtype=bool)[:3], np.array([[1, 1, 0, 0], [0, 0, 0, 1]], dtype=bool)]
    weights = np.array([0.7, 0.3])
    whole = fuse(parts, meanings, weights)
    for row in (0, 7, 49):
        alone = fuse([part[[row]] for part in parts], meanings, weights)
        np.testing.assert_array_equal(alone[0], whole[row])
