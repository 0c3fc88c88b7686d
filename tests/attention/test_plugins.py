"""Mechanisms in users' own files: the example of the documentation is trained, saved and used."""

import json
import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import torch
from support.words import as_options

import scperformer
from scperformer import attention as room
from scperformer.attention import Sizes, allow_attention, attention_options, make_attention, plugins
from scperformer.base.errors import InputError
from scperformer.config import make_config

DOCS = (Path(__file__).parents[2] / "docs" / "own_mechanism.md").read_text(encoding="utf-8")
NAME = "my_attention:Mean"


@pytest.fixture
def own_file(tmp_path, monkeypatch):
    """The example of the documentation, in the working folder; afterwards it is no longer imported."""
    code = re.search(r"`my_attention.py`:\n\n```python\n(.*?)```", DOCS, re.DOTALL)
    (tmp_path / "my_attention.py").write_text(code[1], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(room, "MECHANISMS", dict(room.MECHANISMS))
    yield tmp_path
    sys.modules.pop("my_attention", None)


def test_the_example_returns_the_mean_of_real_tokens(own_file):
    allow_attention(NAME)
    sizes = Sizes(num_heads=2, head_dim=3, length=5)
    mechanism = make_attention({"name": NAME, "factor": 2.0}, sizes, torch.Generator())
    v = torch.randn(1, 2, 5, 3, generator=torch.Generator().manual_seed(0))
    keep = torch.tensor([[True, False, True, True, False]])
    expected = 2 * v[:, :, [0, 2, 3]].mean(2, keepdim=True)
    torch.testing.assert_close(mechanism(v, v, v, keep), expected.expand_as(v))


def test_options_from_the_command_line(own_file):
    words = ["inputs=[a.h5ad]", "label_key=x", f"attention={NAME}", "attention.factor=3.0"]
    assert make_config("train", words).attention == {"name": NAME, "factor": 3.0}
    words[2:3] = ["attention=plugin", "attention.name=mean"]  # of an installed package
    assert make_config("train", words).attention == {"name": "mean", "factor": 3.0}
    allow_attention(NAME)
    with pytest.raises(InputError, match=r"option attention.faktor; expected an option that exists \(attention.factor"):
        attention_options({"name": NAME, "faktor": 3.0})


def test_a_model_with_a_users_mechanism_is_loaded_only_if_the_user_allows_it(own_file, counts_adata, monkeypatch):
    options = ["model=tiny", f"attention={NAME}", "trainer.max_epochs=1", "data.min_genes=0", "logger=none"]
    path = scperformer.train(counts_adata, "cell_type", output="model", options=as_options(options)).path
    first = scperformer.annotate(counts_adata.copy(), scperformer.load_model(path))
    # As in another process, which does not know the name.
    monkeypatch.setattr(room, "MECHANISMS", {})
    del sys.modules["my_attention"]
    with pytest.raises(InputError, match="or a plug-in: set SCPERFORMER_PLUGINS=my_attention:Mean if you trust"):
        scperformer.load_model(path)
    assert "my_attention" not in sys.modules
    monkeypatch.setenv("SCPERFORMER_PLUGINS", f"other:Thing,{NAME}")
    again = scperformer.annotate(counts_adata.copy(), scperformer.load_model(path))
    np.testing.assert_array_equal(first.obs["scperformer_confidence"], again.obs["scperformer_confidence"])


@pytest.mark.slow
def test_a_sweep_includes_a_users_mechanism(own_file, command, write, counts_adata):
    words = ["label_key=cell_type", "model=tiny", "trainer.max_epochs=1", "data.min_genes=0", "logger=none"]
    ran = command("train", write(counts_adata), *words, "-m", f"attention={NAME},favor")
    assert ran.code == 0, ran.err
    models = [json.loads(path.read_text()) for path in sorted(own_file.glob("multirun/*/*/model/bundle.json"))]
    assert [saved["config"]["attention"]["name"] for saved in models] == [NAME, "favor"]
    assert f"| {NAME} |" in ran.out


def test_an_entry_point_of_an_installed_package_is_found(own_file, monkeypatch):
    entry = EntryPoint(name="mean", value=NAME, group="scperformer.attention")
    monkeypatch.setattr(
        plugins, "entry_points", lambda group, name: [entry] if (group, name) == (entry.group, entry.name) else []
    )
    assert attention_options({"name": "mean", "factor": 0.5})[1].factor == 0.5


def test_a_registered_class_is_found_by_its_name(own_file):
    scperformer.register_attention(plugins.import_mechanism(NAME))
    assert attention_options({"name": "mean"})[1].factor == 1.0


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nowhere:Mean", "cannot be imported .ModuleNotFoundError: No module named 'nowhere'"),
        ("my_attention:Median", "cannot be imported .AttributeError: .*Median"),
        ("my_attention:dataclass", "is function dataclass"),
        ("broken:Mean", "cannot be imported .ZeroDivisionError"),
    ],
)
def test_names_without_a_usable_mechanism_are_refused(own_file, name, reason):
    (own_file / "broken.py").write_text("1 / 0", encoding="utf-8")
    with pytest.raises(InputError, match=f"attention={name} {reason}.*expected a subclass of"):
        allow_attention(name)
