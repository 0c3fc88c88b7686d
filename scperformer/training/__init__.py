"""From a reference to a model folder: training with labels, and pretraining without.

Files in reading order:

- `train`, `pretrain`: the two ways, from the cells to the trained network
- `run_folder`: the frame of both: the run folder, its records, the learning curve, the written model
- `source`: the cells to learn from, in memory or on disk, as batches
- `start`: the start of an untrained network, perhaps from a trained encoder (`init`)
- `learner`, `masked_learner`: loss, metrics and optimiser of training and of pretraining; the scales of the branches
- `trainer`: the loop over epochs, its table, signals, several processes
- `conditions`: the accuracy to expect with fewer genes or a lower depth
- `batch_size`, `estimate`: what a training needs, before it runs

No names are exported: `scperformer.train`, `scperformer.pretrain` and the command line load these files when needed.
"""
