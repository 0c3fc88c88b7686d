"""Clusters beside calls: a column of the files, or made in the graph of the map; their table, compared with pandas."""

from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
from support.annotated import annotated_sample, write_sample

from scperformer.base.errors import InputError
from scperformer.cli.report import ReportConfig
from scperformer.results import cluster_labels as clusters
from scperformer.results.read_annotations import read_samples
from scperformer.results.report import Content, read_content


def content_of(folder: Path, sample: ad.AnnData, **options: object) -> Content:
    path = write_sample(folder, "s", sample)
    samples, _ = read_samples([path], "scperformer")
    return read_content(samples, [], None, ReportConfig(inputs=[path], **options))


@pytest.fixture(scope="module")
def sample() -> ad.AnnData:
    sample = annotated_sample(0, 120)
    sample.uns["scperformer"]["input"]["source"] = "X"
    return sample


@pytest.fixture(scope="module")
def made(sample, tmp_path_factory) -> Content:
    return content_of(tmp_path_factory.mktemp("made"), sample)


def test_clusters_are_made_in_the_graph_of_the_map(made):
    assert made.clusters.source.startswith("made for this report by Leiden")
    assert len(made.clusters.codes) == 120
    assert 2 <= len(made.clusters.names) <= 12
    calls = pd.Series(made.final)
    # Clusters that were made without the labels have mostly one each.
    largest = calls.groupby(made.clusters.codes).agg(lambda group: group.value_counts().iloc[0]).sum()
    assert largest / 120 > 0.6
    shuffled = calls.sample(frac=1, random_state=0).reset_index(drop=True)
    assert shuffled.groupby(made.clusters.codes).agg(lambda group: group.value_counts().iloc[0]).sum() < largest


def test_the_table_has_sizes_calls_and_markers(made, sample):
    found = made.clusters
    table = clusters.cluster_table(found, made.cells, made.final, clusters.cluster_markers(found, made.drawn))
    assert [row[0] for row in table.rows] == found.names
    for code, row in enumerate(table.rows):
        is_in = found.codes == code
        shares = pd.Series(made.final[is_in]).value_counts(normalize=True)
        assert row[1] == is_in.sum()
        assert row[3] == pytest.approx(shares.iloc[0])
        assert shares[row[2]] == shares.iloc[0]
        assert row[7] == pytest.approx(np.median(sample.obs["scperformer_confidence"][is_in]))
    values = sample.to_df()[list(made.drawn.genes[: made.drawn.num_variable])]
    cells = ad.AnnData(values.reset_index(drop=True), obs=pd.DataFrame({"c": pd.Categorical(found.codes.astype(str))}))
    cells.obs_names = cells.obs.index = cells.obs_names.astype(str)
    sc.tl.rank_genes_groups(cells, "c", method="t-test_overestim_var")
    # The values of the file are normalised anew, by totals of all its genes, so the first genes are nearly the same.
    first = sc.get.rank_genes_groups_df(cells, "0")["names"].iloc[:10]
    assert len(set(table.rows[0][-1].split(", ")) & set(first)) >= 3


def test_a_column_of_the_file_is_taken(sample, tmp_path):
    own = sample.copy()
    own.obs["leiden"] = pd.Categorical((np.arange(120) % 12).astype(str))
    content = content_of(tmp_path, own)
    assert (content.clusters.source, content.clusters.names) == ("obs['leiden']", [str(n) for n in range(12)])
    np.testing.assert_array_equal(content.clusters.codes, np.arange(120) % 12)
    with pytest.raises(InputError, match=r"cluster_key=leidn, which is no column.*did you mean 'leiden'"):
        content_of(tmp_path, own, cluster_key="leidn")


def test_counts_are_those_of_pandas(made):
    names, calls, counts = clusters.cluster_counts(made.clusters, made.final, made.used_names)
    texts = np.array(made.clusters.names, dtype=object)[made.clusters.codes]
    expected = pd.crosstab(texts, made.final)
    np.testing.assert_array_equal(counts, expected.loc[names, calls])


def test_there_are_none_without_expression(tmp_path):
    content = content_of(tmp_path, annotated_sample(0, 40))  # its expression was in .raw, which is not there
    assert content.clusters is None


def test_the_map_can_be_that_of_the_file(sample, tmp_path):
    own = sample.copy()
    own.obsm["X_umap"] = np.random.default_rng(0).normal(size=(120, 2))
    content = content_of(tmp_path, own)
    np.testing.assert_allclose(content.drawn.layout.xy, own.obsm["X_umap"], rtol=1e-5)
    assert content.drawn.layout.source == "The UMAP of the file (X_umap)"
    content = content_of(tmp_path, own, layout="probabilities")
    assert "probabilities" in content.drawn.layout.source
    assert content.clusters is None  # clusters of probabilities would agree with the calls by construction
