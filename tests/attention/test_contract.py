"""The tests that authors of mechanisms copy (docs/test_my_attention.py): ours pass, and each fault fails its test."""

import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib.util import module_from_spec, spec_from_file_location
from inspect import getmembers, isfunction
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.twins import CASES

from scperformer.attention.base import Attention, AttentionOptions
from scperformer.attention.registry import attention_options

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def failures(monkeypatch):
    """A function that returns the names of the tests that fail for a mechanism with some options."""
    monkeypatch.setitem(sys.modules, "my_attention", SimpleNamespace(Mean=None))
    spec = spec_from_file_location("test_my_attention", DOCS / "test_my_attention.py")
    template = module_from_spec(spec)
    spec.loader.exec_module(template)
    tests = {name: test for name, test in getmembers(template, isfunction) if name.startswith("test_")}
    assert len(tests) == 12

    def run(mechanism: type[Attention], **options) -> list[str]:
        template.Mechanism, template.OPTIONS = mechanism, options
        failed = []
        for name, test in tests.items():
            for given in ([1e4], [torch.nan]) if test.__code__.co_argcount else ([],):
                try:
                    test(*given)
                except AssertionError:
                    failed.append(name)
        return failed

    return run


@pytest.mark.parametrize("case", CASES)
def test_our_mechanisms_keep_the_contract(case, failures):
    mechanism, options = attention_options(CASES[case])
    assert failures(mechanism, **asdict(options)) == []


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
        return (v_BHLE.masked_fill(~keep, 0).sum(2, keepdim=True) / keep.sum(2, keepdim=True) + self.shift).expand_as(
            v_BHLE
        )


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


SHAPE = "test_the_output_has_the_shape_and_the_dtype_of_the_values"
PADDING = "test_padding_has_no_influence"
ORDER = "test_permuted_tokens_give_a_permuted_output_or_order_sensitive_is_true"
GRADIENTS = "test_the_values_and_all_parameters_have_finite_gradients"
FAULTS = {
    Narrow: [SHAPE],
    Infinite: [SHAPE],
    Noisy: ["test_with_eval_the_output_depends_on_the_inputs_alone"],
    Drawing: ["test_all_randomness_is_from_the_generator_of_the_constructor"],
    Padded: [PADDING],
    Times0: [PADDING],
    OfTheBatch: ["test_other_cells_have_no_influence"],
    Forgetful: ["test_saved_weights_give_the_same_output"],
    Ordered: [ORDER],
    Long: ["test_weights_have_the_same_sizes_for_all_numbers_of_genes_or_fixed_length_is_true"],
    NotCausal: ["test_later_tokens_have_no_influence_if_causal_is_true"],
    Steep: [GRADIENTS],
    Dead: [GRADIENTS],
    Quadratic: ["test_the_work_is_linear_in_the_tokens_or_quadratic_is_true"],
}


def test_each_fault_fails_its_test(failures):
    assert failures(Right) == []
    for mechanism, expected in FAULTS.items():
        assert set(expected) <= set(failures(mechanism)), mechanism


def test_the_files_of_the_page_pass(tmp_path):
    """As an author has them, with one command."""
    page = (DOCS / "own_mechanism.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"`my_attention.py`:\n\n```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "my_attention.py").write_text(code)
    shutil.copy(DOCS / "test_my_attention.py", tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_attention.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    assert "13 passed" in ran.stdout
