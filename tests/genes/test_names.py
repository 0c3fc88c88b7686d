"""Gene names: kinds, parts, species; columns moved and added up."""

import numpy as np
import pytest
from scipy import sparse

from scperformer.errors import InputError
from scperformer.genes import names as genes


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


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("CD3D", (None, "CD3D")),
        ("ENSG00000167286", ("ENSG00000167286", None)),
        ("ensg00000167286.9", ("ENSG00000167286", None)),
        ("ENSG00000182162.11_PAR_Y", ("ENSG00000182162", None)),
        ("ENSG00000167286_CD3D", ("ENSG00000167286", "CD3D")),
        ("ENSG00000204287.14_HLA-DRA", ("ENSG00000204287", "HLA-DRA")),
        ("HLA-DRA_ENSG00000204287.14", ("ENSG00000204287", "HLA-DRA")),
        ("Y_RNA_ENSG00000199347", ("ENSG00000199347", "Y_RNA")),
        ("CD3D (ENSG00000167286)", ("ENSG00000167286", "CD3D")),
        ("CD3D|ENSG00000167286", ("ENSG00000167286", "CD3D")),
        ("ENSA", (None, "ENSA")),
        ("", (None, None)),
    ],
)
def test_parts(name, parts):
    assert genes.parts(name) == parts


SPECIES = {
    "human symbols": (["GAPDH", "MT-ND1", "C1orf112", "5S_rRNA", "HLA-DRA"], "human"),
    "mouse symbols": (["Gapdh", "mt-Nd1", "1700001C19Rik", "Gm1992", "H2-K1"], "mouse"),
    "lower case": (["gapdh", "mt-nd1", "c1orf112", "hla-dra"], "unknown"),
    "human ids": (["ENSG00000187634", "ENSG00000188976.2", "ERCC-1"], "human"),
    "mouse ids": (["ENSMUSG00000051951", "ENSMUSG00000089699_Xkr4"], "mouse"),
    "rat ids": (["ENSRNOG00000061316", "ENSRNOG00000029897"], "other"),
    "numbers": (["1", "2"], "unknown"),
    "none": ([], "unknown"),
}


@pytest.mark.parametrize("case", SPECIES)
def test_species(case):
    names, species = SPECIES[case]
    assert genes.guess_species(names) == species


def test_lists_that_define_genes_are_unique():
    genes.require_unique(["A", "B"], "X")
    with pytest.raises(InputError, match=r"1 gene names occur more than once in X of a.h5ad \(e.g. 'B'\)"):
        genes.require_unique(["A", "B", "B", "B"], "X of a.h5ad")


def test_several_genes_without_a_name():
    genes.require_named(["A", "A", ""], "X")
    with pytest.raises(InputError, match="3 genes of X have an empty name or NaN"):
        genes.require_named(["A", "", "NaN", "None"], "X")


def test_first_of_each():
    assert genes.first_of_each(["b", "a", "b", "c", "a"]).tolist() == [0, 1, 0, 3, 1]
    assert genes.first_of_each(np.array([-1, 7, 7])).tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    "make",
    [sparse.csr_matrix, sparse.csc_matrix, sparse.csr_array, np.asarray],
    ids=["csr", "csc", "array", "dense"],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint8])
def test_align_and_sums_equal_a_loop(make, dtype):
    rng = np.random.default_rng(1)
    dense = rng.poisson(0.7, (23, 40)).astype(dtype) * 100  # two of them are too much for a byte
    target = np.where(rng.random(40) < 0.7, rng.permutation(60)[:40] - 23, -1)
    target[target < 0] = -1
    expected = np.zeros((23, 37))
    for column, place in enumerate(target):
        if place >= 0:
            expected[:, place] = dense[:, column]
    x = make(dense)
    aligned = genes.align(x, target, 37)
    assert (aligned.format, aligned.dtype, aligned.has_canonical_format) == ("csr", np.float32, True)
    np.testing.assert_array_equal(aligned.toarray(), expected)

    first = genes.first_of_each(rng.integers(0, 20, 40))
    summed = np.zeros((23, 40))
    for column, place in enumerate(first):
        summed[:, place] += dense[:, column]
    np.testing.assert_array_equal(genes.sum_columns(x, first).toarray(), summed)
    np.testing.assert_array_equal(x.toarray() if sparse.issparse(x) else x, dense)  # the user's matrix is as it was


def test_align_with_nothing_shared_is_all_zero():
    aligned = genes.align(sparse.csr_matrix(np.ones((3, 2))), np.array([-1, -1]), 3)
    assert aligned.shape == (3, 3)
    assert aligned.nnz == 0
