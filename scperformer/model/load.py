"""The network of a saved model."""

from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from scperformer.attention.registry import PluginProblem
from scperformer.model.folder import damaged_model
from scperformer.model.imported import imported_network
from scperformer.model.network import CellTypeModel, new_encoder
from scperformer.model.saved_model import SavedModel

# Prefixes of the names of weights in a model folder.
NETWORK_PREFIX = "model."
ENCODER_PREFIX = "model.encoder."


class _NothingDrawn(TorchFunctionMode):
    """Draw no random numbers: on the meta device they have no effect, but import a large part of torch."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function in (torch.Tensor.normal_, torch.nn.init.normal_):
            return args[0] if args else kwargs["tensor"]
        if function is torch.randn:
            kwargs.pop("generator", None)
            function = torch.empty
        return function(*args, **kwargs)


def rebuild(saved: SavedModel, path: Path) -> Any:
    """Build the network of a model folder with its weights: the encoder alone if the model has no labels.

    The folder may come from anywhere. So the names, shapes and types of its weights are first compared with a network
    that takes no memory (on torch's meta device); if they differ, the model is damaged.
    """
    prefix = NETWORK_PREFIX if saved.labels else ENCODER_PREFIX
    weights = {
        name.removeprefix(prefix): array
        for name, array in saved.weights.items()
        if name.startswith(prefix)
    }

    def untrained() -> torch.nn.Module:
        sizes = len(saved.genes), len(saved.labels)
        if saved.config.network is not None and saved.labels:
            return imported_network(*sizes, saved.config.network)
        tokens, model, attention, head = parts = saved.config.parts
        # Each part has weights of its own; even on the meta device a part takes some memory.
        if max(model.depth, len(head.hidden), len(attention.get("kernel_sizes", ()))) > len(
            weights
        ):
            raise ValueError(f"more parts than its {len(weights)} weights")
        if not saved.labels:
            return new_encoder(len(saved.genes), tokens, model, attention)
        return CellTypeModel(*sizes, **parts._asdict())

    try:
        with torch.device("meta"), _NothingDrawn():
            expected = untrained().state_dict()
        for name in sorted(expected.keys() ^ weights.keys()):
            raise ValueError(
                f"no weights '{name}'" if name in expected else f"unused weights '{name[:100]}'"
            )
        given = {name: torch.from_numpy(array) for name, array in weights.items()}
        for name, tensor in expected.items():
            if given[name].shape != tensor.shape:
                raise ValueError(
                    f"weights '{name}' of shape {weights[name].shape} instead of {tuple(tensor.shape)}"
                )
            are_floats = given[name].is_floating_point() and tensor.is_floating_point()
            if given[name].dtype != tensor.dtype and not are_floats:
                raise ValueError(f"weights '{name}' of type {weights[name].dtype}")
        network = untrained()
        network.load_state_dict(given)
    except PluginProblem:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        reason = f": {error}" if isinstance(error, ValueError) else ""
        raise damaged_model(path, f"its weights do not fit its configuration{reason}") from error
    return network
