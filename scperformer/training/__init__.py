"""From labelled cells to a model folder: both branches are fitted, with out-of-fold evidence; models are refitted to a
query.

- trainer: The trainer of a run, with Lightning, for a number of steps: devices, signals, checkpoints, logs.
- fit_linear: Logistic regression: the linear branch, and the baseline beside every result.
- fit_performer: The default encoder: gene vectors by singular value decomposition, and the training of its
  Performer.
- condition: The condition of a query (measured genes, depth) and its distribution shift; stored cells reduced to it.
- evidence: Both branches fitted to labelled cells, and the scales of their logits by cross-validation.
- fit_imported: Imported models with labelled cells: calibration, and refitting to a query.
- adapted: A model refitted to the genes and depth of a query; the accuracy to expect under usual conditions.
- adapt: Refitting to a query: whether to refit, and where refitted models are kept.
- calls: Predictions for a block of cells.
- run_folder: The run of a training: its folder beside the model, with records, logs and checkpoints; it can be resumed.
- train: Train a model on a labelled reference: prepare, fit, score, refit to all cells, write the model folder.
- studies: Training on several studies: a model of each, evaluated on the others.
"""
