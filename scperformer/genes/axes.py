"""The names on an axis of a matrix: whether they are genes or cells, and the text that stands around genes."""

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache

from scperformer.genes.names import ANY_ID, ENSEMBL
from scperformer.genes.table import human_genes

NUM_SEEN = 5000  # names of an axis that are looked at, evenly spread
AXIS_SHARE = 0.3  # of the names of an axis that must be genes, or cells
CLONES = r"RP\d+-\d+[A-Z]\d+\.\d+|A[CFLP]\d{6}\.\d+"  # human genes without a symbol: RP11-34P13.7, AL627309.1
GENE = re.compile(
    rf"{ENSEMBL}(\.\d+)?|MT-\S+|mt-\S+|RP[LS]\d+\w*|Rp[ls]\d+\w*|HLA-\S+|LINC\d+|Gm\d+|\d+\w+Rik|{CLONES}"
    r"|FBgn\d+|WBGene\d+"
)
BARCODE = re.compile(r"[ACGTN]{10,}")  # anywhere in a name: AAACATACAACCAC-1, sample1_AAACATACAACCAC
CELL = re.compile(
    r"(cell|barcode|bc|sample|well|plate)[-_. ]?\d+.*|.*[-_. ]cell[-_. ]?\d+"  # cell12, mouse1_lib2.final_cell_0006
    r"|([SED]RR|GSM|SAM[NED]A?)\d{4,}.*",  # runs and samples of the archives
    re.IGNORECASE,
)
# Where a reference has several genomes, Cell Ranger writes one in front of each gene: GRCh38_CD3D, mm10___Cd3d. Seurat
# makes dashes of its underscores, R's make.names makes dots of these.
AFTER_GENOME = r"([-_.]*premrna)?[-_.]+(?=.)"
GENOMES = {
    "human": re.compile(rf"(GRCh3[78]|hg19|hg38|human){AFTER_GENOME}", re.IGNORECASE),
    "mouse": re.compile(rf"(GRCm3[89]|mm9|mm10|mm39|mouse){AFTER_GENOME}", re.IGNORECASE),
}
# No gene has such a name, so these are found in however few names: CD3D__chr11 of CEL-Seq2, and of BD Rhapsody
# CD3D|NM_000732.4|Reference_end, where CD4|CD4|AHS0032|pAbO is an antibody. Seurat and R replace their separators, too.
FORMS = {
    "GENE__chr...": re.compile(r"(?P<gene>.+)(?:__|--)chr[\w.-]+"),
    "GENE|...|...": re.compile(
        r"(?P<gene>[^|]+?)(?:\|[^|]+\|(?!pAbO)[^|]+|[.-](?:[NX][MR][_-]\d+|ENST\d+)\.\d+[.-]\w[\w.-]*)"
    ),
}
MARKS = re.compile(r"(?:__|--)chr|\||[.-](?:[NX][MR][_-]|ENST)\d")  # without one of these, names have none of `FORMS`
SEPARATORS = re.compile(r"[^A-Za-z0-9]+")
MOST = 0.5  # of the names must begin or end alike, up to a separator, for this to be no part of the gene
MIN_ALIKE = 3  # names; fewer show nothing
NEARLY = 0.9  # of the names with the most common beginning: with a longer one on as many, the longer one is removed


@cache
def known_symbols() -> frozenset[str]:
    """Current symbols of human genes, and symbols of mouse genes with one human ortholog."""
    genes = human_genes()
    return frozenset({*genes.symbols.values(), *genes.approved, *genes.orthologs})


def is_gene(name: str) -> bool:
    """Whether a name is certainly a gene: a known symbol, or an id."""
    return name in known_symbols() or GENE.fullmatch(name) is not None


def is_cell(name: str) -> bool:
    """Whether a name looks like a cell: a barcode, a numbered cell, a run of the archives."""
    return (BARCODE.search(name) or CELL.fullmatch(name)) is not None


def some_of(names: Sequence[str]) -> list[str]:
    """Return up to 10,000 of the names, evenly spread."""
    return [name.strip() for name in names[:: max(1, len(names) // NUM_SEEN)]]


def axis_shares(names: Sequence[str]) -> tuple[float, float]:
    """Return the shares of the names of an axis that are certainly genes, and that look like cells."""
    some = some_of(names)
    plain, _ = without_affixes(some, "human")
    genes = [is_gene(name) or (not is_cell(name) and is_gene(part)) for name, part in zip(some, plain, strict=True)]
    cells = [not gene and is_cell(name) for name, gene in zip(some, genes, strict=True)]
    return sum(genes) / max(1, len(some)), sum(cells) / max(1, len(some))


def without_affixes(names: Sequence[str], species: str) -> tuple[list[str], list[str]]:
    """Return the part of each name that is a gene, and the patterns of the text around it, such as 'GRCh38---GENE'.

    What is removed: a genome of this species in front of a name, `FORMS` that no gene has, and then the text with
    which most names begin or end, up to a separator, unless they are known genes with it. The genome of another species
    stays beside genes of this one.
    """
    plain, patterns = _without_affixes(tuple(names), species if species in GENOMES else "human")
    return list(plain), list(patterns)


@lru_cache(maxsize=8)  # the samples of a run often have the same genes
def _without_affixes(names: tuple[str, ...], species: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    patterns = []
    plain = list(names)
    genomes = Counter(found[0] for name in names if (found := GENOMES[species].match(name)))
    if genomes:
        plain = [GENOMES[species].sub("", name, count=1) if GENOMES[species].match(name) else name for name in names]
        patterns.append(f"{genomes.most_common(1)[0][0]}GENE")
    has_forms = MARKS.search("\n".join(plain))  # a search instead of some for each of 30,000 names
    for pattern, form in FORMS.items() if has_forms else ():
        whole = plain
        plain = [_gene_in(name, form) for name in whole]
        patterns += [pattern] if plain != whole else []
    start = _common_start(plain)
    if genomes and any(genome.match(f"{start}GENE") for genome in GENOMES.values()):
        start = ""
    end = _common_start([name[::-1] for name in plain])[::-1]
    parts = [_without(name, start, end) for name in plain]
    # Most names of a panel may begin with HLA-, which belongs to the genes.
    if parts != plain and sum(map(is_gene, some_of(parts))) >= sum(map(is_gene, some_of(plain))):
        plain = parts
        patterns.append(f"{start}GENE{end}")
    return tuple(plain), tuple(patterns)


def _gene_in(name: str, form: re.Pattern[str]) -> str:
    """Return the gene in a name of one of the `FORMS`; other names, and those with an id behind it, are unchanged."""
    found = form.fullmatch(name)
    return found["gene"] if found and not ANY_ID.search(name, found.end("gene")) else name


def _common_start(names: Sequence[str]) -> str:
    """Return the text up to a separator, with a letter, with which most names begin; "" for none."""
    some = some_of(list(dict.fromkeys(names)))
    starts = Counter(name[: cut.end()] for name in some for cut in SEPARATORS.finditer(name) if cut.end() < len(name))
    least = max(MOST * len(some), MIN_ALIKE - 1)
    times = {start: num for start, num in starts.items() if num > least and re.search("[A-Za-z]", start)}
    longest = max((start for start in times if times[start] >= NEARLY * max(times.values())), key=len, default="")
    rests = [name.removeprefix(longest) for name in some if name.startswith(longest)]
    # gene_1, gene_2, ... are numbered: the number alone is no name.
    is_numbered = sum(any(map(str.isalpha, rest)) for rest in rests) <= len(rests) / 2
    return "" if is_numbered else longest


def _without(name: str, start: str, end: str) -> str:
    return name.removeprefix(start).removesuffix(end) or name
