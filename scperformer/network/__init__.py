"""The network in torch: from aligned expression to logits, and saved models back in memory.

Files in reading order: tokens, batches (with seeds), embedding, encoder (with chunked), network, baseline,
linear_branch, cpu, inference, load, library, gene_vectors.
"""

from scperformer.network.baseline import LinearModel, fit_baseline, fit_logistic
from scperformer.network.batches import (
    AHEAD,
    POOL_BATCHES,
    Cells,
    ahead,
    drawn_rows,
    drop_genes,
    gene_means,
    prediction_batches,
    row_subset,
    shuffled_batches,
)
from scperformer.network.cpu import fast_cpu, torch_state_kept
from scperformer.network.embedding import EMBEDDING_STD, ContinuousEmbedding, TokenLogits, sinusoids
from scperformer.network.encoder import Encoder, require_encoder
from scperformer.network.gene_vectors import read_gene_vectors
from scperformer.network.inference import branch_logits, choose_device, predict_cells
from scperformer.network.linear_branch import Recipe, fit_linear_branch, settle_recipe
from scperformer.network.load import ENCODER, PRETRAINING, Model, load_encoder, load_model, shared_rows
from scperformer.network.network import CellTypeModel
from scperformer.network.seeds import seed_of, seed_sequence
from scperformer.network.tokens import Batch, log2_bins, mask_token, num_tokens
