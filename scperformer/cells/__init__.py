"""Cells: what the values of a file are, normalised expression with a model's genes, references and queries.

- features: Features of a file that are no genes: antibodies, hashtags, peaks, guides, spike-ins, control probes.
- repeats: Cells that occur twice, found by their expression, whatever they are called: two studies, a reference and
  a query.
- splits: Split labelled cells into training and validation cells: at random within each label, by groups, or by a
  column.
- reference_labels: The labels of a reference: their column, labels with few cells, ontology ids and the label tree.
- values: Judge what the values of a matrix are: counts, log1p values (with base and total), linear, or unusable.
- droplets: Empty droplets: barcodes that cannot be cells, in the unfiltered matrix of a droplet run.
- detect: The expression of an AnnData: its place (X, raw or a layer) and the kind of its values.
- normalisation: Normalised expression, ln(1 + counts per 10,000): from any kind of values, from counts, and over
  some genes alone.
- alignment: Align expression to the genes of a model: match the genes of a file, sum them, and reorder the columns.
- on_disk: Cells and genes of one or several files as one collection, in memory or on disk.
- corpus: Unlabelled cells for pretraining: normalised cells of all files over one list of genes, in memory or on
  disk.
- quality: The quality of cells: empty cells, few genes, mitochondrial expression, likely doublets. No cell is
  filtered.
- query: The cells of a file with the genes of a model, block by block.
- preprocess: Prepare the cells of a file: filter and normalise them as a reference, or align them to the genes of a
  model.
- reference: Labelled cells for training: filtered, normalised and split into training and validation; in memory or
  on disk.
"""
