"""Normalisation against the plain formula; filters and alignment against loops."""

import logging
import math

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from scperformer.config.groups import DataConfig
from scperformer.config.steps import PreprocessConfig
from scperformer.dataset.preprocess import prepare_reference, run_preprocess
from scperformer.errors import InputError
from scperformer.expression.alignment import align_rows, normalise, plan_alignment
from scperformer.expression.detect import detect_expression, gene_table, stored_expression
from scperformer.files.on_disk import PREPARED

# The values are float32 (relative precision 6e-8), and so is scanpy's division by the total.
TOLERANCE = {"rtol": 1e-6, "atol": 0}


def plain(counts, target_sum=1e4):
    """log1p(target_sum * count / total) in float64, dense; empty cells stay zero."""
    dense = np.asarray(counts.todense() if sparse.issparse(counts) else counts, dtype=np.float64)
    return np.log1p(target_sum * dense / np.maximum(dense.sum(1, keepdims=True), 1e-300))


def findings_of(x, **options):
    return detect_expression(ad.AnnData(x), **options)


# normalise


@pytest.mark.parametrize("target_sum", [1e4, 1e6, 123.0])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: x,
        lambda x: x.tocsc(),
        lambda x: x.astype(np.int32),
        lambda x: x.toarray(),
        lambda x: x.toarray() * 0.37,
    ],
    ids=["csr", "csc", "int32", "dense", "linear"],
)
def test_counts_are_normalised_as_the_formula_says(counts_adata, make, target_sum):
    counts = counts_adata.X.tolil()
    counts[5] = 0
    x = make(counts.tocsr())
    before = x.copy()
    result = normalise(x, findings_of(x), target_sum)
    assert (result.format, result.dtype, result.has_canonical_format) == ("csr", np.float32, True)
    np.testing.assert_allclose(result.toarray(), plain(x, target_sum), **TOLERANCE)
    assert result[5].nnz == 0
    assert (abs(x - before)).max() == 0  # the user's matrix is as it was


@pytest.mark.parametrize(
    ("base", "total"), [(2.0, 1e4), (10.0, 1e4), (math.e, 1e6), (2.0, 2345.0)], ids=["2", "10", "e-1e6", "2-2345"]
)
def test_other_logarithms_are_converted(counts_adata, base, total):
    x = sparse.csr_matrix(plain(counts_adata.X, total) / math.log(base))
    result = normalise(x, findings_of(x), 1e4)
    np.testing.assert_allclose(result.toarray(), plain(counts_adata.X), rtol=3e-6)  # exp enlarges float32's error


def test_values_as_wanted_stay_bit_for_bit(counts_adata, pbmc):
    x = sparse.csr_matrix(plain(counts_adata.X), dtype=np.float32)
    np.testing.assert_array_equal(normalise(x, findings_of(x), 1e4).toarray(), x.toarray())
    np.testing.assert_array_equal(normalise(pbmc.raw.X, detect_expression(pbmc), 1e4).toarray(), pbmc.raw.X.toarray())


def test_unknown_total_is_taken_as_ten_thousand(pbmc):
    expected = np.log1p(np.expm1(pbmc.raw.X.toarray().astype(np.float64)) * 100)
    np.testing.assert_allclose(normalise(pbmc.raw.X, detect_expression(pbmc), 1e6).toarray(), expected, rtol=1e-6)
    told = normalise(pbmc.raw.X, detect_expression(pbmc, input_total=1e5), 1e4).toarray()
    expected = np.log1p(np.expm1(pbmc.raw.X.toarray().astype(np.float64)) / 10)
    np.testing.assert_allclose(told, expected, rtol=1e-6)


def test_stored_zeros_are_removed_and_indices_sorted():
    x = sparse.csr_matrix((np.array([2.0, 0.0, 5.0]), np.array([3, 1, 0]), np.array([0, 3])), shape=(1, 4))
    result = normalise(x, findings_of(x), 1e4)
    assert list(result.indices) == [0, 3]


# references


def test_reference_is_filtered_and_normalised_over_all_genes(counts_adata):
    dense = counts_adata.X.toarray()
    dense[7, 20:] = 0  # too few genes
    dense[:, 199] = 0
    dense[[7, 8], 199] = 3  # in two cells, one of which is dropped
    dense[:3, 198] = np.maximum(dense[:3, 198], 1)
    dense[3:, 198] = 0  # in exactly three cells
    adata = counts_adata.copy()
    adata.X = sparse.csr_matrix(dense)
    result = prepare_reference(adata, DataConfig(min_genes=50, min_cells=3))

    cells = [i for i in range(120) if (dense[i] > 0).sum() >= 50]
    genes = [j for j in range(200) if (dense[cells, j] > 0).sum() >= 3]
    assert 7 not in cells
    assert 198 in genes
    assert 199 not in genes
    assert list(result.obs_names) == [f"cell{i}" for i in cells]
    assert list(result.var_names) == [f"GENE{j}" for j in genes]
    assert list(result.obs["cell_type"]) == list(adata.obs["cell_type"].iloc[cells])
    np.testing.assert_allclose(result.X.toarray(), plain(dense)[np.ix_(cells, genes)], **TOLERANCE)
    assert result.raw is None
    assert not result.layers
    mark = result.uns[PREPARED]
    assert (mark["cells"], mark["cells_dropped"]) == (len(cells), 120 - len(cells))
    assert (mark["genes"], mark["genes_dropped"]) == (len(genes), 200 - len(genes))
    assert (mark["target_sum"], mark["source"], mark["kind"]) == (1e4, "X", "counts")
    np.testing.assert_array_equal(adata.X.toarray(), dense)


def test_reference_from_pbmc_raw(pbmc):
    result = prepare_reference(pbmc, DataConfig(min_genes=0, min_cells=0))
    np.testing.assert_array_equal(result.X.toarray(), pbmc.raw.X.toarray())
    assert list(result.var_names) == list(pbmc.raw.var_names)
    assert list(result.obs) == list(pbmc.obs)


def test_filters_keep_the_users_columns_of_the_same_name(counts_adata):
    counts_adata.obs["n_genes"] = "mine"
    assert set(prepare_reference(counts_adata, DataConfig()).obs["n_genes"]) == {"mine"}


def test_prepared_reference_is_returned_as_it_is(counts_adata, write):
    prepared = prepare_reference(counts_adata, DataConfig())
    again = ad.read_h5ad(write(prepared))
    assert prepare_reference(again, DataConfig(min_genes=10**6)) is again
    other = prepare_reference(again, DataConfig(target_sum=1e6))
    np.testing.assert_allclose(
        other.X.toarray(), np.log1p(np.expm1(prepared.X.toarray().astype(float)) * 100), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (DataConfig(min_genes=1000), r"data.min_genes=1000 drops all 120 cells of r.h5ad"),
        (DataConfig(min_cells=121), r"data.min_cells=121 drops all 200 genes of r.h5ad"),
    ],
    ids=["cells", "genes"],
)
def test_filters_that_leave_nothing(counts_adata, data, match):
    with pytest.raises(InputError, match=match):
        prepare_reference(counts_adata, data, path="r.h5ad")


# alignment to a model


def test_alignment_normalises_over_all_genes_of_the_file(counts_adata):
    model_genes = ["GENE150", "ABSENT", "GENE3"]
    options = {"target_sum": 1e4, "path": "q.h5ad", "importance": np.array([1.0, 1.0, 2.0])}
    plan = plan_alignment(counts_adata.var, detect_expression(counts_adata), model_genes, min_overlap=0.75, **options)
    x, shared = align_rows(counts_adata.X, plan), plan.overlap
    np.testing.assert_allclose(x.toarray()[:, [0, 2]], plain(counts_adata.X)[:, [150, 3]], **TOLERANCE)
    assert x[:, 1].nnz == 0
    assert (shared.num_shared, shared.absent, shared.num_dropped) == (2, ["ABSENT"], 198)
    assert (shared.share_of_model, shared.informative_share) == (2 / 3, 0.75)
    with pytest.raises(InputError, match=r"2 of 3 model genes \(66.7 %\) found in q.h5ad, with 75.0 % of the model's"):
        plan_alignment(counts_adata.var, detect_expression(counts_adata), model_genes, min_overlap=0.8, **options)


def split_in_two(adata):
    """The same cells with the counts of each gene spread over two columns of its name."""
    dense = adata.X.toarray()
    half = np.floor(dense / 2)
    names = [*adata.var_names, *adata.var_names]
    return ad.AnnData(sparse.csr_matrix(np.hstack([half, dense - half])), adata.obs, pd.DataFrame(index=names))


KINDS = {
    "counts": lambda x: x,
    "linear": lambda x: sparse.csr_matrix(x * 0.25),
    "log1p": lambda x: sparse.csr_matrix(plain(x), dtype=np.float32),
    "log2": lambda x: sparse.csr_matrix(plain(x, 1e6) / math.log(2), dtype=np.float32),
}


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_one_gene_are_added_up_as_counts(counts_adata, kind):
    model_genes = [f"GENE{i}" for i in range(0, 260, 2)]
    options = {"target_sum": 1e4, "min_overlap": 0.0}
    twice = split_in_two(counts_adata)
    for adata in (counts_adata, twice):
        adata.X = KINDS[kind](adata.X)
    plan = plan_alignment(twice.var, detect_expression(twice), model_genes, **options)
    assert plan.overlap.notes[0].startswith("200 gene names occur more than once ('GENE0', 'GENE1', 'GENE2')")
    once = align_rows(
        counts_adata.X, plan_alignment(counts_adata.var, detect_expression(counts_adata), model_genes, **options)
    )
    summed = align_rows(twice.X, plan)
    if kind == "counts":
        np.testing.assert_array_equal(summed.toarray(), once.toarray())
    np.testing.assert_allclose(summed.toarray(), once.toarray(), rtol=2e-6)  # logarithms of float32 parts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("repeated", [False, True], ids=["unique", "repeated"])
def test_a_row_does_not_depend_on_its_block(counts_adata, kind, repeated):
    adata = split_in_two(counts_adata) if repeated else counts_adata
    adata.X = KINDS[kind](adata.X)
    findings = detect_expression(adata)
    plan = plan_alignment(
        gene_table(adata, "X"), findings, list(counts_adata.var_names[::3]), target_sum=1e4, min_overlap=0.5
    )
    x, _ = stored_expression(adata, findings)
    whole = align_rows(x, plan)
    for size in (1, 7, 50):
        blocks = [align_rows(x[start : start + size], plan) for start in range(0, 120, size)]
        joined = sparse.vstack(blocks, format="csr")
        for part in ("data", "indices", "indptr"):
            np.testing.assert_array_equal(getattr(joined, part), getattr(whole, part))
        dense = align_rows(x[:size].toarray(), plan)
        np.testing.assert_array_equal(dense.toarray(), whole[:size].toarray())


@pytest.mark.parametrize("kind", ["counts", "log1p"])
def test_a_reference_has_the_sum_of_repeated_genes(counts_adata, kind):
    twice = split_in_two(counts_adata)
    for adata in (counts_adata, twice):
        adata.X = KINDS[kind](adata.X)
    expected, result = (prepare_reference(adata, DataConfig(min_genes=50)) for adata in (counts_adata, twice))
    assert list(result.var_names) == list(expected.var_names)
    np.testing.assert_allclose(result.X.toarray(), expected.X.toarray(), rtol=2e-6)
    assert any("occur more than once" in note for note in result.uns[PREPARED]["notes"])


def test_several_genes_without_a_name_are_refused(counts_adata):
    counts_adata.var_names = ["", "nan", *counts_adata.var_names[2:]]
    with pytest.raises(InputError, match=r"2 genes of X of r.h5ad have an empty name or NaN"):
        prepare_reference(counts_adata, DataConfig(), path="r.h5ad")


# the step


def test_step_writes_beside_the_input(counts_adata, write, caplog):
    path = write(counts_adata, "a.b.h5ad")
    with caplog.at_level(logging.INFO):
        output = run_preprocess(PreprocessConfig(inputs=[str(path)]))
    assert output == path.with_name("a.b.prepared.h5ad")
    assert "kept 120 cells (0 dropped) and 200 genes (0 dropped), 10000 counts per cell" in caplog.text
    result = ad.read_h5ad(output)
    np.testing.assert_allclose(result.X.toarray(), plain(counts_adata.X), **TOLERANCE)
    assert detect_expression(result).notes == ["X was prepared by scperformer (10000 counts per cell)"]
    with pytest.raises(InputError, match="exists"):
        run_preprocess(PreprocessConfig(inputs=[str(path)]))
    run_preprocess(PreprocessConfig(inputs=[str(path)], overwrite=True))


def test_step_aligns_to_a_model(counts_adata, write, tmp_path, monkeypatch):
    class Model:
        name, config, importance = "small", {"target_sum": 1e3}, None
        genes = ["GENE9", "ABSENT", "GENE1"]  # noqa: RUF012

    monkeypatch.setattr("scperformer.model.load_bundle", lambda path: Model)
    counts_adata.X = sparse.diags([0.0] + [1.0] * 119).tocsr() @ counts_adata.X  # empty cells are kept
    path, output = write(counts_adata), tmp_path / "out.h5ad"
    run_preprocess(PreprocessConfig(inputs=[str(path)], output=str(output), model_path="model"))
    result = ad.read_h5ad(output)
    assert list(result.var_names) == Model.genes
    assert list(result.obs_names) == list(counts_adata.obs_names)
    np.testing.assert_allclose(result.X.toarray()[:, [0, 2]], plain(counts_adata.X, 1e3)[:, [9, 1]], **TOLERANCE)
    assert result.uns[PREPARED]["genes_absent"] == 1
    assert detect_expression(result).total == 1e3


def test_step_leaves_nothing_behind_on_bad_input(counts_adata, write, tmp_path):
    counts_adata.X = counts_adata.X.toarray() - 1
    path = write(counts_adata)
    with pytest.raises(InputError, match="negative values"):
        run_preprocess(PreprocessConfig(inputs=[str(path)]))
    assert [file.name for file in tmp_path.iterdir()] == ["sample.h5ad"]


@pytest.mark.parametrize("place", ["X", "layers/counts", "raw"])
def test_half_precision_is_no_obstacle(counts_adata, place):
    x = counts_adata.X.toarray().astype(np.float16)
    adata = ad.AnnData(x if place == "X" else np.full(x.shape, -1.0), obs=counts_adata.obs, var=counts_adata.var)
    if place == "raw":
        adata.raw = ad.AnnData(x, obs=adata.obs, var=adata.var)
    elif place != "X":
        adata.layers["counts"] = x
    expected = prepare_reference(counts_adata, DataConfig())
    np.testing.assert_array_equal(prepare_reference(adata, DataConfig()).X.toarray(), expected.X.toarray())
