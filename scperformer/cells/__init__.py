"""Cells: the kind of their values, normalised expression with the genes of a model; references and queries.

- alignment: Align expression to the genes of a model: match the genes of a file, sum them, and reorder the columns.
- batches: Batches of a query: cells of one sample or technology, by the column of obs that is named, or may be
  meant.
- corpus: Unlabelled cells for pretraining: normalised cells of all files over one list of genes, in memory or on
  disk.
- detect: The expression of an AnnData: its place (X, raw or a layer) and the kind of its values.
- droplets: Empty droplets: barcodes that cannot be cells, in the unfiltered matrix of a droplet run.
- features: Non-gene features of a file: antibodies, hashtags, peaks, guides, spike-ins, control probes.
- mixtures: Cells of two species in a file with the genes of both, such as a xenograft: which genes and cells are of
  one of them.
- no_genes: Columns among the genes that are no genes, such as coordinates, areas, numbers of cells or totals.
- normalisation: Normalised expression, ln(1 + counts per 10,000): from any kind of values, from counts, and over
  some genes alone.
- not_measured: Genes that some batches of a reference did not measure, as after an outer join of studies, which fills
  them with 0.
- on_disk: Cells and genes of one or several files as one collection, in memory or on disk.
- preprocess: Prepare the cells of a file: filter and normalise them as a reference, or align them to the genes of a
  model.
- profiles: References without cells: mean expression of cell types or bulk samples, from which cells are simulated.
- quality: The quality of cells: empty cells, few genes, mitochondrial expression. No cell is filtered.
- query: The cells of a file with the genes of a model, block by block.
- reference: Labelled cells for training: filtered, normalised and split into training and validation; in memory or
  on disk.
- reference_labels: The labels of a reference: their column, labels with few cells, ontology ids and the label tree.
- repeats: Duplicate cells, found by their expression: in two studies, or in a reference and a query.
- splits: Split labelled cells into training and validation cells: at random within each label, by groups, or by a
  column.
- values: Judge what the values of a matrix are: counts, log1p values (with base and total), linear, or unusable.
- which_tissue: Which tissue a file is of: the one whose profiles differ from each other as the cells of the file do.
"""
