"""Networks of dense layers from other tools: the value of each step, and descriptions that are refused."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix, vstack
from scipy.special import erf, softmax

from scperformer.network.imported import DenseLayers, imported_network

NUM_GENES = 6


def network(steps: list[dict], num_labels: int, scores: int, embedding: int) -> DenseLayers:
    made = DenseLayers(NUM_GENES, num_labels, {"steps": steps, "scores": scores, "embedding": embedding})
    rng = np.random.default_rng(0)
    for buffer in made.buffers():
        buffer.copy_(torch.from_numpy(rng.normal(size=buffer.shape)))
    return made


@pytest.fixture
def x() -> csr_matrix:
    rng = np.random.default_rng(1)
    return csr_matrix(rng.poisson(1.0, (7, NUM_GENES)).astype(np.float32))


STEPS = [
    {"kind": "affine", "of": [0]},
    {"kind": "dense", "of": [1], "width": 5},
    {"kind": "standardise", "of": [2], "epsilon": 1e-3},
    {"kind": "gelu", "of": [3]},
    {"kind": "dense", "of": [0], "width": 3},
    {"kind": "softmax", "of": [5]},
    {"kind": "concatenate", "of": [4, 6, 4]},
    {"kind": "dense", "of": [7], "width": 2},
]


def test_steps_are_computed_as_written(x):
    made = network(STEPS, 2, scores=8, embedding=7)
    w = {name: buffer.numpy() for name, buffer in made.named_buffers()}
    dense = x.toarray().astype(np.float64)
    affine = dense * w["factor_1"] + w["shift_1"]
    hidden = affine @ w["weight_2"] + w["bias_2"]
    centred = hidden - hidden.mean(axis=1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-3)
    gelu = normed * (1 + erf(normed / np.sqrt(2))) / 2
    level = softmax(dense @ w["weight_5"] + w["bias_5"], axis=1)
    joined = np.concatenate([gelu, level, gelu], axis=1)
    found = made.scored(x, None)
    # float64: rounding only; the embedding is float32
    np.testing.assert_allclose(found.scores, joined @ w["weight_8"] + w["bias_8"], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.embedding, joined, rtol=1e-6, atol=1e-6)


def test_no_cell_influences_another(x):
    made = network(STEPS, 2, scores=8, embedding=7)
    alone = made.scored(x[:1], None).scores[0]
    together = made.scored(vstack([x[1:]] * 60 + [x[:1]], "csr"), None).scores[-1]  # more than one product
    np.testing.assert_array_equal(alone, together)


def doubling(number: int) -> dict:
    return {"kind": "concatenate", "of": [number, number]}


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([], "without a list of steps"),
        ([{"kind": "relu", "of": [0]}] * 1001, "without a list of steps"),
        (["relu"], "step 1 has inputs that do not precede it"),
        ([{"kind": "relu", "of": [1]}], "step 1 has inputs that do not precede it"),
        ([{"kind": "relu", "of": [-1]}], "step 1 has inputs that do not precede it"),
        ([{"kind": "relu", "of": [True]}], "step 1 has inputs that do not precede it"),
        ([{"kind": "relu", "of": []}], "step 1 has inputs that do not precede it"),
        ([{"kind": "eval", "of": [0]}], "a step of the unknown kind 'eval'"),
        ([{"kind": ["relu"], "of": [0]}], "a step of the unknown kind"),
        ([{"kind": "relu", "of": [0, 0]}], "a step of the unknown kind 'relu'"),
        ([{"kind": "dense", "of": [0], "width": 0}], "a width that is not a whole number above 0"),
        ([{"kind": "dense", "of": [0], "width": 10**12}], "a width that is not a whole number above 0"),
        ([{"kind": "dense", "of": [0], "width": 2.0}], "a width that is not a whole number above 0"),
        ([{"kind": "standardise", "of": [0], "epsilon": -1}], "epsilon is not a number above 0"),
        ([doubling(number) for number in range(100)], r"step \d+ has more than 1,048,576 numbers"),
        ([{"kind": "dense", "of": [0], "width": 3}], "3 scores for 2 labels"),
    ],
)
def test_descriptions_that_cannot_be_computed_are_refused(steps, message):
    described = {"name": "dense", "steps": steps, "scores": len(steps), "embedding": len(steps)}
    with pytest.raises(ValueError, match=message):
        imported_network(NUM_GENES, 2, described)


@pytest.mark.parametrize("place", [0, 2, "1", None])
def test_scores_and_embedding_are_results_of_steps(place):
    steps = [{"kind": "dense", "of": [0], "width": 2}]
    described = {"name": "dense", "steps": steps, "scores": 1, "embedding": 1}
    for name in ("scores", "embedding"):
        with pytest.raises(ValueError, match=r"scores for 2 labels|is not the result of a step"):
            imported_network(NUM_GENES, 2, described | {name: place})
