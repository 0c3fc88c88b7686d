"""The Performer on a device that is not the CPU: an operation on tensors of two devices is an error.

torch's `meta` replaces the GPU: its tensors have a device, but no numbers.
"""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call

from scperformer.attention.tokens import Batch
from scperformer.cli.train import TrainConfig
from scperformer.config.training import HeadConfig, ModelConfig, TokensConfig
from scperformer.fits.performer import Copies
from scperformer.model.network import CellTypeModel, Head, Readout

K, B, L, G, C = 2, 8, 12, 30, 3  # copies, cells, tokens, genes, labels
MODEL = ModelConfig(dim=16, num_heads=2, depth=2, positions="coexpression", dropout=0.5)


@pytest.fixture(params=[{"name": "favor"}, {"name": "rbf", "num_anchors": 16}, {"name": "softmax"}])
def network(request) -> CellTypeModel:
    return CellTypeModel(
        G, C, tokens=TokensConfig(), model=MODEL, attention=request.param, head=HeadConfig()
    )


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    """Return a function that copies tensors to the device."""
    # there is none for this device
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    # tells whether weights changed
    monkeypatch.setattr(torch.Tensor, "data_ptr", lambda self: id(self))
    with FakeTensorMode() as mode:
        yield lambda tensor: torch.empty_like(mode.from_tensor(tensor), device="meta")


def cells_on(device: str) -> Batch:
    genes_BL = torch.zeros(B, L, dtype=torch.long, device=device)
    x_BL = torch.zeros(B, L, device=device)
    return Batch(genes_BL, x_BL, x_BL, x_BL == 0)


def test_prediction(network, gpu):
    state = {name: gpu(tensor) for name, tensor in network.eval().state_dict().items()}
    for output in functional_call(network, state, (cells_on("meta"),)):
        assert output.device.type == "meta"
    with pytest.raises(RuntimeError, match="device"):
        functional_call(network, state, (cells_on("cpu"),))


def test_training_of_copies(network, gpu):
    encoder = network.encoder
    copies = [Readout(encoder.reader, Head(MODEL.dim, C, HeadConfig())) for _ in range(K)]
    trained = Copies(encoder, copies, np.arange(C), TrainConfig(inputs=["x"], label_key="x"))
    for module in [*trained.modules(), *trained.template[0].modules()]:
        for name, buffer in module._buffers.items():
            module._buffers[name] = gpu(buffer)
        for name, parameter in module._parameters.items():
            module._parameters[name] = torch.nn.Parameter(gpu(parameter), parameter.requires_grad)
    sums_KBX = torch.zeros(K, B, len(encoder.reader.mean_X), device="meta")
    labels_KB = torch.zeros(K, B, dtype=torch.long, device="meta")
    trained.loss_of((sums_KBX, labels_KB)).backward()
    assert all(weight.grad.device.type == "meta" for weight in trained.parameters())
    with pytest.raises(RuntimeError, match="device"):
        trained.loss_of((sums_KBX.to("cpu"), labels_KB))
