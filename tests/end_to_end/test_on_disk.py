"""Training and pretraining on cells that stay on disk give the models of cells in memory."""

import numpy as np
import pytest
from support.killed import interrupted

from scperformer.cli.compose import make_config
from scperformer.cli.pretrain import run as run_pretrain
from scperformer.cli.train import run as run_train
from scperformer.lab.pretrain import MaskedLearner
from scperformer.lab.supervised import Learner
from scperformer.model.folder import read_model

FAST = ["trainer.max_epochs=2", "logger=none", "data.min_genes=0"]


def config(step, *overrides, paths=("a.h5ad",)):
    needed = {"train": ["label_key=cell_type"], "pretrain": []}[step]
    inputs = ",".join(f"'{path}'" for path in paths)
    return make_config(step, [f"inputs=[{inputs}]", *needed, *FAST, *overrides])


@pytest.mark.slow
def test_training_from_disk_gives_almost_the_model_of_memory(counts_adata, write, tmp_path):
    path = write(counts_adata, "reference.h5ad")
    made = {}
    for word in ("true", "false"):
        words = [f"data.in_memory={word}", f"output='{tmp_path / word}'"]
        made[word] = read_model(run_train(config("train", *words, paths=[path])))
    one, two = made["true"], made["false"]
    assert (one.genes, one.labels) == (two.genes, two.labels)
    np.testing.assert_allclose(one.gene_means, two.gene_means, rtol=1e-5)
    # All cells are in the sample here, in another order: the fits are those of memory.
    np.testing.assert_allclose(
        one.weights["baseline.weight"], two.weights["baseline.weight"], atol=1e-3
    )
    assert one.provenance.cells_per_label == two.provenance.cells_per_label
    assert one.provenance.reference_sha256 == two.provenance.reference_sha256
    assert two.provenance.options["data"]["in_memory"] is False


@pytest.mark.parametrize(
    ("step", "learner"),
    [pytest.param("pretrain", MaskedLearner, marks=pytest.mark.slow), ("train", Learner)],
)
def test_what_is_cut_while_it_learns_from_disk_ends_with_the_same_weights(
    counts_adata, write, tmp_path, monkeypatch, step, learner
):
    path = write(counts_adata)

    def run(name, *words):
        options = [
            "model=tiny",
            "data.in_memory=false",
            f"output='{tmp_path / name}'",
            "tokens=bins",
            *words,
        ]
        return {"pretrain": run_pretrain, "train": run_train}[step](
            config(step, *options, paths=[path])
        )

    whole = read_model(run("whole"))
    interrupted(monkeypatch, learner, lambda: run("cut"), epoch=1, step=2)
    cut = read_model(run("cut", "resume=true"))
    assert all(np.array_equal(whole.weights[name], cut.weights[name]) for name in whole.weights)
    assert whole.provenance.num_cells == 120
