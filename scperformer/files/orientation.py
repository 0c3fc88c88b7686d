"""Which axis of a table is the genes: told from the names on both axes, never from a guess."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from scperformer.errors import InputError
from scperformer.genes import ENSEMBL

CELLS_BY_GENES, GENES_BY_CELLS = "cells_by_genes", "genes_by_cells"
NUM_LOOKED_AT = 5000  # names of an axis, evenly spread
MIN_LEAD = 0.3  # by which the evidence for one orientation must exceed that for the other
LENGTH_HINT = 0.05  # what the longer axis counts as genes: less than any name tells
SYMBOL_SHARE = 0.5  # how much a name counts that merely looks like a symbol

GENE = re.compile(rf"{ENSEMBL}(\.\d+)?|MT-\S+|mt-\S+|RP[LS]\d+\w*|Rp[ls]\d+\w*|HLA-\S+|LINC\d+|FBgn\d+|WBGene\d+")
# CD3D, HLA-A, AL627309.1 and the Actb, Gm1992, 1700001A01Rik of the mouse.
SYMBOL = re.compile(r"[A-Z][A-Z0-9]+([-.][A-Z0-9]+)*(orf\d+)?|[A-Z][a-z0-9]{2,}\w*|\d+\w+Rik")
BARCODE = re.compile(r"[ACGTN]{10,}")  # anywhere in a name: AAACATACAACCAC-1, sample1_AAACATACAACCAC
CELL = re.compile(
    r"(cell|barcode|bc|sample|well|plate)[-_. ]?\d+.*|.*[-_. ]cell[-_. ]?\d+"  # cell12, mouse1_lib2.final_cell_0006
    r"|([SED]RR|GSM|SAM[NED]A?)\d{4,}.*",  # runs and samples of the archives
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Evidence:
    """Shares of the names of an axis, 0 to 1."""

    known: float  # genes of the packaged model
    genes: float  # gene ids, mitochondrial and ribosomal genes
    symbols: float  # names that could be symbols of genes
    cells: float  # barcodes and names such as cell12

    @property
    def for_genes(self) -> float:
        """How much speaks for genes; below 0 where more speaks for cells."""
        return max(self.known, self.genes, SYMBOL_SHARE * self.symbols) - self.cells

    def __str__(self) -> str:
        shares = {
            "genes of the packaged model": self.known,
            "gene ids": self.genes,
            "like cell names": self.cells,
            "like symbols": self.symbols,
        }
        named = [f"{share:.0%} {what}" for what, share in shares.items() if share >= 0.01]
        return ", ".join(named[:2]) or "neither like genes nor like cells"


def weigh(names: Sequence[str], known: Collection[str]) -> Evidence:
    """What the names of an axis look like."""
    step = max(1, len(names) // NUM_LOOKED_AT)
    some = [str(name).strip() for name in names[::step]]
    cells = np.array([bool(BARCODE.search(name) or CELL.fullmatch(name)) for name in some], dtype=bool)
    genes = np.array([bool(GENE.fullmatch(name)) for name in some], dtype=bool)
    symbols = np.array([bool(SYMBOL.fullmatch(name)) for name in some], dtype=bool)
    # T1, T2, T3 are one word numbered, and could be anything; lists of genes have many words.
    words = len({re.sub(r"\d", "", name) for name in some}) / max(1, len(some))
    shared = len(set(known).intersection(map(str, names)))
    return Evidence(
        known=shared / max(1, min(len(names), len(known))),
        genes=float(genes.mean()) if some else 0.0,
        symbols=float((symbols & ~cells).mean()) * min(1.0, 2 * words) if some else 0.0,
        cells=float((cells & ~genes).mean()) if some else 0.0,
    )


def find_orientation(rows: Sequence[str], columns: Sequence[str], known: Collection[str], path: str) -> tuple[str, str]:
    """Which axis of a table is the genes, and why.

    Parameters
    ----------
    rows, columns
        The names on each axis.
    known
        Symbols of genes that are surely genes.

    Returns
    -------
    `cells_by_genes` or `genes_by_cells`; the evidence in words.

    Raises
    ------
    InputError
        The names do not tell.
    """
    of_rows, of_columns = weigh(rows, known), weigh(columns, known)
    lead = of_columns.for_genes - of_rows.for_genes
    lead += LENGTH_HINT * np.sign(len(columns) - len(rows))
    why = f"rows: {of_rows}; columns: {of_columns}"
    if abs(lead) < MIN_LEAD:
        raise InputError(
            f"{path}, a table of {len(rows)} x {len(columns)} whose names do not tell genes from cells "
            f"(rows e.g. {_example(rows)}, columns e.g. {_example(columns)}; {why})",
            "gene names on one axis and cell names on the other",
            f"add orientation={CELLS_BY_GENES} or orientation={GENES_BY_CELLS}",
            [f"orientation={CELLS_BY_GENES}", f"orientation={GENES_BY_CELLS}"],
        )
    return (CELLS_BY_GENES if lead > 0 else GENES_BY_CELLS), why


def _example(names: Sequence[str]) -> str:
    return repr(str(names[len(names) // 2])[:40])
