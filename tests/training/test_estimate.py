"""The estimate of a training: of the right order, of the worst cells, and without a trace."""

import os
import re
import time

import numpy as np
import pytest

from scperformer.config.compose import make_config
from scperformer.config.groups import TokensConfig
from scperformer.errors import InputError
from scperformer.network.batches import Cells
from scperformer.training import estimate as estimates
from scperformer.training import train as training
from scperformer.training.estimate import epoch_seconds, linear_seconds, run_estimate, with_every_label

FAST = ["label_key=cell_type", "data.min_genes=0", "logger=none"]


def config(path, *overrides):
    return make_config("train", [f"inputs=['{path}']", *FAST, *overrides])


def files(folder) -> dict[str, float]:
    return {str(path): path.stat().st_mtime if path.is_file() else 0.0 for path in sorted(folder.rglob("*"))}


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(estimates, "BUDGET", 1.0)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("words", [["--estimate"], ["estimate=true"]], ids=["flag", "option"])
def test_the_estimate_is_printed_and_nothing_is_written(command, counts_adata, write, tmp_path, monkeypatch, words):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "sample.model").mkdir()  # an output that exists is no matter
    (tmp_path / "sample.model" / "file").touch()
    path = write(counts_adata)
    before = files(tmp_path)
    ran = command("train", path, *FAST, "trainer.max_epochs=40", *words)
    assert ran.code == 0, ran.err
    assert files(tmp_path) == before
    rows = dict(re.findall(r"^(\w+(?: \w+)*) {2,}(.+)$", ran.out, flags=re.MULTILINE))
    assert ran.out.startswith("estimate for sample.h5ad; nothing was written\n")
    assert rows["cells"] == "108 to train, 12 to validate; 3 labels"
    assert re.fullmatch(r"\d\.\d s \(4 steps of 32 cells, validation\)", rows["one epoch"])
    assert rows["at most"].endswith("(40 epochs)")
    assert rows["at least"].endswith("(11 epochs, if early stopping ends it)")
    assert re.fullmatch(r"[\d.]+ [GM]iB at its peak", rows["memory"])
    assert "epoch 1/" not in ran.err


@pytest.mark.usefixtures("quick")
def test_the_estimate_is_of_the_order_of_the_training(counts_adata, write, tmp_path, monkeypatch):
    path, options = write(counts_adata), ["trainer.max_epochs=12", "trainer.patience=12"]
    guess = run_estimate(config(path, *options))
    begin = time.perf_counter()
    training.run_train(config(path, *options, f"output='{tmp_path / 'model'}'"))
    seconds = time.perf_counter() - begin
    # Two short measurements on a machine that others use too: the right order is what can be asked for.
    assert guess.total(12) / 4 < seconds < guess.total(12) * 4
    assert (guess.num_train_cells, guess.num_val_cells, guess.num_labels, guess.num_steps) == (108, 12, 3, 4)
    assert 2**26 < guess.memory < 2**36


def test_the_parts_add_up():
    sizes = dict.fromkeys(("num_train_cells", "num_val_cells", "num_genes", "num_labels", "batch_size", "num_steps"), 1)
    parts = {"prepare": 1.0, "linear": 2.0, "once": 3.0, "epoch": 10.0, "max_epochs": 30, "least_epochs": 11}
    guess = estimates.Estimate(**sizes, **parts, memory=3 * 2**30, gpu_memory=2**31)
    assert guess.total(30) == 306
    assert "at most      5 min 06 s (30 epochs)" in guess.text()
    assert "at least     1 min 56 s (11 epochs" in guess.text()
    assert "memory       3.0 GiB at its peak, 2.0 GiB of the GPU" in guess.text()
    never = estimates.Estimate(**sizes, **(parts | {"least_epochs": 30}), memory=1, gpu_memory=0)
    assert "at least" not in never.text()
    assert "GPU" not in never.text()


@pytest.fixture
def cells() -> Cells:
    """300 cells of 1 to 40 genes; label 3 has one cell."""
    rng = np.random.default_rng(0)
    dense = np.zeros((300, 40), dtype=np.float32)
    for row, num in enumerate(rng.integers(1, 41, 300)):
        dense[row, rng.permutation(40)[:num]] = rng.uniform(0.5, 3, num)
    from scipy.sparse import csr_matrix

    labels = np.append(np.arange(299) % 3, 3).astype(np.int64)
    return Cells(csr_matrix(dense), TokensConfig(), labels)


def test_the_longest_cells_come_first_and_epochs_are_scaled(cells, monkeypatch):
    calls = []

    def loop(network, train, val, cfg, num_epochs):
        """One second for each cell and epoch, ten once."""
        calls.append((train, val, num_epochs))
        return 10.0 + num_epochs * len(train)

    monkeypatch.setattr(estimates, "loop_seconds", loop)
    monkeypatch.setattr(estimates, "BUDGET", 1e-3)  # measured on two batches
    cfg = config("x", "trainer.batch_size=16")
    once, epoch = epoch_seconds(None, cells, cells, cfg)
    first, _, one, several = calls
    longest = np.sort(cells.lengths)[::-1]
    assert np.sort(first[0].lengths)[::-1][:16].tolist() == longest[:16].tolist()
    assert first[1].lengths.max() == longest[0]
    assert (first[2], one[2], several[2]) == (1, 1, estimates.EPOCHS)
    assert 32 <= len(one[0]) <= 36
    assert set(one[0].known_labels) == {0, 1, 2, 3}
    assert once == pytest.approx(10)
    assert epoch == pytest.approx(300)


def test_large_linear_fits_are_measured_on_fewer_cells(cells, monkeypatch):
    sizes = []
    monkeypatch.setattr(estimates, "MAX_FIT_CELLS", 50)
    monkeypatch.setattr(estimates, "fit_baseline", lambda x, labels: sizes.append((len(labels), set(labels))))
    monkeypatch.setattr(estimates, "fit_linear_branch", lambda x, y, recipe: sizes.append((len(y), set(y))))
    linear_seconds(cells, 400, config("x"))
    assert all(num <= 51 and labels == {0, 1, 2, 3} for num, labels in sizes)
    assert len(sizes) == 2


def test_a_sample_has_every_label(cells):
    assert with_every_label(np.array([0, 3]), cells).tolist() == [0, 3, 1, 2, 299]
    assert with_every_label(np.array([299, 0, 1, 2]), cells).tolist() == [299, 0, 1, 2]


def test_training_itself_refuses_to_estimate(counts_adata, tmp_path):
    import scperformer

    with pytest.raises(InputError, match=r"estimate=true.*scperformer\.training\.estimate\.run_estimate"):
        scperformer.train(counts_adata, "cell_type", output=tmp_path / "m", overrides=["estimate=true"])
    assert os.listdir(tmp_path) == []


def test_a_training_says_after_its_first_epoch_how_long_is_left(counts_adata, write, tmp_path, caplog):
    with caplog.at_level("INFO", logger="scperformer"):
        training.run_train(config(write(counts_adata), f"output='{tmp_path / 'm'}'", "trainer.max_epochs=3"))
    said = [line for line in caplog.messages if "left:" in line]
    assert len(said) == 1
    text = r"at most about [\d.]+ s left: 2 more epochs of [\d.]+ s, fewer if early stopping ends it"
    assert re.fullmatch(text, said[0])
    epoch = next(number for number, line in enumerate(caplog.messages) if "epoch 1/3" in line)
    assert caplog.messages.index(said[0]) == epoch + 1
