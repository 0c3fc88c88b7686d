"""Predictions are the same, bit for bit, whatever the number of threads."""

import threading
from dataclasses import replace
from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pytest
from anndata.tests.helpers import assert_equal
from support.inputs import WRITERS
from support.refusal import refusal

import scperformer
from scperformer.adaptation.adapted import Adapted
from scperformer.adaptation.fitted import Model
from scperformer.adaptation.load import load_model
from scperformer.annotation.clusters_to_check import with_sampled_cells
from scperformer.annotation.predict import Session, predict_all
from scperformer.base import parallel
from scperformer.cells.opened import open_cells
from scperformer.cli.predict import PredictConfig
from scperformer.cli.predict import run as run_predict
from scperformer.io import rows

DATA = Path(__file__).parents[2] / "data" / "pbmc3k.h5ad"


@pytest.fixture
def cells() -> ad.AnnData:
    """60 cells with every fourth gene, to which the model is not adapted."""
    with h5py.File(DATA) as file:
        x = ad.io.sparse_dataset(file["X"])[:60]
        var = ad.io.read_elem(file["var"])
    found = ad.AnnData(x[:, ::4], var=var[::4])
    found.obs_names = [f"cell{number}" for number in range(60)]
    found.var["gene_ids"] = found.var_names
    return found


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model("pbmc3k")


@pytest.fixture(autouse=True)
def _seven_blocks_and_three_cores(monkeypatch):
    monkeypatch.setattr(rows, "MAX_BLOCK_CELLS", 9)
    monkeypatch.setattr(parallel.os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)


def h5ad(**how):
    return lambda cells, folder: cells.write_h5ad(folder / "run.h5ad", **how) or folder / "run.h5ad"


KINDS = {
    "gzip": h5ad(compression="gzip"),
    "lzf": h5ad(compression="lzf"),
    **{
        name: WRITERS[name]
        for name in ("h5ad", "h5ad csc float64", "h5ad dense int32", "10x h5 v3", "10x folder")
    },
    **{name: WRITERS[name] for name in ("zarr 3", "csv")},
    "in memory": lambda cells, _: cells,
}


def predictions(
    source: Path | ad.AnnData, model: Model, threads: int, share: float = 1.0
) -> list[dict[str, bytes]]:
    """All that is predicted for each block, of cells that are thinned to a share of their counts."""
    options = PredictConfig(
        inputs=["run"], adapt="false", min_overlap=0.0, orientation="cells_by_genes"
    )
    with parallel.cores_wanted(threads), open_cells(source, options) as cells:
        adapted = Session(cells, model, options).adapted()
        adapted = replace(adapted, query=replace(adapted.query, share=share))
        blocks = list(predict_all(with_sampled_cells(adapted), "run")())
    found = [vars(block) | vars(block.novel) for block in blocks]
    return [
        {name: value.tobytes() for name, value in each.items() if isinstance(value, np.ndarray)}
        for each in found
    ]


@pytest.mark.filterwarnings("ignore:orientation")
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_file_is_predicted_alike_by_one_thread_and_several(
    kind, model, cells, tmp_path
):
    source = KINDS[kind](cells, tmp_path)
    one, two, three = (predictions(source, model, threads) for threads in (1, 2, 3))
    assert len(one) == 7
    assert one == two == three


def test_thinned_cells_are_predicted_alike_by_one_thread_and_several(model, cells):
    one, three = (predictions(cells, model, threads, share=0.5) for threads in (1, 3))
    assert one == three != predictions(cells, model, 1)


def annotated(path: Path, threads: int) -> ad.AnnData:
    output = path.with_name("calls.h5ad")
    options = {"adapt": "false", "min_overlap": 0.0, "overwrite": True}
    run_predict(PredictConfig(inputs=[str(path)], output=str(output), threads=threads, **options))
    return ad.read_h5ad(output)


def test_a_written_file_is_the_same_by_one_thread_and_several(cells, tmp_path):
    path = h5ad(compression="gzip")(cells, tmp_path)
    one, three = (annotated(path, threads) for threads in (1, 3))
    of_one, of_three = (found.uns.pop("scperformer") for found in (one, three))
    assert_equal(three, one, exact=True)
    np.testing.assert_equal(
        {**of_three, "run": 0, "seconds": 0}, {**of_one, "run": 0, "seconds": 0}
    )


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_in_a_block_ends_all_threads(threads, cells, tmp_path, monkeypatch):
    path = h5ad()(cells, tmp_path)
    predict = Adapted.predict_block
    before = threading.active_count()

    def predicted(adapted: Adapted, start: int, done):
        if start == 27:
            raise scperformer.InputError("stop", "an error", "none", "none")
        return predict(adapted, start, done)

    monkeypatch.setattr(Adapted, "predict_block", predicted)
    with refusal("stop"):
        annotated(path, threads)
    assert threading.active_count() == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["run.h5ad"]
