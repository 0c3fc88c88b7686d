"""Every kind of input in, safely; results out.

In reading order: `safety` (damaged and unsafe files), `watch` (damage that HDF5 does not survive), `h5ad` (in memory
and on disk), `tenx` (10x and loom), `mtx` (MatrixMarket and the names beside it), `tables` (text), `read` (the kind of
an input, its cells and its checksum), `row_blocks` (matrices that stay on disk), `writing` (HDF5 files).
"""

from scperformer.files.h5ad import (
    LOG_MARK,
    PREPARED,
    BackedH5ad,
    is_nested,
    nullable_strings_allowed,
    open_stored,
    write_h5ad,
)
from scperformer.files.hdf5_guard import open_hdf5
from scperformer.files.read import (
    checksum,
    default_output,
    fingerprint,
    neighbours,
    open_cells,
    read_cells,
    require_h5ad,
    require_readable,
    require_unchanged,
    sha256,
)
from scperformer.files.rows import Matrix, Rows
from scperformer.files.safety import reading
from scperformer.files.writing import hdf5_to_write, write_anndata
