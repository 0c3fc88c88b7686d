"""All genes at value 0, which pass through the layers once for all cells.

With `tokens.unexpressed=memory`, unexpressed genes are keys and values but not tokens: for each cell, its expressed
genes are subtracted from the sums over the keys of all genes. With `tokens.unexpressed=full` and chunks, prediction
does the same in the first layer.

Shape letters as in layer.py; G genes.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from scperformer.attention.linear_attention import KeySums
from scperformer.attention.tokens import Batch, Embedding, weights_state
from scperformer.lab.layer import Layer

# If a cell expresses more than this share of the genes, its unexpressed genes are summed directly: the difference of
# nearly equal sums would be mostly rounding error.
MAX_EXPRESSED_SHARE = 1 / 3
# of each layer: its input, 1 x G x D, and the sums over its keys
Memory: TypeAlias = list[tuple[Tensor, KeySums]]


class Unexpressed:
    """The memory of all measured genes at value 0; in prediction it is computed once and kept."""

    def __init__(self, embedding: Embedding, layers: Sequence[Layer], dropout: nn.Dropout):
        self.embedding = embedding
        self.layers = layers
        self.dropout = dropout
        self.modules = nn.ModuleList([embedding, *layers])
        # bool, genes that occur in the file of the cells; None: all
        self.measured_G: Tensor | None = None
        # the state it was computed from, and the memory
        self._kept: tuple[list[Any], Memory] | None = None

    def memory(self, training: bool) -> Memory:
        """Return the memory; it is computed again if a weight, its address, the precision or the genes change."""
        if training or torch.is_grad_enabled():
            self._kept = None
            return self._computed()
        device = next(self.modules.parameters()).device.type
        state = weights_state(self.modules)
        state.append(
            torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        )
        state.append(None if self.measured_G is None else self.measured_G.numpy().tobytes())
        if self._kept is None or self._kept[0] != state:
            self._kept = state, self._computed()
        return self._kept[1]

    def _computed(self) -> Memory:
        h_1GD = self.dropout(self.embedding.unexpressed())
        keep_1G = self._measured(torch.ones(h_1GD.shape[:2], dtype=torch.bool, device=h_1GD.device))
        memory: Memory = []
        for layer in self.layers:
            memory.append((h_1GD, layer.key_sums(h_1GD, keep_1G)))
            if len(memory) < len(self.layers):
                h_1GD = layer.read(*memory[-1])
        return memory

    def _measured(self, chosen_G: Tensor) -> Tensor:
        return (
            chosen_G if self.measured_G is None else chosen_G & self.measured_G.to(chosen_G.device)
        )

    def others(self, index: int, batch: Batch, memory: Memory) -> KeySums:
        """Return the sums of a layer over the genes that are not tokens of each cell (also not dropped ones)."""
        layer = self.layers[index]
        h_1GD, sums = memory[index]
        h_GD = h_1GD[0]
        is_gene_BL = batch.genes_BL < len(h_GD)  # special positions and padding have index G
        others = sums + -layer.key_sums(h_GD[batch.genes_BL.clamp_max(len(h_GD) - 1)], is_gene_BL)
        rows = torch.nonzero(is_gene_BL.sum(1) > MAX_EXPRESSED_SHARE * len(h_GD)).flatten()
        if not len(rows):
            return others
        others_BG = is_gene_BL.new_ones(len(rows), len(h_GD) + 1).scatter(
            1, batch.genes_BL[rows], False
        )[:, :-1]
        direct = layer.key_sums(h_GD.expand(len(rows), -1, -1), self._measured(others_BG))
        return others.replaced(rows, direct)

    def first_sums(self, h_1LD: Tensor, cell: Batch) -> KeySums:
        """Return the sums over the keys of a cell, all of whose genes are tokens, in the first layer."""
        layer = self.layers[0]
        h_1GD, sums = self.memory(training=False)[0]
        num_genes = h_1GD.shape[1]
        keep_L = cell.keep_BL[0]
        differs_L = (cell.values_BL[0] != 0) | ~keep_L
        differs_L[num_genes:] = True  # the special position
        in_order = torch.equal(cell.genes_BL[0], torch.arange(num_genes + 1))
        if not in_order or differs_L.sum() > MAX_EXPRESSED_SHARE * num_genes:
            return layer.key_sums(h_1LD, cell.keep_BL)
        subtracted_G = self._measured(differs_L[:num_genes])
        added_L = differs_L & keep_L
        if subtracted_G.any():
            sums = sums + -layer.key_sums(h_1GD[:, subtracted_G], subtracted_G[subtracted_G][None])
        if added_L.any():
            sums = sums + layer.key_sums(h_1LD[:, added_L], added_L[added_L][None])
        return sums
