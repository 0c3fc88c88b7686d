"""The wing for method developers: token encoders and their training, pretraining, analyses of attention.

- attention_maps: The inputs of attention in a trained encoder on real cells, and the exact softmax maps of these
  inputs.
- approximation: Errors of the linear attention mechanisms relative to exact softmax attention, on inputs from a
  trained encoder.
- masked: Masked pretraining with Lightning: a network predicts hidden values, and its loss is compared with a naive
  guess's.
- spectrum: The rank of exact softmax attention: singular values of its maps on real cells, as in figure 1 of
  Linformer.
- analyze: Analyses of the attention of a trained model on real cells: tables, a figure and a summary.
- supervised: Training of layers with labels in Lightning: loss, metrics and optimiser.
- batch_size: `trainer.batch_size=auto`: the largest batch that fits into memory, from the memory of real training
  steps.
- initialise: The initial weights of a network: gene vectors, attention, and those of a trained encoder (`init`).
- masked_genes: Masked pretraining of a Performer: genes that are hidden query the sums over the other genes of
  their cell.
- pretrain: Pretrain an encoder on unlabelled files: it learns to predict hidden expression; written as a model
  folder.
- pretrained_weights: Weights of a pretrained encoder for other genes, and tables of gene vectors.
"""
