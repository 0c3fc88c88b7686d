"""Cells: the kind of their values, normalised expression with the genes of a model; references and queries.

- values: The kind of the values of a matrix: counts, log1p (with base and total), linear, or unusable.
- features: non-gene features, such as antibodies and spike-ins
- droplets: empty droplets in an unfiltered matrix
- detect: the place of the expression (X, raw or a layer) and the kind of its values
- normalisation: ln(1 + counts per 10,000), recovered counts, thinned counts
- alignment: expression with the genes of a model as columns
- query: Cells of a query with the genes of a model, block by block.
- quality: empty cells, mitochondrial expression, doublets
- on_disk: Cells of one or several files as one collection, in memory or on disk.
- splits: training and validation cells
- reference_labels: labels, rare labels, ontology ids, label tree and batches of a reference
- reference: labelled cells for training
- corpus: unlabelled cells for pretraining
- preprocess: Prepared cells: filtered and normalised as a reference, or aligned to the genes of a model.
- repeats: Cells that occur twice, found by their expression: in two studies, or in reference and query.
"""
