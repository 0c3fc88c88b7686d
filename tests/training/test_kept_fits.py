"""Trainings of many cells that were interrupted: finished fits are not made again, and the model is the same."""

import numpy as np
import pytest

from scperformer.cli.compose import make_config
from scperformer.cli.train import run as run_train
from scperformer.model.folder import read_model
from scperformer.training import evidence, strategies
from scperformer.training.kept_fits import FITS, KeptFits

WORDS = ["label_key=cell_type", "trainer.max_steps=20", "logger=none"]


@pytest.fixture(autouse=True)
def _fitted_by_principal_components(monkeypatch):
    monkeypatch.setattr("scperformer.training.fit_linear.MAX_DUAL", 30)


@pytest.fixture
def on_disk(counts_adata, write):
    """A reference in two files, whose cells stay on disk."""
    files = write(counts_adata[:70].copy(), "a.h5ad"), write(counts_adata[70:].copy(), "b.h5ad")
    return [f"inputs=['{files[0]}','{files[1]}']", "studies=false", *WORDS]


@pytest.fixture(params=["in memory", "on disk"])
def words(request, counts_adata, write, on_disk):
    return on_disk if request.param == "on disk" else [f"inputs=['{write(counts_adata)}']", *WORDS]


def trained(words, output, *more):
    return run_train(make_config("train", [*words, f"output='{output}'", *more]))


@pytest.mark.slow
@pytest.mark.chosen_linear_options
def test_a_resumed_run_makes_no_finished_fit_again(words, tmp_path, monkeypatch):
    whole = read_model(trained(words, tmp_path / "whole"))
    assert not (tmp_path / "whole.run" / FITS).exists()
    with monkeypatch.context() as patch:
        patch.setattr(evidence, "_fit_encoder", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            trained(words, tmp_path / "cut")
    kept = tmp_path / "cut.run" / FITS
    assert sorted(file.name for file in kept.iterdir()) == ["baseline.npz", "linear.npz", "options.npz"]
    monkeypatch.setattr(evidence, "_fit_linear", None)
    monkeypatch.setattr(strategies, "choose_linear_options", None)
    resumed = read_model(trained(words, tmp_path / "cut", "resume=true"))
    assert whole.weights.keys() == resumed.weights.keys()
    for name, weights in whole.weights.items():
        np.testing.assert_array_equal(weights, resumed.weights[name])
    np.testing.assert_array_equal(whole.held_out.logits, resumed.held_out.logits)
    assert not kept.exists()


def test_what_is_kept_is_made_once_and_damage_is_repaired(tmp_path):
    made = []

    def fit():
        made.append(1)
        return {"weight": np.arange(3.0), "word": np.array("balanced")}

    kept = KeptFits(tmp_path)
    for _ in range(2):
        arrays = kept.load_or_make("linear", fit)
        assert arrays["weight"].tolist() == [0, 1, 2]
        assert str(arrays["word"]) == "balanced"
    assert len(made) == 1
    (tmp_path / FITS / "linear.npz").write_bytes(b"PK\x03\x04cut")
    kept.load_or_make("linear", fit)
    kept.load_or_make("linear", fit)
    assert len(made) == 2
    KeptFits().load_or_make("linear", fit)
    assert len(made) == 3


def test_nothing_is_executed(tmp_path):
    """An array of Python objects, which a pickle makes, is not read but made again."""
    (tmp_path / FITS).mkdir()
    np.savez(tmp_path / FITS / "linear.npz", weight=np.array([{"a": 1}], dtype=object))
    assert KeptFits(tmp_path).load_or_make("linear", lambda: {"weight": np.zeros(1)})["weight"].tolist() == [0]


def test_the_linear_branch_of_cells_on_disk_sees_all_of_them(on_disk, tmp_path, monkeypatch):
    monkeypatch.setattr("scperformer.cells.splits.MAX_LOADED_CELLS", 60)
    seen = []
    fit = strategies.fit_to_cells_on_disk
    monkeypatch.setattr(strategies, "fit_to_cells_on_disk", lambda *given: seen.append(given[1]) or fit(*given))
    saved = read_model(trained(on_disk, tmp_path / "model"))
    [reference] = seen
    assert len(reference.stream.cells) + len(reference.split.val) == 120
    assert reference.x.shape[0] < 80
    assert not list((tmp_path / "model.run").glob(".scperformer-*"))
    assert saved.metrics.out_of_fold.accuracy > 0.8
