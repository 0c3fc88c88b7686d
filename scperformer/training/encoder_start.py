"""What an untrained encoder starts from beside chance: a file of gene vectors, and cells shown to its attention."""

import numpy as np
import torch

from scperformer.config import NetworkConfig
from scperformer.network import Cells, Encoder, read_gene_vectors


def start_gene_vectors(encoder: Encoder, genes: list[str], cfg: NetworkConfig) -> None:
    """Fill the gene embedding from `model.gene2vec_path`, if that is what it is made of; errors as in the reader."""
    if cfg.model.positions == "gene2vec" and cfg.model.gene2vec_path is not None:
        vectors = read_gene_vectors(cfg.model.gene2vec_path, genes, cfg.model.dim)
        encoder.embedding.set_gene_vectors(torch.from_numpy(vectors))


def start_attention(encoder: Encoder | None, train: Cells, cfg: NetworkConfig) -> None:
    """Show some training cells to the attention of every layer, for those that start from what they see.

    An encoder that starts from another one has that one's attention already.
    """
    if encoder is not None and cfg.init is None and encoder.mechanisms[0].starts_from_keys:
        rows = np.random.default_rng(cfg.seed).permutation(len(train))[: cfg.trainer.batch_size]
        encoder.start(train.batch(np.sort(rows)), torch.Generator().manual_seed(cfg.seed))
