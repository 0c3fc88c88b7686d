"""The contract of `scperformer.Attention` as tests: copy this file, name your mechanism, and run `pytest FILE`.

Random cells with dropped tokens, in float64. Shape letters: B cells, H heads, L tokens, E head width, G genes.
"""

import pytest
import torch
from my_attention import Mean as Mechanism
from torch.utils.flop_counter import FlopCounterMode

from scperformer.attention.base import Sizes

OPTIONS: dict = {}  # options of the mechanism, such as {"factor": 2.0}

B, H, L, E = 2, 2, 33, 16
GENERATOR = torch.Generator().manual_seed(0)
Q, K, V = torch.randn(3, B, H, L, E, generator=GENERATOR, dtype=torch.float64)
KEEP = torch.rand(B, L, generator=GENERATOR) < 0.7
KEEP[:, 0] = True
POSITIONS = torch.arange(L).expand(B, L)


def make(length=L, seed=0, **options):
    sizes = Sizes(num_heads=H, head_dim=E, length=length)
    generator = torch.Generator().manual_seed(seed)
    made = Mechanism(sizes, Mechanism.Options(**(options or OPTIONS)), generator).double()
    made.start(K, KEEP, generator)
    return made.eval()


def output(made, q=Q, k=K, v=V, keep=KEEP, positions=POSITIONS):
    """The outputs of real tokens; the others are arbitrary."""
    return made(q, k, v, keep, positions).transpose(1, 2)[keep]


def test_the_output_has_the_shape_and_the_dtype_of_the_values():
    out = make()(Q, K, V, KEEP, POSITIONS)
    assert (out.shape, out.dtype) == (V.shape, V.dtype)
    assert output(make()).isfinite().all()


def test_with_eval_the_output_depends_on_the_inputs_alone():
    made = make()
    assert torch.equal(output(made), output(made))


def test_all_randomness_is_from_the_generator_of_the_constructor():
    state = torch.get_rng_state()
    assert torch.equal(output(make()), output(make()))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("content", [1e4, torch.nan])
def test_padding_has_no_influence(content):
    padded = [x.masked_fill(~KEEP[:, None, :, None], content) for x in (Q, K, V)]
    assert torch.equal(output(make(), *padded), output(make()))


def test_other_cells_have_no_influence():
    cells = [output(make(), *(x[i : i + 1] for x in (Q, K, V, KEEP, POSITIONS))) for i in range(B)]
    torch.testing.assert_close(torch.cat(cells), output(make()))


def test_saved_weights_give_the_same_output():
    loaded = make(seed=1)
    loaded.load_state_dict(make().state_dict())
    assert torch.equal(output(loaded), output(make()))


def test_permuted_tokens_give_a_permuted_output_or_order_sensitive_is_true():
    if not (Mechanism.order_sensitive or make().is_causal):
        order = torch.randperm(L, generator=torch.Generator().manual_seed(1))
        permuted = make()(Q[:, :, order], K[:, :, order], V[:, :, order], KEEP[:, order], POSITIONS[:, order])
        torch.testing.assert_close(permuted[:, :, order.argsort()].transpose(1, 2)[KEEP], output(make()))


def test_weights_have_the_same_sizes_for_all_numbers_of_genes_or_fixed_length_is_true():
    shapes = [[x.shape for x in make(length).state_dict().values()] for length in (L, 20 * L)]
    assert Mechanism.fixed_length or shapes[0] == shapes[1]


def test_later_tokens_have_no_influence_if_causal_is_true():
    if Mechanism.causal:
        later = [torch.cat([x[:, :, :20], x[:, :, 20:] + 1], dim=2) for x in (Q, K, V)]
        outputs = [make(causal=True)(*x, KEEP, POSITIONS)[:, :, :20] for x in ((Q, K, V), later)]
        torch.testing.assert_close(*(out.transpose(1, 2)[KEEP[:, :20]] for out in outputs))


def test_the_values_and_all_parameters_have_finite_gradients():
    made = make().train()
    inputs = [x.clone().requires_grad_() for x in (Q, K, V)]
    output(made, *inputs).square().sum().backward()
    gradients = [x.grad for x in (*inputs, *made.parameters())]
    assert all(gradient is not None for gradient in gradients[2:])
    assert all(gradient.isfinite().all() for gradient in gradients if gradient is not None)


def test_the_work_is_linear_in_the_tokens_or_quadratic_is_true():
    work = []
    for length in (512, 1024):
        x = torch.randn(1, H, length, E, dtype=torch.float64)
        with FlopCounterMode(display=False) as counter:
            make(length)(x, x, x, torch.ones(1, length, dtype=torch.bool), torch.arange(length)[None])
        work.append(counter.get_total_flops())
    assert Mechanism.quadratic or work[1] <= 2.5 * work[0]


def test_what_is_read_from_genes_is_their_mean_by_gene_weights():
    if Mechanism.reads_genes:
        x_BG = torch.rand(B, L, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        genes = K[0, 0], V[0, 0]
        table = make().gene_table(*genes)
        read = make().read_genes(Q[:, :, :1], x_BG if table is None else x_BG @ table, *genes)[:, :, 0]
        torch.testing.assert_close(read, make().gene_weights(Q[:, :, 0], genes[0], x_BG) @ genes[1])
