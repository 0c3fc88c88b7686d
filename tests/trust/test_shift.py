"""How far a file is from the reference: both numbers, what they mean, and what follows from them."""

import math

import numpy as np
import pytest

from scperformer.trust.shift import (
    FAR,
    FEW,
    LIKE,
    OTHER,
    FarBatch,
    Shift,
    estimate_shift,
    expected_text,
    tempered,
)


def test_novel_types_do_not_raise_the_relative_novelty():
    shift = estimate_shift(np.r_[np.ones(60), np.full(40, 1e3)], np.ones(50), 0.0)
    assert (shift.relative_novelty, shift.num_cells, shift.kind) == (1.0, 100, LIKE)


@pytest.mark.parametrize(
    ("ratio", "effects", "kind", "factor", "temperature"),
    [
        (1.2, 0.17, OTHER, 1.2, 1.15),
        (4.9, 1.2, OTHER, 4.9, 1.3),
        (5.1, 1.1, FAR, 1.0, 1.3),
        (40.0, math.nan, FAR, 1.0, 1.3),
        (math.nan, math.nan, FEW, 1.0, 1.0),
    ],
)
def test_what_the_numbers_mean(ratio, effects, kind, factor, temperature):
    shift = Shift(ratio, effects, 100)
    assert (shift.kind, shift.factor) == (kind, factor)
    assert shift.temperature == pytest.approx(temperature)
    record = shift.record()
    assert (record["kind"], record["factor"], record["num_cells"]) == (kind, factor, 100)
    assert shift.text.startswith(kind if kind != FEW else "too few cells")


@pytest.mark.parametrize(("resemblance", "kind"), [(0.2, FAR), (0.5, OTHER), (math.nan, FAR)])
def test_cells_that_resemble_the_labels_are_of_their_tissue(resemblance, kind):
    assert Shift(40.0, 1.2, 100, resemblance=resemblance).kind == kind
    assert Shift(3.0, 0.5, 100, resemblance=resemblance).kind == OTHER


def test_a_far_batch_whose_corrected_cells_resemble_the_labels_is_of_another_protocol():
    shift = Shift(40.0, 1.2, 100, resemblance=0.2)
    batch = FarBatch(**vars(shift))
    assert (shift.kind, batch.kind, batch.factor, batch.temperature) == (
        FAR,
        OTHER,
        6.0,
        shift.temperature,
    )
    assert batch.text.startswith(OTHER)
    assert "do not use" not in batch.text


def test_a_file_may_be_as_far_as_the_batches_of_the_reference_are_from_each_other():
    assert Shift(1.2, 0.35, 100).kind == OTHER
    assert Shift(1.2, 0.35, 100, reference_batch_effect=0.4).kind == LIKE
    assert Shift(1.2, 0.45, 100, reference_batch_effect=0.4).temperature == pytest.approx(1.15)
    assert Shift(1.2, 0.7, 100, reference_batch_effect=0.4).temperature == pytest.approx(1.3)
    assert Shift(40.0, 0.35, 100, reference_batch_effect=0.4).kind == FAR
    assert "batches of the reference" in expected_text(0.8, 0.9, LIKE)


@pytest.mark.parametrize(
    ("ratio", "effects", "weight"),
    [
        (1.2, 0.05, 1.0),
        (1.2, 0.17, 0.75),
        (4.0, 0.7, 0.5),
        (50.0, 1.2, 0.5),
        (math.nan, math.nan, 1.0),
    ],
)
def test_the_encoder_weighs_less_in_another_study_and_then_nothing_is_divided(
    ratio, effects, weight
):
    shift = Shift(ratio, effects, 100, has_both=True)
    assert shift.encoder_weight == pytest.approx(weight)
    assert shift.record()["encoder_weight"] == shift.encoder_weight
    assert shift.temperature == 1
    assert Shift(ratio, effects, 100).encoder_weight == 1


def test_the_expected_accuracy_is_a_range_in_another_study_and_none_in_another_tissue():
    assert Shift(3.0, 0.5, 100).expected_accuracy(0.8) == (pytest.approx(0.66), pytest.approx(0.87))
    assert Shift(3.0, 0.5, 100).expected_accuracy(0.99)[1] == 1
    assert expected_text(0.7, 0.87, OTHER).startswith("expected accuracy 0.70 to 0.87, as labels")
    assert "no expected accuracy" in expected_text(math.nan, math.nan, FAR)
    assert (
        expected_text(0.93, 0.93, LIKE)
        == "expected accuracy 0.93 (out-of-fold cells of the reference)"
    )
    assert expected_text(math.nan, math.nan, LIKE) == "the expected accuracy is not known"


def test_a_temperature_divides_the_logits():
    logits = np.random.default_rng(0).normal(0, 3, size=(50, 4)).astype(np.float32)

    def softmax(z: np.ndarray) -> np.ndarray:
        e = np.exp(z - z.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    proba = softmax(logits).astype(np.float32)
    np.testing.assert_allclose(tempered(proba, 1.3), softmax(logits / 1.3), atol=1e-6)
    assert tempered(proba, 1.0) is proba
    np.testing.assert_array_equal(tempered(proba, 1.3)[7:9], tempered(proba[7:9], 1.3))
