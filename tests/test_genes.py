"""Gene names: kinds, overlap, alignment."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from scperformer import genes
from scperformer.errors import InputError


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["CD3D", "MS4A1", "AL627309.1", "5_8S_rRNA"], "symbol"),
        (["cd3d", "Ms4a1"], "symbol"),
        (["ENSG00000187634", "ENSG00000188976"], "ensembl"),
        (["ENSMUSG00000051951", "ENSMUSG00000089699"], "ensembl"),
        (["ENSG00000187634.12", "ENSG00000188976.11"], "ensembl_versioned"),
        (["ENSG00000182162.11_PAR_Y", "ENSG00000188976.11"], "ensembl_versioned"),
        (["ENSG00000187634", "ENSG00000188976", "ERCC-00002"], "ensembl"),
        (["0", "1", "2"], "unknown"),
        ([], "unknown"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value)[:20] or "none",
)
def test_id_kind(names, kind):
    assert genes.id_kind(names) == kind


def test_require_unique_names_the_repeated_genes():
    genes.require_unique(["A", "B"], "X")
    with pytest.raises(InputError, match=r"1 gene names occur more than once in X of a.h5ad \(e.g. 'B'\)"):
        genes.require_unique(["A", "B", "B", "B"], "X of a.h5ad")


def test_overlap_counts_and_keeps_the_order_of_each_side():
    found = genes.overlap(["Z", "B", "Y", "A"], ["A", "C", "B", "D"])
    assert (found.num_file, found.num_model, found.num_shared, found.share_of_model) == (4, 4, 2, 0.5)
    assert (found.absent, found.num_absent) == (["C", "D"], 2)
    assert (found.dropped, found.num_dropped) == (["Z", "Y"], 2)


def test_overlap_lists_twenty_and_counts_all():
    found = genes.overlap([f"F{i}" for i in range(50)], [f"M{i}" for i in range(30)])
    assert found.absent == [f"M{i}" for i in range(20)]
    assert (found.num_absent, found.num_dropped, found.share_of_model) == (30, 50, 0.0)


@pytest.mark.parametrize(
    ("file_genes", "model_genes", "match"),
    [
        (
            ["ENSG00000187634", "ENSG00000188976"],
            ["SAMD11", "NOC2L"],
            r"0 of 2 model genes \(0.0 %\) found in q.h5ad \(e.g. 'ENSG00000188976'; model has e.g. 'NOC2L'\); .*"
            "convert var_names from Ensembl ids to gene symbols",
        ),
        (["ENSG00000187634.2"], ["ENSG00000187634"], "from Ensembl ids with versions to Ensembl ids"),
        (["samd11", "noc2l"], ["SAMD11", "NOC2L"], "2 genes differ in case only"),
        (["CD3D"], ["SAMD11"], "same species"),
    ],
    ids=["ensembl", "versioned", "lowercase", "other"],
)
def test_require_overlap_shows_both_sides(file_genes, model_genes, match):
    found = genes.overlap(file_genes, model_genes)
    with pytest.raises(InputError, match=match):
        genes.require_overlap(found, 0.1, "q.h5ad", file_genes=file_genes, model_genes=model_genes)


@pytest.mark.parametrize(
    ("var", "remedy"),
    [
        ({"feature_name": ["SAMD11", "NOC2L"]}, r'take the names in var\["feature_name"\] as var_names \(gene symbols'),
        ({"n": [1, 2], "symbol": pd.Categorical(["X", "NOC2L"])}, r'take the names in var\["symbol"\]'),
        ({"feature_name": ["X", "Y"]}, "convert var_names from Ensembl ids to gene symbols"),
        ({}, "convert var_names from Ensembl ids to gene symbols"),
    ],
    ids=["names", "some names", "other names", "no columns"],
)
def test_require_overlap_names_the_column_that_helps(var, remedy):
    ours, models = ["ENSG00000187634", "ENSG00000188976"], ["SAMD11", "NOC2L"]
    with pytest.raises(InputError, match=remedy):
        genes.require_overlap(
            genes.overlap(ours, models),
            0.1,
            "q.h5ad",
            file_genes=ours,
            model_genes=models,
            var=pd.DataFrame(var, index=ours),
        )


def test_require_overlap_at_its_threshold():
    ours, models = ["A", "X"], ["A", "B", "C", "D"]
    found = genes.overlap(ours, models)
    genes.require_overlap(found, 0.25, "q.h5ad", file_genes=ours, model_genes=models)
    with pytest.raises(InputError, match=r"1 of 4 model genes \(25.0 %\).*at least 26 %"):
        genes.require_overlap(found, 0.26, "q.h5ad", file_genes=ours, model_genes=models)
    none = genes.overlap(["X"], models)
    with pytest.raises(InputError, match="at least one gene"):
        genes.require_overlap(none, 0.0, "q.h5ad", file_genes=["X"], model_genes=models)


@pytest.mark.parametrize(
    "make",
    [sparse.csr_matrix, sparse.csc_matrix, sparse.csr_array, np.asarray],
    ids=["csr", "csc", "array", "dense"],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_align_equals_a_loop(make, dtype):
    rng = np.random.default_rng(1)
    dense = rng.poisson(0.7, (23, 40)).astype(dtype)
    file_genes = [f"F{i}" for i in rng.permutation(40)]
    model_genes = [f"F{i}" for i in rng.permutation(60)][:37]

    expected = np.zeros((23, 37))
    for column, gene in enumerate(model_genes):
        if gene in file_genes:
            expected[:, column] = dense[:, file_genes.index(gene)]

    aligned = genes.align(make(dense), file_genes, model_genes)
    assert aligned.format == "csr"
    assert aligned.dtype == np.float32
    assert aligned.has_canonical_format
    np.testing.assert_array_equal(aligned.toarray(), expected)


def test_align_with_nothing_shared_is_all_zero():
    aligned = genes.align(sparse.csr_matrix(np.ones((3, 2))), ["A", "B"], ["C", "D", "E"])
    assert aligned.shape == (3, 3)
    assert aligned.nnz == 0
