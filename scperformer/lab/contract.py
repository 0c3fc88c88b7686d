"""The contract of attention mechanisms (attention/base.py), property by property, on random cells with dropped tokens.

Shape letters: B cells, H heads, L tokens, E head width, G genes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from scperformer.attention.base import Attention, Sizes
from scperformer.attention.registry import attention_options
from scperformer.base.errors import InputError, one_line
from scperformer.config.training import Mechanism

B, H, L, E = 2, 2, 33, 16
# relative to the largest number: sums of float64 in another order, exponents included
ROUNDING = 1e-9
ROUNDING_OF_BF16 = 0.05  # it has 8 bits, and weights, values and outputs are rounded
ROUNDING_OF_DIFFERENCES = 1e-5  # of central differences with steps of 1e-5 in float64
MAX_GROWTH = 2.5  # of the operations with twice as many tokens

Result = tuple[bool, str]  # whether a property holds, and the number that shows it
# Arguments of `Attention.forward`: queries, keys, values, kept tokens and positions.
AttentionInputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class MechanismCase:
    """The class of a mechanism and its options."""

    kind: type[Attention]
    options: Any

    def make(self, length: int = L, seed: int = 0) -> Attention:
        """Return the mechanism in float64 and eval mode, started from keys as before training."""
        generator = torch.Generator().manual_seed(seed)
        mechanism = self.kind(
            Sizes(num_heads=H, head_dim=E, length=length), self.options, generator
        ).double()
        mechanism.start(random_cells()[1], random_cells()[3], generator)
        return mechanism.eval()

    def output(self, *cells: Tensor) -> Tensor:
        """Return the outputs of real tokens by a new mechanism, by default for `random_cells`."""
        return output(self.make(), cells or random_cells())


def random_cells() -> AttentionInputs:
    """Return the same random queries, keys, values, kept tokens and positions in each call."""
    generator = torch.Generator().manual_seed(0)
    q_BHLE, k_BHLE, v_BHLE = torch.randn(3, B, H, L, E, generator=generator, dtype=torch.float64)
    keep_BL = torch.rand(B, L, generator=generator) < 0.7
    keep_BL[:, 0] = True
    return q_BHLE, k_BHLE, v_BHLE, keep_BL, torch.arange(L).expand(B, L)


def output(mechanism: Attention, cells: AttentionInputs) -> Tensor:
    """Return the outputs of real tokens; the others are arbitrary."""
    return mechanism(*cells).transpose(1, 2)[cells[3]]


def with_vectors(cells: AttentionInputs, change: Callable[[Tensor], Tensor]) -> AttentionInputs:
    """Return cells with changed queries, keys and values."""
    return *map(change, cells[:3]), *cells[3:]


def close(actual: Tensor, expected: Tensor, tolerance: float = ROUNDING) -> Result:
    """Compare tensors: the largest difference, relative to the largest number."""
    largest = ((actual - expected).abs().max() / expected.abs().max().clamp_min(1e-30)).item()
    return largest <= tolerance, f"relative difference {largest:.1e}"


def weighted(out: Tensor) -> Tensor:
    """Return a sum with a weight of its own for each number."""
    return (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out).sin()).sum()


def gradients(
    mechanism: Attention, cells: AttentionInputs
) -> tuple[list[Tensor], list[Tensor | None]]:
    """Return queries, keys, values and trained parameters, and the gradients of a weighted sum of the output."""
    cells = with_vectors(cells, lambda x: x.clone().requires_grad_())
    inputs = [
        *cells[:3],
        *(parameter for parameter in mechanism.parameters() if parameter.requires_grad),
    ]
    return inputs, list(
        torch.autograd.grad(weighted(output(mechanism, cells)), inputs, allow_unused=True)
    )


def output_is_like_the_values(case: MechanismCase) -> Result:
    """The output is finite, with the shape and the dtype of the values."""
    _, _, v_BHLE, keep_BL, _ = cells = random_cells()
    out = case.make()(*cells)
    num_finite = int(out.transpose(1, 2)[keep_BL].isfinite().sum())
    fits = (out.shape, out.dtype) == (
        v_BHLE.shape,
        v_BHLE.dtype,
    ) and num_finite == keep_BL.sum() * H * E
    return fits, f"{tuple(out.shape)}, {out.dtype}, {num_finite} finite numbers of real tokens"


def bfloat16_differs_by_rounding(case: MechanismCase) -> Result:
    """In bfloat16, it differs by rounding."""
    rounded = with_vectors(random_cells(), Tensor.bfloat16)
    expected = case.output(*with_vectors(rounded, Tensor.double))
    with torch.autocast("cpu", torch.bfloat16):
        actual = output(case.make().float(), rounded)
    holds, figure = close(actual, expected, ROUNDING_OF_BF16)
    return holds and actual.dtype == torch.bfloat16, f"{figure}, {actual.dtype}"


def predictions_repeat(case: MechanismCase) -> Result:
    """With eval() it depends on the inputs alone."""
    mechanism = case.make()
    return close(output(mechanism, random_cells()), output(mechanism, random_cells()), 0)


def randomness_is_of_the_generator(case: MechanismCase) -> Result:
    """All randomness is from the generator of the constructor."""
    before = torch.get_rng_state()
    holds, figure = close(case.output(), case.output(), 0)
    return holds and torch.equal(torch.get_rng_state(), before), figure


def padding_has_no_influence(case: MechanismCase) -> Result:
    """Padding has no influence, on gradients neither."""
    cells = random_cells()
    dropped_B1L1 = ~cells[3][:, None, :, None]
    full, empty = (
        with_vectors(cells, partial(torch.masked_fill, mask=dropped_B1L1, value=value))
        for value in (1e4, torch.nan)
    )
    mechanism = case.make()
    results = [
        close(output(mechanism, changed), output(mechanism, cells), 0) for changed in (full, empty)
    ]
    pairs = zip(gradients(mechanism, full)[1], gradients(mechanism, cells)[1], strict=True)
    results += [
        close(actual, expected, 0)
        for actual, expected in pairs
        if actual is not None and expected is not None
    ]
    return min(results)  # one that does not hold, if there is any


def other_cells_have_no_influence(case: MechanismCase) -> Result:
    """Other cells have no influence."""
    alone = [case.output(*(x[i : i + 1] for x in random_cells())) for i in range(B)]
    return close(torch.cat(alone), case.output())


def saved_weights_are_all(case: MechanismCase) -> Result:
    """Saved weights give the same output."""
    loaded = case.make(seed=1)
    loaded.load_state_dict(case.make().state_dict())
    return close(output(loaded, random_cells()), case.output(), 0)


def gradients_equal_differences(case: MechanismCase) -> Result:
    """Gradients of the inputs and of all parameters equal differences."""
    mechanism = case.make()
    inputs, actual = gradients(mechanism, random_cells())
    if missing := sum(each is None for each in actual[3:]):
        return False, f"{missing} parameters without one"
    generator = torch.Generator().manual_seed(1)
    steps = [1e-5 * torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in inputs]
    pairs = zip(actual, steps, strict=True)
    expected = torch.stack([(grad * step).sum() for grad, step in pairs if grad is not None]).sum()
    outputs = []
    with torch.no_grad():
        for sign in (-1, 2):  # from the middle to the lower end, and from there to the upper
            for x, step in zip(inputs, steps, strict=True):
                x += sign * step
            outputs.append(weighted(output(mechanism, (*inputs[:3], *random_cells()[3:]))))
    holds, figure = close((outputs[1] - outputs[0]) / 2, expected, ROUNDING_OF_DIFFERENCES)
    if case.kind.exact_gradients:
        return holds, figure
    return bool(expected.isfinite()), f"{figure}, as a stabiliser has none"


def permuted_tokens_permute_the_output(case: MechanismCase) -> Result:
    """Permuted tokens permute the output (order_sensitive is false)."""
    order = torch.randperm(L, generator=torch.Generator().manual_seed(1))
    *vectors, keep_BL, positions_BL = random_cells()
    permuted = case.make()(
        *(x[:, :, order] for x in vectors), keep_BL[:, order], positions_BL[:, order]
    )
    return close(permuted[:, :, order.argsort()].transpose(1, 2)[keep_BL], case.output())


def weights_fit_all_numbers_of_genes(case: MechanismCase) -> Result:
    """Weights fit all numbers of genes (fixed_length is false)."""
    few, many = (
        [x.shape for x in case.make(length).state_dict().values()] for length in (L, 20 * L)
    )
    return (
        few == many,
        f"{sum(map(torch.Size.numel, few))} numbers, {sum(map(torch.Size.numel, many))} for more genes",
    )


def work_is_linear(case: MechanismCase) -> Result:
    """The work is linear in the tokens (quadratic is false)."""
    work = []
    for length in (512, 1024):
        x = torch.randn(
            1, H, length, E, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
        )
        with FlopCounterMode(display=False) as counter:
            case.make(length)(
                x, x, x, torch.ones(1, length, dtype=torch.bool), torch.arange(length)[None]
            )
        work.append(counter.get_total_flops())
    growth = work[1] / max(work[0], 1)
    return growth <= MAX_GROWTH, f"{growth:.2f} times the products with twice as many tokens"


def later_tokens_have_no_influence(case: MechanismCase) -> Result:
    """Later tokens have no influence (causal is true)."""
    kind: Any = case.kind.Options  # with an option `causal`
    options = case.options if case.options.causal else kind(causal=True)
    cells = random_cells()
    half = L // 2
    changed = with_vectors(cells, lambda x: torch.cat([x[:, :, :half], x[:, :, half:] + 1], dim=2))
    mechanism = replace(case, options=options).make()
    before, after = (
        mechanism(*each)[:, :, :half].transpose(1, 2)[cells[3][:, :half]]
        for each in (cells, changed)
    )
    return close(after, before)


def keys_are_the_queries(case: MechanismCase) -> Result:
    """Keys are ignored (shared_qk is true)."""
    q_BHLE, k_BHLE, *others = random_cells()
    return close(case.output(q_BHLE, k_BHLE + 1, *others), case.output(), 0)


def sums_over_keys_can_be_added(case: MechanismCase) -> Result:
    """Sums over keys can be added (sums_over_keys is true)."""
    mechanism: Any = case.make()
    q, k, v, keep, _ = random_cells()
    first, last = (
        mechanism.key_sums(k[:, :, part], v[:, :, part], keep[:, part])
        for part in (slice(9), slice(9, L))
    )
    sums = first + last
    if mechanism.can_subtract:
        sums = sums + -first + first
    return close(mechanism.read(q, sums).transpose(1, 2)[keep], case.output())


def reading_genes_is_a_weighted_mean(case: MechanismCase) -> Result:
    """Genes are read as their weights say (uses_cross_attention is true)."""
    x_BG = torch.rand(B, L, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mechanism = case.make()
    q_BHLE, k_BHLE, v_BHLE, *_ = random_cells()
    genes = k_BHLE[0, 0], v_BHLE[0, 0]
    table = mechanism.gene_table(*genes)
    read = mechanism.read_genes(q_BHLE[:, :, :1], x_BG if table is None else x_BG @ table, *genes)[
        :, :, 0
    ]
    return close(read, mechanism.gene_weights(q_BHLE[:, :, 0], genes[0], x_BG) @ genes[1])


# Each property, which is named by its docstring, and the attributes of the mechanisms that promise it.
PROPERTIES: dict[Callable[[MechanismCase], Result], dict[str, bool]] = {
    output_is_like_the_values: {},
    bfloat16_differs_by_rounding: {},
    predictions_repeat: {},
    randomness_is_of_the_generator: {},
    padding_has_no_influence: {},
    other_cells_have_no_influence: {},
    saved_weights_are_all: {},
    gradients_equal_differences: {},
    permuted_tokens_permute_the_output: {"order_sensitive": False, "is_causal": False},
    weights_fit_all_numbers_of_genes: {"fixed_length": False},
    work_is_linear: {"quadratic": False},
    later_tokens_have_no_influence: {"causal": True},
    keys_are_the_queries: {"shared_qk": True},
    sums_over_keys_can_be_added: {"sums_over_keys": True, "is_causal": False},
    reading_genes_is_a_weighted_mean: {"uses_cross_attention": True},
}


def check_contract(attention: Mechanism) -> Iterator[tuple[str, bool, str]]:
    """Yield each property that a mechanism promises, whether it holds, and the number that shows it.

    Raises
    ------
    InputError
        The mechanism ends with an error.
    """
    case = MechanismCase(*attention_options(attention))
    for check, claims in PROPERTIES.items():
        name = (check.__doc__ or "").removesuffix(".")
        try:
            mechanism = case.make()
            is_promised = all(getattr(mechanism, claim) is value for claim, value in claims.items())
            result = check(case) if is_promised else None
        except Exception as error:  # any error may occur: the mechanism is the user's own program
            reason = one_line(f"{type(error).__name__}: {error}")
            remedy = "correct it; SCPERFORMER_DEBUG=1 shows where it happened"
            found = f"attention={attention['name']} fails ({reason})"
            raise InputError("contract-broken", found, name, remedy) from error
        if result is not None:
            yield name, *result
