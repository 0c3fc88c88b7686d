"""Whatever the columns of a file are called: its annotation is read back by anndata, or the file is refused."""

import shutil
from itertools import product

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import scperformer
from scperformer.base.errors import InputError
from scperformer.cells import require_regular
from scperformer.config import PredictConfig
from scperformer.network import load_model
from scperformer.prediction.predict import run_predict

KEY = "scperformer"
NAMES = [
    *("A", "a", "x/y", "x", "index", "_index", "__categories", "column-order", "codes", "categories", "obs_names", "X"),
    *("", " ", ".", "..", "é", "名", "1", "a\x01", "B cell", KEY, f"{KEY}_label", f"{KEY}_call", "Scperformer_label"),
]


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
        pd.testing.assert_frame_equal(own, other[list(own.columns)])
    assert len(found.obs[f"{KEY}_label"]) == len(known)
    assert list(found.obsm[f"{KEY}_proba"].columns) == model.saved.labels
    assert list(found.obsm[f"{KEY}_proba"].index) == list(known.obs_names)
    return True


@pytest.mark.slow
@pytest.mark.parametrize("kinds", list(product(("h5ad", "zarr"), repeat=2)), ids="-".join)
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    columns=st.lists(st.sampled_from(NAMES), max_size=4, unique=True),
    genes=st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
    index=st.sampled_from([None, *NAMES]),
)
def test_annotations_are_read_back(kinds, columns, genes, index, model, counts_adata, tmp_path):
    cells = counts_adata[:6].copy()
    cells.obs = pd.DataFrame({name: np.arange(6) + i for i, name in enumerate(columns)}, index=cells.obs_names)
    cells.var = pd.DataFrame({name: np.arange(cells.n_vars) for name in genes}, index=cells.var_names)
    cells.obs.index.name = index
    annotate_and_compare(cells, model, tmp_path, kinds)


@pytest.mark.parametrize("name", ["B cell", "x/y", "A", "index"])
@pytest.mark.parametrize("kind", ["h5ad", "zarr"])
def test_the_index_can_have_any_name(name, kind, model, counts_adata, tmp_path):
    """Also that of a label, which is a column of the probabilities."""
    cells = counts_adata[:6].copy()
    cells.obs.index.name = name
    assert annotate_and_compare(cells, model, tmp_path, ("h5ad", kind))


@pytest.mark.parametrize("names", [[1], ["_index"], ["x", "x"], [("a", "b")]], ids=str)
def test_columns_that_no_file_can_have_are_refused(names, counts_adata):
    cells = counts_adata[:6].copy()
    obs = pd.DataFrame(np.zeros((6, len(names))), index=cells.obs_names)
    cells.obs = obs.set_axis(pd.Index(names, tupleize_cols=False), axis=1)
    with pytest.raises(InputError, match=r"column .* in obs of .*: rename it"):
        require_regular(cells)


def test_an_index_with_the_name_of_a_new_column_is_refused(model, counts_adata, write, tmp_path):
    cells = counts_adata[:6].copy()
    cells.obs.index.name = f"{KEY}_label"
    for replace in (False, True):
        cfg = PredictConfig(inputs=[str(write(cells))], replace_annotation=replace, output=str(tmp_path / "x.h5ad"))
        with pytest.raises(InputError, match=r"as the name of the index of obs .*rename the index, or set key_added"):
            run_predict(cfg, model)
    with pytest.raises(InputError, match="as the name of the index of obs of the data"):
        scperformer.annotate(cells, model)


def test_columns_of_a_sheet_replace_none_of_ours(model, counts_adata, write, tmp_path, caplog):
    cells = counts_adata[:6].copy()
    cells.obs.index.name = "barcode"
    path = write(cells)
    (tmp_path / "sheet.csv").write_text(f"path,{KEY}_label,barcode,x/y\n{path},mine,b,1\n")
    sheet = str(tmp_path / "sheet.csv")
    run_predict(PredictConfig(inputs=[str(path)], sample_sheet=sheet, output=str(tmp_path / "x.h5ad")), model)
    found = ad.read_h5ad(tmp_path / "x.h5ad")
    assert list(found.obs_names) == list(cells.obs_names)
    assert "mine" not in set(found.obs[f"{KEY}_label"])
    assert set(found.obs["x/y"]) == {"1"}
    assert f"has the columns {KEY}_label, barcode: those of the sample sheet are left out" in caplog.text
    (tmp_path / "sheet.csv").write_text(f"path,_index\n{path},1\n")
    with pytest.raises(InputError, match=r"column '_index' in .*a name that a column of obs can have"):
        run_predict(PredictConfig(inputs=[str(path)], sample_sheet=sheet, output=str(tmp_path / "y.h5ad")), model)
