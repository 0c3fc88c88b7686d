"""From a model and a query to an annotated file.

- columns: The columns of an annotation: how each group of them is made, and what is recorded and logged about it.
- label_options: The options about labels, checked before any cell is called: constraints, shares, ontology and
  tree, clusters.
- constrain: Probabilities under constraints: labels that cannot occur, and the shares of labels in the file
  (prior=em).
- annotate: The annotation of the cells of a file: columns of obs, the embedding, the probabilities, and a record of
  the run.
- parts: Calls on disk: a part for each block of cells, so that memory stays flat and an interrupted run can be
  resumed.
- several: Several models on the same cells: the annotation of each under a prefix of its own, and how often they
  agree.
- finished: Annotations that an earlier run has finished: `resume=true` keeps them if file, model and options are
  the same.
- write: Write an annotation: a copy of its file as h5ad or zarr, or a table. No matrix is in memory as a whole.
- predict: Annotate cells with a model: add labels and their probabilities to an AnnData, or write them to a file.
"""
