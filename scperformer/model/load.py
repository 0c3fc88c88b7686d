"""Load a saved model into a network."""

import logging
import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode

from scperformer.attention.encoder import Encoder
from scperformer.attention.registry import PluginProblem
from scperformer.base.errors import InputError
from scperformer.base.messages import listed
from scperformer.base.progress import progress
from scperformer.config.options import checked
from scperformer.config.training import HeadConfig, ModelConfig, TokensConfig
from scperformer.model.folder import damaged_model, parts_of, read_model, require_annotator, resolve_model
from scperformer.model.imported import ImportedNetwork, imported_network
from scperformer.model.inference import torch_state_kept
from scperformer.model.network import CellTypeModel, LinearModel
from scperformer.model.performer import Performer
from scperformer.model.saved_model import SavedModel, encoder_is_silent

log = logging.getLogger(__name__)

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


@dataclass(repr=False)
class Model:
    """A trained model that can annotate: what was saved, and the network in eval mode.

    A model of several studies has no network but `members`, a model of each study, whose probabilities are joined.
    """

    saved: SavedModel
    path: Path
    own_network: CellTypeModel | ImportedNetwork | None = None
    members: "list[Model]" = field(default_factory=list)
    adapted: "dict[str, Model]" = field(default_factory=dict)  # models refitted to files, by the key of the coverage

    @property
    def network(self) -> CellTypeModel | ImportedNetwork:
        """The network, a plain torch module; a model of several studies is refused."""
        if self.own_network is None:
            remedy = f"name the model of a study, such as model_path={self.members[0].path}"
            found = f"the model {self.saved.name} of {len(self.members)} studies"
            raise InputError("joint-model", found, "a model of one study in this place", remedy)
        return self.own_network

    @property
    def tokens(self) -> TokensConfig:
        """The options of its tokens; imported networks have no tokens."""
        return TokensConfig(**self.saved.config.get("tokens", {}))

    @cached_property
    def baseline(self) -> LinearModel | None:
        """Logistic regression; None: an imported model without labelled cells, or several studies."""
        weight = self.saved.weights.get("baseline.weight")
        bias = self.saved.weights.get("baseline.bias")
        return None if weight is None or bias is None else LinearModel(weight, bias)

    def __repr__(self) -> str:
        fold = self.saved.metrics.get("out_of_fold")
        expected = f"; expected accuracy {fold['accuracy']:.3f} on cells like its reference" if fold else ""
        return f"Model {self.saved.name} ({self.saved.hash[:12]}, {self.path}): {self.saved.summary}{expected}"


def rebuild(saved: SavedModel, path: Path) -> CellTypeModel | Encoder | Performer | ImportedNetwork:
    """Build the network of a model folder with its weights: the encoder alone if the model has no labels.

    The folder may come from anywhere. So the names, shapes and types of its weights are first compared with a network
    that takes no memory (on torch's meta device); if they differ, the model is damaged.
    """
    prefix = NETWORK_PREFIX if saved.is_annotator else ENCODER_PREFIX
    weights = {name.removeprefix(prefix): array for name, array in saved.weights.items() if name.startswith(prefix)}

    def untrained() -> CellTypeModel | Encoder | Performer | ImportedNetwork:
        config = saved.config
        if "network" in config and saved.is_annotator:
            return imported_network(len(saved.genes), len(saved.labels), config["network"])
        attention = dict(saved.config["attention"])
        tokens = checked(TokensConfig, config["tokens"], "tokens.")
        model = checked(ModelConfig, config["model"], "model.")
        head = checked(HeadConfig, config["head"], "head.") if saved.is_annotator else HeadConfig()
        # Each part has weights of its own; even on the meta device a part takes some memory.
        if max(model.depth, len(head.hidden), len(attention.get("kernel_sizes", ()))) > len(weights):
            raise ValueError(f"more parts than its {len(weights)} weights")
        if not saved.is_annotator:
            kind = Performer if model.uses_cross_attention else Encoder
            return kind(len(saved.genes), tokens, model, attention, torch.Generator().manual_seed(0))
        sizes = len(saved.genes), len(saved.labels)
        return CellTypeModel(*sizes, tokens=tokens, model=model, attention=attention, head=head)

    try:
        with torch.device("meta"), _NothingDrawn():
            expected = untrained().state_dict()
        for name in sorted(expected.keys() ^ weights.keys()):
            raise ValueError(f"no weights '{name}'" if name in expected else f"unused weights '{name[:100]}'")
        given = {name: torch.from_numpy(array) for name, array in weights.items()}
        for name, tensor in expected.items():
            if given[name].shape != tensor.shape:
                raise ValueError(f"weights '{name}' of shape {weights[name].shape} instead of {tuple(tensor.shape)}")
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


@progress("loading the model")
@torch_state_kept()
def load_model(model_path: str | os.PathLike[str] | None = None) -> Model:
    """Load a model folder; None: $SCPERFORMER_MODEL, else the packaged pbmc3k, of blood. Refuse one without labels."""
    path, why = resolve_model(None if model_path is None else os.fspath(model_path))
    saved = read_model(path)
    if why == "imported":  # it is called what its user calls it
        saved = replace(saved, name=path.name)
    require_annotator(saved, path)
    text = "model %s (%s, %s): %s genes, %d labels: %s"
    log.info(text, saved.name, why, saved.hash[:12], f"{len(saved.genes):,}", len(saved.labels), listed(saved.labels))
    if saved.studies:
        log.info("its reference has %d studies: %s", len(saved.studies), listed(study.name for study in saved.studies))
    model = as_model(saved, path)
    if saved.lacks:
        text = "model %s was imported from %s without: %s"
        log.info(text, saved.name, saved.imported["tool"], ", ".join(saved.lacks))
    if encoder_is_silent(saved.scales):
        log.info("the encoder has no influence in this model: its labels come from the linear branch alone")
    return model


def as_model(saved: SavedModel, path: Path) -> Model:
    """Build the model that was saved in the folder `path`; refuse weights that do not fit its configuration."""
    if saved.studies:
        return Model(saved, path, members=[as_model(part, place) for part, place in parts_of(saved, path)])
    network = rebuild(saved, path)
    assert isinstance(network, CellTypeModel | ImportedNetwork)
    if isinstance(network, CellTypeModel) and network.only_sums and encoder_is_silent(saved.scales):
        network.encoder = None  # a third of the time of a prediction
    return Model(saved, path, network.eval())
