"""A saved model back in memory: its network in eval mode, and an encoder's weights by gene."""

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from scperformer.config import HeadConfig, ModelConfig, TokensConfig
from scperformer.errors import InputError
from scperformer.genes import KIND_NAMES, id_kind, map_genes
from scperformer.model import Bundle, damaged_model, encoder_is_silent, load_bundle, require_annotator, resolve_model
from scperformer.network.baseline import LinearModel
from scperformer.network.cpu import torch_state_kept
from scperformer.network.encoder import Encoder
from scperformer.network.network import CellTypeModel

log = logging.getLogger(__name__)

ENCODER, PRETRAINING = "model.encoder.", "pretraining."  # weights in a model folder begin with one of them
MIN_SHARE = 0.1  # of the reference's genes that the encoder must know
# Weights that have an entry for each gene and one for the special position, and along which axis.
GENE_AXES = {
    "embedding.gene.weight": 0,
    "attention.matrices_CPGN": 1,
    "attention.rows_PK": 0,
    "attention.columns_PK": 0,
}


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
    config = bundle.config
    prefix = "model."
    state = {
        name.removeprefix(prefix): torch.from_numpy(array)
        for name, array in bundle.weights.items()
        if name.startswith(prefix)
    }
    try:
        network = CellTypeModel(
            len(bundle.genes),
            len(bundle.labels),
            tokens=TokensConfig(**config["tokens"]),
            model=ModelConfig(**config["model"]),
            attention=config["attention"],
            head=HeadConfig(**config["head"]),
        )
        network.load_state_dict(state)
        rival = LinearModel(bundle.weights["baseline.weight"], bundle.weights["baseline.bias"])
    except (InputError, KeyError, TypeError, RuntimeError) as error:
        raise damaged_model(path, "its configuration and its weights do not fit") from error
    log.info(
        "model %s (%s, %s): %d genes; tells apart %d labels: %s",
        bundle.name,
        why,
        bundle.hash[:12],
        len(bundle.genes),
        len(bundle.labels),
        ", ".join(bundle.labels),
    )
    if encoder_is_silent(bundle.scales):
        network.wide_alone = bundle.scales["deep"] == 0
        log.info("the encoder has no say in this model: the labels come from its linear branch alone")
    return Model(bundle, path, network.eval(), rival)


def shared_rows(genes: list[str], theirs: list[str], init: str, species: str = "auto") -> tuple[list[int], list[int]]:
    """Where the genes that both have are, here and there, whatever the two call them; each is given once.

    Raises
    ------
    InputError
        Too few of `genes` are among `theirs`, or they are of another species and `species` is not told.
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
    """Put the weights of a model folder into an encoder with the same options, gene by gene.

    Genes that it does not know keep the vectors they have, except that sinusoidal ones get positions of their own.

    Returns
    -------
    The rows of the genes that it knows.

    Raises
    ------
    InputError
        It knows too few of the genes, or has weights of another shape.
    """
    here, there = shared_rows(genes, bundle.genes, init, species)
    new, old = torch.tensor([*here, len(genes)]), torch.tensor([*there, len(bundle.genes)])
    for name, tensor in encoder.state_dict().items():
        axis = next((axis for end, axis in GENE_AXES.items() if name.endswith(end)), None)
        theirs = _weight(bundle, name, init)
        part = theirs if axis is None else theirs.index_select(axis, old)
        wanted = tensor if axis is None else tensor.index_select(axis, new)
        if part.shape != wanted.shape:
            found = f"weights '{name}' of {tuple(part.shape)} in init='{init}'"
            raise InputError(found, f"{tuple(wanted.shape)}", "use an encoder with about as many genes")
        if axis is None:
            tensor.copy_(part)
        else:
            tensor.index_copy_(axis, new, part)
    return here


def _weight(bundle: Bundle, name: str, init: str) -> torch.Tensor:
    if ENCODER + name not in bundle.weights:
        raise damaged_model(Path(init), f"no weights '{name}'")
    return torch.from_numpy(np.asarray(bundle.weights[ENCODER + name]))
