"""YAML files and overrides become checked dataclasses, and nothing else does."""

import string
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refusal import refusal

from scperformer.cli.arguments import quoted
from scperformer.cli.compose import make_config
from scperformer.config.compose import make_options
from scperformer.config.presets import conf_dir
from scperformer.config.steps import SCHEMAS, EvaluateConfig
from scperformer.config.training import TrainOptions

TRAIN = ["inputs=[a.h5ad]", "label_key=cell_type"]
VECTORS = "model.gene2vec_path=vectors.txt"  # model=scbert does not go without
CHOICES = sorted(
    (path.parent.name, path.stem)
    for path in conf_dir().glob("*/*.yaml")
    if path.parent.name != "experiment"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "choice"), CHOICES, ids=[f"{group}={choice}" for group, choice in CHOICES]
)
def test_every_choice_composes(group, choice):
    # the default model has its own head
    layers = ["model=tiny"] if group == "head" and choice != "weighted" else []
    assert isinstance(
        make_config("train", [*TRAIN, *layers, f"{group}={choice}", VECTORS]), SCHEMAS["train"]
    )


def test_scbert_preset_is_the_published_model():
    """Dim 200, depth 6, 10 heads of 64, 5 bins, all genes, convolution head (Yang et al. 2022)."""
    config = make_config("train", [*TRAIN, "model=scbert", VECTORS])
    size = config.model
    assert (size.dim, size.depth, size.num_heads, size.head_dim) == (200, 6, 10, 64)
    assert (config.tokens.name, config.tokens.num_bins, config.tokens.unexpressed) == (
        "scbert",
        5,
        "full",
    )
    assert (config.head.name, config.head.hidden) == ("conv", [512, 128])
    assert not size.linear
    assert (size.positions, size.norm) == ("gene2vec", "pre")
    assert config.attention["name"] == "favor"


def test_scbert_preset_asks_for_its_gene_vectors_before_any_work():
    with refusal("no-gene-vectors"):
        make_config("train", [*TRAIN, "model=scbert"])
    make_config("train", [*TRAIN, "model=scbert", "model.positions=gene"])
    make_config("train", [*TRAIN, "model=scbert", "model.encoder=false", "model.linear=true"])


def test_a_choice_beside_scbert_wins():
    assert (
        make_config("train", [*TRAIN, "model=scbert", "tokens=bins", VECTORS]).tokens.name == "bins"
    )
    assert make_config("train", [*TRAIN, "model=scbert", "model.dim=64", VECTORS]).model.dim == 64


@pytest.mark.parametrize(
    ("words", "code"),
    [
        *(
            ([word], "unknown-option")
            for word in ("colour=red", "+colour=red", "~seed", "trainer.max_epoch=5")
        ),
        (["attention=window", "attention.num_features=3"], "unknown-option"),
        (["attention=linformer", "attention.causal=true"], "not-causal"),
        (["seed=1,2"], "bad-argument"),
        (["seed=[1"], "bad-argument"),
    ],
)
def test_words_that_are_refused(words, code):
    with refusal(code):
        make_config("train", [*TRAIN, *words])


@pytest.mark.parametrize(
    ("word", "instead"),
    [
        ("majority_voting=true", "clusters=auto"),
        ("over_clustering=leiden", "did you mean clusters?"),
        ("p_thres=0.5", "min_confidence="),
        ("mode='prob match'", "alpha=0.1"),
        ("model=Immune_All_Low.pkl", "'scperformer models import FILE.pkl' with model_path=NAME"),
        ("indata=a.h5ad", "a plain word"),
    ],
)
def test_words_of_celltypist_name_the_options_here(word, instead):
    with refusal("unknown-option", instead):
        make_config("predict", ["inputs=[a.h5ad]", word])


def test_required_options():
    with refusal("missing-option", "truth_key"):
        make_config("evaluate", ["inputs=[a.h5ad]"])


LETTERS = st.sampled_from(string.punctuation + " ")
# Hydra has no notation for control characters
UNICODE = st.characters(codec="utf-8", exclude_categories=["Cc"])


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.text(st.one_of(LETTERS, UNICODE), min_size=1))
def test_quoted_text_is_read_as_it_was(text):
    """Through Hydra's parser, and through the interpolation of OmegaConf."""
    assert make_config("check", [f"inputs=[{quoted(text)}]"]).inputs == [text]


@pytest.mark.parametrize(
    "text", ["a${b}", r"\${b}", r"c:\x\\", "'", r"\'", "${", "a=b, [c] {d}: e"]
)
def test_quoted_text_survives_the_whole_way(text):
    assert make_config("check", [f"inputs=[{quoted(text)}]"]).inputs == [text]


@pytest.mark.parametrize(
    "recipe", [path.stem for path in (conf_dir() / "experiment").glob("*.yaml")]
)
def test_every_experiment_changes_something_and_is_explained(recipe):
    assert make_config("train", [*TRAIN, f"experiment={recipe}"]) != make_config("train", TRAIN)
    page = Path(__file__).parents[2] / "docs" / "configuration.md"
    assert f"experiment={recipe}" in page.read_text(encoding="utf-8")


PYTHON = [
    (
        {"seed": np.int64(3), "optim.lr": 1, "trainer.max_epochs": "5"},
        ["seed=3", "optim.lr=1", "trainer.max_epochs=5"],
    ),
    ({"output": Path("a b"), "unlabelled": (Path("x"), "y")}, ["output='a b'", "unlabelled=[x,y]"]),
    (
        {"model": "tiny", "tissue": None, "head.hidden": []},
        ["model=tiny", "tissue=null", "head.hidden=[]"],
    ),
    (
        {"overwrite": np.bool_(True), "data.in_memory": False},
        ["overwrite=true", "data.in_memory=false"],
    ),
    ({"tissue": "${oc.env:HOME}"}, ["tissue='${oc.env:HOME}'"]),
    ({"label_keys": np.array(["a", "cell_type"])}, ["label_keys=[a,cell_type]"]),
    ({"head.hidden": pd.Series([1, 2])}, ["head.hidden=[1,2]"]),
]


@pytest.mark.parametrize(("options", "words"), PYTHON)
def test_options_of_python_are_those_of_the_command_line(options, words):
    options = {"inputs": ["a.h5ad"], "label_key": "cell_type"} | options
    assert make_options(TrainOptions, options) == make_config("train", [*TRAIN, *words])


WRONG = {
    "a mapping": ({"model": {"dim": 3}}, "option-name", "'model.dim'"),
    "a name": ({5: 1}, "option-name", "5"),
    "no preset": ({"model": 5}, "unknown-preset", "model=5"),
    "a path": ({"model": "../model/tiny"}, "unknown-preset", "../model/tiny"),
    "a fraction": ({"seed": 1.5}, "bad-option", "seed=1.5", "a whole number"),
    "a boolean": ({"seed": True}, "bad-option", "seed=true"),
    "nothing": ({"seed": None}, "bad-option", "seed=null"),
    "an array": ({"seed": np.array([1, 2])}, "bad-option", "seed=[1,2]"),
    "infinite": ({"optim.lr": float("inf")}, "option-range", "optim.lr=inf"),
    "no list": ({"unlabelled": None}, "bad-option", "unlabelled=null", "a list"),
    "unknown": ({"trainer": "gpu", "trainer.dim": 3}, "unknown-option", "trainer.dim", "'train'"),
    "of Hydra": ({"hydra.run.dir": "x"}, "unknown-option", "hydra.run.dir"),
    "a target": ({"_target_": "os.system"}, "unknown-option", "_target_"),
    "a fixed field": ({"model.linear_powers": [1.0]}, "unknown-option", "model.linear_powers"),
}


@pytest.mark.parametrize("case", WRONG)
def test_options_of_python_that_are_refused(case):
    options, code, *values = WRONG[case]
    with refusal(code, *values):
        make_options(TrainOptions, {"inputs": ["a.h5ad"], "label_key": "x"} | options)


def test_one_value_of_a_list_needs_no_brackets():
    options = {"inputs": ["a.h5ad"], "truth_key": "x"}
    assert make_options(EvaluateConfig, options | {"truth_path": "t, 1.csv"}).truth_path == [
        "t, 1.csv"
    ]
    assert make_config(
        "evaluate", ["inputs=a.h5ad", "truth_key=x", "truth_path=t.csv"]
    ).truth_path == ["t.csv"]
    assert make_config(
        "train", ["inputs=[a.h5ad]", "label_key=x", "head.hidden=64"]
    ).head.hidden == [64]


def test_threads_make_options_at_the_same_time():
    def make(seed: int) -> int:
        return make_options(
            TrainOptions, {"inputs": ["a"], "label_key": "x", "model": "tiny", "seed": seed}
        ).seed

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(make, range(16))) == list(range(16))
