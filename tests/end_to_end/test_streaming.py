"""Prediction of files that are never in memory as a whole: the same answers, cut off and continued, as tables."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
from anndata.tests.helpers import assert_equal
from scipy import sparse

import scperformer
from scperformer.annotation import parts as parts_file
from scperformer.annotation import predict
from scperformer.annotation import write as writer
from scperformer.base.errors import InputError
from scperformer.cli.predict import PredictConfig
from scperformer.cli.predict import run as run_predict
from scperformer.io import rows as rows
from scperformer.model.load import load_model
from scperformer.training.calls import Calls, call_block

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
    pd.testing.assert_frame_equal(found.obsm["scperformer_proba"], expected.obsm["scperformer_proba"])


STORED = {
    "csr": lambda x: x,
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
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["sample.annotated.h5ad", "sample.h5ad"]


def test_a_matrix_by_columns_on_disk_is_read_as_a_whole(counts_adata, tmp_path, monkeypatch, caplog):
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
        np.testing.assert_array_equal(found.some(wanted).toarray(), counts_adata.X[wanted].toarray())
    assert [record.getMessage() for record in caplog.records] == [
        "the matrix is stored by columns (CSC): it is read into memory as a whole"
    ]


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


@pytest.mark.parametrize(
    "name",
    [
        "calls.csv",
        "calls.parquet",
        pytest.param("calls.zarr", marks=pytest.mark.slow),
    ],
)
def test_other_outputs_hold_the_same_calls(counts_adata, whole, tiny_model, write, tmp_path, monkeypatch, name):
    monkeypatch.setattr(writer, "TABLE_ROWS", 50)
    path, output = write(counts_adata), tmp_path / name
    run_predict(config(path, tiny_model, output=str(output)))
    if name.endswith("zarr"):
        found = ad.read_zarr(output)
        require_same(found, whole)
        np.testing.assert_array_equal(found.X.toarray(), counts_adata.X.toarray())
        return
    table = pd.read_parquet(output) if "parquet" in name else pd.read_csv(output, sep=None, engine="python")
    assert list(table["cell"]) == list(counts_adata.obs_names)
    details = whole.obsm["scperformer_details"].add_prefix("scperformer_")
    expected = whole.obs[[column for column in whole.obs if column.startswith("scperformer_")]].join(details)
    assert list(table.columns[1:]) == list(expected.columns)
    for column in expected:
        if expected[column].dtype == "float32":
            np.testing.assert_allclose(table[column], expected[column], rtol=1e-6)
        else:
            assert list(table[column].astype(str)) == list(expected[column].astype(str))


# cut off


class Killed(BaseException):
    pass


@pytest.fixture
def cut_off(counts_adata, tiny_model, write, small_blocks, monkeypatch):
    """A run that was cut off in its fourth block: (path, calls that are still to be made)."""
    path = write(counts_adata)
    with monkeypatch.context() as patch:
        num = iter(range(100))

        def call(*arguments):
            if next(num) == 3:
                raise Killed
            return original(*arguments)

        original = predict.call_block
        patch.setattr(predict, "call_block", call)
        with pytest.raises(Killed):
            run_predict(config(path, tiny_model))
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["sample.annotated.h5ad.partial", "sample.h5ad"]
    called = []

    def counted(*arguments):
        calls = call_block(*arguments)
        called.append(len(calls.proba))
        return calls

    monkeypatch.setattr(predict, "call_block", counted)
    return path, called


def test_a_run_that_was_cut_off_goes_on(whole, cut_off, tiny_model, caplog):
    path, called = cut_off
    with caplog.at_level("INFO", logger="scperformer"):
        (output,) = run_predict(config(path, tiny_model, resume=True, batch_size=5))
    assert called == [BLOCK] * 4 + [1]
    assert "3 of 8 parts are finished" in caplog.text
    require_same(ad.read_h5ad(output), whole)
    assert not output.with_name(f"{output.name}.partial").exists()


@pytest.mark.parametrize("ending", [".h5ad", pytest.param(".zarr", marks=pytest.mark.slow)])
def test_a_run_of_several_files_goes_on(counts_adata, cut_off, tiny_model, tmp_path, caplog, ending):
    """The first file is finished, the second one cut off, the third one not begun."""
    cut, called = cut_off
    counts_adata[:40].copy().write_h5ad(tmp_path / "first.h5ad")
    counts_adata[40:60].copy().write_h5ad(tmp_path / "third.h5ad")
    names = ["first.h5ad", cut.name, "third.h5ad"]
    inputs = [str(tmp_path / name) for name in names]
    outputs = [str(tmp_path / f"{name.removesuffix('.h5ad')}.annotated{ending}") for name in names]
    cut.with_name("sample.annotated.h5ad.partial").rename(f"{outputs[1]}.partial")
    run_predict(config(inputs[0], tiny_model, output=outputs[0]))
    called.clear()
    before = sizes(tmp_path)
    several = PredictConfig(
        inputs=inputs,
        output=str(tmp_path / f"{{sample}}.annotated{ending}"),
        model_path=str(tiny_model),
        device="cpu",
        resume=True,
    )
    with caplog.at_level("INFO", logger="scperformer"):
        assert [str(output) for output in run_predict(several)] == outputs
    assert "1 of 3 files are finished and stay as they are" in caplog.text
    assert called == [BLOCK] * 4 + [1] + [BLOCK, 20 - BLOCK]
    assert sizes(tmp_path).items() >= {name: state for name, state in before.items() if ".partial" not in name}.items()
    assert len((ad.read_zarr if ending == ".zarr" else ad.read_h5ad)(outputs[2])) == 20
    called.clear()
    run_predict(several)
    assert called == []


def sizes(folder: Path) -> dict[str, tuple[int, int]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"input": 1}, "other input"),
        ({"key_added": "mine"}, "no record of an annotation 'mine'"),
    ],
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
    options = {"inputs": ["a.h5ad", "b.h5ad"], "model_path": str(tiny_model), "device": "cpu", "resume": True} | change
    with pytest.raises(InputError, match=rf"b.annotated.h5ad is of another run \({why}\)"):
        run_predict(PredictConfig(**options))
    assert not Path("a.annotated.h5ad").exists()
    run_predict(PredictConfig(**options, overwrite=True))
    assert Path("a.annotated.h5ad").exists()
    run_predict(PredictConfig(**options))  # now of this run


def test_parts_of_another_run_are_refused(cut_off, counts_adata, tiny_model, tmp_path):
    path, _ = cut_off
    with pytest.raises(InputError, match=r"of another run \(other min_overlap\).*leave out resume=true"):
        run_predict(config(path, tiny_model, resume=True, min_overlap=0.3))
    counts_adata[::-1].copy().write_h5ad(path)
    with pytest.raises(InputError, match=r"of another run \(other input\)"):
        run_predict(config(path, tiny_model, resume=True))
    assert len(list((tmp_path / "sample.annotated.h5ad.partial").glob("part-*"))) == 3


def test_a_second_run_with_the_same_output_is_refused(
    counts_adata, whole, tiny_model, write, small_blocks, monkeypatch
):
    path = write(counts_adata)
    call, refusals = predict.call_block, []

    def meanwhile(*arguments):
        if not refusals:
            refusals.append(None)
            with pytest.raises(
                InputError, match=r"another run that writes into .*sample\.annotated\.h5ad\.partial"
            ) as error:
                run_predict(config(path, tiny_model))
            refusals[0] = error.value
        return call(*arguments)

    monkeypatch.setattr(predict, "call_block", meanwhile)
    (output,) = run_predict(config(path, tiny_model))
    assert refusals[0] is not None
    require_same(ad.read_h5ad(output), whole)


def test_another_zarr_store_is_not_replaced(counts_adata, tiny_model, write, tmp_path):
    import zarr

    theirs = tmp_path / "image.zarr"
    zarr.open_group(theirs, mode="w", zarr_format=2).create_array("image", data=np.ones(3))
    with pytest.raises(InputError, match="is not replaced"):
        run_predict(config(write(counts_adata), tiny_model, output=str(theirs), overwrite=True))
    assert (theirs / "image").exists()


def test_a_damaged_part_is_refused(cut_off, tiny_model, tmp_path):
    path, _ = cut_off
    (tmp_path / "sample.annotated.h5ad.partial" / "part-000001.npz").write_bytes(b"PK half")
    with pytest.raises(InputError, match=r"damaged partial result .*part-000001\.npz.*without resume=true"):
        run_predict(config(path, tiny_model, resume=True))


def test_damage_in_the_middle_of_a_file_is_one_line(counts_adata, tiny_model, write, small_blocks, tmp_path):
    path = write(counts_adata)
    with h5py.File(path, "r+") as file:
        file["X/indices"][1000] = 10**6
    with pytest.raises(InputError, match=r"a damaged matrix in X of .*sample\.h5ad"):
        run_predict(config(path, tiny_model))
    assert [entry.name for entry in tmp_path.iterdir()] == ["sample.h5ad"]


@pytest.mark.slow
def test_kill_9_leaves_no_half_file_and_the_next_run_goes_on(counts_adata, whole, tiny_model, write, tmp_path):
    """A process that is really killed, while its calls are made slowly."""
    path = write(counts_adata)
    program = f"""
import sys, time
from scperformer.cli.main import main
from scperformer.io import rows
from scperformer.annotation import predict
rows.MAX_BLOCK_CELLS = {BLOCK}
call = predict.call_block
predict.call_block = lambda *rest: (time.sleep(0.3), call(*rest))[1]
sys.exit(main(sys.argv[1:]))
"""
    words = ["predict", str(path), f"model_path={tiny_model}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, "-c", program, *words], env=environment, stderr=subprocess.DEVNULL) as run:
        folder = tmp_path / "sample.annotated.h5ad.partial"
        for _ in range(600):
            if len(list(folder.glob("part-*"))) >= 2 or run.poll() is not None:
                break
            time.sleep(0.1)
        run.send_signal(signal.SIGKILL)
    assert run.returncode == -signal.SIGKILL
    assert not (tmp_path / "sample.annotated.h5ad").exists()
    done = subprocess.run(
        [sys.executable, "-c", program, *words, "resume=true"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "resuming " in done.stderr
    require_same(ad.read_h5ad(tmp_path / "sample.annotated.h5ad"), whole)
    assert not folder.exists()


def test_parts_are_written_whole(tmp_path, monkeypatch):
    proba, nothing = np.eye(2, dtype=np.float32), np.zeros(2)
    calls = Calls(proba, proba, nothing.astype(int), nothing.astype(bool), nothing, nothing, nothing.astype(bool))

    def full(file, **_):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with parts_file.partial_results(tmp_path / "out.h5ad", {"a": "b"}, 2, resume=False) as parts:
        with monkeypatch.context() as patch:
            patch.setattr(parts_file.np, "savez", full)
            with pytest.raises(InputError, match=r"the disk is full \(.*out\.h5ad\.partial\)"):
                parts.write(0, calls)
        assert parts.missing == [0, 1]
        assert sorted(entry.name for entry in parts.folder.iterdir()) == [
            ".scperformer.json",
            ".unfinished",
            "run.json",
        ]
        for part in range(2):
            parts.write(part, calls)
        assert sum(1 for _ in parts.read()) == 2
