"""Prediction of files that are never in memory as a whole: the same answers, continued, as tables."""

import signal
import time
from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
from anndata.tests.helpers import assert_equal
from scipy import sparse
from support import forked
from support.forked import Forked
from support.logs import said
from support.refusal import refusal

import scperformer
from scperformer.adaptation.adapted import Adapted
from scperformer.adaptation.load import load_model
from scperformer.annotation import write as writer
from scperformer.base.errors import InputError
from scperformer.cli.predict import PredictConfig
from scperformer.cli.predict import run as run_predict
from scperformer.io import rows as rows

BLOCK = 17  # cells; 120 of them make eight blocks


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(rows, "MAX_BLOCK_CELLS", BLOCK)


@pytest.fixture
def whole(counts_adata, tiny_model):
    """The cells annotated in memory."""
    return scperformer.annotate(counts_adata.copy(), load_model(tiny_model))


def config(path: Path, model: Path, **options) -> PredictConfig:
    return PredictConfig(inputs=[str(path)], model_path=str(model), **options)


def require_same(found: ad.AnnData, expected: ad.AnnData) -> None:
    ours = [name for name in expected.obs if name.startswith("scperformer_")]
    pd.testing.assert_frame_equal(found.obs[ours], expected.obs[ours])
    np.testing.assert_array_equal(found.obsm["X_scperformer"], expected.obsm["X_scperformer"])
    pd.testing.assert_frame_equal(
        found.obsm["scperformer_proba"], expected.obsm["scperformer_proba"]
    )


STORED = {
    "int csc": lambda x: x.astype(np.int64).tocsc(),
    "dense float64": lambda x: x.toarray().astype(np.float64),
}


@pytest.mark.parametrize("how", STORED)
@pytest.mark.parametrize("place", ["X", pytest.param("raw", marks=pytest.mark.slow)])
def test_blocks_of_a_file_give_what_the_whole_gives(
    counts_adata, whole, tiny_model, write, small_blocks, monkeypatch, how, place
):
    x = STORED[how](counts_adata.X)
    adata = ad.AnnData(x, obs=counts_adata.obs, var=counts_adata.var)
    if place == "raw":
        adata.raw = adata.copy()
        adata.X = np.full(adata.shape, -1.0, dtype=np.float32)
    path = write(adata)
    (output,) = run_predict(config(path, tiny_model))
    require_same(ad.read_h5ad(output), whole)
    assert sorted(entry.name for entry in path.parent.iterdir()) == [
        "sample.annotated.h5ad",
        "sample.h5ad",
    ]


def test_a_matrix_by_columns_on_disk_is_read_as_a_whole(
    counts_adata, tmp_path, monkeypatch, caplog
):
    caplog.set_level("INFO", "scperformer")
    monkeypatch.setattr(rows, "BLOCK_VALUES", 300)
    path = tmp_path / "csc.h5ad"
    ad.AnnData(counts_adata.X.tocsc()).write_h5ad(path)
    with h5py.File(path) as file:
        found = rows.Rows(ad.io.sparse_dataset(file["X"]))
        blocks = [block for _, block in found.blocks()]
        assert len(blocks) > 10
        np.testing.assert_array_equal(sparse.vstack(blocks).toarray(), counts_adata.X.toarray())
        wanted = np.array([0, 3, 77, 119])
        np.testing.assert_array_equal(
            found.some(wanted).toarray(), counts_adata.X[wanted].toarray()
        )
    assert len(said(caplog, "rows.block", "CSC").splitlines()) == 1


@pytest.mark.slow
def test_a_zarr_output_holds_all_that_the_file_has(rich, tiny_model, write, small_blocks):
    rich.obsm["table"] = pd.DataFrame({"a": np.arange(rich.n_obs)}, index=rich.obs_names)
    rich.layers["csc"] = rich.X.tocsc()
    rich.uns["nothing"] = None
    rich.uns["names"] = np.array(["a", "ö"], dtype=object)
    path = write(rich)
    expected = scperformer.annotate(ad.read_h5ad(path), load_model(tiny_model))
    (output,) = run_predict(config(path, tiny_model, output=str(path.with_name("out.zarr"))))
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["out.zarr", "sample.h5ad"]
    found = ad.read_zarr(output)
    for recorded in (found, expected):  # where it was, and how long it took
        del recorded.uns["scperformer"]
    assert_equal(found, expected)


@pytest.mark.parametrize("name", ["calls.csv", pytest.param("calls.zarr", marks=pytest.mark.slow)])
def test_other_outputs_hold_the_same_calls(
    counts_adata, whole, tiny_model, write, tmp_path, monkeypatch, name
):
    monkeypatch.setattr(writer, "TABLE_ROWS", 50)
    path, output = write(counts_adata), tmp_path / name
    run_predict(config(path, tiny_model, output=str(output)))
    if name.endswith("zarr"):
        found = ad.read_zarr(output)
        require_same(found, whole)
        np.testing.assert_array_equal(found.X.toarray(), counts_adata.X.toarray())
        return
    table = pd.read_csv(output)
    assert list(table["cell"]) == list(counts_adata.obs_names)
    details = whole.obsm["scperformer_details"].add_prefix("scperformer_")
    expected = whole.obs[
        [column for column in whole.obs if column.startswith("scperformer_")]
    ].join(details)
    assert list(table.columns[1:]) == list(expected.columns)
    for column in expected:
        if expected[column].dtype == "float32":
            np.testing.assert_allclose(table[column], expected[column], rtol=1e-6)
        else:
            assert list(table[column].astype(str)) == list(expected[column].astype(str))


@pytest.mark.parametrize("ending", [".h5ad", pytest.param(".zarr", marks=pytest.mark.slow)])
def test_a_run_of_several_files_goes_on(
    counts_adata, tiny_model, tmp_path, caplog, monkeypatch, ending
):
    """The first file is finished, the second one failed in its second block."""
    names = ["first", "second"]
    inputs = [str(tmp_path / f"{name}.h5ad") for name in names]
    counts_adata[:40].copy().write_h5ad(inputs[0])
    counts_adata[40:].copy().write_h5ad(inputs[1])
    monkeypatch.setattr(rows, "MAX_BLOCK_CELLS", 40)
    called = []
    predict_block = Adapted.predict_block

    def counted(*arguments):
        if len(called) == 2:
            called.append(0)
            raise KeyboardInterrupt
        calls = predict_block(*arguments)
        called.append(len(calls.proba))
        return calls

    monkeypatch.setattr(Adapted, "predict_block", counted)
    several = {
        "inputs": inputs,
        "output": str(tmp_path / f"{{sample}}.annotated{ending}"),
        "model_path": str(tiny_model),
    }
    with pytest.raises(KeyboardInterrupt):
        run_predict(PredictConfig(**several))
    left = [entry.name for entry in tmp_path.iterdir()]
    assert sorted(left) == [f"first.annotated{ending}", "first.h5ad", "second.h5ad"]
    before = sizes(tmp_path)
    with caplog.at_level("INFO", logger="scperformer"):
        run_predict(PredictConfig(**several, resume=True))
    assert said(caplog, "annotate_files", 1, 2)
    assert called == [40, 40, 0, 40, 40]
    assert sizes(tmp_path).items() >= before.items()
    run_predict(PredictConfig(**several, resume=True))
    assert len(called) == 5


def sizes(folder: Path) -> dict[str, tuple[int, int]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in files
    }


@pytest.mark.parametrize(
    ("change", "why"),
    [({"input": 1}, "other input"), ({"key_added": "mine"}, "no record of an annotation 'mine'")],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_finished_file_of_another_run_is_refused_before_any_work(
    counts_adata, tiny_model, tmp_path, monkeypatch, change, why
):
    monkeypatch.chdir(tmp_path)
    for name in ("a.h5ad", "b.h5ad"):
        counts_adata[:20].copy().write_h5ad(name)
    run_predict(config("b.h5ad", tiny_model))
    if change.pop("input", 0):
        counts_adata[20:40].copy().write_h5ad("b.h5ad")
    options = {
        "inputs": ["a.h5ad", "b.h5ad"],
        "model_path": str(tiny_model),
        "device": "cpu",
        "resume": True,
    } | change
    with pytest.raises(InputError, match=rf"b.annotated.h5ad is of another run \({why}\)"):
        run_predict(PredictConfig(**options))
    assert not Path("a.annotated.h5ad").exists()
    run_predict(PredictConfig(**options, overwrite=True))
    assert Path("a.annotated.h5ad").exists()
    run_predict(PredictConfig(**options))  # now of this run


def test_another_zarr_store_is_not_replaced(counts_adata, tiny_model, write, tmp_path):
    import zarr

    theirs = tmp_path / "image.zarr"
    zarr.open_group(theirs, mode="w", zarr_format=2).create_array("image", data=np.ones(3))
    with refusal("not-replaced"):
        run_predict(config(write(counts_adata), tiny_model, output=str(theirs), overwrite=True))
    assert (theirs / "image").exists()


def test_damage_in_the_middle_of_a_file_is_one_line(
    counts_adata, tiny_model, write, small_blocks, tmp_path
):
    path = write(counts_adata)
    with h5py.File(path, "r+") as file:
        file["X/indices"][1000] = 10**6
    with refusal("damaged-matrix"):
        run_predict(config(path, tiny_model))
    assert [entry.name for entry in tmp_path.iterdir()] == ["sample.h5ad"]


@pytest.mark.slow
def test_kill_9_leaves_no_half_file_and_the_next_run_removes_what_is_left(
    counts_adata, whole, tiny_model, write, tmp_path
):
    """A process that is really killed, while its calls are made slowly."""
    path = write(counts_adata)
    slowly = f"""
import time
from scperformer.io import rows
from scperformer.adaptation.adapted import Adapted
rows.MAX_BLOCK_CELLS = {BLOCK}
predict_block = Adapted.predict_block
Adapted.predict_block = lambda *rest: (time.sleep(0.3), predict_block(*rest))[1]
"""
    words = ["scperformer", "predict", str(path), f"model_path={tiny_model}"]
    cut = Forked(*words, cwd=tmp_path, before=slowly)
    while len(list(tmp_path.glob(".scperformer-*/*.npz"))) < 2:
        assert cut.is_running(), "the run ended before it could be killed"
        time.sleep(0.01)
    cut.send_signal(signal.SIGKILL)
    cut.communicate()
    assert cut.returncode == -signal.SIGKILL
    assert not (tmp_path / "sample.annotated.h5ad").exists()
    done = forked.run(*words, cwd=tmp_path, before=slowly)
    assert done.returncode == 0, done.stderr
    require_same(ad.read_h5ad(tmp_path / "sample.annotated.h5ad"), whole)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        "sample.annotated.h5ad",
        "sample.h5ad",
    ]
