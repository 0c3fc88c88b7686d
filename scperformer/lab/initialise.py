"""The initial weights of a network: gene vectors, attention, and a trained encoder (`init`)."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from scperformer.attention.encoder import Encoder
from scperformer.attention.registry import PluginProblem, attention_options, with_source
from scperformer.attention.tokens import sinusoids
from scperformer.base.errors import InputError
from scperformer.config.training import DataConfig, ModelConfig, NetworkConfig, TokensConfig, TrainOptions
from scperformer.lab.epochs import EncoderLearner
from scperformer.lab.pretrained_weights import load_encoder, read_gene_vectors
from scperformer.model.batches import Cells, prediction_batches, seed_of
from scperformer.model.content import INFO
from scperformer.model.folder import damaged_model, read_model
from scperformer.model.library import resolve_model
from scperformer.model.load import ENCODER_PREFIX
from scperformer.model.performer import Performer
from scperformer.model.saved_model import SavedModel
from scperformer.training.fit_linear import fit_logistic
from scperformer.training.train import settled

log = logging.getLogger(__name__)

HEAD_DRAWS = 3  # times that each cell is seen as in a training step when the head is fitted
HEAD_C = 10.0  # inverse penalty of the regression for the head: weak, as it has few inputs, which are standardised
# Options of `model` that the weights depend on; the others only matter in training.
SHAPE = ("dim", "depth", "num_heads", "head_dim", "norm", "positions", "queries")
Config = TypeVar("Config", bound=NetworkConfig)


@dataclass(frozen=True)
class Init:
    """The model folder `init`, from whose encoder a training starts."""

    path: str
    saved: SavedModel
    mode: str  # the part of the encoder that is trained further: full, last_layer or head
    species: str  # of the reference's genes, for matching them to the encoder's

    def provenance(self, num_known_genes: int) -> dict[str, Any]:
        """Return the entry `init` of the provenance of the model that is trained."""
        names = {"name": self.saved.name, "hash": self.saved.hash}
        licence = {"licence": self.saved.provenance["licence"]} if self.saved.imported else {}
        return names | {"num_known_genes": num_known_genes} | licence


def load_init(cfg: NetworkConfig, mode: str = "full", species: str = "auto") -> Init | None:
    """Load the model folder that `init` names, or return None without it; refuse one without layers of an encoder."""
    if cfg.init is None:
        return None
    folder, _ = resolve_model(cfg.init)
    if not (folder / INFO).is_file():
        expected = "a folder that 'scperformer pretrain' or 'scperformer train' wrote"
        raise InputError(f"no {INFO} at init='{cfg.init}'", expected, "check the path")
    saved = read_model(folder)
    model = saved.config.get("model", {})
    has_encoder = any(name.startswith(ENCODER_PREFIX) for name in saved.weights)
    by_cell = model.get("queries") == "cell"
    if not has_encoder or (model.get("positions") == "coexpression" and not by_cell):
        option = "model.positions=coexpression model.queries=tokens" if has_encoder else "model.encoder=false"
        found = f"no encoder to start from in init='{cfg.init}' (trained with {option})"
        raise InputError(found, "a model with an encoder", "choose another, or leave init out")
    if by_cell and mode != "full":
        expected = f"full with init='{cfg.init}', of whose encoder the gene vectors are taken as they are"
        raise InputError(f"init_mode={mode}", expected, "leave init_mode out")
    return Init(cfg.init, saved, mode, species)


def encoder_options(
    tokens: TokensConfig, model: ModelConfig, attention: dict[str, Any], target_sum: float
) -> dict[str, Any]:
    """Return the options that the weights of an encoder depend on, by their full names."""
    shape = {name: getattr(model, name) for name in SHAPE}
    mechanism = asdict(attention_options(attention)[1])
    groups = {"tokens": asdict(tokens), "model": shape, "attention": {"name": attention["name"], **mechanism}}
    full = {f"{group}.{name}": value for group, options in groups.items() for name, value in options.items()}
    return {"data.target_sum": float(target_sum), **full}


def adopt_options(cfg: Config, init: Init) -> Config:
    """Take the encoder's options from `init`; refuse other values than its own or the defaults."""
    cfg = replace(cfg, attention=with_source(cfg.attention))
    if not cfg.model.encoder:
        raise InputError("model.encoder=false with init", "an encoder to start", "leave one of the two out")
    saved = init.saved
    try:
        tokens = TokensConfig(**saved.config["tokens"])
        model = ModelConfig(**saved.config["model"])
        attention = saved.config["attention"]
        target_sum = float(saved.config["target_sum"])
        theirs = encoder_options(tokens, model, attention, target_sum)
    except PluginProblem:
        raise
    except (InputError, KeyError, TypeError) as error:
        raise damaged_model(Path(init.path), "its configuration cannot be read") from error
    usual = NetworkConfig(inputs=[""])
    usual_model = ModelConfig()
    if model.reads_genes:
        usual_model = usual.model
    elif cfg.model.positions == "coexpression":  # the default model goes
        groups: dict[str, Any] = {}
        for group in ("model", "head", "optim", "trainer"):
            given = getattr(cfg, group)
            default = asdict(getattr(usual, group))
            groups[group] = type(given)(**{name: x for name, x in asdict(given).items() if x != default[name]})
        cfg = replace(cfg, **groups)
    mechanism = {"name": cfg.attention["name"]}
    default = encoder_options(TokensConfig(), usual_model, mechanism, DataConfig().target_sum)
    default["attention.name"] = usual.attention["name"]
    for option, value in encoder_options(cfg.tokens, cfg.model, cfg.attention, cfg.data.target_sum).items():
        if value not in (default[option], theirs.get(option)):
            expected = f"{option}={theirs[option]}" if option in theirs else f"attention={attention['name']}"
            remedy = "leave the options of the encoder out: they are taken from init"
            raise InputError(f"{option}={value}", f"{expected}, as the encoder of init='{init.path}' has it", remedy)
    log.info("encoder of %s (%s): its options are taken from there", saved.name, saved.hash[:12])
    shape = {name: getattr(model, name) for name in SHAPE}
    data = replace(cfg.data, target_sum=target_sum)
    return settled(replace(cfg, data=data, tokens=tokens, model=replace(cfg.model, **shape), attention=dict(attention)))


def start_encoder(encoder: Encoder | Performer, genes: list[str], cfg: NetworkConfig, init: Init | None) -> int:
    """Give an encoder gene vectors or the weights of `init`, freeze parts, and count the genes that `init` knows."""
    if cfg.model.positions == "gene2vec" and cfg.model.gene2vec_path is not None:
        vectors = read_gene_vectors(cfg.model.gene2vec_path, genes, cfg.model.dim)
        encoder.embedding.set_gene_vectors(torch.from_numpy(vectors))
    if init is None:
        return 0
    known = load_encoder(encoder, init.saved, genes, init.path, init.species)
    if (table := encoder.embedding.gene) is not None:
        is_new = torch.ones(len(table.weight), dtype=torch.bool)
        is_new[[*known, len(is_new) - 1]] = False
        with torch.no_grad():  # vectors that are trained further stay random
            if cfg.model.positions == "sinusoidal":  # every gene needs a vector of its own
                num = len(init.saved.genes) + 1
                table.weight[is_new] = sinusoids(num + int(is_new.sum()), table.weight.shape[1])[num:]
            elif cfg.model.positions == "gene" and init.mode != "full":
                table.weight[is_new] = table.weight[known].mean(0)
    if init.mode != "full" and isinstance(encoder, Encoder):
        last = [*encoder.stack[-1].parameters(), *encoder.norm.parameters()] if init.mode == "last_layer" else []
        trained = [parameter for parameter in last if parameter.requires_grad]
        encoder.requires_grad_(False)
        for parameter in trained:
            parameter.requires_grad_(True)
    text = "encoder starts from %s, which knows %d of %d genes; init_mode=%s"
    log.info(text, init.saved.name, len(known), len(genes), init.mode)
    return len(known)


def start_attention(encoder: Encoder | Performer | None, train: Cells, cfg: NetworkConfig) -> None:
    """Initialise mechanisms whose parameters start from keys, on some training cells; with `init` they are trained.

    A Performer starts from the keys of genes, when its vectors are known.
    """
    if not isinstance(encoder, Encoder) or cfg.init is not None:
        return
    if any(mechanism.starts_from_keys for mechanism in encoder.mechanisms):
        rows = np.random.default_rng(cfg.seed).permutation(len(train))[: cfg.trainer.batch_size]
        encoder.start(train.batch(np.sort(rows)), torch.Generator().manual_seed(cfg.seed))


def start_head(learner: EncoderLearner, train: Cells, cfg: TrainOptions) -> None:
    """Fit the last layer to the training cells before training; only with `init`, and without hidden layers.

    Gradient descent from zero would need far more steps, as the cells' vectors share a large mean. Fine-tuning from
    this start also changes the encoder less (Kumar et al. 2022, arXiv 2202.10054). The layer is fitted to vectors of
    whole cells and of training steps, with dropped genes: after a short pretraining, two cells differ less
    than one cell in two steps, and a layer fitted to whole cells began with a loss of 418 instead of 2.
    """
    if cfg.init is None or cfg.head.hidden:
        return
    network = learner.network
    torch.manual_seed(seed_of("head", cfg.seed))
    rows = []
    parts = []
    with torch.no_grad():
        for number in range(1 + HEAD_DRAWS):
            network.train(number > 0)
            for part, length in prediction_batches(train.lengths, cfg.trainer.batch_size):
                batch = train.batch(part, length)
                seen = learner.with_genes_dropped(batch) if network.training else batch
                rows.append(part)
                parts.append(network.cell_vectors(seen).float().numpy())
    vectors = np.concatenate(parts)
    labels = train.known_labels[np.concatenate(rows)]
    mean = vectors.mean(0)
    spread = np.maximum(vectors.std(0), 1e-6)
    c = HEAD_C / (1 + HEAD_DRAWS)  # a cell counts once
    fitted = fit_logistic((vectors - mean) / spread, labels, c=c, class_weights="balanced")
    weight = fitted.weight / spread[:, None]
    with torch.no_grad():
        network.head.labels.weight.copy_(torch.from_numpy(weight.T))
        network.head.labels.bias.copy_(torch.from_numpy(fitted.bias - mean @ weight))
