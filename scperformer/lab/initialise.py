"""The initial weights of a network: a trained encoder (`init`), a table of gene vectors, and the start of attention."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scperformer.attention.registry import attention_options, with_source
from scperformer.attention.tokens import sinusoids
from scperformer.base.errors import InputError
from scperformer.cells.collection import Config
from scperformer.config.compose import make_options
from scperformer.config.training import (
    DataConfig,
    Mechanism,
    ModelConfig,
    NetworkOptions,
    TokensConfig,
    TrainOptions,
)
from scperformer.fits.logistic import fit_logistic
from scperformer.io.gene_matching import map_genes
from scperformer.io.gene_names import KIND_NAMES, id_kind
from scperformer.lab.encoder import Encoder
from scperformer.lab.epochs import EncoderLearner
from scperformer.model.bundle import OriginalModel
from scperformer.model.content import INFO
from scperformer.model.folder import read_model, resolve_model
from scperformer.model.load import ENCODER_PREFIX, rebuild
from scperformer.model.minibatches import Cells, prediction_batches, seed_of
from scperformer.model.saved_model import SavedModel
from scperformer.training.train import settled

log = logging.getLogger(__name__)

# smallest share of the genes that an encoder or table must have to fit the data
MIN_KNOWN_SHARE = 0.1
# Weights with one entry per gene and one for the special position, along axis 0 or axis 1.
GENES_FIRST = ("embedding.gene.weight", "attention.rows_PK", "attention.columns_PK")
GENES_SECOND = "attention.matrices_CPGN"
INIT_LR = 0.03  # learning rate of an encoder from `init`, relative to `optim.lr`
HEAD_DRAWS = 3  # times that each cell is seen as in a training step when the head is fitted
HEAD_C = 10.0  # inverse penalty of the regression for the head: weak, as it has few inputs, which are standardised
# Options of `model` that the weights depend on; the others only matter in training.
SHAPE = ("dim", "depth", "num_heads", "head_dim", "norm", "feedforward", "activation", "positions")


@dataclass(frozen=True)
class Init:
    """The model folder `init`, from whose encoder a training starts."""

    path: str
    saved: SavedModel
    mode: str  # the part of the encoder that is trained further: full, last_layer or head
    species: str  # of the reference's genes, for matching them to the encoder's

    def facts(self, num_known_genes: int, mode: str | None = None) -> OriginalModel:
        """Return what the provenance of the model that is trained states about this one."""
        saved = self.saved
        licence = saved.provenance.licence if saved.imported else None
        return OriginalModel(
            name=saved.name,
            hash=saved.hash,
            num_known_genes=num_known_genes,
            licence=licence,
            mode=mode,
        )


def load_init(path: str | None, mode: str = "full", species: str = "auto") -> Init | None:
    """Load the model folder that `init` names, or return None without it; refuse one without layers of an encoder."""
    if path is None:
        return None
    folder, _ = resolve_model(path)
    if not (folder / INFO).is_file():
        expected = "a folder that 'scperformer pretrain' or 'scperformer train' wrote"
        raise InputError("no-encoder", f"no {INFO} at init='{path}'", expected, "check the path")
    saved = read_model(folder)
    if not any(name.startswith(ENCODER_PREFIX) for name in saved.weights):
        found = f"no encoder to start from in init='{path}' (trained with model.encoder=false)"
        raise InputError(
            "no-encoder", found, "a model with an encoder", "choose another, or leave init out"
        )
    if (saved.config.model or {}).get("positions") == "coexpression":
        found = f"model=performer or pooled in init='{path}'"
        expected = "a model with attention between tokens, such as model=tiny"
        raise InputError("encoder-kind", found, expected, "leave init out")
    rebuild(saved, folder)  # refuses a damaged model
    return Init(path, saved, mode, species)


def encoder_options(
    tokens: TokensConfig, model: ModelConfig, attention: Mechanism, target_sum: float
) -> dict[str, object]:
    """Return the options that the weights of an encoder depend on, by their full names."""
    shape = {name: getattr(model, name) for name in SHAPE}
    mechanism = asdict(attention_options(attention)[1])
    groups = {
        "tokens": asdict(tokens),
        "model": shape,
        "attention": {"name": attention["name"], **mechanism},
    }
    full = {
        f"{group}.{name}": value
        for group, options in groups.items()
        for name, value in options.items()
    }
    return {"data.target_sum": float(target_sum), **full}


def adopt_options(cfg: Config, init: Init) -> Config:
    """Take the encoder's options from `init`; refuse other values than its own or the defaults."""
    cfg = replace(cfg, attention=with_source(cfg.attention))
    if not cfg.model.encoder:
        found = "model.encoder=false with init"
        raise InputError(
            "encoder-options", found, "an encoder to start", "leave one of the two out"
        )
    saved = init.saved
    tokens, model, attention, _ = saved.config.parts
    assert saved.config.target_sum is not None  # as it is for all networks of ours
    target_sum = float(saved.config.target_sum)
    saved_options = encoder_options(tokens, model, attention, target_sum)
    defaults = make_options(TrainOptions, {"inputs": [""]})
    if cfg.model.positions == "coexpression":  # the default model goes
        groups: dict[str, Any] = {}
        for group in ("model", "head", "optim", "trainer"):
            options = getattr(cfg, group)
            default = asdict(getattr(defaults, group))
            groups[group] = type(options)(
                **{name: x for name, x in asdict(options).items() if x != default[name]}
            )
        cfg = replace(cfg, **groups)
    mechanism = {"name": cfg.attention["name"]}
    default = encoder_options(TokensConfig(), ModelConfig(), mechanism, DataConfig().target_sum)
    default["attention.name"] = defaults.attention["name"]
    for option, value in encoder_options(
        cfg.tokens, cfg.model, cfg.attention, cfg.data.target_sum
    ).items():
        if value not in (default[option], saved_options.get(option)):
            has_option = option in saved_options
            expected = (
                f"{option}={saved_options[option]}"
                if has_option
                else f"attention={attention['name']}"
            )
            expected += f", as the encoder of init='{init.path}' has it"
            remedy = "leave the options of the encoder out: they are taken from init"
            raise InputError("encoder-options", f"{option}={value}", expected, remedy)
    log.info("encoder of %s (%s): its options are taken from there", saved.name, saved.hash[:12])
    shape = {name: getattr(model, name) for name in SHAPE}
    data = replace(cfg.data, target_sum=target_sum)
    return settled(
        replace(
            cfg,
            data=data,
            tokens=tokens,
            model=replace(cfg.model, **shape),
            attention=dict(attention),
        )
    )


def shared_rows(
    genes: list[str], known_genes: list[str], init: str, species: str = "auto"
) -> tuple[list[int], list[int]]:
    """Return the positions of the genes that two lists share, in each list; each gene occurs once.

    The lists may use different kinds of names. Too few shared genes and genes of another species are refused.
    """
    mapping = map_genes(genes, known_genes, None, species, path="the reference")
    known = (mapping.target >= 0) & (mapping.first == np.arange(len(genes)))
    here = np.flatnonzero(known).tolist()
    if len(here) < max(1, MIN_KNOWN_SHARE * len(genes)):
        kind, wanted = id_kind(genes), id_kind(known_genes)
        convert = f"convert var_names from {KIND_NAMES[kind]} to {KIND_NAMES[wanted]}"
        choose = "use an encoder of the same species, or train without init"
        examples = (
            f"(e.g. '{genes[len(genes) // 2]}'; it has e.g. '{known_genes[len(known_genes) // 2]}')"
        )
        found = f"{len(here)} of {len(genes)} genes of the reference in init='{init}' {examples}"
        expected = f"at least {MIN_KNOWN_SHARE:.0%} of them"
        raise InputError("few-genes", found, expected, choose if kind == wanted else convert)
    return here, mapping.target[here].tolist()


@torch.no_grad()
def load_encoder(
    encoder: Encoder, saved: SavedModel, genes: list[str], init: str, species: str = "auto"
) -> list[int]:
    """Copy the weights of a saved model into an encoder with the same options; return the positions of shared genes.

    Other genes keep their vectors. A model with too few of the genes is refused.
    """
    here, there = shared_rows(genes, saved.genes, init, species)
    new = torch.tensor([*here, len(genes)])
    old = torch.tensor([*there, len(saved.genes)])
    for name, tensor in encoder.state_dict().items():
        stored = torch.from_numpy(saved.weights[ENCODER_PREFIX + name])
        axis = 0 if name.endswith(GENES_FIRST) else 1 if name.endswith(GENES_SECOND) else None
        part = stored if axis is None else stored.index_select(axis, old)
        wanted = tensor if axis is None else tensor.index_select(axis, new)
        if part.shape != wanted.shape:  # some defaults of mechanisms depend on the number of genes
            found = f"weights '{name}' of {tuple(part.shape)} in init='{init}'"
            remedy = "use an encoder with about as many genes"
            raise InputError("encoder-shape", found, f"{tuple(wanted.shape)}", remedy)
        if axis is None:
            tensor.copy_(part)
        else:
            tensor.index_copy_(axis, new, part.to(tensor.dtype))
    return here


def read_gene_vectors(path: str | Path, genes: Sequence[str], dim: int) -> np.ndarray:
    """Read a table of gene vectors: float32, len(genes) x dim; genes that are not in the table get zeros.

    Each line has a gene and `dim` numbers, separated by white space, as in gene2vec's files (Du et al. 2019, BMC
    Genomics 20:82). A header of two numbers (genes and dimensions), as word2vec writes it, is skipped.
    """

    def unusable(
        found: str,
        expected: str = f"a text file with a gene and {dim} numbers (model.dim) in each line",
    ):
        remedy = "name another table with model.gene2vec_path or choose model.positions=gene"
        return InputError("gene-vectors", f"gene vectors '{path}' with {found}", expected, remedy)

    try:
        with open(path, encoding="utf-8-sig") as file:
            lines = [line.split() for line in file if line.strip()]
    except OSError as error:
        raise unusable(f"a file that cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise unusable("content that is not text") from error
    if lines and len(lines[0]) == 2 and lines[0][0].isdigit():
        del lines[0]
    if other := next((line for line in lines if len(line) != dim + 1), None):
        raise unusable(f"{len(other) - 1} numbers for '{other[0]}'")
    table = {name: numbers for name, *numbers in lines}
    if len(table) < len(lines):
        log.warning(
            "genes that occur more than once in %s: %d; their last line is used",
            path,
            len(lines) - len(table),
        )
    known = [row for row, gene in enumerate(genes) if gene in table]
    if len(known) < MIN_KNOWN_SHARE * len(genes):
        examples = f"(the model has e.g. '{genes[0]}', the file '{lines[-1][0] if lines else ''}')"
        raise unusable(
            f"{len(known)} of the model's {len(genes)} genes", f"a tenth of them {examples}"
        )
    vectors = np.zeros((len(genes), dim), dtype=np.float32)
    try:
        with np.errstate(over="ignore"):
            vectors[known] = np.array(
                [table[genes[row]] for row in known], dtype=np.float32
            ).reshape(-1, dim)
    except ValueError as error:
        raise unusable(f"text in place of a number ({error})") from error
    if not np.isfinite(vectors).all():
        raise unusable("numbers that are not finite")
    log.info(
        "gene vectors: %d of %d genes in %s; the others get zeros", len(known), len(genes), path
    )
    return vectors


def start_encoder(encoder: Encoder, genes: list[str], model: ModelConfig, init: Init | None) -> int:
    """Give an encoder gene vectors or the weights of `init`, freeze parts, and count the genes that `init` knows."""
    if model.positions == "gene2vec" and model.gene2vec_path is not None:
        vectors = read_gene_vectors(model.gene2vec_path, genes, model.dim)
        encoder.embedding.set_gene_vectors(torch.from_numpy(vectors))
    if init is None:
        return 0
    known = load_encoder(encoder, init.saved, genes, init.path, init.species)
    if (table := encoder.embedding.gene) is not None:
        is_new = torch.ones(len(table.weight), dtype=torch.bool)
        is_new[[*known, len(is_new) - 1]] = False
        with torch.no_grad():  # vectors that are trained further stay random
            if model.positions.startswith("sinusoidal"):  # every gene needs a vector of its own
                num = len(init.saved.genes) + 1
                more = sinusoids(num + int(is_new.sum()), table.weight.shape[1], model.positions)
                table.weight[is_new] = more[num:]
            elif model.positions == "gene" and init.mode != "full":
                table.weight[is_new] = table.weight[known].mean(0)
    if init.mode != "full":
        last = (
            [*encoder.stack[-1].parameters(), *encoder.norm.parameters()]
            if init.mode == "last_layer"
            else []
        )
        trained = [parameter for parameter in last if parameter.requires_grad]
        encoder.requires_grad_(False)
        for parameter in trained:
            parameter.requires_grad_(True)
    text = "encoder starts from %s, which knows %d of %d genes; init_mode=%s"
    log.info(text, init.saved.name, len(known), len(genes), init.mode)
    return len(known)


def start_attention(encoder: Encoder, train: Cells, cfg: NetworkOptions) -> None:
    """Initialise mechanisms whose parameters start from keys, on some training cells; with `init` they are trained."""
    if cfg.init is None and any(mechanism.starts_from_keys for mechanism in encoder.mechanisms):
        rows = np.random.default_rng(cfg.seed).permutation(len(train))[: cfg.trainer.batch_size]
        encoder.start(train.batch(np.sort(rows)), torch.Generator().manual_seed(cfg.seed))


def start_head(learner: EncoderLearner, train: Cells, cfg: TrainOptions) -> None:
    """Fit the last layer to the training cells before training; only with `init`, and without hidden layers.

    Gradient descent from zero would need far more steps, as the cells' vectors share a large mean. Fine-tuning from
    this start also changes the encoder less (Kumar et al. 2022, arXiv 2202.10054). The layer is fitted to vectors of
    whole cells and of training steps, with dropped genes, as these may differ more than two cells.
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
