"""Cells of a file that are cells of the reference of a model, by their expression."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from anndata import AnnData

from scperformer.base.messages import in_percent, shortened
from scperformer.cells.query import Query
from scperformer.cells.repeats import are_among, cell_hashes, linear
from scperformer.io.h5ad import BackedH5ad
from scperformer.model.reference_cells import ReferenceCells
from scperformer.model.saved_model import HASHES, SavedModel
from scperformer.training.condition import seen_rows

NUM_CELLS = 1000  # of a file, at most


@dataclass
class Repeats:
    """The cells of the reference among some cells of a file."""

    num_seen: int = 0
    # Row numbers of those that are cells of the reference, ascending, int64.
    rows: np.ndarray = field(default_factory=lambda: np.arange(0))

    def warning(self, cells: AnnData | BackedH5ad) -> str:
        """Return a warning for users, which names one of them; "" if there are none. `cells` is the open file."""
        if not len(self.rows):
            return ""
        row = int(self.rows[0])
        name = cells.obs_names[row] if isinstance(cells, AnnData) else cells.names(row, row + 1)[0]
        share = in_percent(len(self.rows) / self.num_seen)
        found = f"{len(self.rows):,} of {self.num_seen:,} cells looked at ({share}) are cells of the reference, such as"
        return f"{found} '{shortened(name)}': confidence and accuracy are too high for them"


def find_repeats(query: Query, saved: SavedModel, reference_cells: ReferenceCells | None) -> Repeats:
    """Find cells of the reference among up to 1,000 cells that are spread over a file.

    Models know a hash of each cell over all of their genes. If a file lacks some of these, or the model has no hashes,
    the file is compared with the cells that the model stores, if these are real.
    """
    rows = seen_rows(query)
    rows = rows[:: max(1, -(-len(rows) // NUM_CELLS))]
    x = linear(query.some(rows))
    is_repeat = are_among(cell_hashes(x), saved.weights.get(HASHES, np.arange(0)))
    is_real = not saved.provenance.get("kept_cells", {}).get("simulated", False)
    if reference_cells is not None and is_real and (HASHES not in saved.weights or not query.measured.all()):
        kept = cell_hashes(reference_cells.values[:, query.measured])
        is_repeat |= are_among(cell_hashes(x[:, query.measured]), kept)
    return Repeats(len(rows), rows[is_repeat])


def joined_repeats(found: Sequence[Repeats]) -> Repeats:
    """Return the cells of a file that are cells of any of several references."""
    if not found:
        return Repeats()
    return Repeats(found[0].num_seen, np.unique(np.concatenate([each.rows for each in found])))
