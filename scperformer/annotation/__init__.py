"""From a model and a query to an annotated file.

- columns: The columns of an annotation: each function makes some of them, and most return them with what is
  recorded of them.
- finished: What an annotation depends on: `resume=true` keeps a finished annotation, or continues one, if this is
  the same.
- label_options: The options about labels, checked before any cell is called: constraints, shares, ontology and
  tree, clusters.
- constrain: Probabilities under constraints: labels that cannot occur, and the shares of labels in the file
  (prior=em).
- annotate: The annotation of the cells of a file: columns of obs, the embedding, the probabilities, and a record of
  the run.
- parts: Calls on disk: a part for each block of cells, so that memory stays flat and an interrupted run can be
  continued.
- write: Write an annotation: a copy of its file as h5ad or zarr, or a table. No matrix is in memory as a whole.
- predict: Annotate cells with a model: those of an AnnData, or files one by one.
"""
