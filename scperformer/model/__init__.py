"""The saved model, without torch.

Files in reading order: saved_model (a model as plain data), arrays, reference_cells and held_out (its arrays of cells),
linear (its linear branch), content (the checks of bundle.json), card, folder (written and read), library (where models
are), archive (models in .zip).
"""

from scperformer.model.archive import ARCHIVES, copy_from_archive
from scperformer.model.arrays import read_arrays
from scperformer.model.content import INFO
from scperformer.model.folder import (
    CARD,
    EXTRAS,
    FORMAT_VERSION,
    GENES,
    MODEL,
    WEIGHTS,
    damaged_model,
    files_of_model,
    load_reference_cells,
    parts_of,
    read_model,
    write_model,
)
from scperformer.model.held_out import HELD_OUT, HeldOut
from scperformer.model.library import PACKAGED_MODEL, library_folder, require_annotator, resolve_model
from scperformer.model.linear import LENGTH, TINY, linear_contributions, linear_logits, power_transform
from scperformer.model.reference_cells import CELLS_FILE, MAX_CELLS, MAX_VALUES, ReferenceCells
from scperformer.model.saved_model import (
    ANNOTATOR,
    ENCODER,
    HASHES,
    SavedModel,
    Study,
    both_have_a_part,
    branch_names,
    encoder_is_silent,
    sum_of_branches,
)
