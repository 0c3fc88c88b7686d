"""Offsets of a query: differences of means within labels, which its cells are predicted without."""

import anndata as ad
import numpy as np
import pytest
from scipy import sparse

import scperformer
from scperformer.adaptation.fitted import Model
from scperformer.adaptation.offsets import MIN_OF_LABEL, MIN_OVERLAP, label_overlap, mean_difference


def test_offsets_are_those_within_labels_whatever_the_composition():
    rng = np.random.default_rng(0)
    centres, offset = rng.normal(size=(3, 4)), np.array([1.0, -2.0, 0.0, 0.5])
    labels, calls = np.repeat([0, 1, 2], [50, 30, 20]), np.repeat([0, 1, 2], [5, 5, 90])
    own, x = centres[labels], centres[calls] + offset
    np.testing.assert_allclose(mean_difference(x, calls, own, labels), offset, atol=1e-6)
    np.testing.assert_allclose(
        mean_difference(x, calls, own, labels, fraction=0.25), offset / 4, atol=1e-6
    )
    # the plain difference of means
    assert not np.allclose(x.mean(axis=0) - own.mean(axis=0), offset, atol=0.5)


def test_labels_weigh_the_same_and_those_of_few_cells_are_left_out():
    own, labels = np.zeros((8, 1)), np.array([0] * 6 + [1] + [2])
    calls = np.repeat([0, 1, 2], [MIN_OF_LABEL, 10 * MIN_OF_LABEL, MIN_OF_LABEL - 1])
    x = np.array([[7.0], [14.0], [100.0]])[calls]
    np.testing.assert_allclose(mean_difference(x, calls, own, labels), [(7 + 14) / 2])
    np.testing.assert_array_equal(mean_difference(x[:3], calls[:3], own, labels), [0])


def test_the_overlap_is_the_share_of_labels_in_common():
    assert label_overlap(np.array([0, 0, 1, 2]), np.array([2, 1, 0, 0, 0, 0, 1, 2])) == 1
    assert label_overlap(np.array([0, 0, 0, 3]), np.array([0, 1])) == 0.5
    assert label_overlap(np.array([1]), np.array([0])) == 0


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Model:
    cells = made_cells([120, 120, 60], seed=1)
    output = tmp_path_factory.mktemp("model") / "m"
    options = {"experiment": "linear", "logger": "none"}
    return scperformer.train(cells, "cell_type", output=output, options=options).load()


def made_cells(sizes: list[int], seed: int, spread: float = 0.0) -> ad.AnnData:
    """Cells of the labels a, b and c; each has 40 of 300 genes of its own, which a study changes by `spread`."""
    rng = np.random.default_rng(seed)
    codes = np.repeat(np.arange(len(sizes)), sizes)
    mean = np.full((len(codes), 300), 1.0)
    for label in range(len(sizes)):
        mean[np.ix_(codes == label, range(40 * label, 40 * label + 40))] = 1.6
    mean *= np.exp(np.random.default_rng(9).normal(0, spread, 300))
    cells = ad.AnnData(sparse.csr_matrix(rng.poisson(mean), dtype=np.float32))
    cells.var_names = [f"GENE{i}" for i in range(300)]
    cells.obs["cell_type"] = np.array(["a", "b", "c"])[codes]
    return cells


@pytest.mark.parametrize(
    ("sizes", "is_shared", "has_offsets"),
    [((80, 80, 40), True, True), ((0, 0, 200), False, False), ((20, 20, 10), True, False)],
    ids=["all", "sorted", "few"],
)
def test_sorted_and_few_cells_have_no_offsets(model, sizes, is_shared, has_offsets):
    query = made_cells(list(sizes), seed=2, spread=0.4)
    done = scperformer.annotate(query.copy(), model)
    shift = done.uns["scperformer"]["shift"]
    assert (shift["label_overlap"][0] >= MIN_OVERLAP) == is_shared
    assert shift["logit_offsets"].shape == (1, 3)
    assert shift["logit_offsets"].any() == has_offsets
    without = scperformer.annotate(query.copy(), model, options={"shift": "genes"})
    assert "logit_offsets" not in without.uns["scperformer"]["shift"]
    proba, plain = (each.obsm["scperformer_proba"].to_numpy() for each in (done, without))
    assert np.allclose(proba, plain, atol=1e-6) != has_offsets


def test_each_batch_has_offsets_of_its_own(model):
    parts = {
        "like": made_cells([80, 80, 40], seed=2),
        "other": made_cells([80, 80, 40], seed=3, spread=0.6),
        "sorted": made_cells([0, 0, 200], seed=4, spread=0.6),
        "small": made_cells([20, 20, 10], seed=5, spread=0.6),
    }
    query = ad.concat(parts, label="run", index_unique="-")
    query = query[np.random.default_rng(0).permutation(query.n_obs)].copy()
    record = scperformer.annotate(query, model, batch_key="run").uns["scperformer"]
    offsets = dict(
        zip(["", *record["batches"]["name"]], record["shift"]["logit_offsets"], strict=True)
    )
    np.testing.assert_array_equal(offsets["small"], offsets[""])
    assert not offsets["like"].any()  # nothing is corrected there
    assert not offsets["sorted"].any()
    assert offsets["other"].any()
    assert not np.allclose(offsets["other"], offsets[""])
