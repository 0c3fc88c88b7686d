"""The options of importing a model, and what is read from a file of another tool."""

from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np

from scperformer.config.options import LINE, FileOptions, option


@dataclass(kw_only=True)
class ImportOptions(FileOptions):
    """Options of `models import` that the file does not contain."""

    # import: the name of the model; null: its own, or the name of the file
    name: str | None = option(None, LINE)
    # import: a text file with the genes of a scBERT checkpoint, one in each line, or an h5ad file
    genes: str | None = None
    labels: str | None = None  # import: a file with the labels of a scBERT checkpoint
    # import: labelled cells, for calibrated confidences, novelty, expected accuracy, and refits to panels and depth
    reference: str | None = None
    label_key: str | None = None  # import: the obs column of `reference` with the labels
    # import: the batch of all cells, for a scANVI model that encodes batches
    batch: str | None = option(None, LINE)
    species: str | None = option(None, LINE)  # import: of the model's genes; null: as its genes look
    tissue: str | None = option(None, LINE)  # import: of the model's cells
    licence: str | None = option(None, LINE)  # import: of the model
    output: str | None = None  # null: $SCPERFORMER_MODELS, else `scperformer/models` in the user's data folder


class ForeignModel(TypedDict, total=False):
    """A model of another tool, without evidence or reference cells, as the `read` of its format returns it."""

    name: str  # if it is not that of the file
    origin: dict[str, str]  # the tool, the file, and the versions in which the scores were compared (`tested`)
    genes: list[str]
    labels: list[str]  # in the order of the scores; an encoder has none
    config: dict[str, Any]  # `target_sum` and `network` (model/imported.py), or the parts of one of our networks
    weights: dict[str, np.ndarray]  # with the names of the network
    gene_means: np.ndarray | None  # of ln(1 + cp10k) where it was trained; if None, all genes weigh the same
    notes: list[str]
