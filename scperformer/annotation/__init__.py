"""From a model and a query to an annotated file.

- annotate: The annotation of the cells of a file: columns of obs, the embedding, the probabilities, and a record of
  the run.
- clusters_to_check: Clusters to check: those whose cells, taken together, resemble another type than their labels do.
- columns: The columns of an annotation: each function makes some of them, and most return them with what is
  recorded of them.
- label_options: The options about labels, checked before any cell is called.
- markers: Marker genes of clusters, as a table for those who label clusters by other means.
- outputs: The outputs of several inputs: their names, which of them are finished, and the errors of inputs that
  failed.
- predict: Annotate the cells of an AnnData or of a file with a model.
- write: Write an annotation: a copy of its file as h5ad or zarr, or a table.
"""
