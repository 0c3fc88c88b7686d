"""How far exact softmax attention is of low rank: the singular values of its maps, as in Linformer's figure 1.

Shape letters: H heads, L tokens.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from scperformer.reports.attention_maps.inputs import HeadInputs

log = logging.getLogger(__name__)

INDEX = 128  # Linformer's heat map shows the cumulative value here


@dataclass
class Spectrum:
    """Cumulative singular values of the softmax maps of every layer and head.

    Attributes
    ----------
    curves
        Layers x heads x indices, mean over cells: the sum of the largest 1, 2, ... singular values of a map, as a
        share of the sum of all. Past the last singular value of a cell with fewer tokens it is 1.
    at_index
        Layers x heads x cells: the same at index 128.
    tokens
        Number of tokens of each cell, and so of singular values.
    """

    curves: np.ndarray
    at_index: np.ndarray
    tokens: np.ndarray

    def curve_table(self) -> pd.DataFrame:
        """A row per layer, head and index, all counted from 1."""
        layers, heads, indices = (axis.ravel() + 1 for axis in np.indices(self.curves.shape))
        return pd.DataFrame({"layer": layers, "head": heads, "index": indices, "cumulative": self.curves.ravel()})

    def index_table(self) -> pd.DataFrame:
        """A row per layer and head: the value at index 128, and how many cells have no more than 128 of them."""
        layers, heads = (axis.ravel() + 1 for axis in np.indices(self.at_index.shape[:2]))
        values = self.at_index.reshape(len(layers), -1)
        return pd.DataFrame(
            {
                "layer": layers,
                "head": heads,
                "index": np.minimum(INDEX, self.tokens.max()),
                "cumulative": values.mean(axis=1),
                "sd": values.std(axis=1),
                "num_cells": len(self.tokens),
                "num_cells_of_at_most_128_tokens": int((self.tokens <= INDEX).sum()),
            }
        )

    def full_rank(self) -> np.ndarray:
        """The curve of maps of the same sizes whose singular values are all equal, such as the identity."""
        indices = np.arange(1, self.curves.shape[2] + 1)
        return np.minimum(indices / self.tokens[:, None], 1).mean(axis=0)


def cumulative(map_HLL: torch.Tensor) -> np.ndarray:
    """Cumulative sums of the singular values of each map from the largest on, as shares of the whole: H x L.

    Source
    ------
    Wang et al. 2020, arXiv 2006.04768, section 3 and figure 1.
    """
    sums_HL = torch.linalg.svdvals(map_HLL).cumsum(dim=1)
    return (sums_HL / sums_HL[:, -1:]).numpy()


def spectrum(layers: Iterable[list[HeadInputs]]) -> Spectrum:
    """The spectrum of what `inputs.layers_of` gives."""
    curves, at_index = [], []
    tokens = np.zeros(0, dtype=np.int64)
    for number, cells in enumerate(layers, start=1):
        tokens = np.array([len(cell.positions_L) for cell in cells])
        by_cell = [cumulative(cell.exact_map()) for cell in cells]
        longer = [np.pad(c, ((0, 0), (0, tokens.max() - c.shape[1])), constant_values=1.0) for c in by_cell]
        curves.append(np.mean(longer, axis=0))
        at_index.append(np.stack([c[:, min(INDEX, c.shape[1]) - 1] for c in by_cell], axis=1))
        log.info("layer %d: %.3f of the singular values' sum by index %d", number, at_index[-1].mean(), INDEX)
    return Spectrum(np.stack(curves), np.stack(at_index), tokens)
