"""For method developers: token encoders and their training, pretraining, analyses of attention.

- analyze: Analyses of the attention of a trained model on real cells: tables, a figure and a summary.
- approximation: Errors of the linear attention mechanisms relative to exact softmax attention, on inputs from a
  trained encoder.
- attention_maps: The inputs of attention in a trained encoder on real cells, and the exact softmax maps of these
  inputs.
- batch_size: `trainer.batch_size=auto`: the largest batch that fits into the memory of a GPU, by steps on the longest
  cells.
- epochs: Training of layers for epochs, until held-out cells are called no better, perhaps by several processes.
- initialise: The initial weights of a network: gene vectors, attention, and a trained encoder (`init`).
- masked: Masked pretraining with Lightning: a network predicts hidden values, and its loss is compared with a naive
  guess's.
- masked_genes: Masked pretraining of a Performer: genes that are hidden query the sums over the other genes of their
  cell.
- pretrain: Pretrain an encoder on unlabelled files: it learns to predict hidden expression; written as a model
  folder.
- pretrained_weights: Weights of a pretrained encoder for other genes, and tables of gene vectors.
- scbert: Checkpoints of scBERT (.pth; Yang et al. 2022, Nature Machine Intelligence 4:852), pretrained or fine-tuned.
- spectrum: The rank of exact softmax attention: singular values of its maps on real cells, as in figure 1 of
  Linformer.
- streaming: Batches of cells in memory or on disk, for training in epochs.
- supervised: Training of layers between tokens with labels, in Lightning: loss, metrics, optimiser, and the interface
  for `train`.
"""
