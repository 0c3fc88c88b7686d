"""The wing for method developers: token encoders and their training, pretraining, analyses of attention.

- streaming: Batches of cells in memory or on disk, for training in epochs.
- epochs: Training of layers for epochs, until held-out cells are called no better, perhaps by several processes.
- batch_size: `trainer.batch_size=auto`: the largest batch that fits into memory, from the memory of training steps.
- pretrained_weights: Weights of a pretrained encoder for other genes, and tables of gene vectors.
- initialise: The initial weights of a network: gene vectors, attention, and a trained encoder (`init`).
- supervised: Training of layers between tokens with labels: loss, metrics and optimiser; the door of the lab.
- masked: Masked pretraining: a network predicts hidden values, and its loss is compared with a naive guess's.
- masked_genes: Masked pretraining of a Performer: hidden genes query the sums over the other genes of their cell.
- pretrain: Pretrain an encoder on unlabelled files: it learns to predict hidden expression; written as a model folder.
- scbert: Checkpoints of scBERT (.pth), pretrained or fine-tuned, become model folders.
- attention_maps: The inputs of attention in a trained encoder on real cells, and their exact softmax maps.
- approximation: Errors of the linear attention mechanisms relative to exact softmax attention, on such inputs.
- spectrum: The rank of exact softmax attention: singular values of its maps, as in figure 1 of Linformer.
- analyze: Analyses of the attention of a trained model on real cells: tables, a figure and a summary.
"""
