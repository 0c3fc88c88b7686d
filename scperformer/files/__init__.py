"""Every kind of input in, safely; results out.

In reading order: `safety` (damaged and unsafe files), `h5ad` with `old_h5ad` (files of other programs), `tenx`, `loom`,
`tables` (text), `read` (the kind of an input, and its cells), `on_disk` and `row_blocks` (matrices that stay on disk),
`fingerprints` (which input it was).
"""

from scperformer.files.fingerprints import checksum, fingerprint, require_unchanged, sha256
from scperformer.files.h5ad import keys_in, require_new_keys, write_h5ad
from scperformer.files.on_disk import LOG_MARK, PREPARED, BackedH5ad, open_stored
from scperformer.files.read import beside, open_cells, read_cells, require_h5ad, require_readable
from scperformer.files.row_blocks import Matrix, Rows
from scperformer.files.safety import reading

__all__ = [
    "LOG_MARK",
    "PREPARED",
    "BackedH5ad",
    "Matrix",
    "Rows",
    "beside",
    "checksum",
    "fingerprint",
    "keys_in",
    "open_cells",
    "open_stored",
    "read_cells",
    "reading",
    "require_h5ad",
    "require_new_keys",
    "require_readable",
    "require_unchanged",
    "sha256",
    "write_h5ad",
]
