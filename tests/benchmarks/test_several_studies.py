"""The benchmark of several studies: its references, its joined models, its table."""

import anndata as ad
import numpy as np
import pandas as pd
from scipy import sparse

LABELS = ["B", "CD14+ Mono", "Naive CD4 T"]


def made_cells(seed: int, labels: list[str], genes: range) -> ad.AnnData:
    rng = np.random.default_rng(seed)
    codes = np.arange(120) % len(labels)
    mean = np.full((120, 200), 0.5)
    for code, label in enumerate(labels):
        kind = {"B": 0, "CD14+ Mono": 1, "Mono_CD14": 1}.get(label, 2)
        mean[np.ix_(codes == code, range(50 * kind, 50 * kind + 50))] = 3.0
    cells = ad.AnnData(
        sparse.csr_matrix(rng.poisson(mean), dtype=np.float32),
        obs=pd.DataFrame({"label": np.array(labels)[codes]}, index=[f"{seed}-{i}" for i in range(120)]),
        var=pd.DataFrame(index=[f"GENE{i}" for i in range(200)]),
    )
    return cells[:, list(genes)].copy()


def test_pooled_cells_have_the_shared_genes_and_types_as_labels(several):
    sources = {"one": made_cells(1, LABELS, range(150)), "two": made_cells(2, ["T_CD4", "B"], range(50, 200))}
    pooled = several.pooled(sources)
    assert pooled.shape == (240, 100)
    assert set(pooled.obs["label"]) == {"B", "Monocyte", "CD4 T"}


def test_models_of_studies_are_joined(several, tmp_path):
    import scperformer as scp

    sources = {"one": made_cells(1, LABELS, range(200)), "two": made_cells(2, ["T_CD4", "Mono_CD14", "B"], range(190))}
    options = {"experiment": "linear", "logger": "none", "data.min_genes": 0}
    models = {
        name: scp.train(cells, "label", output=tmp_path / name, options=options).load()
        for name, cells in sources.items()
    }
    query = made_cells(3, LABELS, range(200))
    truth = [{"B": "B", "CD14+ Mono": "Monocyte", "Naive CD4 T": "CD4 T"}[label] for label in query.obs["label"]]
    assert np.mean(several.calls_of(several.joined(models), query) == truth) > 0.95


def test_the_table_has_means_and_the_best_single_study(several):
    lines = [
        {
            "query": query,
            "seed": 0,
            "reference": reference,
            "num_studies": num,
            "accuracy": value,
            "macro_f1": value / 2,
        }
        for query in ("pbmc3k", "zheng_sorted")
        for reference, num, value in (
            ("a", 1, 0.5),
            ("b", 1, 0.7),
            ("a + b", 2, 0.8),
            ("a + b + c", 3, 0.9),
            (several.POOLED, 3, 0.6),
        )
    ]
    rows = several.table(pd.DataFrame(lines)).splitlines()
    assert "| pbmc3k | 0.600 / 0.300 | 0.700 / 0.350 | 0.800 / 0.400 | 0.900 / 0.450 | 0.600 / 0.300 |" in rows
    assert [row.split("|")[1].strip() for row in rows[4:]] == ["**choose (1)**", "**report (1)**"]
