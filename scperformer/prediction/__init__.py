"""From a model folder and cells to annotations.

In reading order: annotation (calls, and what is written about them), parts (finished blocks on disk), write_h5ad,
write_zarr, write_table, predict (files and AnnData).
"""

from scperformer.prediction.annotation import (
    describe_genes,
    describe_input,
    describe_model,
    make_query,
    package_versions,
)
