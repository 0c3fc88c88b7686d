"""Make the small scANVI models of this folder: `python make_scanvi.py` with scvi-tools 1.4.2.

Poisson counts of 60 genes, 3 labels and 2 batches. Each model is trained for 40 epochs and saved without its cells;
counts.npz holds 20 more cells, and what SCANVI.predict(soft=True) and get_latent_representation say about them.
"""

import sys
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import scvi

HERE = Path(__file__).parent
MODELS = {
    "plain": {},
    "covariates": {
        "encode_covariates": True,
        "n_layers": 2,
        "use_layer_norm": "both",
        "use_batch_norm": "none",
    },
    "linear": {"linear_classifier": True, "use_layer_norm": "encoder"},
}


def cells(number: int, rng: np.random.Generator) -> ad.AnnData:
    """Return cells whose label raises 10 of their 60 genes."""
    label = rng.integers(3, size=number)
    batch = rng.integers(2, size=number)
    rate = np.ones((number, 60)) + 0.5 * batch[:, None]
    for row, kind in enumerate(label):
        rate[row, 10 * kind : 10 * kind + 10] += 4
    obs = pd.DataFrame(
        {"cell_type": [f"type {kind}" for kind in label], "batch": [f"run {one}" for one in batch]}
    )
    obs.index = obs.index.astype(str)
    return ad.AnnData(
        rng.poisson(rate).astype(np.float32),
        obs=obs,
        var=pd.DataFrame(index=[f"GENE{i}" for i in range(60)]),
    )


scvi.settings.seed = 0
rng = np.random.default_rng(0)
train = cells(300, rng)
train.obs.loc[train.obs.index[:30], "cell_type"] = "Unknown"
query = cells(20, rng)
expected = {"counts": query.X.astype(np.int16), "batch": query.obs["batch"].to_numpy().astype("U")}
for name, options in MODELS.items():
    scvi.model.SCANVI.setup_anndata(
        train, labels_key="cell_type", unlabeled_category="Unknown", batch_key="batch"
    )
    model = scvi.model.SCANVI(train, n_hidden=8, n_latent=4, **options)
    model.train(max_epochs=40, accelerator="cpu", enable_progress_bar=False)
    model.save(str(HERE / name), overwrite=True)
    expected[f"{name}_proba"] = model.predict(query, soft=True).to_numpy()
    expected[f"{name}_labels"] = model.predict(query, soft=True).columns.to_numpy().astype("U")
    expected[f"{name}_latent"] = model.get_latent_representation(query)
np.savez_compressed(HERE / "expected.npz", **expected)
print(scvi.__version__, {key: value.shape for key, value in expected.items()}, file=sys.stderr)
