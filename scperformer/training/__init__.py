"""From a reference to a model folder: training with labels, and pretraining without.

Files in reading order:

- `train`, `pretrain`: the two steps, from the cells to the model
- `studies`: a model of each study of a reference, joined
- `initialise`: the initial weights of a network, perhaps those of a trained encoder (`init`)
- `batch_size`: the largest batch that fits into memory
- `supervised`, `masked`, `masked_genes`: loss, metrics and optimiser of training, of pretraining, and of pretraining a
  Performer, for the trainer of the room `learning`
- `run_folder`: the records of a run, its learning curve, and resuming

No names are exported: `scperformer.train`, `scperformer.pretrain` and the command line load these files when needed.
"""
