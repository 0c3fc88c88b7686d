"""Alignment to the genes of a model: columns are moved and summed; cells are normalised over all genes of the file."""

import math

import numpy as np
import pytest
from scipy import sparse
from support.normalised import plain, plan_of, split_in_two

from scperformer.cells.alignment import align, align_rows, merge_genes
from scperformer.cells.detect import detect_expression, gene_table, stored_expression
from scperformer.io.gene_names import first_of_each


@pytest.mark.parametrize(
    "make", [sparse.csr_matrix, sparse.csc_matrix, sparse.csr_array, np.asarray], ids=["csr", "csc", "array", "dense"]
)
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_align_and_sums_equal_a_loop(make, dtype):
    rng = np.random.default_rng(1)
    dense = rng.poisson(0.7, (23, 40)).astype(dtype) * 100  # the sum of two overflows a byte
    target = np.where(rng.random(40) < 0.7, rng.permutation(60)[:40] - 23, -1)
    target[target < 0] = -1
    expected = np.zeros((23, 37))
    for column, place in enumerate(target):
        if place >= 0:
            expected[:, place] = dense[:, column]
    x = make(dense)
    aligned = align(x, target, 37)
    assert (aligned.format, aligned.dtype, aligned.has_canonical_format) == ("csr", np.float32, True)
    np.testing.assert_array_equal(aligned.toarray(), expected)

    first = first_of_each(rng.integers(0, 20, 40))
    summed = np.zeros((23, 40))
    for column, place in enumerate(first):
        summed[:, place] += dense[:, column]
    np.testing.assert_array_equal(merge_genes(x, first, None).toarray(), summed)
    np.testing.assert_array_equal(x.toarray() if sparse.issparse(x) else x, dense)  # the user's matrix is unchanged


VALUES = {
    "counts": lambda x: x,
    "linear": lambda x: sparse.csr_matrix(x * 0.25),
    "log1p": lambda x: sparse.csr_matrix(plain(x), dtype=np.float32),
    "log2": lambda x: sparse.csr_matrix(plain(x, 1e6) / math.log(2), dtype=np.float32),
}


@pytest.mark.parametrize("kind", VALUES)
def test_columns_of_one_gene_are_added_up_as_counts(counts_adata, kind):
    model_genes = [f"GENE{i}" for i in range(0, 260, 2)]
    twice = split_in_two(counts_adata)
    for adata in (counts_adata, twice):
        adata.X = VALUES[kind](adata.X)
    plan = plan_of(twice.var, detect_expression(twice), model_genes)
    assert plan.overlap.notes[0].startswith("200 gene names occur more than once ('GENE0', 'GENE1', 'GENE2')")
    once = align_rows(counts_adata.X, plan_of(counts_adata.var, detect_expression(counts_adata), model_genes))
    summed = align_rows(twice.X, plan)
    if kind == "counts":
        np.testing.assert_array_equal(summed.toarray(), once.toarray())
    np.testing.assert_allclose(summed.toarray(), once.toarray(), rtol=2e-6)  # logarithms of float32 parts


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("repeated", [False, True], ids=["unique", "repeated"])
def test_a_row_does_not_depend_on_its_block(counts_adata, kind, repeated):
    adata = split_in_two(counts_adata) if repeated else counts_adata
    adata.X = VALUES[kind](adata.X)
    findings = detect_expression(adata)
    plan = plan_of(gene_table(adata, findings), findings, list(counts_adata.var_names[::3]))
    x = stored_expression(adata, findings)[0].matrix
    whole = align_rows(x, plan)
    for size in (1, 7, 50):
        blocks = [align_rows(x[start : start + size], plan) for start in range(0, 120, size)]
        joined = sparse.vstack(blocks, format="csr")
        for part in ("data", "indices", "indptr"):
            np.testing.assert_array_equal(getattr(joined, part), getattr(whole, part))
        dense = align_rows(x[:size].toarray(), plan)
        np.testing.assert_array_equal(dense.toarray(), whole[:size].toarray())
