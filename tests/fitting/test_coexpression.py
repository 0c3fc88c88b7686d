import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from scperformer.fitting.coexpression import fit_heads, head_logits

from scperformer.cells import normalise_counts
from scperformer.config import HeadConfig
from scperformer.fitting import CoexpressionEncoder, gene_vectors
from scperformer.fitting.linear import power_transform

HEAD = HeadConfig(name="weighted", hidden=[16], dropout=0.1)


@pytest.fixture(scope="module")
def cells() -> tuple[csr_matrix, np.ndarray]:
    """300 cells x 120 genes of 3 labels; 20 genes are higher in each label."""
    rng = np.random.default_rng(0)
    labels = np.arange(300) % 3
    rates = np.full((300, 120), 0.6)
    for label in range(3):
        rates[np.ix_(labels == label, range(20 * label, 20 * label + 20))] = 3.0
    return normalise_counts(csr_matrix(rng.poisson(rates).astype(np.float32)), 1e4), labels


def test_gene_vectors_are_those_of_a_dense_decomposition(cells):
    x, _ = cells
    vectors, centre = gene_vectors(x, 5, seed=0)
    v = power_transform(x, 1.0).toarray().astype(np.float64)
    deviation = v.std(axis=0)
    weights = 1 / (deviation + np.median(deviation[deviation > 0]))
    components = np.linalg.svd(v * weights)[2][1:6]
    z, expected = v @ vectors, v @ (weights * components).T
    for found, wanted in zip(z[:, :2].T, expected[:, :2].T, strict=True):  # the noise beyond has no stable direction
        assert abs(np.corrcoef(found, wanted)[0, 1]) > 0.999
    np.testing.assert_allclose(centre, z.mean(axis=0), rtol=1e-3, atol=1e-4)
    assert z.std(axis=0).max() == pytest.approx(2.0, rel=1e-3)


def test_genes_that_vary_together_get_similar_vectors(cells):
    vectors = gene_vectors(cells[0], 2, seed=0)[0]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosine = unit @ unit.T
    within = [cosine[20 * i : 20 * i + 20, 20 * i : 20 * i + 20].mean() for i in range(3)]
    between = [cosine[20 * i : 20 * i + 20, 20 * j : 20 * j + 20].mean() for i, j in ((0, 1), (0, 2), (1, 2))]
    assert min(within) > 0.8 > 0.3 > max(between)


@pytest.mark.parametrize(("num_cells", "num_genes"), [(3, 120), (300, 2)])
def test_components_that_do_not_exist_are_zero(cells, num_cells, num_genes):
    vectors, centre = gene_vectors(cells[0][:num_cells, :num_genes], 8, seed=0)
    assert vectors.shape == (num_genes, 8)
    assert not vectors[:, min(num_cells, num_genes) - 1 :].any()
    assert np.isfinite(vectors).all()
    assert np.isfinite(centre).all()


def test_heads_trained_together_learn_the_labels_of_their_own_cells(cells):
    x, labels = cells
    pooled = CoexpressionEncoder(*gene_vectors(x, 8, seed=0))
    z = pooled.cells(x)
    wrong = np.where(np.arange(300) < 150, labels, (labels + 1) % 3)  # the second half is labelled otherwise
    sides = np.array([np.arange(300) < 150, np.arange(300) >= 150])
    first, second = fit_heads(z, wrong, sides, 3, HEAD, seed=0)
    assert (head_logits(first, z).argmax(1) == labels).mean() > 0.95
    assert (head_logits(second, z).argmax(1) == (labels + 1) % 3).mean() > 0.95


def test_heads_are_the_same_for_the_same_seed(cells):
    x, labels = cells
    z = CoexpressionEncoder(*gene_vectors(x, 8, seed=0)).cells(x)
    sides = np.ones((1, 300), dtype=bool)
    torch.manual_seed(123)  # must not matter
    one, same, other = (head_logits(fit_heads(z, labels, sides, 3, HEAD, seed)[0], z) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)
