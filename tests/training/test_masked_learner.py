"""Pretraining runs: resumed ones end with the same weights, something is learned, and the losses are those reported."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.killed import run_until_killed

from scperformer.attention import MECHANISMS
from scperformer.config.compose import make_config
from scperformer.dataset.corpus import Sample, make_corpus, split_cells
from scperformer.network.batches import Cells
from scperformer.network.seeds import seed_of
from scperformer.training import masked_learner
from scperformer.training.masked_learner import MaskedLearner, train_masked
from scperformer.training.pretrain import new_masked_model

OVERRIDES = [
    "inputs=[a.h5ad]",
    "logger=none",
    "trainer.max_epochs=3",
    "attention.redraw_interval=4",
    "data.min_genes=0",
    "masking.random_share=0.1",
]


def config(*overrides):
    return make_config("pretrain", [*OVERRIDES, *overrides])


def parts(adata, cfg):
    corpus = make_corpus([Sample(adata, Path("a.h5ad"), "")], cfg)
    rows = split_cells(corpus.file_of_cell, 0.2, cfg.seed)
    train, val = (Cells(corpus.x[part], cfg.tokens, np.zeros(len(part), dtype=np.int64)) for part in rows)
    return corpus, train, val


def last_state(folder) -> dict[str, torch.Tensor]:
    saved = torch.load(folder / "checkpoints" / "last.ckpt", map_location="cpu", weights_only=True)
    return saved["state_dict"]


@pytest.mark.parametrize("tokens", ["continuous", "bins"])
def test_resumed_run_ends_with_the_same_weights(counts_adata, tmp_path, monkeypatch, tokens):
    cfg = config(f"tokens={tokens}")
    corpus, train, val = parts(counts_adata, cfg)
    torch.set_num_threads(1)
    whole = train_masked(new_masked_model(corpus, train, cfg), train, val, cfg, tmp_path / "whole")

    run_until_killed(
        monkeypatch,
        MaskedLearner,
        lambda: train_masked(new_masked_model(corpus, train, cfg), train, val, cfg, tmp_path / "cut"),
    )
    resumed = train_masked(new_masked_model(corpus, train, cfg), train, val, cfg, tmp_path / "cut")
    one, two = last_state(tmp_path / "whole"), last_state(tmp_path / "cut")
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert whole == resumed
    # A run that was cut off after its last epoch trains no more and comes to the same.
    again = train_masked(new_masked_model(corpus, train, cfg), train, val, cfg, tmp_path / "cut")
    assert again == whole


def test_other_seeds_give_other_weights(counts_adata, tmp_path):
    states = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        cfg = config("trainer.max_epochs=1", f"seed={seed}")
        corpus, train, val = parts(counts_adata, cfg)
        train_masked(new_masked_model(corpus, train, cfg), train, val, cfg, tmp_path / name)
        states.append(last_state(tmp_path / name)["network.encoder.layers.0.to_qkv.weight"])
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


@pytest.mark.parametrize("options", [[], ["tokens=bins"], ["tokens=scbert", "masking.tied=true"]], ids=str)
def test_loss_falls_and_every_part_learns(counts_adata, tmp_path, options):
    cfg = config("trainer.max_epochs=10", "trainer.batch_size=8", "optim.lr=0.01", *options)
    corpus, train, val = parts(counts_adata, cfg)
    network = new_masked_model(corpus, train, cfg)
    before = {name: tensor.clone() for name, tensor in network.weights().items()}
    learner = MaskedLearner(network.eval(), train, cfg, 1)
    with torch.no_grad():
        start = learner.losses(val.batch(np.arange(len(val))), 0)
    found = train_masked(network, train, val, cfg, tmp_path)
    assert found.loss < 0.9 * float(start[0] / start[2])
    fixed = ("directions", "signs", "order", "gaussian", "scale")
    same = [name for name, tensor in network.weights().items() if torch.equal(tensor, before[name])]
    assert [name for name in same if not any(word in name for word in fixed)] == []


def test_validation_hides_the_same_values_in_every_epoch(counts_adata):
    cfg = config()
    corpus, train, val = parts(counts_adata, cfg)
    learner = MaskedLearner(new_masked_model(corpus, train, cfg).eval(), train, cfg, 1)
    batch = val.batch(np.arange(len(val)))
    with torch.no_grad():
        first = learner.losses(batch, 0)
        torch.manual_seed(99)
        assert torch.equal(learner.losses(batch, 0), first)
        assert not torch.equal(learner.losses(batch, 1), first)


def test_weighted_losses_add_up_over_batches(counts_adata):
    """The sums of two batches are those of weighting every hidden value by hand."""
    cfg = config("tokens=bins", "masking.class_weights=balanced")
    corpus, train, val = parts(counts_adata, cfg)
    learner = MaskedLearner(new_masked_model(corpus, train, cfg).eval(), train, cfg, 1)
    batch = val.batch(np.arange(len(val)))
    with torch.no_grad():
        sums = learner.losses(batch, 3)
        seen, chosen = learner.hide(batch, seed_of("masked in validation", cfg.seed, 3))
        true = batch.values_BL[chosen]
        logits = learner.network(seen, chosen)
    weights = learner.bin_weights[true]
    by_hand = (weights * (logits.logsumexp(1) - logits.gather(1, true[:, None])[:, 0])).sum()
    assert float(sums[0]) == pytest.approx(float(by_hand), rel=1e-4)
    assert float(sums[2]) == pytest.approx(float(weights.sum()), rel=1e-5)


@pytest.mark.parametrize("options", [[], ["tokens=bins", "masking.class_weights=balanced"]], ids=str)
def test_processes_together_learn_from_every_hidden_value_alike(counts_adata, monkeypatch, options):
    """The mean of the gradients of two processes is the gradient of the mean over the hidden values of both."""
    cfg = config("model.gene_dropout=0", "model.dropout=0", *options)
    corpus, train, _ = parts(counts_adata, cfg)
    learner = MaskedLearner(new_masked_model(corpus, train, cfg), train, cfg, 1)
    monkeypatch.setattr(learner, "log", lambda *arguments, **options: None)
    shares = [train.batch(np.arange(3)), train.batch(np.arange(3, 12))]
    hidden = [
        learner.hide(tokens, seed_of("masked in training", cfg.seed, 0, rank)) for rank, tokens in enumerate(shares)
    ]
    true = [tokens.values_BL[chosen] for tokens, (_, chosen) in zip(shares, hidden, strict=True)]
    weight = learner.weight(torch.cat(true))
    monkeypatch.setattr(masked_learner, "share_of_step", lambda own: own * 2 / weight)
    of_processes = []
    for rank, tokens in enumerate(shares):
        monkeypatch.setattr(MaskedLearner, "global_rank", rank)
        loss = learner.training_step((tokens, torch.zeros(len(tokens.keep_BL))), 0)
        of_processes.append(torch.autograd.grad(loss, learner.network.decoder.parameters(), allow_unused=True))
    predicted = torch.cat([learner.network(*pair) for pair in hidden])
    loss = learner.loss(predicted, torch.cat(true))
    together = torch.autograd.grad(loss, learner.network.decoder.parameters(), allow_unused=True)
    for mine, yours, all_of_them in zip(*of_processes, together, strict=True):
        torch.testing.assert_close((mine + yours) / 2, all_of_them, rtol=1e-4, atol=1e-6)


def test_every_mechanism_can_be_pretrained(counts_adata, tmp_path):
    for name in MECHANISMS:
        cfg = make_config("pretrain", [*OVERRIDES[:3], "data.min_genes=0", f"attention={name}", "trainer.max_epochs=1"])
        corpus, train, val = parts(counts_adata, cfg)
        assert np.isfinite(train_masked(new_masked_model(corpus, train, cfg), train, val, cfg, tmp_path / name).loss)
