"""Rebuilding a saved network: its configuration is compared with its weights before memory is taken."""

import copy

import numpy as np
import pytest
import torch
from support.measured import TensorBytes

from scperformer.errors import InputError
from scperformer.model.folder import load_bundle
from scperformer.network.load import _NothingDrawn, load_model, rebuild

HUGE = 10**9
MISFITS = {
    "dim": {"model": {"dim": HUGE}},
    "depth": {"model": {"depth": HUGE}},
    "heads": {"model": {"num_heads": HUGE}},
    "head width": {"model": {"head_dim": 10**12}},
    "feed-forward": {"model": {"feedforward_factor": HUGE}},
    "views": {"model": {"wide_powers": [1.0] * 10**5}},
    "bins": {"tokens": {"name": "bins", "num_bins": HUGE}},
    "hidden layers": {"head": {"hidden": [10**6, 10**6]}},
    "many hidden layers": {"head": {"hidden": [1] * 10**6}},
    "features": {"attention": {"num_features": HUGE}},
    "structured features": {"attention": {"num_features": HUGE, "projection": "fastfood"}},
    "anchors": {"attention": {"name": "rbf", "num_anchors": HUGE}},
    "rounds": {"attention": {"name": "lsh", "num_rounds": HUGE}},
    "window": {"attention": {"name": "window", "half_width": HUGE}},
    "many kernels": {"attention": {"name": "conv", "kernel_sizes": [1] * 10**6}},
    "beyond 64 bits": {"model": {"dim": 2**70}},
    "one label more": {"model": {"dim": 31}},
    "text for a number": {"tokens": {"num_bins": "many"}},
    "no dictionary": {"attention": "favor"},
    "a list for a name": {"attention": {"name": ["favor"]}},
}


@pytest.mark.parametrize("case", MISFITS)
def test_a_configuration_that_does_not_fit_is_refused_before_it_takes_memory(case, tiny_model):
    bundle = copy.deepcopy(load_bundle(tiny_model))
    for group, options in MISFITS[case].items():
        same_kind = isinstance(options, dict) and (group != "attention" or "name" not in options)
        bundle.config[group] = bundle.config[group] | options if same_kind else options
    with TensorBytes() as tensors, pytest.raises(InputError, match="damaged model 'there': its configuration and its"):
        rebuild(bundle, "there")
    assert tensors.largest < 2**20


@pytest.mark.parametrize("change", ["absent", "of another shape", "more"])
def test_weights_that_do_not_fit_are_named(change, tiny_model):
    bundle = load_bundle(tiny_model)
    name = "model.encoder.layers.0.to_out.bias"
    if change == "absent":
        del bundle.weights[name]
    elif change == "more":
        bundle.weights["model.more"] = np.zeros(3, dtype=np.float32)
    else:
        bundle.weights[name] = np.zeros(7, dtype=np.float32)
    said = {
        "absent": r"no weights 'encoder\.layers\.0\.to_out\.bias'",
        "of another shape": r"'encoder\.layers\.0\.to_out\.bias' of shape \(7,\) instead of \(32,\)",
        "more": r"weights 'more' of no use",
    }
    with pytest.raises(InputError, match=said[change]):
        rebuild(bundle, "there")


def test_a_network_without_memory_needs_no_random_numbers():
    """Drawing on the meta device would import torch's Python kernels, a second or more."""
    with torch.device("meta"), _NothingDrawn():
        state = torch.get_rng_state()
        assert torch.randn(3, 4, generator=torch.Generator()).shape == (3, 4)
        assert torch.nn.Embedding(5, 6).weight.is_meta
    assert torch.equal(torch.get_rng_state(), state)


def test_loading_changes_nothing_in_torch(tiny_model, torch_unchanged):
    with torch_unchanged():
        network = load_model(tiny_model).network
    assert not network.training
    assert not any(tensor.is_meta for tensor in network.state_dict().values())
