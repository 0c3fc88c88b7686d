"""The network against its formulas: a naive forward pass in float64, pools, branches, gradients, padding."""

import math

import numpy as np
import pytest
import torch
from scipy import sparse

from scperformer.attention.registry import MECHANISMS
from scperformer.attention.tokens import Batch
from scperformer.config.training import HeadConfig, ModelConfig, TokensConfig
from scperformer.model.minibatches import Cells
from scperformer.model.network import CellTypeModel

GENES, LABELS = 12, 3
TINY = {"dim": 6, "depth": 2, "num_heads": 2, "head_dim": 4, "dropout": 0.3}
TOKENS = {
    "scbert": TokensConfig(name="scbert", unexpressed="full"),
    "bins": TokensConfig(name="bins", num_bins=40),
    "continuous": TokensConfig(name="continuous"),
}
HEADS = ["mean", "cls", "conv"]
BRANCHES = {"encoder": (False, True), "linear": (True, False), "both": (True, True)}


def expression(num_cells: int = 6) -> sparse.csr_matrix:
    """x = ln(1 + cp10k) of cells that express from none to most of the genes; the first cell is empty."""
    rng = np.random.default_rng(0)
    share = np.linspace(0, 0.9, num_cells)[:, None]
    x = rng.uniform(0.1, 5.0, (num_cells, GENES)) * (rng.random((num_cells, GENES)) < share)
    return sparse.csr_matrix(x.astype(np.float32))


def make(tokens="continuous", head="mean", attention="favor", branches="encoder", hidden=(), seed=0) -> CellTypeModel:
    """A tiny network in eval mode whose parameters are all random, including those that start at 0 or 1."""
    linear, encoder = BRANCHES[branches]
    torch.manual_seed(0)
    network = CellTypeModel(
        GENES,
        LABELS,
        tokens=TOKENS[tokens],
        model=ModelConfig(**TINY, linear=linear, encoder=encoder),
        attention={"name": attention} | ({"num_features": 9} if attention == "favor" else {}),
        head=HeadConfig(name=head, hidden=list(hidden), dropout=0.5),
        seed=seed,
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
        if head == "conv" and encoder:
            network.pool.projection.bias.fill_(2.0)  # otherwise its ReLU may be 0 for every gene
    return network.eval()


def batch_of(tokens="continuous", rows=range(6), length=None) -> Batch:
    return Cells(expression(), TOKENS[tokens]).batch(list(rows), length)


def in_float64(batch: Batch) -> Batch:
    values = batch.values_BL if batch.values_BL.dtype == torch.int64 else batch.values_BL.double()
    return Batch(batch.genes_BL, values, batch.x_BL.double(), batch.keep_BL)


# --- a naive forward, one token at a time --------------------------------------------------------------------


class Naive:
    """The network's formulas in plain loops over the tokens of one cell, reading its weights by name."""

    def __init__(self, network: CellTypeModel, tokens: str, head: str, attention: str):
        self.w = {name: tensor.double().numpy() for name, tensor in network.state_dict().items()}
        self.tokens, self.head, self.attention = tokens, head, attention

    def linear(self, name, x):
        return self.w[f"{name}.weight"] @ x + self.w.get(f"{name}.bias", 0.0)

    def norm(self, name, x):
        x = (x - x.mean()) / np.sqrt(((x - x.mean()) ** 2).mean() + 1e-5)
        return x * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    @staticmethod
    def gelu(x):
        return np.array([value * 0.5 * (1 + math.erf(value / math.sqrt(2))) for value in x])

    def embed(self, gene, x):
        name = "encoder.embedding.expression"
        if self.tokens == "continuous":
            value = self.linear(f"{name}.layers.2", self.gelu(self.linear(f"{name}.layers.0", np.array([x / 4]))))
        elif self.tokens == "bins":
            value = self.w[f"{name}.weight"][min(40, math.floor(4 * x / math.log(2)) + 1) if x > 0 else 0]
        else:
            value = self.w[f"{name}.weight"][min(5, math.floor(x / math.log(2)))]
        return self.w["encoder.embedding.gene.weight"][gene] + value

    def weight(self, layer, q, k):
        """The unnormalised attention of a query to a key."""
        if self.attention == "softmax":
            return math.exp(q @ k / math.sqrt(len(q)))
        directions = self.w[f"encoder.layers.{layer}.attention.directions_ME"]
        q, k = q / len(q) ** 0.25, k / len(k) ** 0.25
        return sum(math.exp(w @ q - q @ q / 2) * math.exp(w @ k - k @ k / 2) for w in directions)

    def attend(self, layer, h):
        name = f"encoder.layers.{layer}"
        heads, width = TINY["num_heads"], TINY["head_dim"]
        qkv = [self.linear(f"{name}.to_qkv", self.norm(f"{name}.norm_attention", token)) for token in h]
        qkv = [token.reshape(3, heads, width) for token in qkv]
        mixed = np.zeros((len(h), heads, width))
        for i in range(len(h)):
            for head in range(heads):
                weights = [self.weight(layer, qkv[i][0, head], other[1, head]) for other in qkv]
                for weight, other in zip(weights, qkv, strict=True):
                    mixed[i, head] += weight / sum(weights) * other[2, head]
        return [self.linear(f"{name}.to_out", token.ravel()) for token in mixed]

    def encode(self, h):
        for layer in range(TINY["depth"]):
            name = f"encoder.layers.{layer}"
            h = [token + change for token, change in zip(h, self.attend(layer, h), strict=True)]
            for i, token in enumerate(h):
                inner = self.gelu(self.linear(f"{name}.feedforward.0", self.norm(f"{name}.norm_feedforward", token)))
                h[i] = token + self.linear(f"{name}.feedforward.2", inner)
        return [self.norm("encoder.norm", token) for token in h]

    def pool(self, genes, h):
        if self.head == "cls":
            return h[-1]
        if self.head == "mean":
            return sum(h) / len(h)
        pooled = np.zeros(GENES + 1)
        for gene, token in zip(genes, h, strict=True):
            pooled[gene] = max(0.0, self.linear("pool.projection", token)[0])
        return pooled

    def linear_branch(self, row):
        """Root and square of the expression, both with norm 20, each with its own weights."""
        transforms = [powered * 20 / max(np.sqrt((powered**2).sum()), 1e-12) for powered in (np.sqrt(row), row**2)]
        blocks = np.split(self.w["linear.weight.weight"][:-1], 2, axis=1)
        return sum(powered @ block for powered, block in zip(transforms, blocks, strict=True)) + self.w["linear.bias"]

    def __call__(self, row, num_hidden=0):
        """The logits of the linear branch and of the encoder, and the embedding of one cell, a row of x."""
        full = TOKENS[self.tokens].unexpressed == "full"
        genes = [g for g in range(GENES) if full or row[g] > 0] + [GENES]
        values = [*row, 0.0]
        pooled = self.pool(genes, self.encode([self.embed(g, values[g]) for g in genes]))
        inner = pooled
        for i in range(num_hidden):
            inner = np.maximum(0.0, self.linear(f"head.hidden.{3 * i}", inner))
        return self.linear_branch(row), self.linear("head.labels", inner), inner


@pytest.mark.parametrize(
    ("tokens", "head", "attention", "hidden"),
    [
        ("scbert", "conv", "favor", (16, 8)),
        ("bins", "cls", "favor", ()),
        ("bins", "conv", "softmax", (16,)),
        ("continuous", "mean", "favor", ()),
        ("continuous", "cls", "softmax", (16,)),
    ],
)
def test_forward_equals_naive_loops(tokens, head, attention, hidden):
    network = make(tokens, head, attention, "both", hidden).double()
    naive = Naive(network, tokens, head, attention)
    batch = in_float64(batch_of(tokens))
    linear, encoder, embedding = network.branches(batch)
    logits, same_embedding = network(batch)
    assert embedding.std(0).max() > 0.02  # the cells differ
    torch.testing.assert_close(logits, linear + encoder, rtol=0, atol=0)
    torch.testing.assert_close(same_embedding, embedding, rtol=0, atol=0)
    for cell, row in enumerate(expression().toarray().astype(np.float64)):
        for actual, expected in zip((linear, encoder, embedding), naive(row, len(hidden)), strict=True):
            # float64: rounding only
            np.testing.assert_allclose(actual[cell].detach().numpy(), expected, rtol=1e-9, atol=1e-10)


# --- independence of other cells ----------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", list(MECHANISMS))
@pytest.mark.parametrize("head", HEADS)
def test_the_result_of_a_cell_depends_on_no_other_cell(head, attention):
    tokens = "continuous" if head == "cls" else "bins"
    network = make(tokens, head, attention, "both", hidden=(5,))
    together = network(batch_of(tokens))
    # Sums in other shapes run in another order: a few roundings of 6e-8 in float32, through two layers.
    tolerance = {"rtol": 1e-4, "atol": 1e-5}
    for cell in range(6):
        alone = network(batch_of(tokens, rows=[cell]))
        padded = network(batch_of(tokens, rows=[cell], length=64))
        for expected, a, b in zip(together, alone, padded, strict=True):
            torch.testing.assert_close(a[0], expected[cell], **tolerance)
            torch.testing.assert_close(b[0], expected[cell], **tolerance)
