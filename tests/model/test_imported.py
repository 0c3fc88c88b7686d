"""Networks of dense layers from other tools: the value of each step, and descriptions that are refused."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix, vstack

from scperformer.model.imported import DenseLayers, imported_network

NUM_GENES = 6


def network(steps: list[dict], num_labels: int, embedding: int) -> DenseLayers:
    made = DenseLayers(NUM_GENES, num_labels, {"steps": steps, "embedding": embedding})
    rng = np.random.default_rng(0)
    for buffer in made.buffers():
        buffer.copy_(torch.from_numpy(rng.normal(size=buffer.shape)))
    return made


@pytest.fixture
def x() -> csr_matrix:
    rng = np.random.default_rng(1)
    return csr_matrix(rng.poisson(1.0, (7, NUM_GENES)).astype(np.float32))


STEPS = [
    {"kind": "dense", "width": 5},
    {"kind": "standardise", "epsilon": 1e-3},
    {"kind": "relu"},
    {"kind": "dense", "width": 2},
]


def test_steps_are_computed_as_written(x):
    made = network(STEPS, 2, embedding=3)
    w = {name: buffer.numpy() for name, buffer in made.named_buffers()}
    hidden = x.toarray().astype(np.float64) @ w["weight_1"] + w["bias_1"]
    centred = hidden - hidden.mean(axis=1, keepdims=True)
    normed = np.maximum(centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-3), 0)
    found = made.scored(x, None)
    # float64: rounding only; the embedding is float32
    np.testing.assert_allclose(
        found.scores, normed @ w["weight_4"] + w["bias_4"], rtol=1e-10, atol=1e-12
    )
    np.testing.assert_allclose(found.embedding, normed, rtol=1e-6, atol=1e-6)


def test_no_cell_influences_another(x):
    made = network(STEPS, 2, embedding=3)
    alone = made.scored(x[:1], None).scores[0]
    # more than one product
    together = made.scored(vstack([x[1:]] * 60 + [x[:1]], "csr"), None).scores[-1]
    np.testing.assert_array_equal(alone, together)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([], "without a list of steps"),
        ([{"kind": "eval"}], "a step of the unknown kind 'eval'"),
        ([{"kind": "dense", "width": 10**12}], "a width that is not a whole number above 0"),
        ([{"kind": "standardise", "epsilon": -1}], "epsilon is not a number above 0"),
        ([{"kind": "dense", "width": 3}], "3 scores for 2 labels"),
    ],
)
def test_descriptions_that_cannot_be_computed_are_refused(steps, message):
    described = {"name": "dense", "steps": steps, "embedding": len(steps)}
    with pytest.raises(ValueError, match=message):
        imported_network(NUM_GENES, 2, described)
