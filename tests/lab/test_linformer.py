"""Linformer: sharing of its matrices, positions of its columns, and memory."""

import pytest
import torch
from support.measured import TensorBytes
from support.mechanisms import SIZES, B, E, H, inputs, make
from support.twins import linformer
from support.words import as_options

from scperformer import train
from scperformer.adaptation.load import load_model
from scperformer.attention.base import Sizes
from scperformer.attention.registry import make_attention
from scperformer.config.training import HeadConfig, ModelConfig, TokensConfig
from scperformer.model.network import CellTypeModel

SHARING = ("none", "headwise", "key_value", "layerwise")
each_sharing = pytest.mark.parametrize("sharing", SHARING)


def short(sharing: str, **options):
    return make("linformer", sharing=sharing, projected_length=7, **options).double()


def matrices_of_two_layers(sharing: str) -> int:
    """The number of parameters of E and F in a network of two layers."""
    torch.manual_seed(0)
    network = CellTypeModel(
        12,
        3,
        tokens=TokensConfig(),
        model=ModelConfig(dim=6, depth=2, num_heads=3, head_dim=4),
        attention={"name": "linformer", "sharing": sharing, "projected_length": 5},
        head=HeadConfig(),
    )
    return sum(p.numel() for name, p in network.named_parameters() if ".attention." in name)


@pytest.mark.parametrize(
    ("sharing", "matrices"),
    [("none", 2 * 2 * 3), ("headwise", 2 * 2), ("key_value", 2), ("layerwise", 1)],
)
def test_sharing_determines_the_number_of_matrices(sharing, matrices):
    positions = 13  # 12 genes and the special position
    assert matrices_of_two_layers(sharing) == matrices * 5 * positions


def some_positions(num_tokens: int) -> torch.Tensor:
    """Other positions for each cell, without repetitions."""
    generator = torch.Generator().manual_seed(4)
    return torch.stack(
        [torch.randperm(SIZES.length, generator=generator)[:num_tokens] for _ in range(B)]
    )


def spread(x_BHLE, positions_BL):
    """Tokens at their positions among all positions; the others are 7, which must have no influence."""
    full = torch.full((B, H, SIZES.length, E), 7.0, dtype=x_BHLE.dtype)
    for cell in range(B):
        full[cell, :, positions_BL[cell]] = x_BHLE[cell]
    return full


@each_sharing
def test_a_column_belongs_to_the_position_of_a_token_not_to_its_index(sharing):
    q, k, v, keep = inputs(20)
    positions = some_positions(20)
    mechanism = short(sharing)
    actual = mechanism(q, k, v, keep, positions)
    keep_all = torch.zeros(B, SIZES.length, dtype=torch.bool)
    for cell in range(B):
        keep_all[cell, positions[cell, keep[cell]]] = True
    expected = linformer(mechanism, *(spread(x, positions) for x in (q, k, v)), keep_all)
    for cell in range(B):
        kept_positions = positions[cell, keep[cell]]
        torch.testing.assert_close(
            actual[cell][:, keep[cell]], expected[cell][:, kept_positions], rtol=1e-11, atol=1e-12
        )


@pytest.mark.slow
def test_a_matrix_shared_by_all_layers_is_trained_saved_and_loaded(counts_adata, tmp_path):
    options = ["model=tiny", "model.depth=2", "trainer.max_epochs=1", "logger=none"]
    options += [
        "attention=linformer",
        "attention.sharing=layerwise",
        "attention.projected_length=8",
    ]
    path = train(
        counts_adata, "cell_type", output=tmp_path / "model", options=as_options(options)
    ).path
    network = load_model(path).network
    first, second = network.encoder.mechanisms
    assert first.matrices_CPGN is second.matrices_CPGN
    names = [name for name, _ in network.named_parameters() if ".attention." in name]
    assert names == ["encoder.layers.0.attention.matrices_CPGN"]
    # It was trained: the initial weights depend only on the seed.
    start = make_attention(
        load_model(path).saved.config.attention, first.sizes, torch.Generator().manual_seed(0)
    ).matrices_CPGN
    assert not torch.equal(start, first.matrices_CPGN)
    assert torch.allclose(start, first.matrices_CPGN, atol=0.1)


def largest_tensor(sharing: str, num_tokens: int, named: bool) -> int:
    """The size of the largest tensor of the forward and backward pass."""
    sizes = Sizes(num_heads=8, head_dim=4, length=3000)
    mechanism = make_attention(
        {"name": "linformer", "sharing": sharing, "projected_length": 64},
        sizes,
        torch.Generator().manual_seed(0),
    )
    q, k, v = torch.randn(
        3, 2, 8, num_tokens, 4, generator=torch.Generator().manual_seed(1)
    ).requires_grad_()
    positions = torch.arange(num_tokens).flip(0).expand(2, -1) if named else None
    with TensorBytes() as tensors:
        mechanism(q, k, v, torch.ones(2, num_tokens, dtype=torch.bool), positions).sum().backward()
    return tensors.largest // 4


@pytest.mark.parametrize("named", [False, True], ids=["in order", "with positions"])
@pytest.mark.parametrize("sharing", ["headwise", "key_value", "layerwise"])
def test_shared_matrices_are_not_copied_for_each_head(sharing, named):
    matrices = 2 if sharing == "headwise" else 1
    parameters = matrices * 3000 * 64
    for num_tokens in (1500, 3000):
        # q, k and v are one tensor of 3 x B x H x L x E; the columns of tokens are C x B x L x N.
        bound = max(parameters, 3 * 2 * 8 * num_tokens * 4, matrices * 2 * num_tokens * 64)
        assert bound < 2 * 8 * num_tokens * 64  # less than L x N per head
        assert largest_tensor(sharing, num_tokens, named) <= bound
