"""Weights of a pretrained encoder for other genes, and tables of gene vectors."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from scperformer.attention.encoder import Encoder
from scperformer.base.errors import InputError
from scperformer.io.gene_matching import map_genes
from scperformer.io.gene_names import KIND_NAMES, id_kind
from scperformer.model.folder import damaged_model
from scperformer.model.load import ENCODER_PREFIX, same_kind
from scperformer.model.performer import Performer
from scperformer.model.saved_model import SavedModel

log = logging.getLogger(__name__)

MIN_KNOWN_SHARE = 0.1  # smallest share of the genes that an encoder or table must have to fit the data
# Weights with one entry per gene and one for the special position, along axis 0 or axis 1.
GENES_FIRST = ("embedding.gene.weight", "attention.rows_PK", "attention.columns_PK")
GENES_SECOND = "attention.matrices_CPGN"


def shared_rows(genes: list[str], theirs: list[str], init: str, species: str = "auto") -> tuple[list[int], list[int]]:
    """Return the positions of the genes that two lists share, in each list; each gene occurs once.

    The lists may use different kinds of names. Too few shared genes and genes of another species are refused.
    """
    mapping = map_genes(genes, theirs, None, species, path="the reference")
    known = (mapping.target >= 0) & (mapping.first == np.arange(len(genes)))
    here = np.flatnonzero(known).tolist()
    if len(here) < max(1, MIN_KNOWN_SHARE * len(genes)):
        kind, wanted = id_kind(genes), id_kind(theirs)
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
        has_genes = axis is None or (theirs.ndim == ours.ndim and theirs.shape[axis] == len(saved.genes) + 1)
        if not has_genes or not same_kind(theirs, ours):
            problem = f"weights '{name}' of type {theirs.numpy().dtype} and shape {tuple(theirs.shape)}"
            raise damaged_model(Path(init), problem)
        part = theirs if axis is None else theirs.index_select(axis, old)
        wanted = ours if axis is None else ours.index_select(axis, new)
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
    Genomics 20:82). A header of two numbers (genes and dimensions), as word2vec writes it, is skipped.
    """

    def unusable(found: str, expected: str = f"a text file with a gene and {dim} numbers (model.dim) in each line"):
        remedy = "name another table with model.gene2vec_path or choose model.positions=gene"
        return InputError(f"gene vectors '{path}' with {found}", expected, remedy)

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
        log.warning("genes that occur more than once in %s: %d; their last line is used", path, len(lines) - len(table))
    known = [row for row, gene in enumerate(genes) if gene in table]
    if len(known) < MIN_KNOWN_SHARE * len(genes):
        examples = f"(the model has e.g. '{genes[0]}', the file '{lines[-1][0] if lines else ''}')"
        raise unusable(f"{len(known)} of the model's {len(genes)} genes", f"a tenth of them {examples}")
    vectors = np.zeros((len(genes), dim), dtype=np.float32)
    try:
        with np.errstate(over="ignore"):
            vectors[known] = np.array([table[genes[row]] for row in known], dtype=np.float32).reshape(-1, dim)
    except ValueError as error:
        raise unusable(f"text in place of a number ({error})") from error
    if not np.isfinite(vectors).all():
        raise unusable("numbers that are not finite")
    log.info("gene vectors: %d of %d genes in %s; the others get zeros", len(known), len(genes), path)
    return vectors
