"""Load a saved model: its network in eval mode, or the weights of its encoder gene by gene."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from scperformer.config import HeadConfig, ModelConfig, TokensConfig, checked
from scperformer.errors import InputError
from scperformer.genes import KIND_NAMES, id_kind, map_genes
from scperformer.model import (
    ANNOTATOR,
    Bundle,
    damaged_model,
    encoder_is_silent,
    load_bundle,
    require_annotator,
    resolve_model,
)
from scperformer.network.baseline import LinearModel
from scperformer.network.cpu import torch_state_kept
from scperformer.network.encoder import Encoder
from scperformer.network.network import CellTypeModel

log = logging.getLogger(__name__)

NETWORK, ENCODER, PRETRAINING = "model.", "model.encoder.", "pretraining."  # prefixes of weights in a model folder
MIN_SHARE = 0.1  # of the reference's genes that the encoder must know
# Weights with one entry per gene and one for the special position, and the axis of these entries.
GENE_AXES = {
    "embedding.gene.weight": 0,
    "attention.matrices_CPGN": 1,
    "attention.rows_PK": 0,
    "attention.columns_PK": 0,
}


class _NothingDrawn(TorchFunctionMode):
    """Leave out random numbers, which have no meaning on the meta device and there import half of torch."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function in (torch.Tensor.normal_, torch.nn.init.normal_):
            return args[0] if args else kwargs["tensor"]
        if function is torch.randn:
            kwargs.pop("generator", None)
            function = torch.empty
        return function(*args, **kwargs)


@dataclass
class Model:
    """A trained model ready to annotate: its bundle, its network in eval mode and its logistic regression."""

    bundle: Bundle
    path: Path
    network: CellTypeModel
    baseline: LinearModel

    @property
    def tokens(self) -> TokensConfig:
        return TokensConfig(**self.bundle.config["tokens"])


def rebuild(bundle: Bundle, path: Path) -> CellTypeModel | Encoder:
    """Build the network of a model folder with its weights: an `Encoder` if the model has no labels.

    The folder may come from anywhere, so the sizes in its configuration are compared with those of its weights first,
    on a network without memory (torch's meta device).

    Raises
    ------
    InputError
        The configuration is not one of a network, or its weights have other names or shapes.
    """
    prefix = NETWORK if bundle.kind == ANNOTATOR else ENCODER
    weights = {name.removeprefix(prefix): array for name, array in bundle.weights.items() if name.startswith(prefix)}
    try:
        with torch.device("meta"), _NothingDrawn():
            require_shapes(_untrained(bundle, most_parts=len(weights)), weights)
        network = _untrained(bundle, most_parts=len(weights))
        network.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        reason = f": {error}" if isinstance(error, ValueError) else ""
        raise damaged_model(path, f"its configuration and its weights do not fit{reason}") from error
    return network


def _untrained(bundle: Bundle, most_parts: int) -> CellTypeModel | Encoder:
    config, attention = bundle.config, dict(bundle.config["attention"])
    tokens = checked(TokensConfig, config["tokens"], "tokens.")
    model = checked(ModelConfig, config["model"], "model.")
    head = checked(HeadConfig, config["head"], "head.") if bundle.kind == ANNOTATOR else HeadConfig()
    # Each of these makes parts that have weights; a part takes memory even on the meta device.
    if max(model.depth, len(head.hidden), len(attention.get("kernel_sizes", ()))) > most_parts:
        raise ValueError(f"more parts than the {most_parts} weights that are there")
    if bundle.kind == ANNOTATOR:
        sizes = (len(bundle.genes), len(bundle.labels))
        return CellTypeModel(*sizes, tokens=tokens, model=model, attention=attention, head=head)
    return Encoder(len(bundle.genes), tokens, model, attention, torch.Generator().manual_seed(0))


def require_shapes(network: torch.nn.Module, weights: Mapping[str, np.ndarray]) -> None:
    """Refuse weights with other names or shapes than those of a network.

    Raises
    ------
    ValueError
        Names the first that differs.
    """
    expected = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    for name in sorted(expected.keys() ^ weights.keys()):
        raise ValueError(f"no weights '{name}'" if name in expected else f"weights '{name[:100]}' of no use")
    for name, shape in expected.items():
        if weights[name].shape != shape:
            raise ValueError(f"weights '{name}' of shape {weights[name].shape} instead of {shape}")


@torch_state_kept()
def load_model(model_path: str | Path | None = None) -> Model:
    """Load a model folder; None means $SCPERFORMER_MODEL, else the packaged model.

    Raises
    ------
    InputError
        The folder is missing, damaged, of a newer format, or an encoder without labels.
    """
    path, why = resolve_model(None if model_path is None else str(model_path))
    bundle = load_bundle(path)
    require_annotator(bundle, path)
    network = rebuild(bundle, path)
    assert isinstance(network, CellTypeModel)
    missing = [name for name in ("baseline.weight", "baseline.bias") if name not in bundle.weights]
    if missing:
        raise damaged_model(path, f"no weights '{missing[0]}'")
    baseline = LinearModel(bundle.weights["baseline.weight"], bundle.weights["baseline.bias"])
    checksum, labels = bundle.hash[:12], ", ".join(bundle.labels)
    text = "model %s (%s, %s): %d genes, %d labels: %s"
    log.info(text, bundle.name, why, checksum, len(bundle.genes), len(bundle.labels), labels)
    if encoder_is_silent(bundle.scales):
        network.wide_alone = bundle.scales["deep"] == 0
        log.info("the encoder does not count in this model: the labels come from its linear branch alone")
    return Model(bundle, path, network.eval(), baseline)


def shared_rows(genes: list[str], theirs: list[str], init: str, species: str = "auto") -> tuple[list[int], list[int]]:
    """Rows of the genes that two lists share, in each of them; names may differ in kind, and each gene occurs once.

    Raises
    ------
    InputError
        Too few of `genes` are among `theirs`, or they are of another species and `species` does not say so.
    """
    mapping = map_genes(genes, theirs, None, species, path="the reference")
    known = (mapping.target >= 0) & (mapping.first == np.arange(len(genes)))
    here = np.flatnonzero(known).tolist()
    if len(here) < max(1, MIN_SHARE * len(genes)):
        kind, wanted = id_kind(genes), id_kind(theirs)
        other = f"convert var_names from {KIND_NAMES[kind]} to {KIND_NAMES[wanted]}"
        same = "use an encoder of the same species, or train without init"
        examples = f"(e.g. '{genes[len(genes) // 2]}'; it has e.g. '{theirs[len(theirs) // 2]}')"
        raise InputError(
            f"{len(here)} of {len(genes)} genes of the reference known to init='{init}' {examples}",
            f"at least {MIN_SHARE:.0%} of them",
            same if kind == wanted else other,
        )
    return here, mapping.target[here].tolist()


@torch.no_grad()
def load_encoder(encoder: Encoder, bundle: Bundle, genes: list[str], init: str, species: str = "auto") -> list[int]:
    """Copy the weights of a model folder into an encoder with the same options, gene by gene.

    Genes that the model does not know keep the vectors they have.

    Returns
    -------
    The rows of the genes that the model knows.

    Raises
    ------
    InputError
        The model knows too few of the genes, or has weights of another shape.
    """
    here, there = shared_rows(genes, bundle.genes, init, species)
    new, old = torch.tensor([*here, len(genes)]), torch.tensor([*there, len(bundle.genes)])
    for name, ours in encoder.state_dict().items():
        if ENCODER + name not in bundle.weights:
            raise damaged_model(Path(init), f"no weights '{name}'")
        theirs = torch.from_numpy(np.asarray(bundle.weights[ENCODER + name]))
        axis = next((axis for end, axis in GENE_AXES.items() if name.endswith(end)), None)
        part, wanted = theirs, ours.shape
        if axis is not None:
            part, wanted = theirs.index_select(axis, old), ours.index_select(axis, new).shape
        if part.shape != wanted:
            found = f"weights '{name}' of {tuple(part.shape)} in init='{init}'"
            raise InputError(found, f"{tuple(wanted)}", "use an encoder with about as many genes")
        if axis is None:
            ours.copy_(part)
        else:
            ours.index_copy_(axis, new, part)
    return here
