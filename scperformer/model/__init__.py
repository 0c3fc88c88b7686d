"""The saved model as plain data, without torch: folder, with kept, held_out (and arrays), linear; registry, archive."""

from scperformer.model.archive import ARCHIVES, copy_from_archive
from scperformer.model.arrays import read_arrays
from scperformer.model.folder import (
    BRANCHES,
    CARD,
    ENCODER,
    EXTRAS,
    FORMAT_VERSION,
    GENES,
    INFO,
    MODEL,
    PACKAGED,
    WEIGHTS,
    Bundle,
    damaged_model,
    encoder_is_silent,
    library_folder,
    load_bundle,
    load_kept,
    require_annotator,
    resolve_model,
    save_bundle,
    sum_of_branches,
)
from scperformer.model.linear import LENGTH, TINY, linear_contributions, view
from scperformer.model.out_of_fold import HELD_OUT, HeldOut
from scperformer.model.reference_cells import CELLS, MOST_CELLS, MOST_VALUES, KeptCells
from scperformer.model.registry import (
    MOST_REGISTRY,
    Entry,
    fetch,
    fetch_checked,
    is_remote,
    read_registry,
    registry_place,
)
