"""The experiments for public references, each on a small file with the same places and columns."""

from pathlib import Path

import anndata as ad
import numpy as np
import pytest
from scipy import sparse

from scperformer.model.folder import read_model

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
QUICK = [
    "data.min_cells_per_label=1",
    "data.min_genes=1",
    "logger=none",
    "model.linear=true",
    "model.encoder=false",
]
IDS = {"B cell": "CL:0000236", "T cell": "CL:0000084", "Monocyte": "CL:0000576"}
GROUPS = {"hlca": "donor_id", "tabula_sapiens": "donor_id", "pancreas": "tech", "zheng68k": None}


def logged(adata: ad.AnnData) -> ad.AnnData:
    x = adata.X.toarray()
    values = np.log1p(x / x.sum(axis=1, keepdims=True) * 1e4).astype(np.float32)
    return ad.AnnData(sparse.csr_matrix(values), obs=adata.obs, var=adata.var)


def with_layout_of(recipe: str, adata: ad.AnnData) -> ad.AnnData:
    labels = adata.obs.pop("cell_type").astype(str)
    donor = [f"d{i % 12}" for i in range(adata.n_obs)]
    if recipe == "zheng68k":
        adata.obs["celltype"] = labels
        return adata
    if recipe == "pancreas":
        made = logged(adata)
        # one technology has no counts
        scale = np.where(np.arange(adata.n_obs) % 4 == 0, 1.7, 1.0)[:, None]
        made.layers["counts"] = sparse.csr_matrix(adata.X.toarray() * scale, dtype=np.float32)
        made.obs["tech"], made.obs["celltype"] = [f"t{i % 4}" for i in range(adata.n_obs)], labels
        return made
    adata.var_names = [f"ENSG{i:011d}" for i in range(adata.n_vars)]
    made = logged(adata)
    made.raw = adata
    made.obs["donor_id"], made.obs["cell_type"] = donor, labels
    made.obs["cell_type_ontology_term_id"] = labels.map(IDS)
    made.obs["ann_finest_level"] = labels
    return made


@pytest.mark.slow
@pytest.mark.parametrize("recipe", GROUPS)
def test_a_recipe_makes_a_model_of_a_file_of_this_layout(counts_adata, write, command, recipe):
    ran = command(
        "train",
        write(with_layout_of(recipe, counts_adata)),
        f"experiment={recipe}",
        *QUICK,
        "output=made",
    )
    assert ran.code == 0, ran.err
    saved = read_model("made")
    assert saved.labels == sorted(IDS)
    assert saved.provenance.tissue in ("blood", "lung", "pancreas")
    assert (GROUPS[recipe] is None) == ("val_groups" not in saved.provenance.split)
    assert saved.metrics.model["accuracy"] > 0.6
    if recipe == "tabula_sapiens":
        assert saved.ontology_term_ids == [IDS[label] for label in saved.labels]


def test_every_recipe_is_described():
    assert all(f"`{name}`" in PAGE.read_text(encoding="utf-8") for name in GROUPS)
