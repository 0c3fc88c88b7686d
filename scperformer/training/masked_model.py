"""The network of pretraining: an encoder that also knows a mask, and a layer that predicts hidden values.

Shape letters: B cells, L tokens, K hidden tokens, D model width, N entries of the table of bins.
"""

import torch
from torch import nn

from scperformer.network import EMBEDDING_STD, ENCODER, PRETRAINING, Batch, ContinuousEmbedding, Encoder, TokenLogits

MASK = "embedding.expression.mask_D"


class MaskableValues(nn.Module):
    """Embeds continuous values, and hidden ones (below 0) as one learned vector."""

    def __init__(self, values: ContinuousEmbedding, dim: int):
        super().__init__()
        self.values = values
        self.mask_D = nn.Parameter(EMBEDDING_STD * torch.randn(dim))

    def forward(self, x_BL: torch.Tensor) -> torch.Tensor:
        h_BLD = self.values(x_BL.clamp_min(0))
        return torch.where((x_BL < 0).unsqueeze(-1), self.mask_D.to(h_BLD.dtype), h_BLD)


class MaskedModel(nn.Module):
    """Predicts the values of some tokens from what the encoder makes of them.

    Parameters
    ----------
    encoder
        Learns in place. Tables of bins have an entry for the mask already; continuous values are given one here.
    tied
        With bins: the output layer is the table of bins.
    mean_x
        With continuous values: their mean, from which predictions start.
    """

    def __init__(self, encoder: Encoder, *, tied: bool = False, mean_x: float = 0.0):
        super().__init__()
        self.encoder = encoder
        self.tied = tied
        expression = encoder.embedding.expression
        if isinstance(expression, nn.Embedding):
            self.decoder: nn.Module = TokenLogits(expression, tied)
        else:
            assert isinstance(expression, ContinuousEmbedding)
            last = expression.layers[-1]
            assert isinstance(last, nn.Linear)
            encoder.embedding.expression = MaskableValues(expression, last.out_features)
            output = nn.Linear(last.out_features, 1)
            nn.init.constant_(output.bias, mean_x)
            self.decoder = nn.Sequential(output, nn.Flatten(0))

    def forward(self, batch: Batch, chosen_BL: torch.Tensor) -> torch.Tensor:
        """Predictions for the chosen tokens, in the order of the batch: logits, K x N, or values, K."""
        return self.decoder(self.encoder(batch)[chosen_BL])

    def weights(self) -> dict[str, torch.Tensor]:
        """All that is learned, by the names it has in a model folder; the encoder's are those of a trained model."""
        state = self.encoder.state_dict()
        mask = {"mask_D": state.pop(MASK)} if MASK in state else {}
        encoder = {name.replace(".expression.values.", ".expression."): tensor for name, tensor in state.items()}
        decoder = {} if self.tied else {f"decoder.{name}": t for name, t in self.decoder.state_dict().items()}
        named = {ENCODER: encoder, PRETRAINING: mask | decoder}
        return {prefix + name: tensor for prefix, group in named.items() for name, tensor in group.items()}

    @torch.no_grad()
    def load_pretraining(self, weights: dict[str, torch.Tensor]) -> None:
        """Go on with the mask and the output layer of an earlier pretraining, where they fit."""
        for name, tensor in self.weights().items():
            earlier = weights.get(name)
            if name.startswith(PRETRAINING) and earlier is not None and earlier.shape == tensor.shape:
                tensor.copy_(earlier)
