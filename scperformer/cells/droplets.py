"""Empty droplets: barcodes that cannot be cells, in the unfiltered matrix of a droplet run.

A file is taken for an unfiltered matrix only if the barcode-rank curve falls steeply between such barcodes and the
cells, and if its typical barcode is nearly empty or, after a loose filter, if the barcodes below differ no more than
samples of one solution. Neither is true of shallow cells, panels or the beads of a slide.
"""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.base.messages import in_percent

MAX_TYPICAL = 50.0  # counts of the typical barcode of an unfiltered matrix; also at most a hundredth of its genes
# counts of the typical empty droplet, once the matrix is known to be unfiltered
MAX_AMBIENT = 500.0
# ratio of the typical cell's counts to the typical barcode's counts below the floor
MIN_SIZE_RATIO = 10.0
LARGEST_SHARE = 0.1  # the largest cells are those that together hold this share of the counts
# the floor is at most the size of the smallest of these largest cells, divided by this
FLOOR_DIVISOR = 4.0
MIN_HELD_SHARE = 0.2  # share of all counts that the cells hold
MIN_DROPLET_CELLS = 10
NUM_FLOORS_TRIED = 200
NEAR_FACTOR = 1.5  # barcodes within this factor of a size show how steep the curve is there
MAX_NEAR = 0.3  # ratio of barcodes near the floor to barcodes above it; for lognormal totals it is 0.5 and more
# Two molecules of a droplet are of the same gene as often as two of all droplets; of cells of a type, 1.18 times as
# often and more, of a mixture 1.4 times (PBMC 3k with 4 % of the counts).
MAX_SAME_GENE = 1.1
MIN_GENE_SHARE = 1e-3  # of the counts, of genes that are compared
MIN_COMPARED_DROPLETS = 20  # barcodes below the floor


@dataclass(frozen=True, eq=False)
class Droplets:
    """The barcodes of an unfiltered matrix, and the floor that separates cells from empty droplets."""

    floor: int  # barcodes with fewer counts cannot be cells
    num_empty: int  # barcodes below the floor
    # row numbers of the other barcodes, from the smallest to the largest barcode, int64
    cells: np.ndarray

    @property
    def is_cell(self) -> np.ndarray:
        """Whether each barcode can be a cell, boolean, N."""
        is_cell = np.zeros(self.num_empty + len(self.cells), dtype=bool)
        is_cell[self.cells] = True
        return is_cell

    @property
    def text(self) -> str:
        share = in_percent(self.num_empty / (self.num_empty + len(self.cells)))
        text = f"{share} of barcodes have fewer than {self.floor:,} counts: this looks like the unfiltered matrix "
        text += "of a droplet run, or one after a loose filter, use the filtered matrix; these barcodes are unknown; "
        return f"{text}depth and other statistics describe the {len(self.cells):,} barcodes above"


def find_droplets(
    counts: np.ndarray, num_genes: int, sample: tuple[np.ndarray, csr_matrix] | None = None
) -> Droplets | None:
    """Find the barcodes of an unfiltered matrix that cannot be cells; None for any other file.

    `counts` has the total of each barcode; `sample` has the numbers and the counts of some barcodes, by which those
    that a loose filter has left are recognised.
    """
    found = _below_steepest(counts, min(MAX_TYPICAL, num_genes / 100))
    if found is not None or sample is None:
        return found
    found = _below_steepest(counts, MAX_AMBIENT)
    return (
        found
        if found is not None and _of_one_solution(sample[1][~found.is_cell[sample[0]]])
        else None
    )


def _of_one_solution(x: csr_matrix) -> bool:
    """Whether the counts of barcodes, N x G, are samples of the same RNA: pairs are of one gene by chance."""
    totals = np.asarray(x.sum(axis=1)).ravel()
    if len(totals) < MIN_COMPARED_DROPLETS:
        return False
    shares = np.asarray(x.sum(axis=0)).ravel() / totals.sum()
    is_compared = shares >= MIN_GENE_SHARE
    shares = shares[is_compared]
    x = x[:, is_compared]
    pairs = np.asarray((x.multiply(x) - x).sum(axis=0)).ravel()
    expected = (totals * (totals - 1)).sum() * shares.sum()  # each gene has its share as its weight
    return float((pairs / shares).sum()) < MAX_SAME_GENE * expected


def _below_steepest(counts: np.ndarray, max_typical: float) -> Droplets | None:
    """Find barcodes below the cells, if the typical barcode has fewer than `max_typical` counts.

    They are below the steepest point of the barcode-rank curve (its inflection, as in `barcodeRanks` of DropletUtils;
    Lun et al. 2019, Genome Biol. 20:63), between the size of the typical barcode and a quarter of the size of large
    cells. There may be another steep point, between barcodes of single counts and empty droplets: after one point is
    found, the search is repeated above it.
    """
    order = np.argsort(counts, kind="stable")
    ordered = np.asarray(counts, dtype=np.float64)[order]
    total = ordered.sum()
    num_empty = 0
    floor = 0
    while len(ordered) - num_empty >= MIN_DROPLET_CELLS:
        left = ordered[num_empty:]
        typical = left[len(left) // 2]
        held = np.cumsum(left[::-1])
        large = left[::-1][np.searchsorted(held, LARGEST_SHARE * held[-1])]
        lowest = max(MIN_SIZE_RATIO / 2, 2 * typical)
        highest = max(MAX_AMBIENT, MIN_SIZE_RATIO * typical)
        highest = min(highest, large / FLOOR_DIVISOR)
        if typical >= max_typical or highest <= lowest:
            break
        floors = np.geomspace(lowest, highest, NUM_FLOORS_TRIED)
        num_above = len(left) - np.searchsorted(left, floors)
        near = (
            np.searchsorted(left, floors * NEAR_FACTOR)
            - np.searchsorted(left, floors / NEAR_FACTOR)
        ) / num_above
        steepest = np.flatnonzero(near == near.min())
        candidate = int(np.ceil(floors[steepest[len(steepest) // 2]]))
        num_below = int(np.searchsorted(left, candidate))
        below = left[:num_below]
        cells = left[num_below:]
        is_steep = (
            near.min() <= MAX_NEAR
            and len(cells) >= MIN_DROPLET_CELLS
            and cells.sum() >= MIN_HELD_SHARE * total
        )
        if not is_steep or np.median(cells) < MIN_SIZE_RATIO * max(1.0, float(np.median(below))):
            break
        num_empty += num_below
        floor = candidate
        max_typical = MAX_AMBIENT
    return Droplets(floor, num_empty, order[num_empty:]) if floor else None
