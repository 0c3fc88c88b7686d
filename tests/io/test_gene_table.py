"""The table of human genes in the package, and the script that makes it."""

import gzip
import hashlib
import runpy
from pathlib import Path

import pytest

from scperformer.io.gene_table import GENE_TABLE, parse_genes

SCRIPT = Path(__file__).parents[2] / "data" / "make_gene_table.py"
# Checksum of the unpacked table, which the script prints.
SHA256 = "a6a02298ec24314be507d7d896c2eb8f2c13487c651dec9ce389a21d0de4f495"

HGNC = """\
hgnc_id\tsymbol\tstatus\talias_symbol\tprev_symbol\tensembl_gene_id\tdate_modified
HGNC:1\tSEPTIN7\tApproved\tCDC10\tSEPT7\tENSG1\t2024-01-02
HGNC:2\tKMT2A\tApproved\t"TRX1|HRX"\tMLL\tENSG2\t2024-03-01
HGNC:3\tOTHER\tApproved\tHRX\tKMT2A\tENSG3\t2023-12-31
HGNC:4\tNOID\tApproved\t\t\t\t2020-01-01
HGNC:5\tOLD\tEntry Withdrawn\tGONE\t\t\t2025-01-01
"""
GENCODE = "ENSG1,SEPTIN7\nENSG2,Kmt2a\nENSG4,ENSG4\nENSG5,Y_RNA\nENSG6,Y_RNA\nENSG7,C1orf5\n"
ORTHOLOGS = (
    "SEPTIN7,Sept7\nSEPTIN7,Sept7\nY_RNA,b1\nY_RNA,b2\nC1orf5,c1\nD,d1\nE,d1\nF,\nGONE1,g1\n"
)


@pytest.fixture
def made(tmp_path):
    """The table that the script makes of three small sources."""
    main = runpy.run_path(str(SCRIPT))["main"]
    for name, text in (("hgnc.txt", HGNC), ("gencode.csv", GENCODE), ("orthologs.csv", ORTHOLOGS)):
        (tmp_path / name).write_text(text)
    (tmp_path / "hgnc.txt.gz").write_bytes(gzip.compress((tmp_path / "hgnc.txt").read_bytes()))
    for hgnc, output in (("hgnc.txt", "a.tsv.gz"), ("hgnc.txt.gz", "b.tsv.gz")):
        main([str(tmp_path / name) for name in (hgnc, "gencode.csv", "orthologs.csv", output)])
    assert (tmp_path / "a.tsv.gz").read_bytes() == (tmp_path / "b.tsv.gz").read_bytes()
    return gzip.decompress((tmp_path / "a.tsv.gz").read_bytes()).decode()


def test_the_script_joins_its_sources_and_names_them(made):
    lines = made.splitlines()
    checksums = [hashlib.sha256(text.encode()).hexdigest() for text in (HGNC, GENCODE, ORTHOLOGS)]
    sources = ("HGNC 2024-03-01", "GENCODE 44", "Ensembl 105 orthologs")
    assert lines[:3] == [
        f"# {name} sha256 {number}" for name, number in zip(sources, checksums, strict=True)
    ]
    assert lines[3] == "ensembl_id\tsymbol\thgnc_symbol\tprevious_symbols\taliases\tmouse_symbol"
    assert lines[4:] == [
        "\t\tNOID\t\t\t",
        "\tGONE1\t\t\t\tg1",
        "ENSG1\tSEPTIN7\tSEPTIN7\tSEPT7\tCDC10\tSept7",
        "ENSG2\tKmt2a\tKMT2A\tMLL\tTRX1|HRX\t",
        "ENSG3\t\tOTHER\tKMT2A\tHRX\t",
        "ENSG5\tY_RNA\t\t\t\t",
        "ENSG6\tY_RNA\t\t\t\t",
        "ENSG7\tC1orf5\t\t\t\tc1",
    ]


def test_ambiguous_names_are_left_out(made):
    table = parse_genes(made.splitlines())
    assert table.symbols == {
        "ENSG1": "SEPTIN7",
        "ENSG2": "Kmt2a",
        "ENSG5": "Y_RNA",
        "ENSG6": "Y_RNA",
        "ENSG7": "C1orf5",
    }
    assert table.ids == {"SEPTIN7": "ENSG1", "Kmt2a": "ENSG2", "C1orf5": "ENSG7"}
    assert table.upper_ids == {"SEPTIN7": "ENSG1", "KMT2A": "ENSG2", "C1ORF5": "ENSG7"}
    assert table.current == {"ENSG1": "SEPTIN7", "ENSG2": "KMT2A", "ENSG3": "OTHER"}
    assert table.approved == {"SEPTIN7", "KMT2A", "OTHER", "NOID"}
    # HRX is an alias of two genes; KMT2A is a current symbol.
    assert table.former == {"CDC10": "SEPTIN7", "SEPT7": "SEPTIN7", "TRX1": "KMT2A", "MLL": "KMT2A"}
    assert table.orthologs == {"Sept7": "SEPTIN7", "c1": "C1orf5", "g1": "GONE1"}
    assert table.hgnc_date == "2024-03-01"


def test_the_table_has_the_checksum_that_the_script_printed():
    assert hashlib.sha256(gzip.decompress(GENE_TABLE.read_bytes())).hexdigest() == SHA256
    assert GENE_TABLE.stat().st_size < 2_000_000
