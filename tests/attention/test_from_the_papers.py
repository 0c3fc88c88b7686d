"""docs/from_the_papers.md: its options and tests exist, and its examples give its numbers."""

import re
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from support.mechanisms import B, inputs, kept, make
from support.refusal import refusal

from scperformer.cli.compose import make_config

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "from_the_papers.md").read_text(encoding="utf-8")
ROWS = [
    line.strip("|").split("|")
    for line in PAGE.splitlines()
    if line.count("|") == 4 and "`test_" in line
]


def test_each_statement_has_options_and_a_test_that_exist():
    code = "\n".join(path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py"))
    assert len(ROWS) > 40
    for statement, options, test in ROWS:
        assert f"\ndef {test.strip('`')}(" in code, statement
        words = options.strip("`").split()
        if words[:1] == ["analyze"]:
            make_config("analyze", [f"analysis={words[1]}", "inputs=[a.h5ad]"])
        else:
            with refusal("not-causal") if statement.endswith(": refused") else nullcontext():
                make_config("train", ["inputs=[a.h5ad]", "label_key=x", "model=tiny", *words])
    assert re.findall(r"^\|[^|]+\|[^|]*\|\|$", PAGE, re.MULTILINE) == re.findall(
        r"^\|\*\*.*\|\|\|$", PAGE, re.MULTILINE
    )


def test_worked_examples():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = {}
    exec(compile(code, "from_the_papers.md", "exec"), names)
    assert names["gaussian"].flatten().tolist() == pytest.approx([0.9418, 0.5827, 0.1153], abs=5e-5)
    assert names["squares"].flatten().tolist() == pytest.approx([0.01, 0.04, 0.09])
    assert names["out"].tolist() == pytest.approx(
        [0.6661 / 0.643 + more for more in (0, 0.1, 0.2)], rel=1e-5
    )
    for number in (".9418 .5827 .1153", ".01 .04 .09", "1.0359, 1.1359, 1.2359"):
        assert number in code


def test_undivided_favor_estimates_the_exact_sum():
    """Its mean over directions is sum_j exp(q k_j / sqrt(E)) v_j, and the form that is divided is its quotient."""
    q, k, v, keep = inputs(20, scale=0.3)
    exact = kept(torch.exp(q @ k.mT / 4) * keep[:, None, None] @ v, keep)
    made = make("favor", num_features=4000, divide=False).double()
    whole = kept(made(q, k, v, keep), keep)
    assert (whole - exact).norm() / exact.norm() < 0.1
    total = kept(made(q, k, torch.ones_like(v), keep), keep)
    divided = kept(make("favor", num_features=4000).double()(q, k, v, keep), keep)
    torch.testing.assert_close(whole / total, divided)


def test_linformer_with_identities_is_softmax():
    q, k, v, _ = inputs(65)
    # a row of a dropped key would have the score 0, not none
    keep = torch.ones(B, 65, dtype=torch.bool)
    made = make("linformer", projected_length=65, sharing="key_value").double()
    made.matrices_CPGN.data = torch.eye(65, dtype=torch.float64)[None, :, None]
    torch.testing.assert_close(made(q, k, v, keep), make("softmax").double()(q, k, v, keep))


def test_one_bucket_and_one_chunk_are_softmax():
    """With Q = K, without a token itself; a token that is alone sees itself."""
    q, k, v, keep = inputs(30)
    made = make("lsh", num_buckets=1, chunk_size=30).double()
    scores = (q @ q.mT / 4).masked_fill(~keep[:, None, None], -torch.inf)
    scores.diagonal(dim1=2, dim2=3).fill_(-torch.inf)
    torch.testing.assert_close(kept(made(q, k, v, keep), keep), kept(scores.softmax(-1) @ v, keep))
    alone = torch.zeros_like(keep)
    alone[:, 3] = True
    torch.testing.assert_close(made(q, k, v, alone)[:, :, 3], v[:, :, 3])


def test_the_layers_of_linformer():
    config = make_config("train", ["inputs=[a.h5ad]", "label_key=x", "model=linformer"])
    size = config.model
    assert (size.norm, size.activation, size.feedforward, size.dropout) == (
        "post",
        "relu",
        2048,
        0.1,
    )
    assert config.attention["name"] == "linformer"
    own = make_config(
        "train",
        [
            "inputs=[a.h5ad]",
            "label_key=x",
            "model=linformer",
            "attention=favor",
            "model.norm=batch",
        ],
    )
    assert (own.attention["name"], own.model.norm) == ("favor", "batch")
