"""Reading cells from every kind of input, safely, and writing results.

In reading order: `safety` (damaged and unsafe files are refused), `hdf5_guard` (HDF5 files on which libhdf5 hangs or
crashes), `writing` (HDF5 files), `h5ad` (in memory or with matrices on disk), `tenx` (10x and loom), `mtx`
(MatrixMarket), `tables` (text), `read` (the kind of an input, its cells and its checksum), `rows` (matrices that are
read block by block), `sheet` (what a sample sheet tells about samples), `gene_lists` (the genes of a panel).
"""

from scperformer.files.gene_lists import is_gene_list, read_genes
from scperformer.files.h5ad import (
    LOG1P_KEY,
    PREPARED_KEY,
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
    open_cells,
    origins,
    read_cells,
    require_h5ad,
    require_readable,
    require_unchanged,
)
from scperformer.files.rows import Matrix, Rows
from scperformer.files.safety import reading
from scperformer.files.sheet import OWN_COLUMNS, described_samples, path_in_sheet, read_sheet
from scperformer.files.tables import read_texts, sniff
from scperformer.files.writing import hdf5_to_write, write_anndata
