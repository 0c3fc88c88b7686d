"""Every mechanism on the command line: training, saving, loading, predicting; and incompatible options."""

import re

import anndata as ad
import numpy as np
import pytest

import scperformer
from scperformer.attention.registry import MECHANISMS

TRAIN = (
    "label_key=cell_type",
    "model=tiny",
    "model.linear=false",
    "logger=none",
    "output=model",
    "overwrite=true",
)
OPTIONS = {name: [f"attention={name}"] for name in MECHANISMS} | {
    "favor, fastfood, redrawn": ["attention.projection=fastfood", "attention.redraw_interval=2"],
    "favor, relu": ["attention.kernel=relu"],
    "favor, causal": ["attention.causal=true"],
    "rbf, learned": ["attention=rbf", "attention.init=learned", "model.depth=2"],
    "linformer, layerwise": ["attention=linformer", "attention.sharing=layerwise", "model.depth=2"],
    "memory": ["tokens.unexpressed=memory", "model.depth=2"],
    "memory in chunks": [
        "tokens.unexpressed=memory",
        "attention=rbf",
        "model.chunk_tokens=64",
        "model.checkpointing=true",
    ],
    "scBERT's tokens": [
        "tokens=scbert",
        "head=conv",
        "model.chunk_tokens=64",
        "model.checkpointing=true",
    ],
    "bf16": ["trainer.precision=bf16-mixed", "tokens.unexpressed=full", "model.chunk_tokens=64"],
    "sinusoidal": ["model.positions=sinusoidal_split"],
    "the layers of Linformer": ["model=linformer", "trainer.max_epochs=3"],
    "batch norm": ["model=linformer", "model.norm=batch", "trainer.batch_size=32"],
    "the linear transformer": ["attention=linear_transformer"],
    "conv, its map added": ["attention=conv", "attention.skip=map"],
    "checkpointing": ["model.checkpointing=true", "attention=window"],
}


# Its path through the encoder differs from all others; the parts in which the other variants differ have other tests.
FAST = ("memory",)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] * (case not in FAST)) for case in OPTIONS]
)
def test_trains_and_predicts(case, counts_adata, write, command, tmp_path):
    reference = write(counts_adata, "reference.h5ad")
    sample = write(counts_adata[::4].copy(), "sample.h5ad")
    ran = command("train", reference, *TRAIN, "trainer.max_epochs=2", *OPTIONS[case])
    assert ran.code == 0, ran.err
    losses = [float(loss) for loss in re.findall(r"training loss ([\d.]+)", ran.err)]
    assert losses[-1] < losses[0]
    ran = command("predict", sample, "model_path=model")
    assert ran.code == 0, ran.err
    obs = ad.read_h5ad(tmp_path / "sample.annotated.h5ad").obs
    # The saved model gives the same result, so nothing of it was lost.
    again = scperformer.annotate(ad.read_h5ad(sample), scperformer.load_model("model")).obs
    np.testing.assert_array_equal(again["scperformer_confidence"], obs["scperformer_confidence"])


BAD = {
    "unknown mechanism": (
        ["attention=nystrom"],
        ("attention=nystrom", "conv, evo, favor, linear_transformer, linformer"),
    ),
    "unknown option": (["attention.colour=red"], ("attention.colour", "--cfg job")),
    "memory without sums over keys": (
        ["attention=linformer", "tokens.unexpressed=memory"],
        ("memory with attention=linformer", "favor, rbf", "tokens.unexpressed=skip"),
    ),
    "dimensions that heads do not divide": (
        ["model.head_dim=null", "model.num_heads=5"],
        ("model.num_heads=5", "model.dim=32"),
    ),
    "causal Linformer": (
        ["attention=linformer", "attention.causal=true"],
        (
            "no causal form; expected attention=favor, rbf or softmax",
            "sums over all tokens, also later ones",
        ),
    ),
    "memory with batch norm": (
        ["model.norm=batch", "tokens.unexpressed=memory"],
        ("memory with model.norm=batch and attention=favor", "layer norm"),
    ),
    "batch norm that counts a step twice": (
        ["model.norm=batch", "model.checkpointing=true"],
        ("model.checkpointing=True; expected false with model.norm=batch",),
    ),
    "undivided sums of a causal form": (
        ["attention.divide=false", "attention.causal=true"],
        ("attention.divide=False; expected true with attention.causal",),
    ),
    "undivided sums over genes": (
        ["model=performer", "attention.divide=false"],
        ("true with model=performer",),
    ),
    "no gene vectors": (
        ["model.positions=gene2vec"],
        ("no model.gene2vec_path", "model.positions=gene"),
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_unusable_options_are_refused_in_one_line(case, counts_adata, write, refused):
    options, words = BAD[case]
    line = refused("train", write(counts_adata, "reference.h5ad"), *TRAIN, *options)
    assert all(word in line for word in words), line


def test_unusable_options_do_not_delete_an_unfinished_run(counts_adata, write, refused, tmp_path):
    (tmp_path / "model.run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "model.run" / "checkpoints" / "last.ckpt").write_bytes(b"hours of work")
    for options in (
        ["attention.num_features=-3"],
        ["attention=window", "tokens.unexpressed=memory"],
    ):
        refused("train", write(counts_adata, "reference.h5ad"), *TRAIN, *options)


def test_training_warns_of_options_without_effect(counts_adata, write, command):
    options = ["trainer.max_epochs=1", "attention.causal=true", "model.chunk_tokens=9"]
    options += ["model.gene2vec_path=my vectors (v2), x.txt"]
    ran = command("train", write(counts_adata, "reference.h5ad"), *TRAIN, *options)
    assert ran.code == 0, ran.err
    assert re.search(
        r"^warning: .*model\.gene2vec_path.*model\.positions=gene", ran.err, re.MULTILINE
    )
    assert re.search(r"^warning: .*model\.chunk_tokens", ran.err, re.MULTILINE)


@pytest.mark.slow
def test_samples_with_cells_too_long_for_the_model_are_refused(
    counts_adata, write, command, tmp_path
):
    few = counts_adata.copy()
    few.X = few.X.multiply(np.random.default_rng(0).random(few.shape) < 0.1).tocsr()
    options = [
        "trainer.max_epochs=1",
        "data.min_genes=0",
        "attention=softmax",
        "attention.max_length=30",
    ]
    ran = command("train", write(few, "reference.h5ad"), *TRAIN, *options)
    assert ran.code == 0, ran.err
    ran = command("predict", write(counts_adata, "long.h5ad"), "model_path=model")
    assert ran.code == 2
    line = ran.err.splitlines()[-1]
    assert re.search(
        r"error: \d+ tokens in a cell of .*long\.h5ad; expected at most 30 .*: train with", line
    ), line
    assert not (tmp_path / "long.annotated.h5ad").exists()
