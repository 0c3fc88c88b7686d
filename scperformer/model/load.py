"""Load a saved model into a network, the weights of its encoder into another encoder, and tables of gene vectors."""

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from scperformer.attention.encoder import Encoder
from scperformer.attention.registry import PluginProblem
from scperformer.base.errors import InputError
from scperformer.base.messages import listed
from scperformer.base.progress import progress
from scperformer.config.options import checked
from scperformer.config.training import HeadConfig, ModelConfig, TokensConfig
from scperformer.io.gene_lists import read_genes
from scperformer.io.gene_matching import map_genes
from scperformer.io.gene_names import KIND_NAMES, id_kind
from scperformer.model.folder import damaged_model, parts_of, read_model
from scperformer.model.imported import ImportedNetwork, imported_network
from scperformer.model.inference import torch_state_kept
from scperformer.model.library import require_annotator, resolve_model
from scperformer.model.network import CellTypeModel, LinearModel
from scperformer.model.performer import Performer
from scperformer.model.saved_model import SavedModel, encoder_is_silent

log = logging.getLogger(__name__)

# Prefixes of the names of weights in a model folder.
NETWORK_PREFIX = "model."
ENCODER_PREFIX = "model.encoder."
MIN_KNOWN_SHARE = 0.1  # smallest share of the genes that an encoder or table must have to fit the data
# Weights with one entry per gene and one for the special position, along axis 0 or axis 1.
GENES_FIRST = ("embedding.gene.weight", "attention.rows_PK", "attention.columns_PK")
GENES_SECOND = "attention.matrices_CPGN"


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
    adapted: "dict[str, Model]" = field(default_factory=dict)  # models refitted to files, by the key of the condition

    @property
    def network(self) -> CellTypeModel | ImportedNetwork:
        """The network, a plain torch module; a model of several studies is refused."""
        if self.own_network is None:
            remedy = f"name the model of a study, such as model_path={self.members[0].path}"
            found = f"the model {self.saved.name} of {len(self.members)} studies"
            raise InputError(found, "a model of one study in this place", remedy)
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
        saved = self.saved
        metrics = saved.metrics
        facts = {
            "studies": ", ".join(study.name for study in saved.studies),
            "labels": f"{len(saved.labels)}: {', '.join(saved.labels)}",
            "genes": f"{len(saved.genes):,}, such as {', '.join(saved.genes[:3])}",
            "tissue": saved.tissue or "not stated",
            "imported from": saved.imported.get("tool", ""),
            "cannot": ", ".join(saved.lacks),
        }
        if encoder := metrics.get("encoder"):
            facts["encoder"] = f"{encoder['kind']}: {encoder['size']}"
        if fold := metrics.get("out_of_fold"):
            facts["expected accuracy"] = f"{fold['accuracy']:.3f} on cells like its reference"
        if ours := metrics.get("model"):
            baseline = f"logistic regression {metrics['baseline']['accuracy']:.3f}"
            facts["accuracy"] = f"{ours['accuracy']:.3f} ({baseline}) on {metrics['num_val_cells']:,} validation cells"
        facts["folder"] = str(self.path)
        lines = [f"  {name:<18} {text}" for name, text in facts.items() if text]
        return "\n".join([f"Model {saved.name} ({saved.hash[:12]})", *lines])


def _same_kind(theirs: torch.Tensor, ours: torch.Tensor) -> bool:
    """Return whether weights may be copied: both are floating-point numbers, or both have the same type."""
    return theirs.dtype == ours.dtype or (theirs.is_floating_point() and ours.is_floating_point())


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
            kind = Performer if model.reads_genes else Encoder
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
            if not _same_kind(given[name], tensor):
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
    """Load a model folder; None means $SCPERFORMER_MODEL, else the packaged model. Refuse an encoder without labels."""
    path, why = resolve_model(None if model_path is None else os.fspath(model_path))
    saved = read_model(path)
    if why == "imported":  # it is called what its user calls it
        saved = replace(saved, name=path.name)
    require_annotator(saved, path)
    text = "model %s (%s, %s): %s genes, %d labels: %s"
    log.info(text, saved.name, why, saved.hash[:12], f"{len(saved.genes):,}", len(saved.labels), listed(saved.labels))
    if saved.studies:
        names = listed(study.name for study in saved.studies)
        log.info("its reference has %d studies: %s", len(saved.studies), names)
    model = as_model(saved, path)
    if saved.lacks:
        log.info(
            "model %s was imported from %s without: %s", saved.name, saved.imported["tool"], ", ".join(saved.lacks)
        )
    if encoder_is_silent(saved.scales):
        log.info("the encoder has no influence in this model: its labels come from the linear branch alone")
    return model


def as_model(saved: SavedModel, path: Path) -> Model:
    """Build the model that was saved in the folder `path`; refuse weights that do not fit its configuration."""
    if saved.studies:
        return Model(saved, path, members=[as_model(part, place) for part, place in parts_of(saved, path)])
    network = rebuild(saved, path)
    assert isinstance(network, CellTypeModel | ImportedNetwork)
    return Model(saved, path, network.eval())


def shared_rows(genes: list[str], theirs: list[str], init: str, species: str = "auto") -> tuple[list[int], list[int]]:
    """Return the positions of the genes that two lists share, in each list; each gene occurs once.

    The lists may use different kinds of names (symbols or ids). Too few shared genes are refused, and genes of another
    species unless `species` names it.
    """
    mapping = map_genes(genes, theirs, None, species, path="the reference")
    known = (mapping.target >= 0) & (mapping.first == np.arange(len(genes)))
    here = np.flatnonzero(known).tolist()
    if len(here) < max(1, MIN_KNOWN_SHARE * len(genes)):
        kind = id_kind(genes)
        wanted = id_kind(theirs)
        convert = f"convert var_names from {KIND_NAMES[kind]} to {KIND_NAMES[wanted]}"
        choose = "use an encoder of the same species, or train without init"
        examples = f"(e.g. '{genes[len(genes) // 2]}'; it has e.g. '{theirs[len(theirs) // 2]}')"
        found = f"{len(here)} of {len(genes)} genes of the reference in init='{init}' {examples}"
        raise InputError(found, f"at least {MIN_KNOWN_SHARE:.0%} of them", choose if kind == wanted else convert)
    return here, mapping.target[here].tolist()


@torch.no_grad()
def load_encoder(
    encoder: Encoder | Performer, saved: SavedModel, genes: list[str], init: str, species: str = "auto"
) -> list[int]:
    """Copy the weights of a saved model into an encoder with the same options; return the positions of shared genes.

    Other genes keep their vectors. A model with too few of the genes or weights of another shape is refused.
    """
    here, there = shared_rows(genes, saved.genes, init, species)
    new = torch.tensor([*here, len(genes)])
    old = torch.tensor([*there, len(saved.genes)])
    for name, ours in encoder.state_dict().items():
        if ENCODER_PREFIX + name not in saved.weights:
            raise damaged_model(Path(init), f"no weights '{name}'")
        theirs = torch.from_numpy(np.asarray(saved.weights[ENCODER_PREFIX + name]))
        axis = 0 if name.endswith(GENES_FIRST) else 1 if name.endswith(GENES_SECOND) else None
        if not _same_kind(theirs, ours):
            raise damaged_model(Path(init), f"weights '{name}' of type {theirs.numpy().dtype}")
        if axis is not None and (theirs.ndim != ours.ndim or theirs.shape[axis] != len(saved.genes) + 1):
            raise damaged_model(Path(init), f"weights '{name}' of shape {tuple(theirs.shape)}")
        part = theirs
        wanted = ours
        if axis is not None:
            part = theirs.index_select(axis, old)
            wanted = ours.index_select(axis, new)
        if part.shape != wanted.shape:
            found = f"weights '{name}' of {tuple(part.shape)} in init='{init}'"
            raise InputError(found, f"{tuple(wanted.shape)}", "use an encoder with about as many genes")
        if axis is None:
            ours.copy_(part)
        else:
            ours.index_copy_(axis, new, part.to(ours.dtype))
    try:
        encoder.load_state_dict(encoder.state_dict())  # runs the checks of the mechanisms
    except ValueError as error:
        raise damaged_model(Path(init), str(error)) from error
    return here


def read_gene_vectors(path: str | Path, genes: Sequence[str], dim: int) -> np.ndarray:
    """Read a table of gene vectors: float32, len(genes) x dim; genes that are not in the table get zeros.

    Each line has a gene and `dim` numbers, separated by white space, as in gene2vec's files (Du et al. 2019, BMC
    Genomics 20:82). A header of two numbers (genes and dimensions), as word2vec writes it, is skipped. An array of
    NumPy (.npy, as scBERT has it) has a row for each gene of a text file of the same name (.txt).
    """

    def unusable(found: str, expected: str = f"a text file with a gene and {dim} numbers (model.dim) in each line"):
        remedy = "name another table with model.gene2vec_path or choose model.positions=gene"
        return InputError(f"gene vectors '{path}' with {found}", expected, remedy)

    def rows_of_text() -> Iterator[tuple[str, Sequence[Any]]]:
        with open(path, encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                name, *numbers = line.split() or [""]
                if not name or (number == 1 and name.isdigit() and len(numbers) == 1):
                    continue
                if len(numbers) != dim:
                    raise unusable(f"{len(numbers)} numbers in line {number}")
                yield name, numbers

    def rows_of_array() -> Iterator[tuple[str, Sequence[Any]]]:
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise unusable("content that is no array of numbers", "an array as numpy.save writes it") from error
        names = read_genes(Path(path).with_suffix(".txt"))
        if array.shape != (len(names), dim) or array.dtype.kind != "f":
            expected = f"numbers of shape ({len(names)}, {dim}): the genes of its .txt file, and model.dim"
            raise unusable(f"{array.dtype} of shape {array.shape}", expected)
        yield from zip(names, array, strict=True)

    index = {gene: i for i, gene in enumerate(genes)}
    vectors = np.zeros((len(genes), dim), dtype=np.float32)
    known: set[str] = set()
    other = ""
    repeated = 0
    try:
        for name, numbers in rows_of_array() if Path(path).suffix == ".npy" else rows_of_text():
            if name not in index:
                other = name
                continue
            try:
                with np.errstate(over="ignore"):
                    vectors[index[name]] = numbers
            except ValueError as error:
                raise unusable(f"text in place of a number for '{name}'") from error
            repeated += name in known
            known.add(name)
    except OSError as error:
        raise unusable(f"a file that cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise unusable("content that is not text") from error
    if not np.isfinite(vectors).all():
        raise unusable("numbers that are not finite")
    if len(known) < MIN_KNOWN_SHARE * len(genes):
        examples = f"(the model has e.g. '{genes[0]}', the file '{other}')"
        raise unusable(f"{len(known)} of the model's {len(genes)} genes", f"a tenth of them {examples}")
    if repeated:
        log.warning("genes that occur more than once in %s: %d; their last line is used", path, repeated)
    log.info("gene vectors: %d of %d genes in %s; the others get zeros", len(known), len(genes), path)
    return vectors
