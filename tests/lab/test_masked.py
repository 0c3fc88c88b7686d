"""Pretraining: the choice of hidden values, the losses, the naive guess, resumed runs, and the network."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from support.killed import run_until_killed
from support.masked import NUM_CELLS, NUM_GENES, TOKENS, batch_of, expression

from scperformer.attention.encoder import Encoder
from scperformer.attention.tokens import log2_bins, mask_token
from scperformer.cells.corpus import make_corpus
from scperformer.cells.on_disk import Sample
from scperformer.cells.splits import stratified_split
from scperformer.cli.compose import make_config
from scperformer.config.training import ModelConfig, TokensConfig
from scperformer.lab import pretrain
from scperformer.lab.pretrain import (
    HIDDEN,
    MaskedLearner,
    MaskedModel,
    hidden_loss,
    hide_values,
    load_pretraining,
    naive_table,
    train_masked,
)
from scperformer.model.batches import Cells

OVERRIDES = [
    "inputs=[a.h5ad]",
    "model=tiny",
    "logger=none",
    "trainer.max_epochs=3",
    "attention.redraw_interval=4",
    "data.min_genes=0",
]


def config(*overrides):
    return make_config("pretrain", [*OVERRIDES, *overrides])


def new_masked_model(corpus, train, cfg) -> MaskedModel:
    network, _ = pretrain.new_masked_model(corpus, train, cfg, None)
    return network


def new_learner(corpus, train, cfg) -> MaskedLearner:
    return MaskedLearner(new_masked_model(corpus, train, cfg), train, cfg)


def parts(adata, cfg):
    corpus = make_corpus([Sample(adata, Path("a.h5ad"), "")], cfg)
    rows = stratified_split(corpus.file_of_cell, 0.2, cfg.seed, least=0)
    train, val = (Cells(corpus.x[part], cfg.tokens, np.zeros(len(part), dtype=np.int64)) for part in rows)
    return corpus, train, val


def last_state(folder) -> dict[str, torch.Tensor]:
    saved = torch.load(folder / "checkpoints" / "last.ckpt", map_location="cpu", weights_only=True)
    return saved["state_dict"]


@pytest.mark.slow
def test_resumed_run_ends_with_the_same_weights(counts_adata, tmp_path, monkeypatch):
    cfg = config("trainer.max_epochs=2")
    corpus, train, val = parts(counts_adata, cfg)
    torch.set_num_threads(1)
    whole = train_masked(new_learner(corpus, train, cfg), train, val, cfg, tmp_path / "whole")

    run_until_killed(
        monkeypatch,
        MaskedLearner,
        lambda: train_masked(new_learner(corpus, train, cfg), train, val, cfg, tmp_path / "cut"),
    )
    resumed = train_masked(new_learner(corpus, train, cfg), train, val, cfg, tmp_path / "cut")
    one, two = last_state(tmp_path / "whole"), last_state(tmp_path / "cut")
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert whole == resumed
    # A run that was cut off after its last epoch trains no more and comes to the same.
    again = train_masked(new_learner(corpus, train, cfg), train, val, cfg, tmp_path / "cut")
    assert again == whole


@pytest.mark.parametrize("options", [[], pytest.param(["tokens=bins"], marks=pytest.mark.slow)], ids=str)
def test_loss_falls_and_every_part_learns(counts_adata, tmp_path, options):
    cfg = config("trainer.max_epochs=6", "trainer.batch_size=8", "optim.lr=0.01", *options)
    corpus, train, val = parts(counts_adata, cfg)
    network = new_masked_model(corpus, train, cfg)
    before = {name: tensor.clone() for name, tensor in network.weights().items()}
    learner = MaskedLearner(network.eval(), train, cfg)
    with torch.no_grad():
        start = learner.losses(val.batch(np.arange(len(val))), 0)
    found = train_masked(learner, train, val, cfg, tmp_path)
    assert found["loss"] < 0.9 * float(start[0] / start[2])
    fixed = ("directions", "signs", "order", "gaussian", "scale")
    same = [name for name, tensor in network.weights().items() if torch.equal(tensor, before[name])]
    assert [name for name in same if not any(word in name for word in fixed)] == []


# --- the network ---------------------------------------------------------------------------------------------


def new_model(tokens: TokensConfig, seed: int = 0, **options) -> MaskedModel:
    torch.manual_seed(seed)
    attention = {"name": "favor", "num_features": 16}
    encoder = Encoder(NUM_GENES, tokens, ModelConfig(), attention, torch.Generator().manual_seed(seed))
    return MaskedModel(encoder, **options).eval()


@pytest.mark.parametrize("name", list(TOKENS))
def test_predictions_do_not_depend_on_hidden_values(name):
    tokens = TOKENS[name]
    model, x = new_model(tokens), expression(6)
    batch = batch_of(x, tokens)
    seen, chosen = hide_values(batch, tokens, 0.15, seed=1)
    predicted = model(seen, chosen)
    assert len(predicted) == chosen.sum()
    assert predicted.shape[1:] == (() if tokens.name == "continuous" else (tokens.num_bins + 2,))
    # The first cell alone gives the same: predictions stand in the order of the batch.
    first = Cells(x[:1], tokens).batch([0], length=batch.keep_BL.shape[1])
    first.values_BL, first.x_BL = seen.values_BL[:1], seen.x_BL[:1]
    num = int(chosen[0].sum())
    torch.testing.assert_close(model(first, chosen[:1]), predicted[:num], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["bins", "continuous"])
def test_weights_are_those_of_a_plain_encoder_and_come_back(name):
    tokens = TOKENS[name]
    one, two = new_model(tokens, 0, mean_x=2.0), new_model(tokens, 1)
    weights = one.weights()
    plain = Encoder(NUM_GENES, tokens, ModelConfig(), {"name": "favor", "num_features": 16}, torch.Generator())
    prefix = "model.encoder."
    assert {n.removeprefix(prefix) for n in weights if n.startswith(prefix)} == set(plain.state_dict())
    rest = {n for n in weights if not n.startswith(prefix)}
    if name == "bins":
        assert rest == {"pretraining.decoder.output.weight", "pretraining.decoder.output.bias"}
    else:
        assert one.decoder[0].bias.item() == 2.0
    plain.load_state_dict({n.removeprefix(prefix): t for n, t in weights.items() if n.startswith(prefix)})
    load_pretraining(two, {name: tensor.numpy() for name, tensor in weights.items()})
    assert all(torch.equal(two.weights()[n], weights[n]) for n in rest)
    key = prefix + "layers.0.to_qkv.weight"
    assert not torch.equal(two.weights()[key], weights[key])  # the control: the encoder is not among them


# --- hidden values --------------------------------------------------------------------------------------------------


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
        assert set(genes) <= set(x[[cell]].indices)  # so never the special position, padding or an unexpressed gene


def test_nine_of_ten_are_masked_and_the_others_shown(tokens):
    x = expression(400)
    seen, chosen = hidden(x, tokens, 0.5)
    before = batch_of(x, tokens)
    mask = HIDDEN if tokens.name == "continuous" else mask_token(tokens)
    is_masked = seen.values_BL[chosen] == mask
    assert float(is_masked.float().mean()) == pytest.approx(0.9, abs=5 * (0.09 / len(is_masked)) ** 0.5)
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


def test_a_cell_without_expression_hides_nothing(tokens):
    seen, chosen = hidden(csr_matrix((2, NUM_GENES), dtype=np.float32), tokens)
    assert not chosen.any()
    assert float(hidden_loss(torch.zeros(0), seen.x_BL[chosen])) == 0


# --- the naive guess -----------------------------------------------------------------------------------------


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
            wanted = np.log((np.bincount(log2_bins(own, tokens), minlength=size) + overall) / (len(own) + 1))
        np.testing.assert_allclose(found[gene], wanted, rtol=1e-4)
