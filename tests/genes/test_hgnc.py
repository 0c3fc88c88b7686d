"""HGNC's table: fetched from a file, checked, written whole, verified when it is read."""

import gzip
import json
import re

import pytest

from scperformer.cli import main
from scperformer.errors import InputError
from scperformer.genes import hgnc

HEADER = ("hgnc_id", *hgnc.COLUMNS)
ROWS = [
    ("HGNC:1", "SEPTIN7", "Approved", "CDC10", "SEPT7", "ENSG00000122545"),
    ("HGNC:2", "KMT2A", "Approved", '"TRX1|HRX"', "MLL", "ENSG00000118058"),
    ("HGNC:3", "OTHER", "Approved", "HRX", "KMT2A", "ENSG00000000003"),  # fits two genes; current symbol of another
    ("HGNC:4", "NOID", "Approved", "", "", ""),
    ("HGNC:5", "OLD", "Entry Withdrawn", "GONE", "", ""),
]


def as_table(rows, header=HEADER) -> str:
    return "".join("\t".join(row) + "\n" for row in [header, *rows])


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "hgnc_complete_set.txt"
    path.write_text(as_table(ROWS))
    return path


@pytest.fixture
def folder(source, tmp_path):
    assert hgnc.update(str(source), tmp_path / "hgnc", min_rows=4) == 4
    return tmp_path / "hgnc"


def test_the_table(folder):
    table = hgnc.read_hgnc(folder)
    assert table.ids == {
        "SEPTIN7": "ENSG00000122545",
        "KMT2A": "ENSG00000118058",
        "OTHER": "ENSG00000000003",
        "NOID": "",
    }
    assert table.symbols == {identifier: symbol for symbol, identifier in table.ids.items() if identifier}
    assert table.former == {"CDC10": "SEPTIN7", "SEPT7": "SEPTIN7", "TRX1": "KMT2A", "MLL": "KMT2A"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", table.date)


def test_never_fetched(tmp_path):
    assert hgnc.read_hgnc(tmp_path) is None


def damage_table(folder):
    (folder / hgnc.TABLE).write_text((folder / hgnc.TABLE).read_text().replace("SEPT7", "SEPT8"))


DAMAGES = {
    "changed": (damage_table, "changed since it was written"),
    "cut off": (lambda folder: (folder / hgnc.TABLE).write_bytes(b"symbol"), "changed since it was written"),
    "missing": (lambda folder: (folder / hgnc.TABLE).unlink(), "missing or unreadable"),
    "no JSON": (lambda folder: (folder / hgnc.INFO).write_text("{"), "missing or unreadable"),
    "other JSON": (lambda folder: (folder / hgnc.INFO).write_text("[]"), "missing or unreadable"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_cache_is_an_error_that_says_what_to_do(case, folder):
    damage, words = DAMAGES[case]
    damage(folder)
    with pytest.raises(InputError, match=rf"damaged table of gene names in .*{words}.*run 'scperformer genes update'"):
        hgnc.read_hgnc(folder)


@pytest.mark.parametrize("form", ["path", "address", "gzip"])
def test_sources(form, source, tmp_path):
    packed = tmp_path / "packed.gz"
    packed.write_bytes(gzip.compress(source.read_bytes()))
    url = {"path": str(source), "address": source.as_uri(), "gzip": str(packed)}[form]
    assert hgnc.update(url, tmp_path / "out", offline=True, min_rows=4) == 4


BAD = {
    "few": (as_table(ROWS).encode(), "4 approved genes"),
    "columns": (as_table([], HEADER[:3]).encode(), "no column alias_symbol, prev_symbol, ensembl_gene_id in"),
    "page": (b"<html>not found</html>\n", "no column symbol"),
    "binary": (b"\xff\xfe\x00", "bytes that are no text"),
    "packed": (b"\x1f\x8bnothing", "nothing to be had"),
    "cut off": (as_table(ROWS).encode()[:-20], "is cut off"),
    "id": (as_table([(*row[:5], "ENSMUSG00000000001") for row in ROWS] * 11_000).encode(), "an odd row"),
    "twice": (as_table(ROWS * 10_001).encode(), "repeated symbols"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_not_the_complete_set_is_refused_and_leaves_the_old_one(case, folder, tmp_path):
    content, words = BAD[case]
    path = tmp_path / "bad"
    path.write_bytes(content)
    with pytest.raises(InputError, match=words):
        hgnc.update(str(path), folder)
    assert len(hgnc.read_hgnc(folder).ids) == 4
    assert not list(tmp_path.glob(".scperformer*"))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://nowhere.invalid/hgnc.txt", "offline=true and url=https.*expected no use of the network"),
        ("HTTP://nowhere.invalid/hgnc.txt", "offline=true and url="),
        ("ftp://nowhere.invalid/hgnc.txt", "expected a file, or an address"),
        ("none.txt", r"nothing to be had from none\.txt \(No such file"),
    ],
)
def test_offline_and_other_addresses(url, words, tmp_path):
    with pytest.raises(InputError, match=words):
        hgnc.update(url, tmp_path / "out", offline=True)
    assert list(tmp_path.iterdir()) == []


def test_no_network_is_one_line(monkeypatch, tmp_path):
    def fail(url, timeout):
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr("urllib.request.urlopen", fail)
    with pytest.raises(InputError, match=r"nothing to be had from https://.*Network is unreachable.*url=FILE"):
        hgnc.update("https://nowhere.invalid/hgnc.txt", tmp_path / "out")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SCPERFORMER_CACHE": "own", "XDG_CACHE_HOME": "xdg"}, "own/hgnc"),
        ({"XDG_CACHE_HOME": "xdg"}, "xdg/scperformer/hgnc"),
        ({"HOME": "me"}, "me/.cache/scperformer/hgnc"),
    ],
)
def test_where_the_cache_is(environment, expected, monkeypatch):
    for name in ("SCPERFORMER_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert str(hgnc.cache_folder()) == expected


def test_the_step_on_the_command_line(command, tmp_path, monkeypatch):
    monkeypatch.setenv("SCPERFORMER_CACHE", str(tmp_path / "cache"))
    rows = [(f"HGNC:{i}", f"S{i}", "Approved", "", f"OLD{i}", f"ENSG{i:011d}") for i in range(hgnc.MIN_ROWS)]
    (tmp_path / "a file.txt").write_text(as_table(rows))
    ran = command("genes", "update", "url=a file.txt", "--offline")
    assert ran.code == 0, ran.err
    assert "40,000 human genes with their previous symbols and aliases" in ran.err
    info = json.loads((tmp_path / "cache" / "hgnc" / "hgnc.json").read_text())
    assert (info["num_genes"], info["url"]) == (40_000, "a file.txt")
    assert hgnc.read_hgnc().former["OLD7"] == "S7"
    assert command("genes", "update", "url=a file.txt", "output=copy").code == 0  # and again, elsewhere
    assert (tmp_path / "copy" / "hgnc.tsv").is_file()
    ran = command("genes", "update", "--offline")
    assert ran.code == 2
    assert ran.err.splitlines()[-1].startswith("error: offline=true and url=https://")
    assert main(["genes"]) == 2
