"""The expression in a report, compared with scanpy, pandas and the network."""

from copy import deepcopy
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
from scipy.sparse import csr_matrix
from support.annotated import annotated_sample, write_sample

from scperformer.model.library import PACKAGED_MODEL
from scperformer.model.linear import linear_contributions
from scperformer.model.folder import read_model
from scperformer.results.read_annotations import Annotated
from scperformer.results import expression
from scperformer.results.read_annotations import read_samples


def counts_sample(pbmc: ad.AnnData, first: int, num_cells: int, num_genes: int) -> ad.AnnData:
    """Return annotated cells with the counts of other, real cells in X."""
    annotated = annotated_sample(first, num_cells)
    cells = pbmc[first : first + num_cells, :num_genes]
    entries = {"obsm": dict(annotated.obsm), "uns": dict(annotated.uns)}
    sample = ad.AnnData(cells.X.copy(), obs=annotated.obs, var=cells.var[[]], **entries)
    sample.uns["scperformer"]["input"] |= {"source": "X", "kind": "counts"}
    return sample


@pytest.fixture(scope="module")
def pbmc3k() -> ad.AnnData:
    return ad.read_h5ad(Path(__file__).parents[2] / "data" / "pbmc3k.h5ad")[:200]


@pytest.fixture(scope="module")
def cells(pbmc3k) -> list[ad.AnnData]:
    """Two samples: one with 3,000 genes, and one with 2,000 of these."""
    return [counts_sample(pbmc3k, 0, 60, 3000), counts_sample(pbmc3k, 60, 50, 2000)]


@pytest.fixture(scope="module")
def samples(cells, tmp_path_factory) -> list[Annotated]:
    folder = tmp_path_factory.mktemp("samples")
    paths = [write_sample(folder, f"s{number}", sample) for number, sample in enumerate(cells)]
    return read_samples(paths, "scperformer")[0]


@pytest.fixture(scope="module")
def names(samples) -> list[str]:
    return sorted({label for sample in samples for label in sample.labels})


@pytest.fixture(scope="module")
def profiles(samples, names) -> list[expression.LabelProfile]:
    index = pd.Index(names)
    codes = [index.get_indexer(sample.labels) for sample in samples]
    num = len(names)
    return [expression.read_profile(sample, code, num, None, {}) for sample, code in zip(samples, codes, strict=True)]


def log_normalised(cells: ad.AnnData) -> ad.AnnData:
    normalised = cells.copy()
    sc.pp.normalize_total(normalised, target_sum=1e4)
    sc.pp.log1p(normalised)
    return normalised


def test_means_and_shares_are_those_of_pandas(cells, names, profiles):
    table = expression.combine(profiles, range(len(names)))
    normalised = [log_normalised(sample) for sample in cells]
    frames = [pd.DataFrame(sample.X.toarray(), columns=sample.var_names) for sample in normalised]
    frame = pd.concat(frames, ignore_index=True)  # NaN where a sample does not measure a gene
    labels = np.concatenate([sample.obs["scperformer_label"].astype(str) for sample in cells])
    expected = frame.groupby(labels).mean().loc[names, table.genes]
    np.testing.assert_allclose(table.means, expected, rtol=1e-4)
    shares = (frame > 0).where(frame.notna()).groupby(labels).mean().loc[names, table.genes]
    np.testing.assert_allclose(table.shares, shares.astype(float), rtol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_marker_scores_are_those_of_scanpy(cells, names, profiles):
    table = expression.combine(profiles[:1], range(len(names)))
    sample = log_normalised(cells[0])
    labels = sample.obs["scperformer_label"].astype(str)
    groups = [name for name in names if (labels == name).sum() > 2]
    sample.obs["label"] = pd.Categorical(labels)
    sc.tl.rank_genes_groups(sample, "label", groups=groups, method="t-test_overestim_var")
    for group in groups:
        expected = sc.get.rank_genes_groups_df(sample, group).set_index("names").loc[table.genes]
        scores = table.markers[names.index(group)]
        shown = np.isfinite(scores)
        assert shown.sum() > 10
        np.testing.assert_allclose(scores[shown], expected["scores"][shown], rtol=1e-2)
        np.testing.assert_allclose(
            table.changes[names.index(group)][shown], expected["logfoldchanges"][shown], rtol=1e-2
        )
        best = table.top(table.markers, names.index(group), 5)
        wanted = expected[shown].sort_values("scores", ascending=False).index[:5]
        assert list(table.genes[best]) == list(wanted)


def test_technical_genes_are_left_out_unless_wanted(names, profiles):
    every = expression.combine(profiles, range(len(names)))
    some = expression.combine(profiles, range(len(names)), all_genes=False)
    kinases = ("RPS6K",)  # of ribosomal proteins
    left_out = ("RPL", "RPS", "MT-", "MALAT1")
    kept = np.array([not gene.startswith(left_out) or gene.startswith(kinases) for gene in every.genes])
    assert 0 < kept.sum() < len(kept)
    assert list(some.genes) == list(every.genes[kept])
    np.testing.assert_array_equal(some.markers, every.markers[:, kept])
    np.testing.assert_array_equal(some.means, every.means[:, kept])


def test_quality_is_that_of_all_cells(cells, profiles):
    x = cells[0].X.toarray()
    np.testing.assert_array_equal(profiles[0].quality["num_genes"], (x > 0).sum(axis=1))
    np.testing.assert_allclose(profiles[0].quality["total"], x.sum(axis=1))


def test_values_of_genes_in_chosen_cells(cells, samples):
    sample = log_normalised(cells[1])
    rows = np.array([0, 7, 30])
    genes = pd.Index([sample.var_names[5], "not measured", sample.var_names[1999]])
    found = expression.gene_values(samples, genes, [np.array([4]), rows])
    assert found.x.shape == (4, 3)
    for place, gene in ((0, 5), (2, 1999)):
        np.testing.assert_allclose(found.column(place)[1:], sample[rows, gene].X.toarray().ravel(), rtol=1e-5)
    assert np.isnan(found.column(1)).all()


def test_merged_profiles_give_the_same_table(profiles, names):
    apart = expression.combine([*profiles, profiles[0]], range(len(names)))
    merged = expression.merged([*map(deepcopy, profiles), deepcopy(profiles[0])])
    assert [profile.num_cells.sum() for profile in merged] == [120, 50]
    together = expression.combine(merged, range(len(names)))
    assert list(together.genes) == list(apart.genes)
    np.testing.assert_allclose(together.means, apart.means)
    np.testing.assert_allclose(together.markers, apart.markers)


def test_missing_expression_is_logged(tmp_path, caplog):
    [sample], _ = read_samples([write_sample(tmp_path, "s", annotated_sample(num_cells=20))], "scperformer")
    codes = np.zeros(20, dtype=np.int64)
    assert expression.read_profile(sample, codes, 1, None, {}) is None  # its labels are from .raw, which is missing
    assert "no expression for the report: no raw in" in caplog.text


def test_ensembl_ids_are_shown_as_symbols():
    names = ("ENSG00000167286.9", "ENSG00000156738", "ENSG00000000000")
    assert list(expression.shown_names(names)) == ["CD3D", "MS4A1", "ENSG00000000000"]
    assert list(expression.shown_names(("CD3D", "my gene"))) == ["CD3D", "my gene"]


def test_contributions_are_those_of_the_network(pbmc3k):
    """`explain` finds them with torch; both with the packaged model."""
    import torch

    from scperformer.cells.query import find_query
    from scperformer.cli.predict import PredictConfig
    from scperformer.results.contributions import linear_branch_contributions
    from scperformer.model.batches import Cells
    from scperformer.model.load import load_model

    model = load_model(str(PACKAGED_MODEL))
    saved = read_model(PACKAGED_MODEL)
    query = find_query(pbmc3k[:6].copy(), saved, PredictConfig(inputs=["x"]))
    x = query.some(np.arange(6))
    cells = Cells(x, model.tokens)
    for label in (0, 3):
        expected = np.zeros(len(saved.genes))
        for row in range(6):
            batch = cells.batch(np.array([row]), int(cells.lengths[row]))
            found = linear_branch_contributions(model.network.linear, batch, torch.tensor([label]))[0].numpy()
            np.add.at(expected, batch.genes_BL[0].numpy()[found != 0], found[found != 0] / 6)
        np.testing.assert_allclose(linear_contributions(saved, x, label), expected, atol=1e-5)
        assert np.abs(expected).max() > 0.05


def test_contributions_are_means_over_the_cells_of_a_label(pbmc3k, tmp_path):
    saved = read_model(PACKAGED_MODEL)
    sample = counts_sample(pbmc3k, 0, 30, pbmc3k.n_vars)
    sample.obs["scperformer_label"] = pd.Categorical(["B"] * 10 + ["NK"] * 20, categories=saved.labels)
    [read], _ = read_samples([write_sample(tmp_path, "s", sample)], "scperformer")
    codes = np.repeat([0, 1], [10, 20])
    table = expression.combine([expression.read_profile(read, codes, 2, saved, {})], range(2))
    values = pd.DataFrame(log_normalised(sample).X.toarray(), columns=sample.var_names)
    shared = values.columns.intersection(saved.genes)
    assert len(shared) > 13_000
    x = csr_matrix(values.reindex(columns=saved.genes, fill_value=0).to_numpy(np.float32))
    for code, label in enumerate(("B", "NK")):
        contributions = linear_contributions(saved, x[codes == code], saved.labels.index(label))
        expected = pd.Series(contributions, index=saved.genes)
        found = pd.Series(table.contributions[code], index=table.genes)
        np.testing.assert_allclose(found[shared], expected[shared], rtol=1e-3, atol=1e-6)
