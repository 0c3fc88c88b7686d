"""What is read from a file of another tool."""

from typing import TypedDict

import numpy as np

from scperformer.model.bundle import NetworkConfig


class ForeignModel(TypedDict, total=False):
    """A model of another tool, without evidence or reference cells, as the `read` of its format returns it."""

    name: str  # if it is not that of the file
    # the tool, the file, and the versions in which the scores were compared (`tested`)
    origin: dict[str, str]
    genes: list[str]
    labels: list[str]  # in the order of the scores; an encoder has none
    config: NetworkConfig
    weights: dict[str, np.ndarray]  # with the names of the network
    # of ln(1 + cp10k) where it was trained; if None, all genes weigh the same
    gene_means: np.ndarray | None
    notes: list[str]
