"""Mechanisms of others: the example of the documentation is trained, saved and used; no option imports a file."""

import linecache
import re
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import numpy as np
import pytest
import torch
from support.refusal import refusal
from support.words import as_options

import scperformer
from scperformer.attention.base import Sizes
from scperformer.attention.registry import (
    attention_options,
    load_plugin,
    make_attention,
    source_hash,
)
from scperformer.cli.compose import make_config
from scperformer.config import mechanisms

DOCS = (Path(__file__).parents[2] / "docs" / "own_mechanism.md").read_text(encoding="utf-8")
FILE = "my_attention.py"
TRAIN = [
    "label_key=cell_type",
    "model=tiny",
    "trainer.max_epochs=1",
    "data.min_genes=0",
    "logger=none",
]


@pytest.fixture
def own_file(tmp_path, monkeypatch):
    """The example of the documentation in the working folder; the mechanisms that a test registers go afterwards."""
    code = re.search(r"`my_attention.py`:\n\n```python\n(.*?)```", DOCS, re.DOTALL)
    (tmp_path / FILE).write_text(code[1], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mechanisms, "_REGISTERED", {})
    return tmp_path


def test_the_example_returns_the_mean_of_real_tokens(own_file):
    load_plugin(FILE)
    sizes = Sizes(num_heads=2, head_dim=3, length=5)
    mechanism = make_attention({"name": "mean", "factor": 2.0}, sizes, torch.Generator())
    v = torch.randn(1, 2, 5, 3, generator=torch.Generator().manual_seed(0))
    keep = torch.tensor([[True, False, True, True, False]])
    expected = 2 * v[:, :, [0, 2, 3]].mean(2, keepdim=True)
    torch.testing.assert_close(mechanism(v, v, v, keep), expected.expand_as(v))


def test_its_name_and_options_are_known_after_it_is_loaded(own_file):
    words = ["inputs=[a.h5ad]", "label_key=x", "attention=mean", "attention.factor=3.0"]
    with refusal("unknown-preset"):
        make_config("train", words)
    load_plugin(FILE)
    assert make_config("train", words).attention == {"name": "mean", "factor": 3.0}
    with refusal("unknown-option"):
        make_config("train", [*words, "attention.faktor=3.0"])


def test_a_model_needs_the_mechanism_with_the_source_of_its_training(
    own_file, command, write, counts_adata
):
    sample = write(counts_adata)
    ran = command("--plugin", FILE, "train", sample, *TRAIN, "attention=mean", "output=model")
    assert ran.code == 0, ran.err
    predict = ["predict", sample, "model_path=model", "output=calls.csv", "overwrite=true"]
    assert command("--plugin", FILE, *predict).code == 0
    mechanisms._REGISTERED.clear()
    ran = command(*predict)  # as in another process
    assert ran.code == 2
    assert "attention=mean" in ran.err
    source = Path(FILE).read_text()
    Path(FILE).write_text(source.replace("factor *", "factor * 0 *"))
    ran = command("--plugin", FILE, *predict)
    assert ran.code == 2
    assert "attention=mean" in ran.err
    Path(FILE).write_text(source)
    assert command("--plugin", FILE, *predict).code == 0


@pytest.mark.parametrize("as_keyword", [True, False])
def test_a_class_is_given_in_python(own_file, counts_adata, as_keyword, monkeypatch):
    monkeypatch.syspath_prepend(str(own_file))
    from my_attention import Mean  # of the working folder

    options = as_options(TRAIN[1:]) | ({} if as_keyword else {"attention": Mean})
    attention = {"attention": Mean} if as_keyword else {}
    trained = scperformer.train(
        counts_adata, "cell_type", output="model", options=options, **attention
    )
    first = scperformer.annotate(counts_adata.copy(), trained.load())
    mechanisms._REGISTERED.clear()
    load_plugin(FILE)  # the same source, by another way
    again = scperformer.annotate(counts_adata.copy(), scperformer.load_model("model"))
    np.testing.assert_array_equal(
        first.obs["scperformer_confidence"], again.obs["scperformer_confidence"]
    )
    sys.modules.pop("my_attention")


def test_a_class_of_a_notebook_has_a_source(monkeypatch):
    """Python finds its methods, and not the class itself; a changed method is another source."""

    def cell(factor: str) -> type:
        code = "from scperformer import Attention\nclass Mine(Attention):\n"
        code += f"    def forward(self, q): return {factor} * q"
        name = f"<cell {factor}>"
        monkeypatch.setitem(
            linecache.cache, name, (len(code), None, code.splitlines(keepends=True), name)
        )
        space = {"__name__": "__main__"}
        exec(compile(code, name, "exec"), space)
        return space["Mine"]

    assert source_hash(cell("1")) == source_hash(cell("1")) != source_hash(cell("2"))


def test_an_entry_point_of_an_installed_package_is_found(own_file, monkeypatch):
    monkeypatch.syspath_prepend(str(own_file))
    installed = EntryPoints(
        [EntryPoint(name="mean", value="my_attention:Mean", group="scperformer.attention")]
    )
    monkeypatch.setattr(mechanisms, "entry_points", lambda **wanted: installed.select(**wanted))
    words = ["inputs=[a.h5ad]", "label_key=x", "attention=mean"]
    assert attention_options(make_config("train", words).attention)[1].factor == 1.0
    assert "mean" in mechanisms.registered_names()
    sys.modules.pop("my_attention")


@pytest.mark.parametrize(
    ("source", "error", "value"),
    [
        (None, "no-plugin", "other.py"),
        ("1 / 0", "plugin-fails", "ZeroDivisionError"),
        ("import nowhere", "plugin-fails", "ModuleNotFoundError"),
        ("import scperformer.attention", "empty-plugin", "other.py"),
        (
            "from scperformer import Attention\nclass Mean(Attention): pass",
            "not-a-mechanism",
            "mean",
        ),
        (
            "from scperformer import Attention\nclass Favor(Attention): pass",
            "mechanism-name",
            "favor",
        ),
    ],
)
def test_a_file_without_a_usable_mechanism_is_refused(own_file, source, error, value):
    if source is not None:
        Path("other.py").write_text(source)
    with refusal(error, value):
        load_plugin("other.py")


def test_the_flag_stands_before_the_step_alone(own_file, command):
    """Among the words after it there may be names of files from elsewhere."""
    Path("marks.py").write_text("open('marked', 'w')")
    Path("--plugin").touch()
    for words in (["train", "--plugin", "marks.py"], ["predict", "a.h5ad", "--plugin", "marks.py"]):
        ran = command(*words)
        assert (ran.code, "scperformer --plugin FILE" in ran.err) == (2, True)
    ran = command("--plugin", "marks.py", "workflow", "samples.tsv")
    assert (ran.code, "--plugin" in ran.err) == (2, True)
    assert command("--plugin").code == 2
    assert not Path("marked").exists()
