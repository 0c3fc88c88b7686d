"""Whatever the columns of a file are called: its annotation is read back by anndata, or the file is refused."""

import shutil

import anndata as ad
import numpy as np
import pandas as pd
import pytest

import scperformer
from scperformer.base.errors import InputError
from scperformer.cli.predict import PredictConfig
from scperformer.cli.predict import run as run_predict
from scperformer.model.load import load_model

KEY = "scperformer"


@pytest.fixture(scope="module")
def model(tiny_model):
    return load_model(tiny_model)


def read(path):
    return ad.read_zarr(path) if path.suffix == ".zarr" else ad.read_h5ad(path)


def annotate_and_compare(cells, model, folder, kinds) -> bool:
    """Return whether the cells were annotated; False if they, or their columns, were refused."""
    inputs, output = (folder / f"{name}.{kind}" for name, kind in zip(("in", "out"), kinds, strict=True))
    for path in (inputs, output):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    try:
        cells.write_zarr(inputs) if kinds[0] == "zarr" else cells.write_h5ad(inputs)
        known = read(inputs)
    except Exception:  # noqa: BLE001 - anndata itself cannot write or read such names, so that no such file exists
        return False
    try:
        run_predict(PredictConfig(inputs=[str(inputs)], output=str(output), adapt="false", shift="false"), model)
    except InputError:
        assert not output.exists()
        return False
    found = read(output)
    for own, other in ((known.obs, found.obs), (known.var, found.var)):
        assert [name for name in other.columns if name in own.columns] == list(own.columns)
        pd.testing.assert_frame_equal(own, other[list(own.columns)], check_names=kinds[1] == "h5ad")
    assert len(found.obs[f"{KEY}_label"]) == len(known)
    assert list(found.obsm[f"{KEY}_proba"].columns) == model.saved.labels
    assert list(found.obsm[f"{KEY}_proba"].index) == list(known.obs_names)
    return True


ODD = ["é", "1", "codes", "categories", "column-order", "B cell", "a,b"]


@pytest.mark.parametrize("name", ["B cell", "x/y"])
@pytest.mark.parametrize("kinds", [("h5ad", "h5ad"), ("h5ad", "zarr")], ids="-".join)
def test_columns_and_index_of_any_name_are_read_back(name, kinds, model, counts_adata, tmp_path):
    """Also an index with the name of a label, which is a column of the probabilities."""
    cells = counts_adata[:6].copy()
    cells.obs.index.name = name
    cells.obs = cells.obs.assign(**{column: np.arange(6) for column in ODD if column != name})
    assert annotate_and_compare(cells, model, tmp_path, kinds)


def test_an_index_with_the_name_of_a_new_column_is_refused(model, counts_adata, write, tmp_path):
    cells = counts_adata[:6].copy()
    cells.obs.index.name = f"{KEY}_label"
    for replace in (False, True):
        cfg = PredictConfig(inputs=[str(write(cells))], replace_annotation=replace, output=str(tmp_path / "x.h5ad"))
        with pytest.raises(InputError, match=r"as the name of the index of obs .*rename the index, or set key_added"):
            run_predict(cfg, model)
    with pytest.raises(InputError, match="as the name of the index of obs of the data"):
        scperformer.annotate(cells, model)
