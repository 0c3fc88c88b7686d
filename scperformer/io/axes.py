"""The names on an axis of a matrix: whether they are genes or cells, and gene names with a prefix or suffix."""

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache

from scperformer.io.gene_names import ANY_ID, ENSEMBL
from scperformer.io.gene_table import human_genes

NUM_SAMPLED = 5000  # at least this many names of a longer axis are looked at, evenly spread
AXIS_SHARE = 0.3  # an axis is genes, or cells, if this share of its names are
CLONES = r"RP\d+-\d+[A-Z]\d+\.\d+|A[CFLP]\d{6}\.\d+"  # human genes without a symbol, such as RP11-34P13.7, AL627309.1
GENE = re.compile(
    rf"{ENSEMBL}(\.\d+)?|MT-\S+|mt-\S+|RP[LS]\d+\w*|Rp[ls]\d+\w*|HLA-\S+|LINC\d+|Gm\d+|\d+\w+Rik|{CLONES}"
    r"|FBgn\d+|WBGene\d+"
)
BARCODE = re.compile(r"[ACGTN]{10,}")  # anywhere in a name: AAACATACAACCAC-1, sample1_AAACATACAACCAC
CELL = re.compile(
    r"(cell|barcode|bc|sample|well|plate)[-_. ]?\d+.*|.*[-_. ]cell[-_. ]?\d+"  # cell12, mouse1_lib2.final_cell_0006
    r"|([SED]RR|GSM|SAM[NED]A?)\d{4,}.*",  # runs and samples of public archives
    re.IGNORECASE,
)
# For a reference of several genomes, Cell Ranger writes the genome in front of each gene: GRCh38_CD3D, mm10___Cd3d.
# Seurat changes the underscores to dashes, and R's make.names changes these to dots.
AFTER_GENOME = r"([-_.]*premrna)?[-_.]+(?=.)"
GENOMES = {
    "human": re.compile(rf"(GRCh3[78]|hg19|hg38|human){AFTER_GENOME}", re.IGNORECASE),
    "mouse": re.compile(rf"(GRCm3[89]|mm9|mm10|mm39|mouse){AFTER_GENOME}", re.IGNORECASE),
}
# No gene has such a name, so a single one is enough: CD3D__chr11 from CEL-Seq2, and CD3D|NM_000732.4|Reference_end from
# BD Rhapsody, where CD4|CD4|AHS0032|pAbO is an antibody. Seurat and R replace these separators, too.
DECORATED = {
    "GENE__chr...": re.compile(r"(?P<gene>.+)(?:__|--)chr[\w.-]+"),
    "GENE|...|...": re.compile(
        r"(?P<gene>[^|]+?)(?:\|[^|]+\|(?!pAbO)[^|]+|[.-](?:[NX][MR][_-]\d+|ENST\d+)\.\d+[.-]\w[\w.-]*)"
    ),
}
ANY_DECORATION = re.compile(r"(?:__|--)chr|\||[.-](?:[NX][MR][_-]|ENST)\d")  # occurs in each of `DECORATED`
NAME_SEPARATORS = re.compile(r"[^A-Za-z0-9]+")
MIN_AFFIX_SHARE = 0.5  # a prefix, up to a separator, must be on more than this share of the names
MIN_AFFIX_NAMES = 3  # and on this many names
LONGER_PREFIX_SHARE = 0.9  # a longer prefix is preferred if it is on this share of the names with the most common one


@cache
def known_symbols() -> frozenset[str]:
    """Return the current symbols of human genes, and the symbols of mouse genes with one human ortholog."""
    genes = human_genes()
    return frozenset({*genes.symbols.values(), *genes.approved, *genes.orthologs})


def is_gene(name: str) -> bool:
    """Whether a name is certainly a gene: a known symbol, or an id."""
    return name in known_symbols() or GENE.fullmatch(name) is not None


def is_cell(name: str) -> bool:
    """Whether a name looks like a cell: a barcode, a numbered cell, a run of a public archive."""
    return (BARCODE.search(name) or CELL.fullmatch(name)) is not None


def _sampled(names: Sequence[str]) -> list[str]:
    """Return up to 10,000 of the names, evenly spread."""
    return [name.strip() for name in names[:: max(1, len(names) // NUM_SAMPLED)]]


def axis_shares(names: Sequence[str]) -> tuple[float, float]:
    """Return the shares of the names of an axis that are certainly genes, and that look like cells."""
    sampled = _sampled(names)
    plain, _ = without_affixes(sampled, "human")
    genes = [is_gene(name) or (not is_cell(name) and is_gene(part)) for name, part in zip(sampled, plain, strict=True)]
    cells = [not gene and is_cell(name) for name, gene in zip(sampled, genes, strict=True)]
    return sum(genes) / max(1, len(sampled)), sum(cells) / max(1, len(sampled))


def without_affixes(names: Sequence[str], species: str) -> tuple[list[str], list[str]]:
    """Return each name without prefix and suffix, and the patterns of what was removed, such as 'GRCh38---GENE'.

    Removed are a genome of this species in front of a name, the decorations of `DECORATED`, and then the prefix and
    suffix, up to a separator, that most names share, unless more names are known genes with them. The genome of another
    species is kept if there are genes of this species, too.
    """
    plain, patterns = _without_affixes(tuple(names), species if species in GENOMES else "human")
    return list(plain), list(patterns)


@lru_cache(maxsize=8)  # the samples of a run often have the same genes
def _without_affixes(names: tuple[str, ...], species: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    patterns = []
    plain = list(names)
    genomes = Counter(match[0] for name in names if (match := GENOMES[species].match(name)))
    if genomes:
        plain = [GENOMES[species].sub("", name, count=1) if GENOMES[species].match(name) else name for name in names]
        patterns.append(f"{genomes.most_common(1)[0][0]}GENE")
    is_decorated = ANY_DECORATION.search("\n".join(plain))  # one search is faster than some for each of 30,000 names
    for pattern, decoration in DECORATED.items() if is_decorated else ():
        before = plain
        plain = [_undecorated(name, decoration) for name in before]
        patterns += [pattern] if plain != before else []
    prefix = _common_prefix(plain)
    if genomes and any(genome.match(f"{prefix}GENE") for genome in GENOMES.values()):
        prefix = ""
    suffix = _common_prefix([name[::-1] for name in plain])[::-1]
    shorter = [name.removeprefix(prefix).removesuffix(suffix) or name for name in plain]
    # Most names of a panel may begin with HLA-, which is a part of these symbols.
    if shorter != plain and sum(map(is_gene, _sampled(shorter))) >= sum(map(is_gene, _sampled(plain))):
        plain = shorter
        patterns.append(f"{prefix}GENE{suffix}")
    return tuple(plain), tuple(patterns)


def _undecorated(name: str, decoration: re.Pattern[str]) -> str:
    """Return the gene in a name; a name without this decoration, or with an Ensembl id after the gene, as it is."""
    match = decoration.fullmatch(name)
    return match["gene"] if match and not ANY_ID.search(name, match.end("gene")) else name


def _common_prefix(names: Sequence[str]) -> str:
    """Return the prefix of most names, which ends with a separator and contains a letter; "" if there is none."""
    sampled = _sampled(list(dict.fromkeys(names)))
    separators = ((name, separator) for name in sampled for separator in NAME_SEPARATORS.finditer(name))
    times = Counter(name[: separator.end()] for name, separator in separators if separator.end() < len(name))
    least = max(MIN_AFFIX_SHARE * len(sampled), MIN_AFFIX_NAMES - 1)
    times = Counter({prefix: num for prefix, num in times.items() if num > least and re.search("[A-Za-z]", prefix)})
    common = [prefix for prefix, num in times.items() if num >= LONGER_PREFIX_SHARE * max(times.values())]
    longest = max(common, key=len, default="")
    rests = [name.removeprefix(longest) for name in sampled if name.startswith(longest)]
    # gene_1, gene_2, ... are numbered: the number alone is no name.
    is_numbered = sum(any(map(str.isalpha, rest)) for rest in rests) <= len(rests) / 2
    return "" if is_numbered else longest
