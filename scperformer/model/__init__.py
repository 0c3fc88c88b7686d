"""The saved model as plain data, without torch.

Files in reading order: bundle (the data, and its card for people), folder.
"""

from scperformer.model.bundle import ANNOTATOR, BRANCHES, ENCODER, Bundle, encoder_is_silent, sum_of_branches
from scperformer.model.folder import (
    CARD,
    FORMAT_VERSION,
    GENES,
    INFO,
    PACKAGED,
    WEIGHTS,
    damaged_model,
    library_folder,
    load_bundle,
    require_annotator,
    resolve_model,
    save_bundle,
)
