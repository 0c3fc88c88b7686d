"""The estimate of a training: its parts, the cells that it measures, and that it writes nothing."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from support.words import as_options

from scperformer.base.errors import InputError
from scperformer.cells import Sample, make_reference
from scperformer.config import HeadConfig, ModelConfig, TokensConfig, make_config
from scperformer.fitting import fit_branches
from scperformer.network import Cells
from scperformer.training import estimate as estimates
from scperformer.training.estimate import epoch_seconds, fit_seconds

FAST = ["label_key=cell_type", "model=tiny", "data.min_genes=0", "logger=none"]


def config(path, *overrides):
    return make_config("train", [f"inputs=['{path}']", *FAST, *overrides])


def files(folder) -> dict[str, float]:
    return {str(path): path.stat().st_mtime if path.is_file() else 0.0 for path in sorted(folder.rglob("*"))}


def test_the_estimate_is_printed_and_nothing_is_written(command, counts_adata, write, tmp_path, monkeypatch):
    monkeypatch.setattr(estimates, "BUDGET", 1.0)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "sample.model").mkdir()  # an output that exists is no matter
    (tmp_path / "sample.model" / "file").touch()
    path = write(counts_adata)
    before = files(tmp_path)
    ran = command("train", path, *FAST, "trainer.max_epochs=40", "--estimate")
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


def test_the_parts_add_up(counts_adata, monkeypatch):
    monkeypatch.setattr(estimates, "fit_seconds", lambda train, num, cfg, with_evidence: (2.0, None))
    monkeypatch.setattr(estimates, "epoch_seconds", lambda *rest: (3.0, 10.0))
    for options, most, lines in [
        ([], 306, ["at most      5 min 06 s (30 epochs)", "at least     1 min 56 s (11 epochs, if"]),
        (["trainer=ddp"], 156, ["one epoch    5.0 s (2 steps of 32 cells", "at most      2 min 36 s"]),
        (["trainer.patience=30"], 306, ["at most      5 min 06 s (30 epochs)\nmemory"]),
        (["model.encoder=false"], 3, ["at most      3.0 s (nothing is trained)\nmemory"]),
        (["model=pooled"], 3, ["at most      3.0 s (nothing is trained)\nmemory"]),
    ]:
        cfg = config("x", *options)
        reference = make_reference(Sample(counts_adata.copy(), Path("x")), cfg)
        text, seconds = estimates.estimate(reference, cfg, prepare=1.0)
        assert seconds == most
        for line in lines:
            assert line in text


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
    assert len(one[0]) == 32
    assert once == pytest.approx(10)
    assert epoch == pytest.approx(300)


@pytest.fixture
def fits(cells, monkeypatch) -> list[tuple[int, set[int], bool]]:
    """Number of cells, labels and `with_evidence` of each fit of the branches, which takes an hour (two with it)."""
    seen, clock = [], [0.0]
    made = fit_branches(
        cells.x[:9], np.arange(9) % 3, linear_options=None, model=ModelConfig(), head=HeadConfig(), seed=0
    )

    def fit(x, labels, *, with_evidence=True, **rest):
        seen.append((len(labels), set(labels), with_evidence))
        clock[0] += 7200 if with_evidence else 3600
        return made

    monkeypatch.setattr(estimates, "fit_branches", fit)
    monkeypatch.setattr(estimates.time, "perf_counter", lambda: clock[0])
    return seen


def test_large_fits_are_measured_on_fewer_cells(cells, fits, monkeypatch):
    monkeypatch.setattr(estimates, "MAX_FIT_CELLS", 50)
    baseline = []
    monkeypatch.setattr(estimates, "fit_logistic", lambda x, labels: baseline.append((len(labels), set(labels))))
    seconds, _ = fit_seconds(cells, 400, config("x"), with_evidence=True)
    assert [evidence for _, _, evidence in fits] == [False, True]
    assert len(baseline) == 1
    assert all(num <= 52 and labels == {0, 1, 2, 3} for num, labels, *_ in (*fits, *baseline))
    # The fit grows with the 300 cells to train and all 400, and the evidence does not.
    assert seconds == pytest.approx(3600 * 700 / fits[0][0] + 7200)


@pytest.mark.parametrize(("option", "needs"), [("model=tiny", False), ("model=pooled", True)])
def test_fitted_models_also_take_the_time_of_their_evidence(counts_adata, fits, monkeypatch, option, needs):
    monkeypatch.setattr(estimates, "epoch_seconds", lambda *rest: (0.0, 0.0))
    cfg = config("x", option)
    reference = make_reference(Sample(counts_adata, Path("x")), cfg)
    _, seconds = estimates.estimate(reference, cfg, prepare=0.0)
    assert [evidence for _, _, evidence in fits] == [False] + [True] * needs
    assert seconds == pytest.approx(3600 * 228 / 108 + 7200 * needs)


def test_training_itself_refuses_to_estimate(counts_adata, tmp_path):
    import scperformer

    with pytest.raises(InputError, match=r"estimate=true.*add --estimate"):
        scperformer.train(counts_adata, "cell_type", output=tmp_path / "m", options=as_options(["estimate=true"]))
    assert os.listdir(tmp_path) == []
