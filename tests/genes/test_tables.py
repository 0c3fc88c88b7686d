"""Tables of gene names in an installed package, read without importing it."""

import subprocess
import sys

import pytest

from scperformer.errors import InputError
from scperformer.genes import tables as genetables


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that would fail to be imported, with tables of a test's own: `package(name, text)`."""
    folder = tmp_path / "celltypist" / "data" / "samples"
    folder.mkdir(parents=True)
    (tmp_path / "celltypist" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for table in (genetables.gencode, genetables.orthologs):
        table.cache_clear()
    yield lambda name, text: (folder / name).write_text(text)
    for table in (genetables.gencode, genetables.orthologs):
        table.cache_clear()


def test_symbols_of_several_genes_have_no_id(package):
    package(genetables.GENCODE, "ENSG1,A\nENSG2,Y_RNA\nENSG3,Y_RNA\nENSG4,ENSG4\nENSG5,C1orf5\n")
    table = genetables.gencode()
    assert table.symbols == {"ENSG1": "A", "ENSG2": "Y_RNA", "ENSG3": "Y_RNA", "ENSG5": "C1orf5"}
    assert table.ids == {"A": "ENSG1", "C1orf5": "ENSG5"}
    assert table.folded == {"A": "ENSG1", "C1ORF5": "ENSG5"}


def test_orthologs_have_one_partner_on_both_sides(package):
    package(genetables.ORTHOLOGS, "A,a1\nA,a1\nB,b1\nB,b2\nC,c1\nD,c1\nE,\nF,f1\n")
    assert genetables.orthologs() == {"a1": "A", "f1": "F"}


def test_absent_tables(package):
    assert genetables.gencode() is None
    with pytest.raises(InputError, match=r"no table of orthologs .*: pip install celltypist"):
        genetables.orthologs()


def test_tables_that_are_none(package):
    package(genetables.GENCODE, "ENSG1,A,B\n")
    with pytest.raises(InputError, match=r"GENCODEv44_Gene_id2name\.csv of celltypist has rows that are not two names"):
        genetables.gencode()


def test_the_installed_tables_know_what_a_textbook_knows():
    table, mouse = genetables.gencode(), genetables.orthologs()
    assert (table.ids["CD3D"], table.symbols["ENSG00000111640"]) == ("ENSG00000167286", "GAPDH")
    assert (mouse["Cd3d"], mouse["mt-Nd1"]) == ("CD3D", "MT-ND1")
    assert "Y_RNA" not in table.ids
    assert len(table.ids) > 35_000
    assert 14_000 < len(mouse) < 20_000


def test_the_package_is_not_imported():
    code = "import sys; from scperformer.genetables import gencode; gencode(); print('celltypist' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
