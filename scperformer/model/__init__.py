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
    PACKAGED_MODEL,
    WEIGHTS,
    SavedModel,
    damaged_model,
    encoder_is_silent,
    library_folder,
    load_reference_cells,
    read_model,
    require_annotator,
    resolve_model,
    sum_of_branches,
    write_model,
)
from scperformer.model.held_out import HELD_OUT, HeldOut
from scperformer.model.linear import LENGTH, TINY, linear_contributions, power_transform
from scperformer.model.older_formats import with_current_branches
from scperformer.model.reference_cells import CELLS_FILE, MOST_CELLS, MOST_VALUES, ReferenceCells
from scperformer.model.registry import (
    MOST_REGISTRY,
    Entry,
    fetch,
    fetch_checked,
    is_remote,
    read_registry,
    registry_place,
)
