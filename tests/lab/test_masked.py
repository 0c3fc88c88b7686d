"""Pretraining: the choice of hidden values, the losses, the naive guess, resumed runs, and the network."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix, random_array

from scperformer.attention.tokens import Batch, log2_bins, mask_token
from scperformer.cells.corpus import make_corpus
from scperformer.cells.opened import OpenedCells
from scperformer.cells.splits import stratified_split
from scperformer.cli.compose import make_config
from scperformer.config.training import TokensConfig
from scperformer.lab import pretrain
from scperformer.lab.epochs import load_best, run_epochs
from scperformer.lab.pretrain import (
    HIDDEN,
    MaskedLearner,
    hide_values,
    naive_table,
    new_masked_model,
)
from scperformer.model.minibatches import Cells

TOKENS = {
    "continuous": TokensConfig(),
    "bins": TokensConfig(name="bins", num_bins=12),
    "scbert": TokensConfig(name="scbert", unexpressed="full"),
    "memory": TokensConfig(unexpressed="memory"),
}
NUM_CELLS, NUM_GENES = 40, 60
OPTIONS = [
    "model=tiny",
    "logger=none",
    "attention.redraw_interval=4",
    "data.min_genes=0",
    "trainer.max_epochs=6",
]


@pytest.mark.parametrize(
    "options", [[], pytest.param(["tokens=bins"], marks=pytest.mark.slow)], ids=str
)
def test_loss_falls_and_every_part_learns(counts_adata, tmp_path, options):
    words = ["inputs=[a.h5ad]", *OPTIONS, "trainer.batch_size=8", "optim.lr=0.01", *options]
    cfg = make_config("pretrain", words)
    corpus = make_corpus([OpenedCells(counts_adata, cfg, "a.h5ad")])
    rows = stratified_split(corpus.file_of_cell, 0.2, cfg.seed, min_cells=0)
    train, val = (
        Cells(corpus.x[part], cfg.tokens, np.zeros(len(part), dtype=np.int64)) for part in rows
    )
    network, _ = new_masked_model(corpus, train, cfg, None)
    before = {name: tensor.clone() for name, tensor in network.weights().items()}
    learner = MaskedLearner(network.eval(), train, cfg)
    with torch.no_grad():
        start = learner.losses(val.batch(np.arange(len(val))), 0)
    run_epochs(learner, train, val, cfg, tmp_path)
    load_best(learner.network, tmp_path)
    loss, _ = learner.mean_losses(val, cfg.trainer.batch_size)
    assert loss < 0.9 * float(start[0] / start[2])
    fixed = ("directions", "signs", "order", "gaussian", "scale")
    same = [name for name, tensor in network.weights().items() if torch.equal(tensor, before[name])]
    assert [name for name in same if not any(word in name for word in fixed)] == []


def expression(num_cells: int = NUM_CELLS) -> csr_matrix:
    """ln(1 + cp10k) of cells that express 40 % of the genes."""
    rng = np.random.default_rng(0)
    x = csr_matrix(random_array((num_cells, NUM_GENES), density=0.4, rng=rng, dtype=np.float32))
    x.data = np.log1p(rng.gamma(1.0, 12.0, x.nnz)).astype(np.float32)
    x.sort_indices()
    return x


def batch_of(x: csr_matrix, tokens: TokensConfig) -> Batch:
    """All cells as one batch."""
    return Cells(x, tokens).batch(np.arange(x.shape[0]))


def hidden(x, tokens, share=0.15, seed=0):
    return hide_values(batch_of(x, tokens), tokens, share, seed)


@pytest.fixture(params=list(TOKENS))
def tokens(request) -> TokensConfig:
    return TOKENS[request.param]


@pytest.mark.parametrize("share", [0.01, 0.5])
def test_the_share_of_each_cells_expressed_genes_is_chosen(tokens, share):
    x = expression()
    _, chosen = hidden(x, tokens, share)
    batch = batch_of(x, tokens)
    for cell in range(NUM_CELLS):  # the naive twin counts, cell by cell
        expressed = x[[cell]].nnz
        assert int(chosen[cell].sum()) == min(expressed, max(1, round(share * expressed)))
        genes = batch.genes_BL[cell][chosen[cell]].tolist()
        assert len(set(genes)) == len(genes)
        # so never the special position, padding or an unexpressed gene
        assert set(genes) <= set(x[[cell]].indices)


def test_nine_of_ten_are_masked_and_the_others_shown(tokens):
    x = expression(400)
    seen, chosen = hidden(x, tokens, 0.5)
    before = batch_of(x, tokens)
    mask = HIDDEN if tokens.name == "continuous" else mask_token(tokens)
    is_masked = seen.values_BL[chosen] == mask
    assert float(is_masked.float().mean()) == pytest.approx(
        0.9, abs=5 * (0.09 / len(is_masked)) ** 0.5
    )
    assert torch.equal(seen.values_BL[chosen][~is_masked], before.values_BL[chosen][~is_masked])
    for name in ("genes_BL", "keep_BL"):
        assert torch.equal(getattr(seen, name), getattr(before, name))
    for name in ("values_BL", "x_BL"):  # what was not chosen is as it was
        assert torch.equal(getattr(seen, name)[~chosen], getattr(before, name)[~chosen])


def test_nothing_of_a_hidden_value_is_left_in_what_the_encoder_sees(tokens, monkeypatch):
    """Other true values at the hidden places give the very same input, x included."""
    monkeypatch.setattr(pretrain, "MASK_SHARE", 1.0)
    x = expression()
    seen, chosen = hidden(x, tokens)
    places = batch_of(x, tokens)
    other = x.tolil()
    for cell in range(NUM_CELLS):
        for gene in places.genes_BL[cell][chosen[cell]].tolist():
            other[cell, gene] = x[cell, gene] + 1.7
    other = csr_matrix(other, dtype=np.float32)
    other.sort_indices()
    again, chosen_again = hidden(other, tokens)
    assert torch.equal(chosen, chosen_again)
    for name in ("genes_BL", "values_BL", "x_BL", "keep_BL"):
        assert torch.equal(getattr(seen, name), getattr(again, name)), name
    # the control: values that are kept as they are do tell
    monkeypatch.setattr(pretrain, "MASK_SHARE", 0.0)
    assert not torch.equal(hidden(x, tokens)[0].x_BL, hidden(other, tokens)[0].x_BL)


@pytest.mark.parametrize("name", ["continuous", "bins"])
def test_the_naive_guess_is_the_usual_value_of_the_gene(name):
    """By a loop over genes; all genes together count as one more cell."""
    x, tokens = expression(), TOKENS[name]
    found = naive_table(x, tokens)
    size = tokens.num_bins + 2
    overall = (np.bincount(log2_bins(x.data, tokens), minlength=size) + 1) / (x.nnz + size)
    for gene in range(NUM_GENES):
        own = x[:, [gene]].data
        if name == "continuous":
            wanted = (own.sum() + x.data.mean()) / (len(own) + 1)
        else:
            wanted = np.log(
                (np.bincount(log2_bins(own, tokens), minlength=size) + overall) / (len(own) + 1)
            )
        np.testing.assert_allclose(found[gene], wanted, rtol=1e-4)
