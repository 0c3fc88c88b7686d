"""Lists of genes, such as a panel's: a text file, a column of a table, or the panel of Xenium in JSON."""

import csv
import json
from collections.abc import Collection
from itertools import zip_longest
from pathlib import Path

from scperformer.base.errors import InputError
from scperformer.base.inputs import table_rows
from scperformer.io.axes import is_gene

GENE_LIST = "a gene in each line, a table with a column of genes, or the JSON of a Xenium panel"
MAX_LIST_COLUMNS = 10  # of a table of genes; others hold cells
MAX_LIST_BYTES = 2**26
# of a single column
GENE_HEADERS = ("x", "gene", "genes", "gene_name", "gene_symbol", "symbol", "name", "feature")


def is_gene_list(path: str) -> bool:
    """Whether a file lists genes, by its ending and, if it is a table, by the number of its columns."""
    ending = Path(path).suffix.lower()
    if ending not in (".csv", ".tsv") or not Path(path).is_file():
        return ending in (".txt", ".json")
    with Path(path).open(encoding="utf-8-sig", errors="replace") as file:
        line = file.readline(MAX_LIST_BYTES)
    return max(map(line.count, "\t;,")) < MAX_LIST_COLUMNS


def read_genes(path: str | Path, known: Collection[str] = ()) -> list[str]:
    """Read the names of genes from a list, each once.

    Of a table, the column with the most genes is read: `known` genes, such as a model's, and all human and mouse
    genes. A header that is no gene is left out. Several columns of which none is of known genes are refused.
    """
    found = "no genes"
    names: list[str] = []
    try:
        with Path(path).open("rb") as file:
            text = file.read(MAX_LIST_BYTES).decode("utf-8-sig").strip()
        # a list of names, or targets as 10x writes them in gene_panel.json
        if text.startswith(("{", "[")):
            content = json.loads(text)
            targets = content["payload"]["targets"] if isinstance(content, dict) else content
            kinds = [
                {"data": {"name": target}} if isinstance(target, str) else target["type"]
                for target in targets
            ]
            names = [
                str(kind["data"]["name"])
                for kind in kinds
                if kind.get("descriptor", "gene") == "gene"
            ]
        else:
            names = _genes_of_text(text, set(known))
    except OSError as error:
        found = f"no readable file ({error.strerror})"
    except UnicodeDecodeError:
        found = "bytes that are not text"
    except (json.JSONDecodeError, csv.Error, RecursionError, KeyError, TypeError, AttributeError):
        found = "no readable JSON or table"
    if not names:
        raise InputError(
            "gene-list", f"{found} at '{path}', a list of genes", GENE_LIST, "name a different file"
        )
    return list(dict.fromkeys(names))


def _genes_of_text(text: str, known: set[str]) -> list[str]:
    """Return the genes of lines of text, which may have quotes and several columns; none if no column has genes."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    rows = table_rows("\n".join(lines))
    columns = list(zip_longest(*rows, fillvalue=""))
    num_genes = [sum((name in known) + is_gene(name) for name in column) for column in columns]
    if not columns or (len(columns) > 1 and max(num_genes) < len(rows) / 3):
        return []
    first, *names = columns[num_genes.index(max(num_genes))]
    is_header = (
        first not in known
        and not is_gene(first)
        and (len(columns) > 1 or first.lower() in GENE_HEADERS)
    )
    return [name for name in ([] if is_header else [first]) + names if name]
