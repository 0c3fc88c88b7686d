"""The time and memory of a training, estimated from sizes: of files without their matrices, or of loaded cells."""

from pathlib import Path

from scperformer.base.errors import InputError
from scperformer.base.messages import in_time
from scperformer.cells.collection import choose_storage, stored_cells, stored_matrices
from scperformer.cells.reference_labels import CellLabels
from scperformer.cells.splits import MAX_LOADED_CELLS, MAX_VAL_CELLS
from scperformer.config.training import TrainOptions
from scperformer.fits.folds import CHOICE_CELLS, CHOICE_LABELS, MAX_FOLD_FIT_CELLS
from scperformer.fits.linear import MAX_DUAL

DENSE_SHARE = 0.1  # of the entries of a dense matrix that are not 0


def training_cost(
    cells: int, genes: int, labels: int, values: float, on_disk: bool
) -> tuple[float, str]:
    """Return the CPU seconds of a default training on one core, and these and its memory in words.

    Arguments are numbers of a reference; `values` are those of expression above 0. The factors were fitted to the table
    in docs/large_references.md, which says how far they are off.
    """
    loaded = values * min(1.0, (MAX_LOADED_CELLS + MAX_VAL_CELLS) / cells) if on_disk else values
    seconds = 30 + 7e-7 * loaded + 2.5e-7 * values * on_disk
    seconds += 6e-8 * min(labels, CHOICE_LABELS) * min(cells, CHOICE_CELLS) ** 2
    size = 0.8 * 2**30 + 48 * loaded + 50 * genes * labels
    if cells <= MAX_DUAL:
        seconds += 3.2e-8 * labels * cells**2 + 0.9e-10 * cells**3
        size += 16 * cells**2
    else:
        fitted = 5 * min(cells, MAX_FOLD_FIT_CELLS) + cells
        # fits to fewer cells of a label end earlier
        seconds += 4e-6 * min(labels, cells / 20) * fitted
    cost = f"about {in_time(round(seconds, -1))} on one CPU core, {size / 2**30:.1f} GiB of memory"
    return seconds, f"{cells:,} cells, {labels:,} labels: {cost}"


def cost_of_files(cfg: TrainOptions) -> str:
    """Return the cost of a training in words, from the sizes of its files; refuse files that do not tell them."""
    paths = [Path(name) for name in cfg.inputs]
    values, genes = 0.0, 0
    for path in paths:
        if not (matrices := stored_matrices(path)):
            expected = "h5ad or zarr, stored by rows"
            raise InputError("storage", f"--estimate for {path}", expected, "leave --estimate out")
        values += max(
            x.num_values * (DENSE_SHARE if hasattr(x.matrix, "chunks") else 1) for x in matrices
        )
        genes = max(genes, *(x.shape[1] for x in matrices))
    labels = CellLabels.of_files([stored_cells(path, cfg) for path in paths]).labels
    on_disk = choose_storage(cfg, paths).data.in_memory is False
    return training_cost(int(labels.notna().sum()), genes, labels.nunique(), values, on_disk)[1]
