"""From a model and the cells of a file to an annotation.

Files in reading order: label_options (checked before any cell is called), parts (calls on disk), constraints (on the
probabilities of calls), columns (of an annotation), annotation (its columns and its record), write (h5ad, zarr and
tables), several (models on the same cells), predict (the steps for an AnnData and for files).
"""

import lazy_loader

# `check` and the reports ask for the names of columns, and need no torch: each file loads when it is used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
