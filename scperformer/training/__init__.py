"""From a reference to a model folder: training with labels, and pretraining without.

Files in reading order:

- `train`, `pretrain`: the two ways, from the cells to the written model
- `source`: the cells to learn from, in memory or on disk, as batches
- `start`, `transfer`: the start of an untrained network; the start from a trained encoder (`init`)
- `learner`, `masked_learner`, `masking`: loss, metrics and optimiser of training and of pretraining
- `trainer`, `distributed`: the loop over epochs, checkpoints and signals; several processes
- `scales`: the scale of each branch
- `run_folder`, `learning_curve`: the records of a run
- `batch_size`, `memory`, `estimate`: what a training needs, before it runs

No names are exported: `scperformer.train`, `scperformer.pretrain` and the command line load these files when needed.
"""
