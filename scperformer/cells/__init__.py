"""Cells: what the values of a file are, normalised expression with a model's genes, references and queries.

- values: counts, logarithms (with base and total), other values or unusable ones
- features: non-gene features, such as antibodies and spike-ins
- droplets: empty droplets in an unfiltered matrix
- detect: the place of the expression (X, raw or a layer) and the kind of its values
- normalisation: ln(1 + counts per 10,000), recovered counts, thinned counts
- alignment: expression with the genes of a model as columns
- query: cells to annotate, with the genes of a model
- quality: empty cells, mitochondrial expression, doublets
- on_disk: cells of several files as one collection, filtered and normalised, in memory or on disk
- splits: training and validation cells
- reference_labels: labels, rare labels, ontology ids, label tree and batches of a reference
- reference: labelled cells for training
- corpus: unlabelled cells for pretraining
- preprocess: a prepared copy of a file
- repeats: duplicate cells
"""
