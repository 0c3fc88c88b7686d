"""Normalisation and alignment to a model against the plain formula, for any block of cells."""

import math

import numpy as np
import pytest
from scipy import sparse
from support.normalised import findings_of, plain, split_in_two

from scperformer.base.errors import InputError
from scperformer.cells import align_rows, detect_expression, gene_table, normalise, plan_alignment, stored_expression

# The values are float32 (relative precision 6e-8), and so is scanpy's division by the total.
TOLERANCE = {"rtol": 1e-6, "atol": 0}


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


# alignment to a model


KINDS = {
    "counts": lambda x: x,
    "linear": lambda x: sparse.csr_matrix(x * 0.25),
    "log1p": lambda x: sparse.csr_matrix(plain(x), dtype=np.float32),
    "log2": lambda x: sparse.csr_matrix(plain(x, 1e6) / math.log(2), dtype=np.float32),
}


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
    x = stored_expression(adata, findings)[0].matrix
    whole = align_rows(x, plan)
    for size in (1, 7, 50):
        blocks = [align_rows(x[start : start + size], plan) for start in range(0, 120, size)]
        joined = sparse.vstack(blocks, format="csr")
        for part in ("data", "indices", "indptr"):
            np.testing.assert_array_equal(getattr(joined, part), getattr(whole, part))
        dense = align_rows(x[:size].toarray(), plan)
        np.testing.assert_array_equal(dense.toarray(), whole[:size].toarray())
