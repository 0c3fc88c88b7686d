"""Barcodes that cannot be cells: the droplets without a cell in the unfiltered matrix of a droplet run.

Such a matrix has a barcode for each droplet, and most of them hold a few counts of the RNA in the solution. A file is
taken for one only if its typical barcode is nearly empty, and if a steep fall of the barcode-rank curve parts such
barcodes from the cells. Neither holds for cells, however shallow, for panels, or for beads of a slide.
"""

from dataclasses import dataclass

import numpy as np

from scperformer.base.messages import in_percent

MOST_TYPICAL = 50.0  # counts of the typical barcode of an unfiltered matrix; at most a hundredth of its genes
MOST_AMBIENT = 500.0  # counts of the typical droplet without a cell, in a matrix that is known to be unfiltered
TIMES_MORE = 10.0  # counts of the typical cell, in counts of the typical barcode below the floor
LARGEST_HOLD = 0.1  # share of the counts in the largest cells
TIMES_LARGER = 4.0  # of these cells: below their size divided by this is the floor
LEAST_HELD = 0.2  # share of the counts that the cells hold
LEAST_CELLS = 10
STEPS = 200  # places at which the curve is looked at
WIDTH = 1.5  # barcodes within this factor of a place show how steep the curve is there
MOST_NEAR = 0.3  # barcodes near the floor, in barcodes above it; of lognormal totals it is 0.5 and more


@dataclass(frozen=True, eq=False)
class Droplets:
    """The barcodes of an unfiltered matrix, and the floor that parts cells from the others."""

    floor: int  # counts or expressed genes: barcodes with fewer cannot be cells
    unit: str  # counts or genes
    num_empty: int  # barcodes below the floor
    cells: np.ndarray  # int64, row numbers of the others, by their size

    @property
    def is_cell(self) -> np.ndarray:
        """Whether each barcode can be a cell: bool, N."""
        found = np.zeros(self.num_empty + len(self.cells), dtype=bool)
        found[self.cells] = True
        return found

    def some(self, most: int) -> np.ndarray:
        """Return the row numbers of up to `most` cells of all sizes, ascending."""
        places = np.linspace(0, len(self.cells) - 1, min(len(self.cells), most)).astype(int)
        return np.sort(self.cells[np.unique(places)])

    @property
    def text(self) -> str:
        """What the file is, in words."""
        share = in_percent(self.num_empty / (self.num_empty + len(self.cells)))
        text = f"{share} of barcodes have fewer than {self.floor:,} {self.unit}: this looks like the unfiltered matrix "
        text += (
            "of a droplet run, use the filtered one; these barcodes are called and flagged low_quality, and the depth "
        )
        return f"{text}and all other statistics are those of the {len(self.cells):,} barcodes above"


def find_droplets(sizes: np.ndarray, unit: str, num_genes: int) -> Droplets | None:
    """Find the barcodes of an unfiltered matrix that cannot be cells; None for any other file.

    They are below the steepest place of the barcode-rank curve (its inflection, as in `barcodeRanks` of DropletUtils;
    Lun et al. 2019, Genome Biol. 20:63), which is looked for above the typical barcode and below a quarter of the size
    of large cells. Between barcodes of single counts and those of droplets without a cell there may be such a place,
    too: then the next one is the floor. The order of the barcodes does not matter.

    Parameters
    ----------
    sizes
        Counts of each barcode, or its number of expressed genes, N.
    unit
        counts or genes.
    num_genes
        Genes of the file.
    """
    order = np.argsort(sizes, kind="stable")
    ordered = np.asarray(sizes, dtype=np.float64)[order]
    total = ordered.sum()
    first = 0
    floor = 0
    most = min(MOST_TYPICAL, num_genes / 100)
    while len(ordered) - first >= LEAST_CELLS:
        left = ordered[first:]
        typical = left[len(left) // 2]
        held = np.cumsum(left[::-1])
        largest = left[::-1][np.searchsorted(held, LARGEST_HOLD * held[-1])]
        lowest = max(TIMES_MORE / 2, 2 * typical)
        highest = max(MOST_AMBIENT, TIMES_MORE * typical)
        highest = min(highest, largest / TIMES_LARGER)
        if typical >= most or highest <= lowest:
            break
        places = np.geomspace(lowest, highest, STEPS)
        above = len(left) - np.searchsorted(left, places)
        near = (np.searchsorted(left, places * WIDTH) - np.searchsorted(left, places / WIDTH)) / above
        steepest = np.flatnonzero(near == near.min())
        place = int(np.ceil(places[steepest[len(steepest) // 2]]))
        num_below = int(np.searchsorted(left, place))
        below = left[:num_below]
        cells = left[num_below:]
        is_steep = near.min() <= MOST_NEAR and len(cells) >= LEAST_CELLS and cells.sum() >= LEAST_HELD * total
        if not is_steep or np.median(cells) < TIMES_MORE * max(1.0, float(np.median(below))):
            break
        first = first + num_below
        floor = place
        most = MOST_AMBIENT
    return Droplets(floor, unit, first, order[first:]) if floor else None
