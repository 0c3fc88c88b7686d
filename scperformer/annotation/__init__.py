"""From a model and a query to an annotated file.

- columns: Columns of obs and obsm, with their records in uns.
- finished: What an annotation depends on, which `resume=true` compares.
- label_options: Options about labels, checked before annotation, and constraints on probabilities.
- annotate: The annotation of a query: columns, embedding, probabilities and record.
- parts: Predictions on disk, a part for each block of cells, so that memory stays flat and runs can be resumed.
- write: Write an annotation: a copy of its file as h5ad or zarr, or a table.
- predict: Annotate the cells of an AnnData or of a file with a model.
- outputs: The outputs of several inputs: their names, which of them are finished, and the errors of inputs that
  failed.
"""
