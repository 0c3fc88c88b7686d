"""From labelled cells to a model folder: both branches are fitted, with out-of-fold evidence; models are refitted to a
query.

- adapt: Adapt a model to the genes and the depth of a query: whether to, and the fit to the cells that it stores.
- all_cells: The linear branch of a reference whose cells stay on disk: fitted to the principal components of all of
  them.
- calls: The calls of a block of cells by a model.
- choose_linear: The options of the linear branch: chosen by the loss of held-out cells of the reference.
- components: Fits of linear models to more cells than have inner products: by components, principal and of single
  genes.
- condition: The condition of a query: its genes of the model and its depth; reference cells reduced to it, or
  repeated in it.
- estimate: The time and memory of a training, estimated from sizes: of files without their matrices, or of loaded
  cells.
- evidence: Both branches fitted to labelled cells, and the scales of their logits by cross-validation.
- fit_imported: Imported models with labelled cells: the evidence for their scores, and their adaptation to a file.
- fit_linear: Linear models: the baseline that is reported beside every result, and the linear branch.
- fit_performer: The default encoder: gene vectors from co-expression, and a Performer with which the cell reads them.
- folds: Cells that are dealt to folds, each of which is called by fits to the cells of the others.
- kept_fits: Finished fits of a training, kept in the run folder, so that an interrupted run does not make them again.
- label_profiles: Published profiles of a tissue beside the labels of a reference: which type each label resembles.
- mixed_labels: Labels with cells of another type, such as CD8 T cells in a cluster of CD4 T cells, by their markers.
- run_folder: The run of a training: its folder beside the model, with records, logs and checkpoints; it can be
  resumed.
- scales: The scales of the logits of the branches: they have the lowest loss on held-out cells.
- studies: Train on a reference of several studies: a model of each, whose calls of the others' cells show what to
  expect.
- tissue_model: The model of a tissue: cells are simulated from its profiles, and the linear branch is fitted for each
  file.
- train: Train a model on a labelled reference: prepare, fit, score, fit to all cells, write the model folder.
- trainer: The trainer of a run, with Lightning, for a number of steps: devices, signals, checkpoints, logs.
"""
