"""Model folders that mean harm: one clear line; nothing of them is executed."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save
from support.refusal import refusal

from scperformer.base.errors import InputError
from scperformer.base.inputs import sha256
from scperformer.model.card import model_card
from scperformer.model.folder import read_model


@pytest.fixture
def model(tiny_model, tmp_path) -> Path:
    """A model folder whose content the test may replace, with checksums that fit."""
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def change(model: Path, **entries) -> None:
    info = json.loads((model / "bundle.json").read_text())
    for name, value in entries.items():
        info[name] = info[name] | value if isinstance(value, dict) else value
    info["files"] = {name: sha256(model / name) for name in info["files"]}
    (model / "bundle.json").write_text(json.dumps(info))


def change_weights(model: Path, **arrays) -> None:
    weights = load_file(model / "model.safetensors") | arrays
    (model / "model.safetensors").write_bytes(save(weights))
    change(model)


def header(shape: list[int], end: int) -> bytes:
    text = json.dumps(
        {"model.a": {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}}
    ).encode()
    return len(text).to_bytes(8, "little") + text


WEIGHTS = {
    "huge shape": header([10**9, 10**9], 8),
    "overflow": header([2**62, 4], 8) + bytes(8),
    "huge header": (2**62).to_bytes(8, "little") + b"{}",
    "nested header": (10**5).to_bytes(8, "little") + b"[" * 10**5,
    "pickle": b"\x80\x04\x95" + bytes(100),
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_weights_that_lie(case, model):
    (model / "model.safetensors").write_bytes(WEIGHTS[case])
    change(model)
    with refusal("damaged-model"):
        read_model(model)


@pytest.mark.parametrize(
    ("name", "value"), [("baseline.weight", np.nan), ("model.linear.bias", np.inf)]
)
def test_weights_that_are_no_numbers(name, value, model):
    array = load_file(model / "model.safetensors")[name].copy()
    array.flat[0] = value
    change_weights(model, **{name: array})
    with refusal("damaged-model", name):
        read_model(model)


def test_json_is_not_read_when_it_is_huge(model):
    os.truncate(model / "bundle.json", 2**30)  # sparse: takes no room on the disk
    with refusal("damaged-model"):
        read_model(model)


@pytest.mark.parametrize("name", ["bundle.json", "model.safetensors"])
def test_links_that_leave_the_folder(name, model, tmp_path):
    (model / name).rename(tmp_path / "secret")
    (model / name).symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match=r"no bundle\.json|missing or changed"):
        read_model(model)


# Content


SCORES = ("accuracy", "macro_f1", "weighted_f1", "loss")
CONTENT = {
    "labels twice": {"labels": ["a", "a", "b"]},
    "newline": {"labels": ["a\nerror: b", "b", "c"]},
    "tree with a cycle": {"tree": {"parents": {"B cell": "x", "x": "B cell"}, "terms": {}}},
    "deep tree": {
        "tree": {
            "parents": {f"n{i}": f"n{i + 1}" for i in range(10_000)} | {"B cell": "n0"},
            "terms": {},
        }
    },
    "scales": {"metrics": {"scales": {"linear": "x"}}},
    "no scale": {"metrics": {"scales": {"linear": None}}},
    "escape in the encoder": {
        "metrics": {"encoder": dict.fromkeys(["kind", "size", "attention", "device"], "\x1b[2J")}
    },
    "a number of 400 digits": {"config": {"target_sum": 10**400}},
    "a number of 64 bits": {"config": {"target_sum": 2**63}},
    "a scale of 400 digits": {"metrics": {"scales": {"linear": 10**400}}},
    "scores of no fold": {"metrics": {"out_of_fold": {"accuracy": 1.0}}},
    "accuracies of batches": {
        "metrics": {"out_of_fold": {"num_cells": 1} | dict.fromkeys(SCORES, 0.5) | {"batches": []}}
    },
    "a score that is infinite": {
        "metrics": {"out_of_fold": {"num_cells": 1} | dict.fromkeys(SCORES, float("inf"))}
    },
    "a flag in place of a number": {"provenance": {"seed": True}},
    "cells below 0": {"provenance": {"num_cells": -1}},
    "lists of different lengths": {"provenance": {"reference": [[1], [1, 2]]}},
    "an origin that is half": {"provenance": {"imported": {"tool": "x"}}},
    "a key with an escape": {"provenance": {"cells_per_label": {"\x1b[2J": 1}}},
    "a key of 100,000 letters": {"provenance": {"cells_per_label": {"x" * 100_000: 1}}},
    "steps that are text": {
        "config": {"training": {"optim": {}, "max_steps": "1", "batch_size": 1}}
    },
    "a training that is a list": {"config": {"training": [1]}},
    "type of an option": {"config": {"tokens": {"name": "bins", "num_bins": 2.5}}},
}


@pytest.mark.parametrize("case", CONTENT)
def test_content_of_wrong_types(case, model, counts_adata, write, command):
    info = json.loads((model / "bundle.json").read_text())
    for name, value in CONTENT[case].items():
        info[name] = info.get(name, {}) | value if isinstance(value, dict) else value
    (model / "bundle.json").write_text(json.dumps(info))
    ran = command("predict", write(counts_adata), "model_path=model")
    assert ran.code == 2, ran.err
    (line,) = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: damaged model 'model': ")
    assert len(line) < 600
    assert line.isprintable()
    assert not Path("sample.annotated.h5ad").exists()


@pytest.mark.parametrize("name", ["model", "baseline", "calibration", "num_val_cells"])
@pytest.mark.parametrize("value", [None, [], {}, "x", 10**400, -1], ids=repr)
def test_a_card_of_odd_metrics_is_made_or_refused(name, value, model):
    change(model, metrics={name: value})
    try:
        saved = read_model(model)
        assert model_card(saved).startswith(f"# {saved.name}")
    except InputError as error:
        assert error.code in ("damaged-model", "model-scores")  # noqa: PT017
        assert len(str(error)) < 600  # noqa: PT017
