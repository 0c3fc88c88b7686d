"""Make `scperformer/io/gene_table.tsv.gz`: the names of human genes and their mouse orthologs (see data/README.md).

Lines that begin with # name the sources with their SHA-256. The same sources give the same bytes.
"""

import argparse
import csv
import gzip
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

COLUMNS = ("ensembl_id", "symbol", "hgnc_symbol", "previous_symbols", "aliases", "mouse_symbol")


def read(path: Path) -> bytes:
    """Return the content of a file, unpacked if it is gzipped."""
    content = path.read_bytes()
    return gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content


def pairs(content: bytes) -> list[tuple[str, str]]:
    """Return the two fields of each line of a CSV file without header."""
    rows = [line.split(",") for line in content.decode("utf-8").splitlines()]
    return [(first.strip(), second.strip()) for first, second in rows]


def one_to_one(found: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the pairs whose names occur in no other pair; a pair may be given several times."""
    distinct = {(left, right) for left, right in found if left and right}
    num_left, num_right = (
        Counter(left for left, _ in distinct),
        Counter(right for _, right in distinct),
    )
    return {
        left: right for left, right in sorted(distinct) if num_left[left] == num_right[right] == 1
    }


def make_table(hgnc: bytes, gencode: bytes, orthologs: bytes) -> tuple[list[tuple[str, ...]], str]:
    """Join the three sources.

    Parameters
    ----------
    hgnc
        HGNC's complete set, tab separated.
    gencode, orthologs
        CSV without header: Ensembl id and symbol; human symbol and mouse symbol.

    Returns
    -------
    Rows of `COLUMNS`, sorted, and the day of HGNC's last change. `symbol` is GENCODE's; a gene without Ensembl id has
    one only for its ortholog.
    """
    symbols = {
        identifier: symbol
        for identifier, symbol in pairs(gencode)
        if symbol and symbol != identifier
    }
    mice = one_to_one(pairs(orthologs))
    complete_set = csv.DictReader(hgnc.decode("utf-8").splitlines(), delimiter="\t")
    approved = [row for row in complete_set if row["status"] == "Approved"]
    rows = []
    for row in approved:
        symbol = symbols.get(row["ensembl_gene_id"], "")
        names = (row["symbol"], row["prev_symbol"], row["alias_symbol"])
        rows.append((row["ensembl_gene_id"], symbol, *names, mice.pop(symbol, "")))
    for identifier in sorted(symbols.keys() - {row["ensembl_gene_id"] for row in approved}):
        symbol = symbols[identifier]
        rows.append((identifier, symbol, "", "", "", mice.pop(symbol, "")))
    rows += [("", human, "", "", "", mouse) for human, mouse in mice.items()]
    return sorted(rows), max(row["date_modified"] for row in approved)


def main(argv: Sequence[str] | None = None) -> None:
    """Write the table, and print the checksum that tests/io/test_gene_table.py knows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "hgnc", type=Path, help="HGNC's complete set (hgnc_complete_set.txt, may be gzipped)"
    )
    parser.add_argument(
        "gencode", type=Path, help="CSV without header: Ensembl id, symbol, of GENCODE 44"
    )
    parser.add_argument(
        "orthologs",
        type=Path,
        help="CSV without header: human symbol, mouse symbol, of Ensembl 105",
    )
    parser.add_argument("output", type=Path, help="the table to write, .tsv.gz")
    options = parser.parse_args(argv)

    contents = [read(path) for path in (options.hgnc, options.gencode, options.orthologs)]
    rows, date = make_table(*contents)
    sources = (f"HGNC {date}", "GENCODE 44", "Ensembl 105 orthologs")
    lines = [
        f"# {source} sha256 {hashlib.sha256(content).hexdigest()}"
        for source, content in zip(sources, contents, strict=True)
    ]
    lines += ["\t".join(row) for row in (COLUMNS, *rows)]
    table = "".join(f"{line}\n" for line in lines).encode("utf-8")
    # mtime: no time of day in the file
    options.output.write_bytes(gzip.compress(table, compresslevel=9, mtime=0))
    print(f"{len(rows):,} genes, sha256 of the unpacked table {hashlib.sha256(table).hexdigest()}")


if __name__ == "__main__":
    main()
