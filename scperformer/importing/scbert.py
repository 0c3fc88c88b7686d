"""Checkpoints of scBERT (.pth; Yang et al. 2022, Nature Machine Intelligence 4:852), pretrained or fine-tuned.

A checkpoint holds weights alone: the genes of its positions come with `genes=`, the labels of a fine-tuned one with
`labels=`. Its network is our `model=scbert` with the published form of attention; only the names of weights differ.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from scperformer.base.errors import InputError
from scperformer.base.inputs import sha256
from scperformer.io.torch_files import is_torch_file, read_torch, weights_of
from scperformer.model.bundle import NetworkConfig

if TYPE_CHECKING:
    from scperformer.config.steps import ImportOptions

NAME = "a checkpoint of scBERT (.pth)"
TARGET_SUM = 10_000.0
EPSILON = 1e-4  # added to the features of its attention
HEAD_DIM = 64  # width of a head, which is not stored: the default of performer-pytorch
LICENCE = "GPL-3.0"
TESTED = (
    "logits equal scBERT's own code to 1e-6, one cell at a time, on a checkpoint of random weights; no "
    "published checkpoint was at hand"
)
NOTE = (
    "scBERT's code and weights are under GPL-3.0: this folder is a derivative of them under the same licence. Keep it "
    "to yourself or pass it on under these terms."
)
MIN_EXPRESSED_GENES = 200  # expressed genes of a cell; scBERT's preparation drops cells with fewer
REQUIRED = ("token_emb.weight", "pos_emb.emb.weight", "norm.weight", "norm.bias")
LAYER = r"performer\.net\.layers\.(\d+)\."
PART = r"\.(weight|bias)"
# Patterns of the names of weights in scBERT, and their names below `model.`.
RENAMED = {
    r"token_emb\.weight": "encoder.embedding.expression.weight",
    r"pos_emb\.emb\.weight": "encoder.embedding.gene.weight",
    rf"norm{PART}": r"encoder.norm.\1",
    rf"to_out\.conv1{PART}": r"pool.projection.\1",
    rf"to_out\.fc1{PART}": r"head.hidden.0.\1",
    rf"to_out\.fc2{PART}": r"head.hidden.3.\1",
    rf"to_out\.fc3{PART}": r"head.labels.\1",
    rf"{LAYER}0\.fn\.fast_attention\.projection_matrix": r"encoder.layers.\1.attention.directions_ME",
    rf"{LAYER}0\.fn\.to_([qkv])\.weight": r"encoder.layers.\1.to_\2.weight",
    rf"{LAYER}0\.fn\.to_out{PART}": r"encoder.layers.\1.to_out.\2",
    rf"{LAYER}0\.norm{PART}": r"encoder.layers.\1.norm_attention.\2",
    rf"{LAYER}1\.norm{PART}": r"encoder.layers.\1.norm_feedforward.\2",
    rf"{LAYER}1\.fn\.fn\.w1{PART}": r"encoder.layers.\1.feedforward.0.\2",
    rf"{LAYER}1\.fn\.fn\.w2{PART}": r"encoder.layers.\1.feedforward.2.\2",
}
PROJECTIONS = (".to_q.weight", ".to_k.weight", ".to_v.weight")
# the last two: of pretraining
DROPPED = ("performer.calls_since_last_redraw", "to_out.weight", "to_out.bias")


is_it = is_torch_file  # it may be such a checkpoint


def read(path: Path, cfg: ImportOptions, names: Mapping[str, list[str]]) -> Mapping[str, object]:
    """Read a checkpoint of scBERT : a ValueError says how it is damaged, or that it is another one."""
    published = weights_of(read_torch(path), "model_state_dict")
    missing = [name for name in REQUIRED if name not in published]
    if missing or not any(re.match(LAYER, name) for name in published):
        raise ValueError(f"other weights than scBERT's (no {missing[0] if missing else 'layers'})")
    weights = _our_weights(published)
    asked = [
        (
            "genes",
            len(published["pos_emb.emb.weight"]) - 1,
            "positions",
            "the gene order file of the checkpoint",
        )
    ]
    if any(name.startswith(("pool.", "head.")) for name in weights):
        asked.append(
            (
                "labels",
                len(published.get("to_out.fc3.bias", ())),
                "outputs",
                "the label_dict of the checkpoint",
            )
        )
    elif cfg.labels is not None:
        found = f"labels={cfg.labels} with the pretrained checkpoint {path}"
        raise InputError(
            "scbert-labels", found, "a fine-tuned checkpoint, which has labels", "leave labels out"
        )
    for option, number, parts, where in asked:
        if option not in names:
            found = f"{number} {option} that the {parts} of {path} do not name"
            raise InputError("scbert-names", found, where, f"add {option}=FILE")
        if len(names[option]) != number:
            found = f"{len(names[option])} names in {option}={getattr(cfg, option)}"
            raise InputError(
                "scbert-names",
                found,
                f"{number}, one for each of the {parts} of {path}",
                f"name {where}",
            )
    return {
        "origin": {
            "tool": "scBERT",
            "file": path.name,
            "sha256": sha256(path),
            "licence": LICENCE,
            "tested": TESTED,
        },
        "genes": names["genes"],
        "labels": names.get("labels", []),
        "config": _config(published),
        "weights": weights,
        "notes": [NOTE],
    }


def _our_weights(published: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the weights by our names, in float32; the projections of queries, keys and values become one."""
    ours: dict[str, np.ndarray] = {}
    for name in (name for name in published if name not in DROPPED):
        pattern = next((pattern for pattern in RENAMED if re.fullmatch(pattern, name)), None)
        if pattern is None:
            raise ValueError(f"weights '{name[:100]}', which scBERT does not have")
        ours[re.sub(pattern, RENAMED[pattern], name)] = published[name]
    for layer in dict.fromkeys(
        name.rpartition(".to_")[0] for name in ours if name.endswith(PROJECTIONS)
    ):
        parts = [ours.pop(layer + projection, np.empty(0)) for projection in PROJECTIONS]
        if len({part.shape for part in parts}) > 1:
            raise ValueError(
                f"a layer {layer.rpartition('.')[2]} without queries, keys and values of one shape"
            )
        ours[f"{layer}.to_qkv.weight"] = np.concatenate(parts)
    if "pool.projection.weight" in ours:  # a convolution of one row: 1 x 1 x 1 x D
        ours["pool.projection.weight"] = ours["pool.projection.weight"].reshape(1, -1)
    for name, array in ours.items():
        if array.dtype.kind != "f" or not np.isfinite(array).all():
            raise ValueError(f"weights '{name}' that are not finite numbers")
    return {name: array.astype(np.float32) for name, array in ours.items()}


def _config(published: Mapping[str, np.ndarray]) -> NetworkConfig:
    """Return the options of the network, from the shapes of its weights."""
    first = "performer.net.layers.0.0.fn"
    directions = published.get(f"{first}.fast_attention.projection_matrix", np.zeros((0, HEAD_DIM)))
    inner = len(published.get(f"{first}.to_q.weight", ()))
    if (
        directions.ndim != 2
        or directions.shape[1] == 0
        or inner == 0
        or inner % directions.shape[1]
    ):
        raise ValueError("a first layer without queries and directions that fit")
    layers = {match[1] for name in published if (match := re.match(LAYER, name))}
    hidden = [
        len(published[f"to_out.{name}.bias"])
        for name in ("fc1", "fc2")
        if f"to_out.{name}.bias" in published
    ]
    return NetworkConfig(
        target_sum=TARGET_SUM,
        own_totals=True,
        min_genes=MIN_EXPRESSED_GENES,
        tokens={"name": "scbert", "num_bins": 5, "unexpressed": "all"},
        model={
            "dim": published["token_emb.weight"].shape[-1],
            "depth": len(layers),
            "num_heads": inner // directions.shape[1],
            "head_dim": directions.shape[1],
            "positions": "gene2vec",
            "dropout": 0.0,
            "gene_dropout": 0.0,
            "linear": False,
            "chunk_tokens": 512,
            "checkpointing": True,
        },
        attention={
            "name": "favor",
            "num_features": len(directions),
            "epsilon": EPSILON,
            "stabiliser": "all_heads",
        },
        head={"name": "conv", "hidden": hidden, "dropout": 0.0},
    )
