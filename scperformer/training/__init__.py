"""From labelled cells to a model folder: both branches are fitted, with out-of-fold evidence; models are refitted to a
query.

- condition: The condition of a file: which of a model's genes it measures, and how deep; and kept cells reduced to
  it.
- fit_linear: Logistic regression: the baseline that is reported beside every result, and the start of the linear
  branch.
- loaders: Data loaders for Lightning: batches of cells in memory or on disk.
- learner: What all trainings in Lightning share: the seed of each step, the conditions of the cells, and the
  schedule.
- reference_repeats: Cells of a file that are cells of the reference of a model, by their expression.
- trainer: The trainer of a run, with Lightning: devices, distributed processes, signals, checkpoints, logs.
- fit_performer: The default encoder: gene vectors from co-expression, and a Performer with which the cell reads
  them.
- evidence: Both branches fitted to labelled cells, and the scales of their logits by cross-validation.
- fit_imported: Imported models with labelled cells: the evidence for their scores, and their adaptation to a file.
- adapted: A model adapted to a condition: fitted anew to the cells that it stores, with the genes and the depth of
  a file.
- expected_accuracy: The accuracy to expect on files with fewer genes or a lower depth than the reference, for the
  model card.
- query_shift: How far a file is from the reference, by some of its cells; model/shift.py says what the numbers
  mean.
- adapt: Adapt a model to the cells of a file: whether to, where adapted models are kept, and the step `adapt`.
- calls: The calls of a block of cells by a model.
- run_folder: The run of a training: its folder beside the model, with records, logs and checkpoints; it can be
  resumed.
- studies: Train on a reference of several studies: a model of each, whose calls of the others' cells show what to
  expect.
- train: Train a model on a labelled reference: prepare, fit, score, refit to all cells, write the model folder.
"""
