"""Masking: the choice of values, that the network does not see them, the loss on them, and the naive guess."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from support.masked import NUM_CELLS, NUM_GENES, TOKENS, batch_of, expression

from scperformer.config.groups import MaskingConfig, TokensConfig
from scperformer.network.tokens import log2_bins, mask_token
from scperformer.training.learner import loss_weights
from scperformer.training.masked_learner import HIDDEN, bin_counts, hidden_loss, hide_values, naive_guess, naive_table


def hidden(x, tokens, masking=None, seed=0):
    return hide_values(batch_of(x, tokens), tokens, masking or MaskingConfig(), torch.Generator().manual_seed(seed))


@pytest.fixture(params=list(TOKENS))
def tokens(request) -> TokensConfig:
    return TOKENS[request.param]


@pytest.mark.parametrize("share", [0.01, 0.15, 0.5, 1.0])
def test_the_share_of_each_cells_expressed_genes_is_chosen(tokens, share):
    x = expression()
    _, chosen = hidden(x, tokens, MaskingConfig(share=share))
    batch = batch_of(x, tokens)
    for cell in range(NUM_CELLS):  # the naive twin counts, cell by cell
        expressed = x[[cell]].nnz
        assert int(chosen[cell].sum()) == min(expressed, max(1, round(share * expressed)))
        genes = batch.genes_BL[cell][chosen[cell]].tolist()
        assert len(set(genes)) == len(genes)
        assert set(genes) <= set(x[[cell]].indices)  # so never the special position, padding or an unexpressed gene


def test_every_gene_is_chosen_about_as_often(tokens):
    x = expression(1)
    expressed = x.nnz
    draws = np.mean([hidden(x, tokens, seed=seed)[1].numpy() for seed in range(600)], axis=0)[0]
    wanted = round(0.15 * expressed) / expressed
    # Six standard deviations of a share of 600 draws.
    assert np.abs(draws[draws > 0] - wanted).max() < 6 * (wanted * (1 - wanted) / 600) ** 0.5
    assert (draws > 0).sum() == expressed


@pytest.mark.parametrize(("mask_share", "random_share"), [(0.9, 0.0), (0.8, 0.1), (0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_the_chosen_are_masked_replaced_or_kept_in_proportion(tokens, mask_share, random_share):
    x = expression(400)
    masking = MaskingConfig(share=0.5, mask_share=mask_share, random_share=random_share)
    seen, chosen = hidden(x, tokens, masking)
    before = batch_of(x, tokens)
    mask = HIDDEN if tokens.name == "continuous" else mask_token(tokens)
    counts = {"mask": 0, "same": 0, "other": 0}
    for old, new in zip(before.values_BL[chosen].tolist(), seen.values_BL[chosen].tolist(), strict=True):
        counts["mask" if new == mask else "same" if new == old else "other"] += 1
    total = int(chosen.sum())
    noise = 5 * (0.25 / total) ** 0.5  # five standard deviations of a share, at most
    assert counts["mask"] / total == pytest.approx(mask_share, abs=noise if 0 < mask_share < 1 else 0)
    if tokens.name == "continuous":  # a bin drawn at random may be the true one
        assert counts["other"] / total == pytest.approx(random_share, abs=noise if 0 < random_share < 1 else 0)
    for name in ("genes_BL", "keep_BL"):
        assert torch.equal(getattr(seen, name), getattr(before, name))
    for name in ("values_BL", "x_BL"):  # what was not chosen is as it was
        assert torch.equal(getattr(seen, name)[~chosen], getattr(before, name)[~chosen])


@pytest.mark.parametrize("random_share", [0.0, 0.3])
def test_nothing_of_a_hidden_value_is_left_in_what_the_encoder_sees(tokens, random_share):
    """Other true values at the hidden places give the very same input, x included."""
    masking = MaskingConfig(mask_share=1 - random_share, random_share=random_share)
    x = expression()
    seen, chosen = hidden(x, tokens, masking)
    places = batch_of(x, tokens)
    other = x.tolil()
    for cell in range(NUM_CELLS):
        for gene in places.genes_BL[cell][chosen[cell]].tolist():
            other[cell, gene] = x[cell, gene] + 1.7
    other = csr_matrix(other, dtype=np.float32)
    other.sort_indices()
    again, chosen_again = hidden(other, tokens, masking)
    assert torch.equal(chosen, chosen_again)
    for name in ("genes_BL", "values_BL", "x_BL", "keep_BL"):
        assert torch.equal(getattr(seen, name), getattr(again, name)), name
    # the control: values that are kept as they are do tell
    kept = MaskingConfig(mask_share=0.0)
    assert not torch.equal(hidden(x, tokens, kept)[0].x_BL, hidden(other, tokens, kept)[0].x_BL)


def test_a_lonely_gene_is_masked_where_no_value_is_left_to_show(tokens):
    x = csr_matrix(([2.0], ([0], [3])), shape=(1, NUM_GENES), dtype=np.float32)
    seen, chosen = hidden(x, tokens, MaskingConfig(mask_share=0.0, random_share=1.0))
    assert chosen.sum() == 1
    assert seen.values_BL[chosen].item() == (HIDDEN if tokens.name == "continuous" else mask_token(tokens))
    assert seen.x_BL[chosen].item() == 0


def test_a_cell_without_expression_hides_nothing(tokens):
    seen, chosen = hidden(csr_matrix((2, NUM_GENES), dtype=np.float32), tokens)
    assert not chosen.any()
    assert float(hidden_loss(torch.zeros(0), seen.x_BL[chosen], MaskingConfig())) == 0


def test_the_same_seed_hides_the_same(tokens):
    x = expression()
    assert torch.equal(hidden(x, tokens, seed=4)[1], hidden(x, tokens, seed=4)[1])
    assert not torch.equal(hidden(x, tokens, seed=4)[1], hidden(x, tokens, seed=5)[1])


# --- loss ----------------------------------------------------------------------------------------------------


def test_loss_of_bins_is_weighted_cross_entropy():
    rng = np.random.default_rng(0)
    logits, bins = rng.normal(size=(30, 7)), rng.integers(0, 6, 30)
    weights = rng.uniform(0.5, 2, 7)
    terms = [weights[b] * (np.log(np.exp(row).sum()) - row[b]) for row, b in zip(logits, bins, strict=True)]
    found = hidden_loss(torch.tensor(logits), torch.tensor(bins), MaskingConfig(), torch.tensor(weights).float())
    assert float(found) == pytest.approx(sum(terms) / weights[bins].sum(), rel=1e-5)  # float32 logits


@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_loss_of_values(loss):
    rng = np.random.default_rng(0)
    guess, true = rng.normal(0, 2, 50), rng.normal(0, 2, 50)
    errors = np.abs(guess - true)
    terms = {"squared": errors**2, "huber": np.where(errors < 1, errors**2 / 2, errors - 0.5)}
    found = hidden_loss(torch.tensor(guess).float(), torch.tensor(true).float(), MaskingConfig(loss=loss))
    assert float(found) == pytest.approx(terms[loss].mean(), rel=1e-5)


@pytest.mark.parametrize(("kind", "power"), [("sqrt", 0.5), ("balanced", 1.0)])
def test_bins_are_weighted_by_how_rare_they_are(kind, power):
    x, tokens = expression(), TOKENS["bins"]
    bins = log2_bins(x.data, tokens)
    weights = loss_weights(bin_counts(x, tokens).sum(0), kind).numpy()
    assert weights[bins].mean() == pytest.approx(1, rel=1e-5)
    counts = np.bincount(bins, minlength=14)
    there = np.flatnonzero(counts)
    np.testing.assert_allclose(
        weights[there] * counts[there] ** power, weights[there[0]] * counts[there[0]] ** power, rtol=1e-4
    )
    assert not weights[counts == 0].any()


# --- the naive guess -----------------------------------------------------------------------------------------


def test_naive_guess_of_values_is_gene_plus_cell():
    x, tokens = expression(), TOKENS["continuous"]
    batch = batch_of(x, tokens)
    _, chosen = hidden(x, tokens)
    overall = x.data.mean()
    means = [(x[:, [g]].sum() + overall) / (x[:, [g]].nnz + 1) for g in range(NUM_GENES)]
    wanted = []
    for cell in range(NUM_CELLS):
        row = x[[cell]]
        is_hidden = np.isin(row.indices, batch.genes_BL[cell][chosen[cell]])
        excess = [value - means[gene] for gene, value, h in zip(row.indices, row.data, is_hidden, strict=True) if not h]
        wanted += [means[gene] + np.mean(excess) for gene in row.indices[is_hidden]]
    found = naive_guess(naive_table(x, tokens), batch, chosen)
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


@pytest.mark.parametrize("name", ["bins", "scbert"])
def test_naive_guess_of_bins_is_gene_times_cell(name):
    x, tokens = expression(), TOKENS[name]
    size = tokens.num_bins + 2
    batch = batch_of(x, tokens)
    _, chosen = hidden(x, tokens)
    overall = (np.bincount(log2_bins(x.data, tokens), minlength=size) + 1) / (x.nnz + size)
    wanted = []
    for cell in range(NUM_CELLS):
        row = x[[cell]]
        is_hidden = np.isin(row.indices, batch.genes_BL[cell][chosen[cell]])
        seen = np.bincount(log2_bins(row.data[~is_hidden], tokens), minlength=size)
        of_cell = (seen + overall) / (seen.sum() + 1)
        for gene in row.indices[is_hidden]:
            of_gene = np.bincount(log2_bins(x[:, [gene]].data, tokens), minlength=size) + overall
            product = of_gene / of_gene.sum() * of_cell / overall
            wanted.append(product / product.sum())
    found = naive_guess(naive_table(x, tokens), batch, chosen).softmax(1)
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-6)  # float32 logarithms of small shares
