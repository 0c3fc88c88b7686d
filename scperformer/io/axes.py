"""The names on an axis of a matrix: whether they are genes or cells, and gene names with a prefix or suffix."""

import re
from collections.abc import Sequence
from functools import cache

from scperformer.io.gene_names import ANY_ID, ENSEMBL
from scperformer.io.gene_table import human_genes

NUM_NAMES_SAMPLED = 5000  # at least this many names of a longer axis are looked at, evenly spread
AXIS_SHARE = 0.3  # an axis is genes, or cells, if this share of its names are
# human genes without a symbol, such as RP11-34P13.7, AL627309.1
CLONES = r"RP\d+-\d+[A-Z]\d+\.\d+|A[CFLP]\d{6}\.\d+"
GENE = re.compile(
    rf"{ENSEMBL}(\.\d+)?|MT-\S+|mt-\S+|RP[LS]\d+\w*|Rp[ls]\d+\w*|HLA-\S+|LINC\d+|Gm\d+|\d+\w+Rik|{CLONES}"
    r"|FBgn\d+|WBGene\d+|R[Nn]\d+[Ss]\w*"  # the last: ribosomal RNA, such as Rn45s
)
QUOTED = re.compile(r"""^b?(["'])(.*)\1$""", re.DOTALL)
# anywhere in a name: AAACATACAACCAC-1, sample1_AAACATACAACCAC
BARCODE = re.compile(r"[ACGTN]{10,}")
CELL = re.compile(
    r"(cell|barcode|bc|sample|well|plate)[-_. ]?\d+.*|.*[-_. ]cell[-_. ]?\d+"  # cell12, mouse1_lib2.final_cell_0006
    r"|([SED]RR|GSM|SAM[NED]A?)\d{4,}.*",  # runs and samples of public archives
    re.IGNORECASE,
)
# For a reference of several genomes, Cell Ranger writes the genome in front of each gene: GRCh38_CD3D, mm10___Cd3d.
# Seurat changes the underscores to dashes, and R's make.names changes these to dots.
AFTER_GENOME = r"([-_.]*premrna)?[-_.]+(?=.)"
GENOMES = {
    "human": re.compile(rf"^(GRCh3[78]|hg19|hg38|human){AFTER_GENOME}", re.IGNORECASE),
    "mouse": re.compile(rf"^(GRCm3[89]|mm9|mm10|mm39|mouse){AFTER_GENOME}", re.IGNORECASE),
}
# CD3D__chr11 from CEL-Seq2, and CD3D|NM_000732.4|Reference_end from BD Rhapsody, where CD4|CD4|AHS0032|pAbO is an
# antibody. Seurat and R replace these separators, too.
DECORATED = re.compile(
    r"(?P<gene>.+)(?:__|--)chr[\w.-]+|(?P<target>[^|]+?)(?:\|[^|]+\|(?!pAbO)[^|]+"
    r"|[.-](?:[NX][MR][_-]\d+|ENST\d+)\.\d+[.-]\w[\w.-]*)"
)
# occurs in each of `DECORATED`
ANY_DECORATION = re.compile(r"(?:__|--)chr|\||[.-](?:[NX][MR][_-]|ENST)\d")


@cache
def known_symbols() -> frozenset[str]:
    """Return the current symbols of human genes, and the symbols of mouse genes with one human ortholog."""
    genes = human_genes()
    return frozenset({*genes.symbols.values(), *genes.approved, *genes.orthologs})


def unquoted(names: Sequence[str]) -> list[str]:
    """Return each name without the quotes around it, which R and other programs write, or Python's b''."""
    text = "\n".join(names)
    if '"' not in text and "'" not in text:  # which is faster than a search in each of 30,000 names
        return list(names)
    return [QUOTED.sub(r"\2", name) for name in names]


def is_gene(name: str) -> bool:
    """Whether a name is certainly a gene: a known symbol, or an id."""
    return name in known_symbols() or GENE.fullmatch(name) is not None


def is_cell(name: str) -> bool:
    """Whether a name looks like a cell: a barcode, a numbered cell, a run of a public archive."""
    return (BARCODE.search(name) or CELL.fullmatch(name)) is not None


def axis_shares(names: Sequence[str]) -> tuple[float, float]:
    """Return the shares of the names of an axis that are certainly genes, and that look like cells."""
    sampled = [name.strip() for name in names[:: max(1, len(names) // NUM_NAMES_SAMPLED)]]
    genes = [
        is_gene(name) or (not is_cell(name) and is_gene(plain))
        for name, plain in zip(sampled, without_affixes(sampled, "human"), strict=True)
    ]
    num_cells = sum(not gene and is_cell(name) for name, gene in zip(sampled, genes, strict=True))
    return sum(genes) / max(1, len(sampled)), num_cells / max(1, len(sampled))


def without_affixes(names: Sequence[str], species: str) -> list[str]:
    """Return each name without a genome in front (of several, of this species), and without `DECORATED` text behind."""
    choices = (GENOMES.get(species, GENOMES["human"]), *GENOMES.values())
    genome = next((genome for genome in choices if any(map(genome.match, names))), None)
    plain = list(names) if genome is None else [genome.sub("", name, count=1) for name in names]
    # one search is faster than some for each of 30,000 names
    if ANY_DECORATION.search("\n".join(plain)):
        for index, name in enumerate(plain):
            match = DECORATED.fullmatch(name)
            gene = match and (match["gene"] or match["target"])
            # a name with an Ensembl id after the gene is a compound
            if gene and not ANY_ID.search(name, len(gene)):
                plain[index] = gene
    return plain
