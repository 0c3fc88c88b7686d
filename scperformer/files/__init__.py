"""Every kind of input in, safely."""

from scperformer.files.h5ad import (
    READ_ERRORS,
    damaged,
    fingerprint,
    keys_in,
    require_h5ad,
    require_new_keys,
    require_unchanged,
    sha256,
    write_h5ad,
)
from scperformer.files.on_disk import LOG_MARK, PREPARED, BackedH5ad, can_stream, open_backed, open_stored, reading
from scperformer.files.read import beside, checksum, checksums, read_cells, require_readable
from scperformer.files.row_blocks import Matrix, Rows

__all__ = [
    "LOG_MARK",
    "PREPARED",
    "READ_ERRORS",
    "BackedH5ad",
    "Matrix",
    "Rows",
    "beside",
    "can_stream",
    "checksum",
    "checksums",
    "damaged",
    "fingerprint",
    "keys_in",
    "open_backed",
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
