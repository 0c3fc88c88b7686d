"""What a training records beside its model: learning rates, losses of steps, options, versions, commit, device."""

import json
import subprocess
from pathlib import Path

import pandas as pd
import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from scperformer.cli.compose import make_config
from scperformer.cli.train import run


def test_logs_and_provenance(counts_adata, write, tmp_path):
    words = [
        f"inputs=['{write(counts_adata)}']",
        "label_key=cell_type",
        "data.min_genes=0",
        "seed=3",
    ]
    options = make_config(
        "train", [*words, "model=tiny", "trainer.max_epochs=2", f"output='{tmp_path / 'model'}'"]
    )
    run(options)
    folder = tmp_path / "model.run"
    logs = pd.read_csv(folder / "csv" / "version_0" / "metrics.csv")
    rates = logs["lr-AdamW"].dropna()
    assert rates.max() == pytest.approx(options.optim.lr)
    # epochs x batches of 32 of 108 cells
    assert len(rates) == len(logs["train_loss_step"].dropna()) == 2 * 4
    epochs = pd.read_csv(folder / "metrics.csv")
    assert epochs["train_loss"].tolist() == pytest.approx(
        logs["train_loss_epoch"].dropna().tolist(), rel=1e-5
    )
    hparams = yaml.safe_load((folder / "csv" / "version_0" / "hparams.yaml").read_text())
    assert (hparams["seed"], hparams["optim"]["lr"]) == (3, options.optim.lr)
    events = EventAccumulator(str(folder / "tensorboard" / "version_0")).Reload()
    assert "_hparams_/session_start_info" in events.summary_metadata
    assert len(events.Scalars("train_loss_step")) == 8
    made = json.loads((folder / "provenance.json").read_text())
    assert {"scperformer", "torch", "scipy", "pytorch-lightning", "python"} <= set(made["versions"])
    assert made["device"] == "cpu (no GPU that torch can use), 32-true"
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    head = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    assert made["versions"].get("commit", "") == head  # "": no checkout
