"""scANVI models: probabilities and latent vectors are scvi-tools' own; other models and values are refused.

The folder scanvi/ has the models, the cells and what scvi-tools says about them; its README tells how they were made.
"""

import pickle
import shutil
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import torch
from support.refusal import refusal

import scperformer as scp
from scperformer.model.folder import read_model

MODELS = Path(__file__).parent / "scanvi"
GENES = [f"GENE{number}" for number in range(60)]


@pytest.fixture
def expected():
    return np.load(MODELS / "expected.npz")


@pytest.fixture
def cells(expected) -> ad.AnnData:
    """The counts of 20 cells; the genes are in another order, and there are others."""
    counts = np.concatenate([np.full((20, 5), 3), expected["counts"][:, ::-1]], axis=1).astype(
        np.float32
    )
    names = [*(f"OTHER{number}" for number in range(5)), *GENES[::-1]]
    obs = pd.DataFrame(
        {"batch": expected["batch"]}, index=[f"cell {number}" for number in range(20)]
    )
    return ad.AnnData(counts, obs=obs, var=pd.DataFrame(index=names))


@pytest.mark.parametrize(
    ("name", "batch"),
    [("plain", None), ("linear", None), ("covariates", "run 0"), ("covariates", "run 1")],
    ids=["batch norm", "linear and layer norm", "the first batch", "the second batch"],
)
def test_probabilities_and_latent_vectors_are_those_of_scvi_tools(name, batch, cells, expected):
    made = scp.import_model(MODELS / name, options={} if batch is None else {"batch": batch})
    scp.annotate(cells, made.load())
    rows = np.ones(20, dtype=bool) if batch is None else expected["batch"] == batch
    assert rows.sum() > 0
    proba = pd.DataFrame(
        expected[f"{name}_proba"], columns=expected[f"{name}_labels"], index=cells.obs_names
    )
    found = cells.obsm["scperformer_proba"]
    assert set(found.columns) == set(proba.columns)  # without the category of cells without a label
    np.testing.assert_allclose(found[rows], proba[found.columns][rows], rtol=0, atol=1e-6)
    np.testing.assert_allclose(
        cells.obsm["X_scperformer"][rows], expected[f"{name}_latent"][rows], rtol=0, atol=1e-6
    )
    assert list(cells.obs["scperformer_label"][rows]) == list(proba.idxmax(axis=1)[rows])


def test_other_values_than_counts_are_refused(cells):
    model = scp.import_model(MODELS / "plain").load()
    cells.X = np.log1p(cells.X / cells.X.sum(axis=1, keepdims=True) * 1e4)
    with refusal("model-of-counts"):
        scp.annotate(cells, model)
    assert "scperformer_label" not in cells.obs


@pytest.mark.parametrize(
    ("name", "batch", "values"),
    [
        ("covariates", None, ("'run 0', 'run 1'",)),
        ("covariates", "run 2", ("batch=run 2", "'run 0', 'run 1'")),
        ("plain", "run 0", ("batch=run 0",)),
    ],
    ids=["no batch", "unknown batch", "no use of it"],
)
def test_batches_have_to_be_known(name, batch, values, library):
    with refusal("scvi-batch", *values):
        scp.import_model(MODELS / name, options={} if batch is None else {"batch": batch})
    assert not library.exists() or not list(library.iterdir())


CHANGES = {
    "no classifier": (
        "model_state_dict classifier.classifier.1.weight",
        None,
        "foreign-model",
        "classifier",
    ),
    "another latent distribution": (
        "attr_dict init_params_ kwargs model_kwargs",
        lambda _: {"latent_distribution": "ln"},
        "foreign-model",
        "latent_distribution=ln",
    ),
    "scVI": ("attr_dict registry_ model_name", lambda _: "SCVI", "scvi-kind", "SCVI"),
    "fewer genes": ("var_names", lambda names: names[:-1], "foreign-model", "60 instead of 59"),
    "infinite": (
        "model_state_dict z_encoder.mean_encoder.weight",
        lambda weight: weight * torch.inf,
        "foreign-model",
        "z_encoder.mean_encoder.weight",
    ),
}


@pytest.mark.parametrize("case", CHANGES)
def test_other_models_are_refused_with_the_reason(case, tmp_path, library):
    place, change, code, value = CHANGES[case]
    content = torch.load(MODELS / "plain" / "model.pt", weights_only=False)
    part = content
    *parents, name = place.split()
    for parent in parents:
        part = part[parent]
    old = part.pop(name, None)
    if change is not None:
        part[name] = change(old)
    torch.save(content, tmp_path / "model.pt")
    with refusal(code, value):
        scp.import_model(tmp_path)
    assert not library.exists() or not list(library.iterdir())


def test_truncated_models_and_other_pickles_are_refused(tmp_path, library):
    folder = tmp_path / "short"
    shutil.copytree(MODELS / "plain", folder)
    content = (folder / "model.pt").read_bytes()
    for size in (300, len(content) // 2, len(content) - 10):
        (folder / "model.pt").write_bytes(content[:size])
        with refusal("foreign-model"):
            scp.import_model(folder)
    (folder / "model.pt").write_bytes(pickle.dumps(["something else"]))
    with refusal("foreign-model"):
        scp.import_model(folder / "model.pt")
    assert not library.exists() or not list(library.iterdir())


def test_with_labelled_cells_a_model_is_calibrated_and_adapts_to_a_panel(cells, expected, tmp_path):
    rng = np.random.default_rng(0)
    labels = expected["plain_labels"][expected["plain_proba"].argmax(axis=1)]
    labelled = ad.concat([cells] * 10, index_unique="-")
    labelled.X = rng.poisson(labelled.X).astype(np.float32)
    labelled.obs["cell_type"] = np.tile(labels, 10)
    labelled.write_h5ad(tmp_path / "labelled.h5ad")
    options = {"reference": tmp_path / "labelled.h5ad", "label_key": "cell_type"}
    made = scp.import_model(MODELS / "plain", **options)
    assert not read_model(made.path).lacks
    panel = cells[:, ~cells.var_names.isin(GENES[::10])].copy()
    scp.annotate(panel, made.load(), options={"adapt": "true"})
    assert panel.uns["scperformer"]["coverage"]["adapted"]
    proba = panel.obsm["scperformer_proba"]
    np.testing.assert_allclose(proba.sum(axis=1), 1, atol=1e-5)
    assert (proba.idxmax(axis=1).to_numpy() == labels).mean() > 0.8
