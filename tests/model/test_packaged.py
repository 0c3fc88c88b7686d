"""The model in the package: what it was trained on, the cells that it keeps, its size."""

import json

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
from scipy import sparse

import scperformer as scp
from scperformer.base.inputs import sha256
from scperformer.io.read import read_cells
from scperformer.model.card import model_card
from scperformer.model.content import INFO, to_json
from scperformer.model.folder import CARD, PACKAGED_MODEL, load_reference_cells, read_model
from scperformer.model.saved_model import SavedModel
from scperformer.model.tissues import collection
from scperformer.trust.shift import FAR

REFERENCE = PACKAGED_MODEL.parents[3] / "data" / "pbmc3k.h5ad"


@pytest.fixture(scope="module")
def saved() -> SavedModel:
    return read_model(PACKAGED_MODEL)


def test_it_was_trained_on_the_embedded_cells(saved):
    made = saved.provenance
    assert made.reference_sha256 == sha256(REFERENCE)
    assert (made.reference, made.label_key, made.num_cells) == (REFERENCE.name, "cell_type", 2638)
    assert saved.provenance.tissue == "blood"


def test_it_would_be_written_as_it_was_read(saved):
    info = json.loads((PACKAGED_MODEL / INFO).read_text())
    assert to_json(saved) == {name: info[name] for name in to_json(saved)}
    assert info.keys() - to_json(saved).keys() == {"format_version", "files", "tree"}


def test_its_card_is_the_one_of_this_version(saved):
    assert (PACKAGED_MODEL / CARD).read_text(encoding="utf-8") == model_card(
        saved, {"reliability.png": b""}
    )


def test_it_keeps_the_counts_of_all_cells(saved):
    reference_cells, cells = load_reference_cells(saved, PACKAGED_MODEL), read_cells(REFERENCE)
    assert reference_cells is not None
    assert reference_cells.are_counts
    counts = np.asarray(cells[:, saved.genes].X.sum(axis=0)).ravel()
    assert np.array_equal(np.asarray(reference_cells.values.sum(axis=0)).ravel(), counts)
    found = dict(zip(saved.labels, np.bincount(reference_cells.labels).tolist(), strict=True))
    assert found == saved.provenance.cells_per_label
    differences = pd.Series(found) - cells.obs["cell_type"].value_counts()
    assert differences[differences != 0].to_dict() == {
        "CD8 T": 205,
        "Memory CD4 T": -39,
        "Naive CD4 T": -166,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tissue", "is_far"), [("fetal cerebrum", True), ("skin", True), ("blood", False)]
)
def test_another_tissue_is_recognised_by_a_panel_of_logarithms(tissue, is_far):
    """400 simulated cells, their 1,000 most variable genes, ln(1 + cp10k)."""
    profiles = collection().tissue(tissue).profiles
    rng = np.random.default_rng(0)
    means = profiles.to_numpy()[np.arange(400) % len(profiles)]
    # the study, and the cells
    means = means * rng.lognormal(0, 0.5, means.shape[1]) * rng.gamma(2, 0.5, means.shape)
    counts = rng.poisson(2000 * means / means.sum(axis=1, keepdims=True))
    logs = np.log1p(1e4 * counts / counts.sum(axis=1, keepdims=True))
    cells = ad.AnnData(
        sparse.csr_matrix(logs, dtype=np.float32), var=pd.DataFrame(index=profiles.columns)
    )
    sc.pp.highly_variable_genes(cells, n_top_genes=1000, subset=True)
    found = scp.annotate(cells, PACKAGED_MODEL, options={"min_overlap": 0})
    assert (found.uns["scperformer"]["shift"]["kind"] == FAR) == is_far
    assert ((found.obs["scperformer_call"] == "unknown").mean() > 0.8) == is_far
