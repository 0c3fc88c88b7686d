"""The same cells in different files get the same calls; skipped where the larger real data are missing."""

import anndata as ad
import pytest
from support.words import as_options

import scperformer

COMPLETE = (
    "denseX_float64",
    "int32X",
    "lognormX_layers_counts",
    "lowercase_symbols",
    "nan_labels_unused_category",
    "scanpy_scaledX_raw_lognorm",
)


@pytest.fixture(scope="module")
def model():
    """The packaged model, trained on these cells."""
    return scperformer.load_model()


def calls(adata: ad.AnnData, model):
    return scperformer.annotate(adata, model, options=as_options(["adapt=false"])).obs["scperformer_label"].astype(str)


@pytest.fixture(scope="module")
def plain(shared_data, model):
    return calls(ad.read_h5ad(shared_data / "pbmc3k.h5ad"), model)


@pytest.mark.parametrize("name", COMPLETE)
def test_the_same_calls(name, shared_data, plain, model):
    found = calls(ad.read_h5ad(shared_data / "wild" / f"derived_pbmc3k_{name}.h5ad"), model)
    expected = plain.loc[found.index]
    assert len(found) >= 400
    assert found.tolist() == expected.tolist()


def test_calls_differ_by_missing_genes_only(shared_data, model):
    """Ensembl ids: the file lacks 2,233 genes; on the same genes the calls are the same."""
    path = shared_data / "wild" / "derived_pbmc3k_cellxgene_style_rawcounts_ensembl.h5ad"
    adata = ad.read_h5ad(path)
    symbols = adata.raw.var["feature_name"].astype(str)
    whole = ad.read_h5ad(shared_data / "pbmc3k.h5ad")[adata.obs_names]
    same_genes = whole[:, whole.var_names.isin(set(symbols))].copy()
    assert calls(adata, model).tolist() == calls(same_genes, model).tolist()
