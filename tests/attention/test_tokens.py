"""Tokens of expression: bins against exact fractions, which genes become tokens, and their embeddings."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import sparse

from scperformer.attention.tokens import (
    Batch,
    Embedding,
    log2_bins,
    mask_token,
    sinusoids,
    token_counts,
    tokenize,
)
from scperformer.cells.detect import Findings
from scperformer.cells.normalisation import normalise
from scperformer.config.training import ModelConfig, TokensConfig
from scperformer.model.minibatches import Cells

SCBERT = TokensConfig(name="scbert", unexpressed="full")
SCBERT_SKIP = TokensConfig(name="scbert", unexpressed="skip")
BINS = TokensConfig(name="bins", num_bins=40)
CONTINUOUS = TokensConfig(name="continuous")
MAX_TOTAL = 50_000


def exact_bin(count: int, total: int) -> int:
    """floor(log2(1 + 1e4 count / total)), at most 5, in exact arithmetic."""
    value = 1 + Fraction(10_000 * count, total)
    return max(power for power in range(6) if 2**power <= value)


def stored(count, total):
    """ln(1 + 1e4 count / total) as files store it, in float32."""
    return np.log1p(1e4 * np.asarray(count) / np.asarray(total)).astype(np.float32)


def cells_csr(rows) -> sparse.csr_matrix:
    return sparse.csr_matrix(np.array(rows, dtype=np.float32))


@pytest.mark.parametrize(
    ("count", "total", "expected"),
    [
        (0, 5_000, 0),
        (1, 10_000, 1),  # 1 + 1 = 2 exactly
        (1, 10_001, 0),  # just below 2
        (3, 10_000, 2),
        (7, 10_000, 3),
        (15, 10_000, 4),
        (31, 10_000, 5),
        (31, 10_001, 4),
        (5_000, 5_000, 5),  # log2(10,001) = 13.3 is clipped
    ],
)
def test_scbert_bins_of_known_counts(count, total, expected):
    assert exact_bin(count, total) == expected
    assert log2_bins(stored(count, total), SCBERT) == expected


def test_scbert_bins_are_exact_next_to_every_edge_of_every_total():
    total = np.arange(1, MAX_TOTAL + 1)[:, None, None]
    edge = np.array([1, 3, 7, 15, 31])[None, :, None]
    nearest = edge * total // 10_000 + np.arange(-1, 3)
    count = np.clip(nearest, 0, total)
    # Integer products compare the fractions 1e4 count / total and 2^p - 1 without rounding.
    expected = sum((10_000 * count >= (2**power - 1) * total).astype(int) for power in range(1, 6))
    wrong = log2_bins(stored(count, total), SCBERT) != expected
    assert not wrong.any(), (
        f"{wrong.sum()} wrong, smallest total {total[wrong.any(axis=(1, 2))].min()}"
    )


@pytest.mark.parametrize("power", range(1, 6))
def test_scbert_edges_allow_for_the_rounding_of_any_float32_logarithm(power):
    # The logarithms of NumPy, R and GPUs differ in their last bit for the same counts.
    edge = stored(2**power - 1, 10_000)
    for x in (np.nextafter(edge, np.float32(0)), edge, np.nextafter(edge, np.float32(9))):
        assert log2_bins(x, SCBERT) == power


def test_scbert_bins_are_exact_after_scanpy():
    # As in preprocessing, scanpy divides and takes logarithms in float32. Two genes: one at an edge, and the rest.
    total = np.random.default_rng(0).integers(1_000, MAX_TOTAL + 1, 3_000)
    total = np.concatenate([total, np.arange(10_000, MAX_TOTAL + 1, 10_000)])
    edge = np.array([1, 3, 7, 15, 31])
    count = (edge * total[:, None] // 10_000 + np.arange(2)[:, None, None]).ravel()
    total = np.broadcast_to(total[:, None], (2, len(total), len(edge))).ravel()
    findings = Findings(
        source="X",
        kind="counts",
        total=None,
        log_base=None,
        num_cells=len(total),
        num_genes=2,
        id_kind="symbol",
    )
    x = normalise(
        np.stack([count, total - count], axis=1).astype(np.float32), findings, 1e4
    ).toarray()
    expected = [exact_bin(int(c), int(t)) for c, t in zip(count, total, strict=True)]
    np.testing.assert_array_equal(log2_bins(x[:, 0], SCBERT), expected)


def test_each_finer_bin_is_a_part_of_a_doubling():
    # 1 + cp10k at the middle of each quarter of a doubling; bin 0 is for unexpressed genes.
    step = np.arange(40)
    x = (np.log(2.0) * (step + 0.5) / 4).astype(np.float32)
    np.testing.assert_array_equal(log2_bins(x, BINS), np.minimum(step + 1, 40))
    assert log2_bins(np.float32(0), BINS) == 0
    assert log2_bins(np.float32(1e-6), BINS) == 1
    assert log2_bins(np.float32(9.2), BINS) == 40
    assert mask_token(BINS) == 41


X = [[0.0, 0.7, 0.0, 4.0], [0.0, 0.0, 0.0, 0.0], [1.5, 0.2, 0.9, 2.3]]  # the second cell is empty


def test_full_makes_every_gene_a_token_and_ends_with_the_special_position():
    tokens = tokenize(cells_csr(X), SCBERT)
    np.testing.assert_array_equal(tokens.genes_BL, [[0, 1, 2, 3, 4]] * 3)
    np.testing.assert_array_equal(tokens.x_BL, np.pad(np.float32(X), ((0, 0), (0, 1))))
    # floor(x / ln 2): 0.7 -> 1, 4.0 -> 5.8 clipped, 1.5 -> 2, 0.2 -> 0, 0.9 -> 1, 2.3 -> 3
    np.testing.assert_array_equal(
        tokens.values_BL, [[0, 1, 0, 5, 0], [0, 0, 0, 0, 0], [2, 0, 1, 3, 0]]
    )
    assert tokens.keep_BL.all()
    np.testing.assert_array_equal(token_counts(cells_csr(X), SCBERT), [5, 5, 5])


def test_full_has_no_tokens_for_unmeasured_genes():
    x, tokens, measured = (
        cells_csr([[0.0, 2.0, 0.0, 1.0]]),
        TokensConfig(unexpressed="full"),
        np.arange(4) != 2,
    )
    batch = Cells(x, tokens, measured=measured).batch([0])
    assert batch.genes_BL[batch.keep_BL].tolist() == [0, 1, 3, 4]
    assert batch.x_BL[batch.keep_BL].tolist() == [0, 2, 1, 0]
    everything = Cells(x, tokens, measured=np.ones(4, dtype=bool)).batch([0])
    assert everything.genes_BL[everything.keep_BL].tolist() == [0, 1, 2, 3, 4]


def test_skip_leaves_out_unexpressed_genes_and_pads_after_the_special_position():
    tokens = tokenize(cells_csr(X), SCBERT_SKIP)
    np.testing.assert_array_equal(
        tokens.genes_BL, [[1, 3, 4, 4, 4], [4, 4, 4, 4, 4], [0, 1, 2, 3, 4]]
    )
    np.testing.assert_array_equal(
        tokens.values_BL, [[1, 5, 0, 0, 0], [0, 0, 0, 0, 0], [2, 0, 1, 3, 0]]
    )
    x = np.float32([[0.7, 4.0, 0, 0, 0], [0, 0, 0, 0, 0], [1.5, 0.2, 0.9, 2.3, 0]])
    np.testing.assert_array_equal(tokens.x_BL, x)
    np.testing.assert_array_equal(tokens.keep_BL, np.arange(5) <= np.array([[2], [0], [4]]))
    np.testing.assert_array_equal(token_counts(cells_csr(X), SCBERT_SKIP), [3, 1, 5])


@pytest.mark.parametrize(
    "config", [SCBERT, SCBERT_SKIP, BINS, CONTINUOUS], ids=lambda c: f"{c.name}-{c.unexpressed}"
)
def test_token_counts_are_the_numbers_of_real_tokens(config):
    cells = sparse.random(9, 30, density=0.3, format="csr", dtype=np.float32, random_state=0)
    tokens = tokenize(cells, config)
    np.testing.assert_array_equal(tokens.keep_BL.sum(axis=1), token_counts(cells, config))
    last = tokens.keep_BL.sum(axis=1) - 1
    assert (tokens.genes_BL[np.arange(9), last] == 30).all()
    assert (tokens.values_BL[np.arange(9), last] == 0).all()


GENES, DIM = 9, 6
EMBEDDED = {"scbert": TokensConfig(name="scbert", unexpressed="full"), "continuous": TokensConfig()}


def embedding(positions: str, tokens: str = "scbert") -> Embedding:
    torch.manual_seed(0)
    return Embedding(GENES, ModelConfig(dim=DIM, positions=positions), EMBEDDED[tokens])


def batch(tokens: str = "scbert") -> Batch:
    """Two cells of four tokens with unsorted genes; the last token is the special position."""
    genes = torch.tensor([[4, 0, 7, 9], [1, 8, 2, 9]])
    bins = torch.tensor([[1, 5, 2, 0], [3, 3, 6, 0]])
    x = bins.float() * 0.7
    return Batch(
        genes, x if tokens == "continuous" else bins, x, torch.ones(2, 4, dtype=torch.bool)
    )


def values_of(made: Embedding, tokens: str) -> torch.Tensor:
    """The expression embedding of each token."""
    given = batch(tokens)
    if tokens == "scbert":
        return made.expression.weight[given.values_BL]
    first, _, last = made.expression.layers
    x = given.values_BL[..., None] / 4.0
    return torch.nn.functional.gelu(x * first.weight[:, 0] + first.bias) @ last.weight.T + last.bias


@pytest.mark.parametrize("dim", [6, 7])
def test_sinusoids_equal_the_formula(dim):
    table = sinusoids(40, dim, "sinusoidal")
    order = [*range(0, dim, 2), *range(1, dim, 2)]  # the sines, then the cosines
    torch.testing.assert_close(sinusoids(40, dim, "sinusoidal_split"), table[:, order])
    assert table.dtype == torch.float32
    for position in (0, 1, 7, 39):
        for i in range(dim):
            angle = position / 10000 ** (2 * (i // 2) / dim)
            expected = math.sin(angle) if i % 2 == 0 else math.cos(angle)
            assert float(table[position, i]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("positions", ["sinusoidal", "sinusoidal_split"])
@pytest.mark.parametrize("tokens", list(EMBEDDED))
def test_sinusoidal_positions_are_added_by_gene_and_fixed(tokens, positions):
    made = embedding(positions, tokens)
    assert not made.gene.weight.requires_grad
    expected = sinusoids(GENES + 1, DIM, positions)[batch().genes_BL] + values_of(made, tokens)
    torch.testing.assert_close(made(batch(tokens)), expected)


@pytest.mark.parametrize("tokens", list(EMBEDDED))
def test_without_positions_a_token_is_its_value(tokens):
    made = embedding("none", tokens)
    assert made.gene is None
    torch.testing.assert_close(made(batch(tokens)), values_of(made, tokens))


def test_gene2vec_positions_are_fixed_and_the_special_one_is_zero():
    made = embedding("gene2vec")
    assert not made.gene.weight.requires_grad
    vectors = torch.randn(GENES, DIM, generator=torch.Generator().manual_seed(1))
    made.set_gene_vectors(vectors)
    assert torch.equal(made.gene.weight[:-1], vectors)
    assert torch.equal(made.gene.weight[-1], torch.zeros(DIM))
    made(batch()).sum().backward()
    assert made.gene.weight.grad is None
    assert made.expression.weight.grad is not None
    torch.testing.assert_close(
        made(batch())[:, -1], made.expression.weight[batch().values_BL[:, -1]]
    )


@pytest.mark.parametrize("positions", ["gene", "sinusoidal", "none"])
@pytest.mark.parametrize("tokens", list(EMBEDDED))
def test_unexpressed_genes_are_tokens_of_value_zero(positions, tokens):
    made = embedding(positions, tokens)
    genes = torch.arange(GENES)[None]
    zeros = torch.zeros(1, GENES, dtype=torch.float32 if tokens == "continuous" else torch.int64)
    expected = made(Batch(genes, zeros, zeros.float(), torch.ones(1, GENES, dtype=torch.bool)))
    torch.testing.assert_close(made.unexpressed(), expected)
