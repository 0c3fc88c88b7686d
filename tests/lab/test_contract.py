"""The contract that authors of mechanisms check: ours keep it, and each fault breaks its property."""

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from support.twins import CASES

from scperformer.attention.base import Attention, AttentionOptions
from scperformer.attention.linear_attention import LinearAttention
from scperformer.config import mechanisms
from scperformer.lab import contract
from scperformer.lab.contract import MechanismCase, check_contract

PAGE = Path(__file__).parents[2] / "docs" / "own_mechanism.md"


@pytest.mark.parametrize("case", CASES)
def test_our_mechanisms_keep_the_contract(case):
    found = list(check_contract(CASES[case]))
    assert len(found) >= 9
    assert [each for each in found if not each[1]] == []


class Right(Attention):
    """The mean of the values, plus a parameter; each class below makes one mistake."""

    @dataclass(kw_only=True)
    class Options(AttentionOptions):
        causal: bool = False

    def __init__(self, sizes, options, generator):
        super().__init__(sizes, options, generator)
        self.shift = torch.nn.Parameter(torch.randn(sizes.head_dim, generator=generator))

    def forward(self, q_BHLE, k_BHLE, v_BHLE, keep_BL, positions_BL=None):
        keep = keep_BL[:, None, :, None]
        mean = v_BHLE.masked_fill(~keep, 0).sum(2, keepdim=True) / keep.sum(2, keepdim=True)
        return (mean + self.shift.to(v_BHLE)).expand_as(v_BHLE)


class WithParts(Right):
    """With a parameter, a number that is not saved, and a parameter for each gene, for the faults below."""

    def __init__(self, sizes, options, generator):
        super().__init__(sizes, options, generator)
        self.unused = torch.nn.Parameter(torch.ones(2))
        self.factor = torch.rand((), generator=generator)
        self.factors = torch.nn.Parameter(torch.ones(sizes.length))


class Drawing(Right):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        torch.rand(())


class NotCausal(Right):
    causal = True


class SharedQK(Right):
    shared_qk = True


class Doubled(torch.autograd.Function):
    """Twice the values, with a wrong gradient."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad


def faulty(forward, kind: type[Right] = Right) -> type[Right]:
    """A mechanism whose output is a function of the mechanism, its right output, keys, values, keep and positions."""

    class Faulty(kind):
        def forward(self, q_BHLE, k_BHLE, v_BHLE, keep_BL, positions_BL=None):
            right = partial(super().forward, q_BHLE, k_BHLE, keep_BL=keep_BL)
            return forward(self, right, k_BHLE, v_BHLE, keep_BL[:, None, :, None], positions_BL)

    return Faulty


def times_0(self, right, k, v, keep, positions):
    return ((v * keep).sum(2, keepdim=True) / keep.sum(2, keepdim=True) + self.shift).expand_as(v)


def leaking(self, right, k, v, keep, positions):
    """The values of padding are multiplied by 0 in the output, but not in its gradient."""
    known = v.nan_to_num()
    return right(v_BHLE=v) + (known * (known - known.detach())).sum(2, keepdim=True)


def quadratic(self, right, k, v, keep, positions):
    keys, values = k.masked_fill(~keep, 0), v.masked_fill(~keep, 0)
    return keys @ keys.mT @ values + self.shift


class OneFeature(LinearAttention):
    """Linear attention with one feature; each class below makes one mistake."""

    @dataclass(kw_only=True)
    class Options(AttentionOptions):
        pass

    logarithmic = False
    num_features = 1

    def features(self, x_BHLE, queries):
        return x_BHLE.square().sum(-1, keepdim=True) + 1


class OfThePiece(OneFeature):
    def key_sums(self, k_BHLE, v_BHLE, keep_BL):
        sums = super().key_sums(k_BHLE, v_BHLE, keep_BL)
        return sums._replace(s_BHME=sums.s_BHME * (1 + keep_BL.shape[1] / 100))


class OtherWeights(OneFeature):
    def gene_weights(self, q_BHE, k_GE, x_BG):
        return super().gene_weights(q_BHE, k_GE, x_BG.square())


FAULTS = {
    "narrow": (
        contract.output_is_like_the_values,
        faulty(lambda self, right, k, v, *_: right(v_BHLE=v).float()),
    ),
    "infinite": (
        contract.output_is_like_the_values,
        faulty(lambda self, right, k, v, *_: right(v_BHLE=v) / 0),
    ),
    "float32 under autocast": (
        contract.bfloat16_differs_by_rounding,
        faulty(
            lambda self, right, k, v, *_: right(
                v_BHLE=v.float() if v.dtype == torch.bfloat16 else v
            )
        ),
    ),
    "noisy": (
        contract.predictions_repeat,
        faulty(lambda self, right, k, v, *_: right(v_BHLE=v) + torch.rand(())),
    ),
    "drawing": (contract.randomness_is_of_the_generator, Drawing),
    "padded": (
        contract.padding_has_no_influence,
        faulty(lambda self, right, k, v, *_: v.mean(2, keepdim=True).expand_as(v) + self.shift),
    ),
    "times 0": (contract.padding_has_no_influence, faulty(times_0)),
    "leaking": (contract.padding_has_no_influence, faulty(leaking)),
    "of the batch": (
        contract.other_cells_have_no_influence,
        faulty(lambda self, right, k, v, *_: right(v_BHLE=v) - right(v_BHLE=v).mean(0)),
    ),
    "forgetful": (
        contract.saved_weights_are_all,
        faulty(lambda self, right, k, v, *_: right(v_BHLE=v) * self.factor, WithParts),
    ),
    "ordered": (
        contract.permuted_tokens_permute_the_output,
        faulty(lambda self, right, k, v, keep, _: v.masked_fill(~keep, 0).cumsum(2) + self.shift),
    ),
    "long": (contract.weights_fit_all_numbers_of_genes, WithParts),
    "not causal": (contract.later_tokens_have_no_influence, NotCausal),
    "steep": (
        contract.gradients_equal_differences,
        faulty(
            lambda self, right, k, v, *_: (
                right(v_BHLE=v) + (self.shift - self.shift.detach()).abs().sqrt()
            )
        ),
    ),
    "dead": (contract.gradients_equal_differences, WithParts),
    "wrong backward": (
        contract.gradients_equal_differences,
        faulty(lambda self, right, k, v, *_: right(v_BHLE=Doubled.apply(v))),
    ),
    "quadratic": (contract.work_is_linear, faulty(quadratic)),
    "reads keys": (
        contract.keys_are_the_queries,
        faulty(lambda self, right, k, *_: right(v_BHLE=k), SharedQK),
    ),
    "of the piece": (contract.sums_over_keys_can_be_added, OfThePiece),
    "other weights": (contract.reading_genes_is_a_weighted_mean, OtherWeights),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_breaks_its_property(fault):
    check, mechanism = FAULTS[fault]
    holds, _ = check(MechanismCase(mechanism, mechanism.Options()))
    assert not holds


def test_without_a_fault_every_property_holds(monkeypatch):
    assert {check for check, _ in FAULTS.values()} == set(contract.PROPERTIES)
    for mechanism in (Right, OneFeature):
        monkeypatch.setattr(
            contract, "attention_options", lambda _, kind=mechanism: (kind, kind.Options())
        )
        found = list(check_contract({}))
        assert len(found) >= 9
        assert [each for each in found if not each[1]] == []


@pytest.fixture
def own_file(tmp_path, monkeypatch):
    """The mechanism of the page in my_attention.py, with a change; what a test registers goes afterwards."""
    monkeypatch.setattr(mechanisms, "_REGISTERED", {})
    (code,) = re.findall(
        r"`my_attention.py`:\n\n```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )

    def write(old: str = "", new: str = "") -> None:
        assert old in code
        (tmp_path / "my_attention.py").write_text(code.replace(old, new))

    return write


def test_the_mechanism_of_the_page_passes_in_one_command(own_file, command):
    own_file()
    ran = command(
        "--plugin",
        "my_attention.py",
        "analyze",
        "contract",
        "attention=mean",
        "attention.factor=2.0",
    )
    assert ran.code == 0
    assert len(ran.out.splitlines()) == 11
    assert all(line.startswith("pass  ") for line in ran.out.splitlines())


def test_a_broken_mechanism_fails_in_one_command(own_file, command):
    own_file("v_BHLE.masked_fill(~keep_B1L1, 0)", "v_BHLE")
    ran = command("--plugin", "my_attention.py", "analyze", "contract", "attention=mean")
    assert ran.code == 2
    assert [line[:13] for line in ran.out.splitlines() if not line.startswith("pass  ")] == [
        "FAIL  Padding"
    ]
    assert "error: attention=mean breaks 1 " in ran.err


def test_an_error_of_a_mechanism_is_one_line(own_file, command):
    own_file("return (self", "return 0 @ (self")
    ran = command("--plugin", "my_attention.py", "analyze", "contract", "attention=mean")
    assert ran.code == 2
    assert "error: attention=mean fails (TypeError: " in ran.err
    assert len(ran.err.splitlines()) == 2  # the command, and the error


def test_the_contract_needs_a_mechanism_and_no_file(refused):
    expected = "expected 'analyze contract' with attention=NAME and no file, or another analysis with a file alone"
    for words in (
        ["contract"],
        ["contract", "a.h5ad", "attention=favor"],
        ["spectrum", "a.h5ad", "attention=favor"],
    ):
        assert expected in refused("analyze", *words)
