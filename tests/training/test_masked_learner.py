"""The network of pretraining, its losses, and its runs: resumed ones end with the same weights, and all parts learn."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.killed import run_until_killed
from support.masked import NUM_GENES, TOKENS, batch_of, expression

from scperformer.attention import MECHANISMS
from scperformer.config.compose import make_config
from scperformer.config.groups import MaskingConfig, ModelConfig, TokensConfig
from scperformer.dataset.corpus import make_corpus, split_by_file
from scperformer.dataset.on_disk import Sample
from scperformer.network.batches import Cells, seed_of
from scperformer.network.encoder import Encoder
from scperformer.training import masked_learner
from scperformer.training.masked_learner import HIDDEN, MaskedLearner, MaskedModel, hide_values, train_masked
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
    rows = split_by_file(corpus.file_of_cell, 0.2, cfg.seed)
    train, val = (Cells(corpus.x[part], cfg.tokens, np.zeros(len(part), dtype=np.int64)) for part in rows)
    return corpus, train, val


def last_state(folder) -> dict[str, torch.Tensor]:
    saved = torch.load(folder / "checkpoints" / "last.ckpt", map_location="cpu", weights_only=True)
    return saved["state_dict"]


def test_resumed_run_ends_with_the_same_weights(counts_adata, tmp_path, monkeypatch):
    cfg = config("trainer.max_epochs=2")
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


@pytest.mark.parametrize("options", [[], ["tokens=bins", "masking.tied=true"]], ids=str)
def test_loss_falls_and_every_part_learns(counts_adata, tmp_path, options):
    cfg = config("trainer.max_epochs=6", "trainer.batch_size=8", "optim.lr=0.01", *options)
    corpus, train, val = parts(counts_adata, cfg)
    network = new_masked_model(corpus, train, cfg)
    before = {name: tensor.clone() for name, tensor in network.weights().items()}
    learner = MaskedLearner(network.eval(), train, cfg)
    with torch.no_grad():
        start = learner.losses(val.batch(np.arange(len(val))), 0)
    found = train_masked(network, train, val, cfg, tmp_path)
    assert found["loss"] < 0.9 * float(start[0] / start[2])
    fixed = ("directions", "signs", "order", "gaussian", "scale")
    same = [name for name, tensor in network.weights().items() if torch.equal(tensor, before[name])]
    assert [name for name in same if not any(word in name for word in fixed)] == []


def test_validation_hides_the_same_values_in_every_epoch(counts_adata):
    cfg = config()
    corpus, train, val = parts(counts_adata, cfg)
    learner = MaskedLearner(new_masked_model(corpus, train, cfg).eval(), train, cfg)
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
    learner = MaskedLearner(new_masked_model(corpus, train, cfg).eval(), train, cfg)
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
    learner = MaskedLearner(new_masked_model(corpus, train, cfg), train, cfg)
    monkeypatch.setattr(learner, "log", lambda *arguments, **options: None)
    shares = [train.batch(np.arange(3)), train.batch(np.arange(3, 12))]
    hidden = [
        learner.hide(tokens, seed_of("masked in training", cfg.seed, 0, rank)) for rank, tokens in enumerate(shares)
    ]
    true = [tokens.values_BL[chosen] for tokens, (_, chosen) in zip(shares, hidden, strict=True)]
    weight = learner.weight(torch.cat(true))
    monkeypatch.setattr(masked_learner, "process_factor", lambda own: own * 2 / weight)
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


@pytest.mark.slow
def test_every_mechanism_can_be_pretrained(counts_adata, monkeypatch):
    monkeypatch.setattr(MaskedLearner, "log", lambda *arguments, **options: None)
    for name in MECHANISMS:
        cfg = make_config("pretrain", [*OVERRIDES[:3], "data.min_genes=0", f"attention={name}"])
        corpus, train, _ = parts(counts_adata, cfg)
        learner = MaskedLearner(new_masked_model(corpus, train, cfg), train, cfg)
        learner.training_step((train.batch(np.arange(8)), torch.zeros(8)), 0).backward()
        gradients = [parameter.grad for parameter in learner.parameters() if parameter.grad is not None]
        assert len(gradients) > 5, name
        assert all(gradient.isfinite().all() for gradient in gradients), name


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
    seen, chosen = hide_values(batch, tokens, MaskingConfig(mask_share=1.0), torch.Generator().manual_seed(1))
    predicted = model(seen, chosen)
    assert len(predicted) == chosen.sum()
    assert predicted.shape[1:] == (() if tokens.name == "continuous" else (tokens.num_bins + 2,))
    # The first cell alone gives the same: predictions stand in the order of the batch.
    first = Cells(x[:1], tokens).batch([0], length=batch.keep_BL.shape[1])
    first.values_BL, first.x_BL = seen.values_BL[:1], seen.x_BL[:1]
    num = int(chosen[0].sum())
    torch.testing.assert_close(model(first, chosen[:1]), predicted[:num], rtol=1e-4, atol=1e-5)


def test_all_hidden_values_are_embedded_alike_and_others_as_before():
    tokens = TOKENS["continuous"]
    torch.manual_seed(0)
    encoder = Encoder(NUM_GENES, tokens, ModelConfig(), {"name": "favor"}, torch.Generator())
    values = torch.tensor([[0.0, 0.5, 3.0, HIDDEN]])
    before = encoder.embedding.expression(values)
    MaskedModel(encoder)
    after = encoder.embedding.expression(values)
    assert torch.equal(before[:, :3], after[:, :3])
    assert torch.equal(after[0, 3], encoder.embedding.expression.mask_D)
    after.sum().backward()
    assert (encoder.embedding.expression.mask_D.grad == 1).all()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", ["bins", "continuous"])
def test_weights_are_those_of_a_plain_encoder_and_come_back(name, tied):
    tokens = TOKENS[name]
    one, two = new_model(tokens, 0, tied=tied, mean_x=2.0), new_model(tokens, 1, tied=tied)
    weights = one.weights()
    plain = Encoder(NUM_GENES, tokens, ModelConfig(), {"name": "favor", "num_features": 16}, torch.Generator())
    prefix = "model.encoder."
    assert {n.removeprefix(prefix) for n in weights if n.startswith(prefix)} == set(plain.state_dict())
    rest = {n for n in weights if not n.startswith(prefix)}
    if name == "bins":
        assert rest == (set() if tied else {"pretraining.decoder.output.weight", "pretraining.decoder.output.bias"})
        assert (one.decoder.output.weight is one.encoder.embedding.expression.weight) == tied
    plain.load_state_dict({n.removeprefix(prefix): t for n, t in weights.items() if n.startswith(prefix)})
    two.load_pretraining(weights)
    assert all(torch.equal(two.weights()[n], weights[n]) for n in rest)
    key = prefix + "layers.0.to_qkv.weight"
    assert not torch.equal(two.weights()[key], weights[key])  # the control: the encoder is not among them


def test_continuous_predictions_start_at_the_mean():
    assert new_model(TOKENS["continuous"], mean_x=2.5).decoder[0].bias.item() == 2.5


def test_tied_bins_share_the_weight_of_their_embedding():
    model = new_model(TOKENS["bins"], tied=True)
    assert model.decoder.output.weight is model.encoder.embedding.expression.weight
    assert [p is model.decoder.output.weight for p in model.decoder.parameters()] == [True]
    untied = new_model(TOKENS["bins"]).decoder
    h = torch.randn(2, 4, untied.output.in_features)
    torch.testing.assert_close(untied(h), h @ untied.output.weight.T + untied.output.bias)
