"""The model: saved folder and card, linear branch, Performer, inference; confidence, novelty and distribution shift.

- arrays: The .npz files of a model folder, which may come from anywhere: nothing in them is executed.
- batch_effect: Batch effect: per-gene factors between a query of another study and the reference, and cells corrected
  for them.
- batches: Turn aligned expression into batches: choose and order cells with seeded random streams, and make their
  tokens.
- card: The model card: what a person should know before using the model, as Markdown; no program reads it.
- confidence: Calibration of confidences: the expected calibration error, and the reliability curve behind it.
- conformal: Sets of labels that contain the true label with a stated probability: split conformal prediction,
  adaptive sets.
- content: The content of a bundle.json, checked: it may come from anywhere.
- doublets: Doublets: cells whose counts two labels explain better than one, and that have many counts for their label.
- folder: The folder that holds a model: where it is, written and read without torch.
- fusion: The probabilities of several models of one tissue joined, each of which knows some of the labels.
- imported: Networks of other tools, which give cells the scores that those tools give them; each kind is a class in
  `KINDS`.
- inference: Predict cells with a network in memory: probabilities, embeddings, and the logits of each branch.
- linear: Sums over the genes of cells: sparse products of views of the expression with tables of the genes.
- load: Load a saved model into a network.
- network: The network: the encoder branch (embedding -> encoder -> pooling -> labels) plus a linear branch.
- novelty: Novelty of cells: the distance to the nearest label in the principal directions of the reference.
- performer: The Performer that reads all genes of a cell at the cost of a linear model.
- resemblance: Resemblance of cells to the profiles of a tissue: calls that need no fit, and cells that resemble no
  type.
- saved_model: A trained model as plain data, without torch.
- shift: Distribution shift: the difference between a query and the reference of a model, in two numbers and in words.
- tissues: The packaged profiles of cell types: mean expression in tissues of two species, and the labels of each
  tissue.
"""
