"""The network of pretraining: the mask is one vector, predictions stand where they are asked for, weights go around."""

import pytest
import torch
from support.masked import NUM_GENES, TOKENS, batch_of, expression

from scperformer.config.groups import MaskingConfig, ModelConfig, TokensConfig
from scperformer.network.batches import Cells
from scperformer.network.encoder import Encoder
from scperformer.training.masked_model import MaskedModel
from scperformer.training.masking import HIDDEN, hide_values


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
