"""Model folders that mean harm: one clear line; nothing of them is executed."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save
from support.measured import TensorBytes

from scperformer.base.errors import InputError
from scperformer.base.inputs import sha256
from scperformer.model.folder import read_model
from scperformer.model.load import load_model


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


# Sizes


SIZES = {  # more of them in tests/model/test_load.py
    "dim": {"model": {"dim": 10**9}},
    "depth": {"model": {"depth": 10**9}},
    "features": {"attention": {"num_features": 10**9}},
    "window": {"attention": {"name": "window", "half_width": 10**9}},
}


@pytest.mark.parametrize("case", SIZES)
def test_sizes_are_those_of_the_weights(case, model):
    """Refused before anything of the size is made."""
    config = json.loads((model / "bundle.json").read_text())["config"]
    for group, options in SIZES[case].items():
        config[group] = options if "name" in options and group == "attention" else config[group] | options
    change(model, config=config)
    with TensorBytes() as tensors, pytest.raises(InputError, match=r"damaged model '.*': "):
        load_model(model)
    assert tensors.largest < 2**20


def header(shape: list[int], end: int) -> bytes:
    text = json.dumps({"model.a": {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}}).encode()
    return len(text).to_bytes(8, "little") + text


WEIGHTS = {
    "huge shape": header([10**9, 10**9], 8),
    "huge offsets": header([2], 2**60) + bytes(8),
    "overflow": header([2**62, 4], 8) + bytes(8),
    "negative": header([-2], 8) + bytes(8),
    "huge header": (2**62).to_bytes(8, "little") + b"{}",
    "nested header": (10**5).to_bytes(8, "little") + b"[" * 10**5,
    "pickle": b"\x80\x04\x95" + bytes(100),
    "nothing": b"",
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_weights_that_lie(case, model):
    (model / "model.safetensors").write_bytes(WEIGHTS[case])
    change(model)
    with pytest.raises(InputError, match=r"'model.safetensors' unreadable"):
        read_model(model)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["baseline.weight", "model.linear.bias"])
def test_weights_that_are_no_numbers(name, value, model):
    array = load_file(model / "model.safetensors")[name].copy()
    array.flat[0] = value
    change_weights(model, **{name: array})
    with pytest.raises(InputError, match=f"NaN or infinite numbers in {name}"):
        read_model(model)


def test_json_is_not_read_when_it_is_huge(model):
    os.truncate(model / "bundle.json", 2**30)  # sparse: takes no room on the disk
    with pytest.raises(InputError, match=r"'bundle.json' of 1,073,741,824 bytes"):
        read_model(model)


@pytest.mark.parametrize("name", ["bundle.json", "genes.tsv", "model.safetensors"])
def test_links_that_leave_the_folder(name, model, tmp_path):
    (model / name).rename(tmp_path / "secret")
    (model / name).symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match=r"no bundle\.json|missing or changed"):
        read_model(model)


# Content


CONTENT = {
    "labels that are numbers": {"labels": [1, 2, 3]},
    "labels twice": {"labels": ["a", "a", "b"]},
    "newline": {"labels": ["a\nerror: b", "b", "c"]},
    "name": {"name": "a\nb"},
    "terms that are numbers": {"ontology_term_ids": [1, 2, 3]},
    "tree without terms": {"tree": {"parents": {}}},
    "tree with a cycle": {"tree": {"parents": {"B cell": "x", "x": "B cell"}, "terms": {}}},
    "deep tree": {"tree": {"parents": {f"n{i}": f"n{i + 1}" for i in range(10_000)} | {"B cell": "n0"}, "terms": {}}},
    "target": {"config": {"target_sum": "much"}},
    "scales": {"metrics": {"scales": {"linear": "x"}}},
    "scale of no branch": {"metrics": {"scales": {"shallow": 1.0}}},
    "scores of a branch": {"metrics": {"out_of_fold": {"accuracy": 1.0, "branches": {"linear": {"loss": "x"}}}}},
    "escape in the encoder": {
        "metrics": {"encoder": dict.fromkeys(["kind", "size", "attention", "device"], "\x1b[2J")}
    },
    "reference": {"provenance": {"reference": ["x"]}},
    "group": {"config": {"head": ["mean"]}},
    "attention": {"config": {"attention": "favor"}},
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
