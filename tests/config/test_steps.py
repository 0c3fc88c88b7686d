"""Options: ranges are checked, defaults agree with the YAML files, and docs/configuration.md names them all."""

import re
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from scperformer.config import groups
from scperformer.config import steps as config
from scperformer.config.compose import conf_dir, make_config
from scperformer.config.steps import STEPS
from scperformer.errors import InputError

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
NEEDED = {
    "train": ["label_key=x"],
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


def defaults(step: str) -> dict[str, object]:
    """Every option of a step by its full name, with the value it has on the command line."""
    found: dict[str, object] = {}
    options = make_config(step, ["inputs=[a.h5ad]", *NEEDED.get(step, [])])
    for option in fields(options):
        value = getattr(options, option.name)
        if is_dataclass(value):
            found |= {f"{option.name}.{part.name}": getattr(value, part.name) for part in fields(value)}
        elif option.name == "attention":  # its other options are in docs/attention.md; tests/test_attention.py looks
            found["attention.name"] = value["name"]
        else:
            found[option.name] = value
    return found


def as_written(value: object) -> str:
    """A default as the page writes it."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def rows(step: str) -> dict[str, str]:
    """Option -> default in the tables of a step's section, with those of the groups."""
    sections = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    wanted = [step, *(["Groups"] if step in ("train", "pretrain") else ["data"] if step == "preprocess" else [])]
    text = "".join(section for section in sections if section.split("\n")[0].strip("`") in wanted)
    return dict(re.findall(r"^\| `([\w.]+)` \| `?([^|`]*?)`? \|", text, flags=re.MULTILINE))


@pytest.mark.parametrize("step", STEPS)
def test_the_page_names_every_option_with_its_default(step):
    page = rows(step)
    required = {"inputs", *(option.partition("=")[0] for option in NEEDED.get(step, []))}
    wanted = {
        name: as_written(value)
        for name, value in defaults(step).items()
        if name not in required and not (step == "preprocess" and name.startswith("data."))
    }
    missing = [f"| `{name}` | `{value}` |" for name, value in wanted.items() if page.get(name) != value]
    assert not missing, f"rows missing in {PAGE.name} or with another default"
    unknown = set(page) - set(wanted) - required
    assert not unknown, "options in the page that do not exist"


@pytest.mark.parametrize("group", [*GROUPS, "attention"])
def test_the_page_names_every_choice_of_a_group(group):
    text = PAGE.read_text(encoding="utf-8")
    for path in (conf_dir() / group).glob("*.yaml"):
        assert f"`{group}={path.stem}`" in text


@pytest.mark.parametrize("group", sorted(set(GROUPS) - {"model", "tokens", "head"}))
def test_yaml_and_dataclass_agree(group):
    """Defaults are the same in Python and on the command line; model, tokens and head have presets instead."""
    step = "pretrain" if group == "masking" else "train"
    from_yaml = getattr(make_config(step, ["inputs=[a.h5ad]", *NEEDED.get(step, [])]), group)
    assert from_yaml == GROUPS[group]()


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
        "rare_label_name": " ",
    },
    "tokens": {"name": "x", "num_bins": 0, "bins_per_log2": 0, "unexpressed": "x"},
    "model": {
        "dim": 0,
        "depth": 0,
        "num_heads": 0,
        "head_dim": 0,
        "feedforward_factor": 0,
        "dropout": 1.0,
        "activation": "x",
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
    "masking": {"share": 0, "mask_share": 1.1, "random_share": 0.2, "class_weights": "x", "loss": "x"},
    "trainer": {
        "accelerator": "x",
        "strategy": "x",
        "precision": "x",
        "devices": 0,
        "threads": 0,
        "patience": 0,
        "batch_size": 0,
        "memory_gib": 0,
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
        config.PredictConfig(inputs=["a"], species="rat")


@pytest.mark.parametrize("value", [float("nan"), -1.0])
def test_input_total(value):
    with pytest.raises(InputError, match=r"input_total=.*a number above 0"):
        config.PredictConfig(inputs=["a"], input_total=value)


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
