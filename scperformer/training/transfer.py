"""Start an encoder from a trained one (`init`): its options, its weights by gene, and which of them learn on."""

import logging
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from scperformer.attention import attention_options
from scperformer.config import DataConfig, ModelConfig, NetworkConfig, PretrainConfig, TokensConfig, TrainConfig
from scperformer.dataset import Reference
from scperformer.errors import InputError
from scperformer.expression import align
from scperformer.model import INFO, Bundle, damaged_model, load_bundle, resolve_model
from scperformer.network import ENCODER, Encoder, load_encoder, require_encoder, shared_rows, sinusoids

log = logging.getLogger(__name__)

# Options of `model` that the weights depend on; the others only matter in training.
SHAPE = ("dim", "depth", "num_heads", "head_dim", "feedforward_factor", "activation", "norm", "positions")
Config = TypeVar("Config", TrainConfig, PretrainConfig)


def load_init(path: str) -> Bundle:
    """Load the model folder from which an encoder is taken; refuse one that is missing, damaged or without encoder."""
    folder, _ = resolve_model(path)
    if not (folder / INFO).is_file():
        expected = "a folder that 'scperformer pretrain' or 'scperformer train' wrote"
        raise InputError(f"no {INFO} at init='{path}'", expected, "check the path")
    bundle = load_bundle(folder)
    if not any(name.startswith(ENCODER) for name in bundle.weights):
        found = f"no encoder in init='{path}' (trained with model.deep=false)"
        raise InputError(found, "a model with an encoder", "choose another, or leave init out")
    return bundle


def adopt_options(cfg: Config) -> Config:
    """Take the encoder's options from `init`, if there is one; options at their defaults give way to them.

    Raises
    ------
    InputError
        Another value was given for an option that the encoder's weights depend on, or the options do not fit together.
    """
    if cfg.init is None:
        if cfg.model.deep:
            require_encoder(cfg.tokens, cfg.model, cfg.attention)
        return cfg
    if not cfg.model.deep:
        raise InputError("model.deep=false with init", "an encoder to start", "leave one of the two out")
    bundle = load_init(cfg.init)
    try:
        tokens, model = TokensConfig(**bundle.config["tokens"]), ModelConfig(**bundle.config["model"])
        attention, target_sum = bundle.config["attention"], float(bundle.config["target_sum"])
        theirs = encoder_options(tokens, model, attention, target_sum)
    except (InputError, KeyError, TypeError) as error:
        raise damaged_model(Path(cfg.init), "its configuration cannot be read") from error
    mine = encoder_options(cfg.tokens, cfg.model, cfg.attention, cfg.data.target_sum)
    plain = {"name": cfg.attention["name"]}
    default = encoder_options(TokensConfig(), ModelConfig(), plain, DataConfig().target_sum)
    default["attention.name"] = TrainConfig(inputs=[""], label_key="").attention["name"]
    for option, value in mine.items():
        if value not in (default[option], theirs.get(option)):
            expected = f"{option}={theirs[option]}" if option in theirs else f"attention={attention['name']}"
            raise InputError(
                f"{option}={value}",
                f"{expected}, as the encoder of init='{cfg.init}' has it",
                "leave the options of the encoder out: they are taken from init",
            )
    log.info("encoder of %s (%s): its options are taken from there", bundle.name, bundle.hash[:12])
    shape = {name: getattr(model, name) for name in SHAPE}
    data, model = replace(cfg.data, target_sum=target_sum), replace(cfg.model, **shape)
    require_encoder(tokens, model, attention)
    return replace(cfg, data=data, tokens=tokens, model=model, attention=dict(attention))


def encoder_options(
    tokens: TokensConfig, model: ModelConfig, attention: dict[str, Any], target_sum: float
) -> dict[str, Any]:
    """The options that the weights of an encoder depend on, by their full names."""
    mechanism = {"name": attention["name"], **asdict(attention_options(attention)[1])}
    return {
        "data.target_sum": float(target_sum),
        **{f"tokens.{part.name}": getattr(tokens, part.name) for part in fields(tokens)},
        **{f"model.{name}": getattr(model, name) for name in SHAPE},
        **{f"attention.{name}": value for name, value in mechanism.items()},
    }


def start_from_init(encoder: Encoder, genes: list[str], cfg: NetworkConfig) -> Bundle | None:
    """Copy the weights of `init`, if there is one, into an encoder, and freeze the parts that are not to learn.

    Returns the model of `init`. Errors are those of `load_encoder`.
    """
    if cfg.init is None:
        return None
    bundle = load_init(cfg.init)
    # A corpus is aligned to the genes of `init` already: the species of its files plays no role any more.
    mode, species = (cfg.init_mode, cfg.species) if isinstance(cfg, TrainConfig) else ("full", "auto")
    known = load_encoder(encoder, bundle, genes, cfg.init, species)
    place_new_genes(encoder, known, len(bundle.genes), cfg.model.positions, learns=mode == "full")
    if mode != "full":
        last = [*encoder.stack[-1].parameters(), *encoder.norm.parameters()] if mode == "last_layer" else []
        learning = [parameter for parameter in last if parameter.requires_grad]
        encoder.requires_grad_(False)
        for parameter in learning:
            parameter.requires_grad_(True)
    facts = bundle.name, len(known), len(genes), mode
    log.info("encoder starts from %s, which knows %d of %d genes; init_mode=%s", *facts)
    return bundle


@torch.no_grad()
def place_new_genes(encoder: Encoder, known: list[int], num_theirs: int, positions: str, learns: bool) -> None:
    """Give vectors to the genes that the encoder of `init` does not know.

    Sinusoidal ones must not occur twice. Learned ones start at random if they learn on, else as the mean of the others.
    """
    table = encoder.embedding.gene
    if table is None:
        return
    is_new = torch.ones(len(table.weight), dtype=torch.bool)
    is_new[[*known, len(is_new) - 1]] = False
    num_new = int(is_new.sum())
    if positions == "sinusoidal":
        table.weight[is_new] = sinusoids(num_theirs + 1 + num_new, table.weight.shape[1])[num_theirs + 1 :]
    elif positions == "gene" and not learns:
        table.weight[is_new] = table.weight[known].mean(0)


def in_order_of_init(reference: Reference, cfg: TrainConfig) -> Reference:
    """Put the genes of `init` first, in its order: tokens then have the same neighbours as in its training."""
    if cfg.init is None:
        return reference
    here, there = shared_rows(reference.genes, load_init(cfg.init).genes, cfg.init, cfg.species)
    place = dict(zip(here, there, strict=True))
    num_genes = len(reference.genes)
    order = sorted(range(num_genes), key=lambda gene: (gene not in place, place.get(gene, gene)))
    target = np.empty(num_genes, dtype=np.int64)
    target[order] = np.arange(num_genes)
    x = align(reference.x, target, num_genes)
    genes = [reference.genes[gene] for gene in order]
    stream = reference.stream
    if stream is not None:
        stream = replace(stream, collection=stream.collection.with_columns(target, genes))
    return replace(reference, x=x, genes=genes, stream=stream)


def origin(cfg: NetworkConfig, genes: list[str]) -> dict[str, Any]:
    """The entry of the provenance that names the model of `init`; nothing without `init`."""
    if cfg.init is None:
        return {}
    bundle = load_init(cfg.init)
    mode, species = ({"mode": cfg.init_mode}, cfg.species) if isinstance(cfg, TrainConfig) else ({}, "auto")
    num_known = len(shared_rows(genes, bundle.genes, cfg.init, species)[0])
    return {
        "init": {"name": bundle.name, "hash": bundle.hash, "kind": bundle.kind, "num_known_genes": num_known} | mode
    }


def init_hash(cfg: NetworkConfig) -> str:
    """The hash of the model of `init`; "" without `init`."""
    return "" if cfg.init is None else load_init(cfg.init).hash
