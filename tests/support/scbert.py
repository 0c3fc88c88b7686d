"""A naive scBERT, written from its paper and that of the Performer in float64, and checkpoints of random weights."""

import pickle
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import torch
from scipy import sparse
from torch.nn.functional import gelu, layer_norm

EPSILON = 1e-4


def random_weights(
    num_genes: int, num_labels: int, *, dim=24, heads=3, head_dim=16, features=20, depth=2
):
    """The weights of a fine-tuned scBERT by its names; without labels, those of a pretrained one."""
    torch.manual_seed(0)

    def random(*shape, size=0.3):
        return torch.randn(*shape) * size

    inner = heads * head_dim
    state = {
        "token_emb.weight": random(7, dim, size=1.0),
        "pos_emb.emb.weight": random(num_genes + 1, dim).double(),
    }
    state["performer.calls_since_last_redraw"] = torch.tensor(3)
    for number in range(depth):
        layer = f"performer.net.layers.{number}"
        shapes = {
            "0.norm.weight": (dim,),
            "0.norm.bias": (dim,),
            "0.fn.fast_attention.projection_matrix": (features, head_dim),
            **{f"0.fn.to_{part}.weight": (inner, dim) for part in "qkv"},
            "0.fn.to_out.weight": (dim, inner),
            "0.fn.to_out.bias": (dim,),
            "1.norm.weight": (dim,),
            "1.norm.bias": (dim,),
            "1.fn.fn.w1.weight": (4 * dim, dim),
            "1.fn.fn.w1.bias": (4 * dim,),
            "1.fn.fn.w2.weight": (dim, 4 * dim),
            "1.fn.fn.w2.bias": (dim,),
        }
        for name, shape in shapes.items():
            state[f"{layer}.{name}"] = random(
                *shape, size=1.0 if "projection_matrix" in name else 0.3
            )
    state |= {"norm.weight": random(dim), "norm.bias": random(dim)}
    if num_labels:
        state |= {"to_out.conv1.weight": random(1, 1, 1, dim), "to_out.conv1.bias": random(1)}
        for name, shape in {
            "fc1": (32, num_genes + 1),
            "fc2": (16, 32),
            "fc3": (num_labels, 16),
        }.items():
            state |= {
                f"to_out.{name}.weight": random(*shape),
                f"to_out.{name}.bias": random(shape[0]),
            }
    else:
        state |= {"to_out.weight": random(7, dim), "to_out.bias": random(7)}
    return state


def save(state, path: Path) -> Path:
    """Write a checkpoint as scBERT does."""
    content = {
        "epoch": 1,
        "model_state_dict": state,
        "optimizer_state_dict": {"state": {}},
        "losses": 0.5,
    }
    torch.save(content, path)
    return path


def tokens(counts: np.ndarray) -> np.ndarray:
    """The tokens of cells, given the counts of the model's genes (0 where the file lacks one)."""
    totals = np.maximum(counts.sum(axis=1, keepdims=True), 1)
    bins = np.minimum(np.log2(1 + counts.astype(np.float64) / totals * 1e4), 5).astype(np.int64)
    return np.concatenate([bins, np.zeros((len(bins), 1), dtype=np.int64)], axis=1)


def logits(state, cell: np.ndarray) -> np.ndarray:
    """The logits of one cell, from its tokens."""
    state = {
        name: array.double() if array.is_floating_point() else array
        for name, array in state.items()
    }

    def linear(x, name):
        return x @ state[f"{name}.weight"].T + state.get(f"{name}.bias", 0.0)

    def normed(x, name):
        return layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"])

    h_LD = state["token_emb.weight"][torch.from_numpy(cell)] + state["pos_emb.emb.weight"]
    number = 0
    while (layer := f"performer.net.layers.{number}") + ".0.norm.weight" in state:
        h_LD = h_LD + linear(
            attention(normed(h_LD, f"{layer}.0.norm"), state, f"{layer}.0.fn"),
            f"{layer}.0.fn.to_out",
        )
        inner = gelu(linear(normed(h_LD, f"{layer}.1.norm"), f"{layer}.1.fn.fn.w1"))
        h_LD = h_LD + linear(inner, f"{layer}.1.fn.fn.w2")
        number += 1
    s_L = torch.relu(
        normed(h_LD, "norm") @ state["to_out.conv1.weight"].flatten() + state["to_out.conv1.bias"]
    )
    hidden = torch.relu(linear(s_L, "to_out.fc1"))
    return linear(torch.relu(linear(hidden, "to_out.fc2")), "to_out.fc3").numpy()


def attention(x_LD, state, name):
    """FAVOR+ with all L x L weights; one stabiliser for the keys of all heads, and epsilon in every feature."""
    w_ME = state[f"{name}.fast_attention.projection_matrix"]
    width = w_ME.shape[1]
    q, k, v = (
        (x_LD @ state[f"{name}.to_{part}.weight"].T).unflatten(1, (-1, width)) for part in "qkv"
    )
    q_LHM, k_LHM = q / width**0.25 @ w_ME.T, k / width**0.25 @ w_ME.T
    half_q, half_k = (x.square().sum(-1, keepdim=True) / width**0.5 / 2 for x in (q, k))
    phi_q = torch.exp(q_LHM - half_q - q_LHM.amax(-1, keepdim=True)) + EPSILON
    phi_k = torch.exp(k_LHM - half_k - k_LHM.max()) + EPSILON
    weights_HQK = torch.einsum("qhm,khm->hqk", phi_q, phi_k)
    mixed = torch.einsum("hqk,khe->qhe", weights_HQK / weights_HQK.sum(-1, keepdim=True), v)
    return mixed.flatten(1)


def counts_of(cells, genes: list[str]) -> np.ndarray:
    """The counts of genes in an AnnData; 0 where it lacks one."""
    x = cells.X.toarray() if sparse.issparse(cells.X) else cells.X
    place = {name: column for column, name in enumerate(cells.var_names)}
    return np.stack(
        [x[:, place[gene]] if gene in place else np.zeros(len(x)) for gene in genes], axis=1
    )


def main() -> None:
    """Write what a user of scBERT has, for docs/from_other_tools.md, with the genes of reference.h5ad here."""
    reference = ad.read_h5ad("reference.h5ad")
    genes = list(reference.var_names[np.argsort(-np.asarray(reference.X.sum(axis=0)).ravel())[:60]])
    labels = np.array(sorted(reference.obs["cell_type"].unique()), dtype=object)
    var = pd.DataFrame(index=genes)
    ad.AnnData(np.zeros((1, len(genes)), dtype=np.float32), var=var).write_h5ad(
        "panglao_10000.h5ad"
    )
    Path("label_dict").write_bytes(pickle.dumps(labels))
    save(random_weights(len(genes), len(labels)), Path("finetune_best.pth"))
    save(random_weights(len(genes), 0), Path("panglao_pretrain.pth"))
    np.save("gene2vec_16906.npy", np.random.default_rng(0).normal(size=(len(genes), 200)))


if __name__ == "__main__":
    main()
