"""Options: ranges are checked, the command line has the defaults of the dataclasses, and the page names all of them."""

import os
import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from support.refusal import refusal

from scperformer.cli.compose import make_config
from scperformer.config import training as groups
from scperformer.config.descriptions import GROUPS, TABLES
from scperformer.config.presets import conf_dir
from scperformer.config.steps import SCHEMAS

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
NEEDED = {
    "train": ["label_key=x"],
    "adapt": ["model_path=m"],
    "curate": ["names=x"],
    "evaluate": ["truth_key=x"],
    "analyze": ["analysis=spectrum"],
    "models": ["action=import"],
}


def test_the_page_has_a_table_of_every_step_and_group():
    """docs/conf.py fills them in when the site is built."""
    assert sorted(
        re.findall(r"<!-- options: (\w+) -->", PAGE.read_text(encoding="utf-8"))
    ) == sorted(TABLES)


@pytest.mark.parametrize("group", [*GROUPS, "attention"])
def test_the_page_names_every_choice_of_a_group(group):
    text = PAGE.read_text(encoding="utf-8")
    for path in (conf_dir() / group).glob("*.yaml"):
        assert f"`{group}={path.stem}`" in text


@pytest.mark.parametrize("step", SCHEMAS)
def test_the_defaults_of_the_command_line_are_those_of_the_dataclasses(step):
    needed = dict(option.split("=") for option in NEEDED.get(step, []))
    files = {} if step in ("workflow", "app") else {"inputs": ["a.h5ad"]}  # they take none
    found = make_config(step, [*(["inputs=[a.h5ad]"] if files else []), *NEEDED.get(step, [])])
    if step in ("train", "pretrain"):  # YAML has the options of a mechanism
        assert found.attention.pop("name") == "favor"
        found.attention = {"name": "favor"}
    if step == "train":  # presets replace the defaults of these groups
        found = replace(
            found, **{name: GROUPS[name]() for name in ("model", "head", "optim", "trainer")}
        )
    assert found == SCHEMAS[step](**files, **needed)


@pytest.mark.parametrize("split", ["group", "column"])
def test_a_split_by_column_needs_the_column(split):
    with refusal("option-range", split):
        groups.DataConfig(split=split)
    assert groups.DataConfig(split=split, split_key="donor").split_key == "donor"


@pytest.mark.parametrize(
    ("word", "value"),
    [("true", True), ("false", False), ("False", False), ("'false'", False), ("auto", "auto")],
)
def test_in_memory_is_true_false_or_auto(word, value):
    cfg = make_config("train", ["inputs=[a.h5ad]", "label_key=x", f"data.in_memory={word}"])
    assert cfg.data.in_memory is value or cfg.data.in_memory == value == "auto"


@pytest.mark.parametrize("word", ["maybe", "null", "1", "[true]"])
def test_other_values_of_in_memory_are_refused(word):
    with refusal("option-range" if word == "maybe" else "bad-option", f"data.in_memory={word}"):
        make_config("train", ["inputs=[a.h5ad]", "label_key=x", f"data.in_memory={word}"])


@pytest.mark.parametrize("kind", ["a device", "a pipe", "a socket"])
@pytest.mark.parametrize(
    ("step", "option"),
    [
        *(("train", name) for name in ("label_map", "output", "unlabelled")),
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
        with refusal("option-type", option, path, kind):
            make_config(step, ["inputs=[a.h5ad]", *NEEDED.get(step, []), f"{option}={value}"])
