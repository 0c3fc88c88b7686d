"""The network in torch: from aligned expression to logits, and from a saved model back to a network.

Files in reading order: tokens, batches, performer (the cell reads its genes), encoder (tokens read each other; with
fused_norm on a GPU), network, imported (networks of other tools), inference, load.
"""

from scperformer.network.batches import (
    POOL_BATCHES,
    Cells,
    drop_genes,
    gene_means,
    prediction_batches,
    prefetch,
    row_subset,
    seed_of,
    seed_sequence,
    shuffled_batches,
    simulate_conditions,
)
from scperformer.network.encoder import Encoder
from scperformer.network.imported import ImportedNetwork, StandardisedLinear, own_probabilities
from scperformer.network.inference import (
    Predictions,
    branch_logits,
    choose_device,
    fast_cpu,
    predict_cells,
    predicting,
    seeing_genes_of,
    torch_state_kept,
)
from scperformer.network.load import (
    ENCODER_PREFIX,
    JoinedModel,
    Model,
    as_model,
    load_encoder,
    load_model,
    read_gene_vectors,
    rebuild,
    shared_rows,
)
from scperformer.network.network import CellTypeModel, Head, LinearBranch, LinearModel, Readout, require_encoder
from scperformer.network.performer import Performer, Reader, ReadLayer, expression_weights
from scperformer.network.tokens import EMBEDDING_STD, Batch, ContinuousEmbedding, log2_bins, mask_token, sinusoids
