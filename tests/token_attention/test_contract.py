"""The contract that authors of mechanisms check: ours keep it, and each fault breaks its property."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from support.twins import CASES

from scperformer.attention.base import Attention, AttentionOptions
from scperformer.attention.linear_attention import LinearAttention
from scperformer.config import mechanisms
from scperformer.token_attention import contract
from scperformer.token_attention.contract import MechanismCase, check_contract

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


class Narrow(Right):
    def forward(self, *inputs):
        return super().forward(*inputs).float()


class Infinite(Right):
    def forward(self, *inputs):
        return super().forward(*inputs) / 0


class Noisy(Right):
    def forward(self, *inputs):
        return super().forward(*inputs) + torch.rand(())


class Drawing(Right):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        torch.rand(())


class Padded(Right):
    def forward(self, q_BHLE, k_BHLE, v_BHLE, keep_BL, positions_BL=None):
        return v_BHLE.mean(2, keepdim=True).expand_as(v_BHLE) + self.shift


class Times0(Right):
    def forward(self, q_BHLE, k_BHLE, v_BHLE, keep_BL, positions_BL=None):
        keep = keep_BL[:, None, :, None]
        return ((v_BHLE * keep).sum(2, keepdim=True) / keep.sum(2, keepdim=True) + self.shift).expand_as(v_BHLE)


class OfTheBatch(Right):
    def forward(self, *inputs):
        out = super().forward(*inputs)
        return out - out.mean(0)


class Forgetful(Right):
    def __init__(self, sizes, options, generator):
        super().__init__(sizes, options, generator)
        self.factor = torch.rand((), generator=generator)

    def forward(self, *inputs):
        return super().forward(*inputs) * self.factor


class Ordered(Right):
    def forward(self, q_BHLE, k_BHLE, v_BHLE, keep_BL, positions_BL=None):
        return v_BHLE.masked_fill(~keep_BL[:, None, :, None], 0).cumsum(2) + self.shift


class Long(Right):
    def __init__(self, sizes, options, generator):
        super().__init__(sizes, options, generator)
        self.factors = torch.nn.Parameter(torch.ones(sizes.length))

    def forward(self, q_BHLE, k_BHLE, v_BHLE, keep_BL, positions_BL):
        return super().forward(q_BHLE, k_BHLE, v_BHLE, keep_BL) * self.factors[positions_BL][:, None, :, None]


class NotCausal(Right):
    causal = True


class Dead(Right):
    def __init__(self, sizes, options, generator):
        super().__init__(sizes, options, generator)
        self.unused = torch.nn.Parameter(torch.ones(2))


class Steep(Right):
    def forward(self, *inputs):
        return super().forward(*inputs) + (self.shift - self.shift.detach()).abs().sqrt()


class Quadratic(Right):
    def forward(self, q_BHLE, k_BHLE, v_BHLE, keep_BL, positions_BL=None):
        real = keep_BL[:, None, :, None]
        q, k, v = (x.masked_fill(~real, 0) for x in (q_BHLE, k_BHLE, v_BHLE))
        return q @ k.mT @ v + self.shift


class InFloat32(Right):
    """The output under autocast is that of the parameters."""

    def forward(self, q_BHLE, k_BHLE, v_BHLE, *others):
        return super().forward(q_BHLE, k_BHLE, v_BHLE.float() if v_BHLE.dtype == torch.bfloat16 else v_BHLE, *others)


class WrongBackward(Right):
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad

    def forward(self, q_BHLE, k_BHLE, v_BHLE, *others):
        return super().forward(q_BHLE, k_BHLE, self.Doubled.apply(v_BHLE), *others)


class ReadsKeys(Right):
    shared_qk = True

    def forward(self, q_BHLE, k_BHLE, v_BHLE, *others):
        return super().forward(q_BHLE, k_BHLE, k_BHLE, *others)


class LeaksGradients(Right):
    """The values of padding are multiplied by 0 in the output, but not in its gradient."""

    def forward(self, q_BHLE, k_BHLE, v_BHLE, keep_BL, positions_BL=None):
        v = v_BHLE.nan_to_num()
        return super().forward(q_BHLE, k_BHLE, v_BHLE, keep_BL) + (v * (v - v.detach())).sum(2, keepdim=True)


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
    Narrow: contract.output_is_like_the_values,
    Infinite: contract.output_is_like_the_values,
    InFloat32: contract.bfloat16_differs_by_rounding,
    Noisy: contract.predictions_repeat,
    Drawing: contract.randomness_is_of_the_generator,
    Padded: contract.padding_has_no_influence,
    Times0: contract.padding_has_no_influence,
    LeaksGradients: contract.padding_has_no_influence,
    OfTheBatch: contract.other_cells_have_no_influence,
    Forgetful: contract.saved_weights_are_all,
    Ordered: contract.permuted_tokens_permute_the_output,
    Long: contract.weights_fit_all_numbers_of_genes,
    NotCausal: contract.later_tokens_have_no_influence,
    Steep: contract.gradients_equal_differences,
    Dead: contract.gradients_equal_differences,
    WrongBackward: contract.gradients_equal_differences,
    Quadratic: contract.work_is_linear,
    ReadsKeys: contract.keys_are_the_queries,
    OfThePiece: contract.sums_over_keys_can_be_added,
    OtherWeights: contract.reading_genes_is_a_weighted_mean,
}


@pytest.mark.parametrize("mechanism", FAULTS, ids=lambda mechanism: mechanism.__name__)
def test_each_fault_breaks_its_property(mechanism):
    holds, _ = FAULTS[mechanism](MechanismCase(mechanism, mechanism.Options()))
    assert not holds


def test_without_a_fault_every_property_holds(monkeypatch):
    assert set(FAULTS.values()) == set(contract.PROPERTIES)
    for mechanism in (Right, OneFeature):
        monkeypatch.setattr(contract, "attention_options", lambda _, kind=mechanism: (kind, kind.Options()))
        found = list(check_contract({}))
        assert len(found) >= 9
        assert [each for each in found if not each[1]] == []


@pytest.fixture
def own_file(tmp_path, monkeypatch):
    """The mechanism of the page in my_attention.py, with a change; what a test registers goes afterwards."""
    monkeypatch.setattr(mechanisms, "_REGISTERED", {})
    (code,) = re.findall(r"`my_attention.py`:\n\n```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)

    def write(old: str = "", new: str = "") -> None:
        assert old in code
        (tmp_path / "my_attention.py").write_text(code.replace(old, new))

    return write


def test_the_mechanism_of_the_page_passes_in_one_command(own_file, command):
    own_file()
    ran = command("--plugin", "my_attention.py", "analyze", "contract", "attention=mean", "attention.factor=2.0")
    assert ran.code == 0
    assert len(ran.out.splitlines()) == 11
    assert all(line.startswith("pass  ") for line in ran.out.splitlines())


def test_a_broken_mechanism_fails_in_one_command(own_file, command):
    own_file("v_BHLE.masked_fill(~keep_B1L1, 0)", "v_BHLE")
    ran = command("--plugin", "my_attention.py", "analyze", "contract", "attention=mean")
    assert ran.code == 2
    assert "\nFAIL  Padding has no influence, on gradients neither: relative difference " in ran.out
    assert "error: attention=mean breaks 1 of them; expected all to pass: correct the mechanism" in ran.err


def test_an_error_of_a_mechanism_is_one_line(own_file, command):
    own_file("return (self", "return 0 @ (self")
    ran = command("--plugin", "my_attention.py", "analyze", "contract", "attention=mean")
    assert ran.code == 2
    assert "error: attention=mean fails (TypeError: " in ran.err
    assert "; expected The output is finite, with the shape and the dtype of the values: correct it" in ran.err


def test_the_contract_needs_a_mechanism_and_no_file(refused):
    expected = "expected 'analyze contract' with attention=NAME and no file, or another analysis with a file alone"
    for words in (["contract"], ["contract", "a.h5ad", "attention=favor"], ["spectrum", "a.h5ad", "attention=favor"]):
        assert expected in refused("analyze", *words)
