"""Gene names: kinds of id, compound names, species, repeated and missing names."""

import pytest

from scperformer.base.errors import InputError
from scperformer.io.gene_names import guess_species, id_kind, ids_and_symbols, require_named


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["CD3D", "MS4A1", "AL627309.1", "5_8S_rRNA"], "symbol"),
        (["ENSG00000187634", "ENSG00000188976"], "ensembl"),
        (["ENSG00000187634.12", "ENSG00000188976.11"], "ensembl"),
        (["ENSG00000182162.11_PAR_Y", "ENSG00000188976.11"], "ensembl"),
        (["ENSG00000187634", "ENSG00000188976", "ERCC-00002"], "ensembl"),
        (["0", "1", "2"], "unknown"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value)[:20] or "none",
)
def test_id_kind(names, kind):
    assert id_kind(names) == kind


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("CD3D", (None, "CD3D")),
        ("ensg00000167286.9", ("ENSG00000167286", None)),
        ("ENSG00000182162.11_PAR_Y", ("ENSG00000182162", None)),
        ("ENSG00000167286_CD3D", ("ENSG00000167286", "CD3D")),
        ("Y_RNA_ENSG00000199347", ("ENSG00000199347", "Y_RNA")),
        ("CD3D (ENSG00000167286)", ("ENSG00000167286", "CD3D")),
        ("ENSA", (None, "ENSA")),
        ("", (None, None)),
    ],
)
def test_the_id_and_the_symbol_in_a_name(name, expected):
    ids, symbols = ids_and_symbols([name, "ENSG00000111640"])
    assert (ids[0], symbols[0]) == expected


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
    assert guess_species(names) == species


def test_several_genes_without_a_name_are_refused():
    require_named(["A", "A", ""], "X")
    with pytest.raises(InputError, match="3 genes of X have an empty name or NaN"):
        require_named(["A", "", "NaN", "None"], "X")
