"""From a model folder and cells to annotations.

In reading order: calls (of a block of cells; finished ones on disk), rules (constraints, label tree and clusters),
annotation (what is written about the cells), write (h5ad, zarr and tables), predict (files and AnnData).
"""

from scperformer.prediction.annotation import describe_run, without_slashes
from scperformer.prediction.predict import annotate_cells, call_all, embed_cells, run_predict
