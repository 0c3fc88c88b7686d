"""Options: ranges are checked, the command line has the defaults of the dataclasses, and the page names all of them."""

import os
import re
import socket
from pathlib import Path

import pytest

from scperformer.base.errors import InputError
from scperformer.cli.compose import make_config
from scperformer.cli.option_texts import TABLES, option_texts
from scperformer.cli.predict import PredictConfig
from scperformer.cli.presets import conf_dir
from scperformer.cli.steps import SCHEMAS
from scperformer.config import training as groups

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
NEEDED = {
    "train": ["label_key=x"],
    "adapt": ["model_path=m"],
    "evaluate": ["truth_key=x"],
    "analyze": ["analysis=spectrum"],
    "models": ["action=import"],
}
GROUPS = {
    "data": groups.DataConfig,
    "tokens": groups.TokensConfig,
    "model": groups.ModelConfig,
    "head": groups.HeadConfig,
    "optim": groups.OptimConfig,
    "trainer": groups.TrainerConfig,
    "logger": groups.LoggerConfig,
    "masking": groups.MaskingConfig,
}


def test_the_page_has_a_table_of_every_step_and_group():
    """docs/conf.py fills them in when the site is built."""
    assert sorted(re.findall(r"<!-- options: (\w+) -->", PAGE.read_text(encoding="utf-8"))) == sorted(TABLES)


def test_every_option_has_a_meaning():
    assert [option.name for name in TABLES for option in option_texts(name) if not option.meaning] == []


@pytest.mark.parametrize("group", [*GROUPS, "attention"])
def test_the_page_names_every_choice_of_a_group(group):
    text = PAGE.read_text(encoding="utf-8")
    for path in (conf_dir() / group).glob("*.yaml"):
        assert f"`{group}={path.stem}`" in text


@pytest.mark.parametrize("step", SCHEMAS)
def test_the_defaults_of_the_command_line_are_those_of_the_dataclasses(step):
    needed = dict(option.split("=") for option in NEEDED.get(step, []))
    files = {} if step == "workflow" else {"inputs": ["a.h5ad"]}  # it takes a sheet
    found = make_config(step, [*(["inputs=[a.h5ad]"] if files else []), *NEEDED.get(step, [])])
    if step in ("train", "pretrain"):  # YAML has the options of a mechanism
        assert found.attention.pop("name") == "favor"
        found.attention = {"name": "favor"}
    assert found == SCHEMAS[step](**files, **needed)


RANGES = {
    "data": {
        "target_sum": 0,
        "min_genes": -1,
        "min_cells": -1,
        "val_fraction": 1.0,
        "split": "x",
        "split_key": "donor",
        "rare_labels": "x",
        "min_cells_per_label": 0,
    },
    "tokens": {"name": "x", "num_bins": 0, "unexpressed": "x"},
    "model": {
        "dim": 0,
        "depth": 0,
        "num_heads": 0,
        "head_dim": 0,
        "dropout": 1.0,
        "norm": "x",
        "positions": "x",
        "chunk_tokens": 0,
        "gene_dropout": 1.0,
    },
    "head": {"name": "x", "hidden": [0], "dropout": -0.1},
    "optim": {
        "init_lr_factor": 0,
        "lr": 0,
        "weight_decay": -1,
        "warmup_fraction": 1.1,
        "final_lr_fraction": -0.1,
        "label_smoothing": 1.0,
    },
    "masking": {"share": 0, "mask_share": 1.1, "loss": "x"},
    "trainer": {
        "accelerator": "x",
        "precision": "x",
        "devices": 0,
        "threads": 0,
        "patience": 0,
        "batch_size": 0,
    },
}
CASES = [(group, name, value) for group, options in RANGES.items() for name, value in options.items()]


@pytest.mark.parametrize(("group", "name", "value"), CASES, ids=[f"{group}.{name}" for group, name, _ in CASES])
def test_values_out_of_range(group, name, value):
    with pytest.raises(InputError, match=rf"{group}\.{name}=.*; expected .*: set {group}\.{name} accordingly"):
        GROUPS[group](**{name: value})


@pytest.mark.parametrize("split", ["group", "column"])
def test_a_split_by_column_needs_the_column(split):
    with pytest.raises(InputError, match=rf"data\.split_key=None; expected an obs column for data\.split={split}"):
        groups.DataConfig(split=split)
    assert groups.DataConfig(split=split, split_key="donor").split_key == "donor"


def test_scbert_tokens_have_five_bins():
    with pytest.raises(InputError, match="5 with tokens=scbert"):
        groups.TokensConfig(name="scbert", num_bins=7)


def test_species():
    with pytest.raises(InputError, match=r"species='?rat'?; expected one of auto, human, mouse"):
        PredictConfig(inputs=["a"], species="rat")


@pytest.mark.parametrize("value", [float("nan"), -1.0])
def test_input_total(value):
    with pytest.raises(InputError, match=r"input_total=.*a number above 0"):
        PredictConfig(inputs=["a"], input_total=value)


@pytest.mark.parametrize(
    ("word", "value"), [("true", True), ("false", False), ("False", False), ("'false'", False), ("auto", "auto")]
)
def test_in_memory_is_true_false_or_auto(word, value):
    cfg = make_config("train", ["inputs=[a.h5ad]", "label_key=x", f"data.in_memory={word}"])
    assert cfg.data.in_memory is value or cfg.data.in_memory == value == "auto"


def test_other_values_of_in_memory_are_refused():
    for word in ("maybe", "null", "1", "[true]"):
        with pytest.raises(InputError, match=r"data\.in_memory=.*; expected true, false or auto"):
            make_config("train", ["inputs=[a.h5ad]", "label_key=x", f"data.in_memory={word}"])


@pytest.mark.parametrize("kind", ["a device", "a pipe", "a socket"])
@pytest.mark.parametrize(
    ("step", "option"),
    [
        ("train", "label_map"),
        ("train", "output"),
        ("train", "unlabelled"),
        ("predict", "model_path"),
        ("models", "genes"),
    ],
)
def test_no_path_is_a_device_a_pipe_or_a_socket(kind, step, option, tmp_path):
    path = "/dev/zero" if kind == "a device" else str(tmp_path / "special")
    if kind == "a pipe":
        os.mkfifo(path)
    with socket.socket(socket.AF_UNIX) as made:
        if kind == "a socket":
            made.bind(path)
        value = f"[{path}]" if option == "unlabelled" else path
        with pytest.raises(InputError, match=f"{option}={path}, {kind}; expected a name, or the path of a file or fol"):
            make_config(step, ["inputs=[a.h5ad]", *NEEDED.get(step, []), f"{option}={value}"])


def test_threads_are_as_many_as_a_machine_can_use():
    with pytest.raises(InputError, match=r"threads=1000000000; expected 1 to \d+ on this machine"):
        make_config("predict", ["inputs=[a.h5ad]", "threads=1000000000"])
    with pytest.raises(InputError, match=r"trainer.threads=10000; expected 1 to "):
        groups.TrainerConfig(threads=10000)
