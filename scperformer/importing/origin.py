"""A model folder for a model of another tool: what it records about the file, and the checks of genes and labels."""

import hashlib
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from scperformer.base.inputs import sha256
from scperformer.base.messages import name_problem, shortened
from scperformer.config.steps import ModelsConfig
from scperformer.io.gene_names import guess_species
from scperformer.labels.ontology import PACKAGED_TERMS, UNKNOWN_TERM, find_terms
from scperformer.model.saved_model import ANNOTATOR, ENCODER, SavedModel


def foreign_model(
    path: Path,
    cfg: ModelsConfig,
    *,
    origin: Mapping[str, str],
    genes: Sequence[str],
    labels: Sequence[str],
    config: Mapping[str, Any],
    weights: Mapping[str, np.ndarray],
    gene_means: np.ndarray | None = None,
    notes: Sequence[str] = (),
) -> SavedModel:
    """Return a model of another tool as a saved model, which has neither evidence nor reference cells yet.

    Parameters
    ----------
    path
        The file that the user has.
    origin
        What the file says of itself: `tool` and `tested` (in which versions the scores were compared), maybe `version`,
        `date`, `source` and `licence`.
    labels
        In the order of the scores; none for an encoder.
    config
        `target_sum`, and `network` with the name and the options of a kind of network (model/imported.py); or
        tokens, model, attention and head, if the model is one of our networks.
    weights
        By their names in the network, without the prefix `model.`.
    gene_means
        Mean ln(1 + cp10k) of each gene where the model was trained; None: all genes weigh the same.
    notes
        What a user of the model has to know, for its card.

    Raises
    ------
    ValueError
        A gene or label is there twice, or cannot be a name; the text says which.
    """
    for what, names in (("gene", genes), ("label", labels)):
        if why := next(filter(None, map(name_problem, names)), None):
            raise ValueError(f"a {what} that {why}")
        if repeated := next((name for name, num in Counter(names).items() if num > 1), None):
            raise ValueError(f"the {what} '{shortened(repeated)}' twice")
    if len(labels) == 1:
        raise ValueError("a single label")
    terms, ontology = find_terms(labels, [UNKNOWN_TERM] * len(labels), PACKAGED_TERMS)
    facts = {"file": path.name, "sha256": _checksum(path)}
    facts |= {name: value for name, value in origin.items() if value}
    species = cfg.species or guess_species(list(genes))
    provenance = {
        "reference": f"a model of {facts['tool']}",
        "label_key": "",
        "num_cells": 0,
        "seed": 0,
        "species": species,
        "imported": facts,
        "versions": {"scperformer": version("scperformer"), "python": platform.python_version()},
    }
    if notes:
        provenance["notes"] = list(notes)
    if not labels:
        provenance["corpus"] = []
    if cfg.tissue is not None:
        provenance["tissue"] = cfg.tissue
    if ontology is not None:
        provenance["ontology"] = ontology.version
    if licence := cfg.licence or facts.get("licence"):
        provenance["licence"] = licence
    return SavedModel(
        name=cfg.name or path.name.removesuffix(path.suffix),
        genes=list(genes),
        gene_means=np.ones(len(genes), dtype=np.float32) if gene_means is None else gene_means.astype(np.float32),
        labels=list(labels),
        ontology_term_ids=terms,
        config=dict(config),
        kind=ANNOTATOR if labels else ENCODER,
        metrics={"scales": {}},
        provenance=provenance,
        weights={f"model.{name}": array for name, array in weights.items()},
    )


def _checksum(path: Path) -> str:
    """Return the SHA-256 of a file; of a folder, that of the names and SHA-256s of its files."""
    if path.is_file():
        return sha256(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    lines = "".join(f"{file.relative_to(path).as_posix()} {sha256(file)}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()
