"""For method developers: token encoders and their training, pretraining, analyses of attention.

- analyze: Analyses of the attention of a trained model on real cells: the rank of its softmax maps, errors of
  approximations.
- contract: The contract of attention mechanisms (attention/base.py), property by property, on random cells with dropped
  tokens.
- epochs: Training of layers for epochs, until held-out cells are called no better, perhaps by several processes.
- initialise: The initial weights of a network: a trained encoder (`init`), a table of gene vectors, and the start of
  attention.
- measure: What a trained model is worth: its scores on validation and test cells, and its size.
- pretrain: Pretraining: an encoder learns to predict hidden expression of unlabelled cells, and is written as a model
  folder.
- scbert: Checkpoints of scBERT (.pth; Yang et al. 2022, Nature Machine Intelligence 4:852), pretrained or fine-tuned.
- supervised: Training of layers between tokens with labels, in Lightning: loss, metrics, optimiser, and the interface
  for `train`.
"""
