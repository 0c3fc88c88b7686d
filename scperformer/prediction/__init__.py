"""From a model folder and cells to annotations.

In reading order: label_options (checked against the file), calls (of a block of cells), parts (finished blocks on
disk), columns (what is said about the cells), annotation (all columns, embedding, probabilities, record), write (h5ad, zarr and
tables), predict (files and AnnData).
"""

from scperformer.prediction.annotation import describe_run, without_slashes
from scperformer.prediction.predict import annotate_cells, call_all, embed_cells, run_predict
