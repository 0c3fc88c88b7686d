"""Loading saved networks: misfitting weights are refused before memory is allocated. Tables of gene vectors."""

import copy
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save
from support.measured import TensorBytes
from support.refusal import refusal

from scperformer.adaptation.load import load_model
from scperformer.base.errors import InputError
from scperformer.base.inputs import sha256
from scperformer.model.content import INFO
from scperformer.model.folder import WEIGHTS, read_model
from scperformer.model.load import rebuild

HUGE = 10**9


def rewrite(folder: Path, weights: bytes) -> None:
    """Replace the weights of a model folder and their checksum."""
    (folder / WEIGHTS).write_bytes(weights)
    info = json.loads((folder / INFO).read_text())
    info["files"][WEIGHTS] = sha256(folder / WEIGHTS)
    (folder / INFO).write_text(json.dumps(info))


MISFITS = {
    "dim": {"model": {"dim": HUGE}},
    "hidden layers": {"head": {"hidden": [10**6, 10**6]}},
    "structured features": {"attention": {"num_features": HUGE, "projection": "fastfood"}},
    "many kernels": {"attention": {"name": "conv", "kernel_sizes": [1] * 10**6}},
    "one label more": {"model": {"dim": 31}},
}


@pytest.mark.parametrize("case", MISFITS)
def test_a_misfitting_configuration_is_refused_before_memory_is_allocated(case, tiny_model):
    saved = copy.deepcopy(read_model(tiny_model))
    for group, options in MISFITS[case].items():
        same_kind = isinstance(options, dict) and (group != "attention" or "name" not in options)
        setattr(
            saved.config, group, getattr(saved.config, group) | options if same_kind else options
        )
    with TensorBytes() as tensors, refusal("damaged-model"):
        rebuild(saved, "there")
    assert tensors.largest < 2**20


@pytest.mark.parametrize("change", ["absent", "of another shape", "unused"])
def test_misfitting_weights_are_named(change, tiny_model):
    saved = read_model(tiny_model)
    name = "model.encoder.layers.0.to_out.bias"
    if change == "absent":
        del saved.weights[name]
    elif change == "unused":
        saved.weights["model.more"] = np.zeros(3, dtype=np.float32)
    else:
        saved.weights[name] = np.zeros(7, dtype=np.float32)
    message = {
        "absent": r"no weights 'encoder\.layers\.0\.to_out\.bias'",
        "of another shape": r"'encoder\.layers\.0\.to_out\.bias' of shape \(7,\) instead of \(32,\)",
        "unused": r"unused weights 'more'",
    }
    with pytest.raises(InputError, match=message[change]):
        rebuild(saved, "there")


@pytest.mark.parametrize("dtype", ["int32", "complex64"])
def test_weights_of_other_types_are_refused(dtype, tiny_model, tmp_path):
    name = "model.encoder.layers.0.to_out.bias"
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    weights = load_file(folder / WEIGHTS)
    weights[name] = np.ones(weights[name].shape, dtype=dtype)
    rewrite(folder, save(weights))
    with refusal("damaged-model", name.removeprefix("model."), dtype):
        load_model(folder)


def test_loading_changes_nothing_in_torch(tiny_model, torch_unchanged):
    with torch_unchanged():
        network = load_model(tiny_model).network
    assert not network.training
    assert not any(tensor.is_meta for tensor in network.state_dict().values())
