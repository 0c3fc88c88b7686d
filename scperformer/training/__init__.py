"""From labelled cells to a model folder: both branches are fitted, with out-of-fold evidence; models are refitted to a
query.

- condition: The condition of a query (measured genes, depth), and stored cells reduced to it.
- fit_linear: Logistic regression: the linear branch, and the baseline beside every result.
- loaders: Data loaders for Lightning: batches of cells in memory or on disk.
- learner: What all trainings with Lightning share: seeds of the steps and the schedule.
- reference_repeats: Cells of a query that are cells of the reference, found by their expression.
- trainer: The trainer of a run, with Lightning: devices, distributed processes, signals, checkpoints, logs.
- fit_performer: The default encoder: gene vectors by singular value decomposition, and the training of its
  Performer.
- evidence: Both branches fitted to labelled cells, and the scales of their logits by cross-validation.
- fit_imported: Imported models with labelled cells: calibration, and refitting to a query.
- adapted: A model refitted to the genes and depth of a query.
- expected_accuracy: Expected accuracy with fewer genes or a lower depth, for the model card.
- query_shift: The distribution shift of a query, from a sample of its cells.
- adapt: Refitting to a query: whether to refit, and where refitted models are kept.
- calls: Predictions for a block of cells.
- run_folder: The folder of a run: records, learning curve, and whether it can be resumed.
- studies: Training on several studies: a model of each, evaluated on the others.
- train: Train a model on a labelled reference: prepare, fit, score, refit to all cells, write the model folder.
"""
