"""The model: saved folder and card, linear branch, Performer, inference; confidence, novelty and distribution shift.

- arrays: Read arrays from the .npz files of a model folder, which may come from anywhere: nothing in them is
  executed.
- batches: Turn aligned expression into batches: choose and order cells with seeded random streams, and make their
  tokens.
- confidence: Calibration of confidences: the expected calibration error, and the reliability curve behind it.
- conformal: Sets of labels that contain the true label with a stated probability: split conformal prediction,
  adaptive sets.
- batch_effect: Per-gene factors between a query of another study and the reference, and cells corrected for them.
- fusion: Joined probabilities of the models of several studies.
- held_out: Out-of-fold predictions of reference cells, for confidences, label sets and novelty.
- novelty: Novelty of cells: the distance to the nearest label in the principal directions of the reference.
- reference_cells: Cells of the reference stored with a model, as counts: with them it is refitted to the genes and
  depth of a query.
- saved_model: A trained model as plain data, without torch.
- card: The model card, as Markdown.
- content: The content of a bundle.json, checked: it may come from anywhere.
- imported: Networks of other tools with the scores of these tools; each kind is a class in `KINDS`.
- library: Where models are: in the package, in the folder of imported models, or where the user says.
- folder: The folder that holds a model, written and read without torch.
- archive: Model folders in .zip archives, which may come from anywhere: the known files are copied out, nothing is
  extracted.
- linear: The linear branch of a saved model, computed without torch.
- performer: The Performer that reads all genes of a cell at the cost of a linear model.
- network: The network: the encoder branch (embedding -> encoder -> pooling -> labels) plus a linear branch.
- inference: Predict cells with a network in memory: probabilities, embeddings, and the logits of each branch.
- load: Load a saved model into a network.
- shift: Distribution shift between a query and the reference: another protocol, condition or tissue.
"""
