"""Features of a file that are not genes.

Antibodies, hashtags, peaks, guides, spike-ins and control probes are recognised by a column of var with the type of
each feature, as 10x writes it, and by names that no gene has. Other antibodies, and unspliced counts, have names of
genes with a text that they share, such as CD4_ADT. Coordinates, areas, numbers of cells or totals have no names of
genes, and values that differ in kind or size. Both are looked for in some cells of a file.
"""

import re
from collections import Counter
from functools import lru_cache

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix

from scperformer.io.axes import AXIS_SHARE, axis_shares, is_gene, unquoted, without_affixes

# Columns of var with the type of each feature, as 10x and scanpy, loom files, CELLxGENE and muon call them.
TYPE_COLUMNS = ("feature_types", "feature_type", "feature_biotype", "modality")
GENE_TYPE = "gene expression"  # if any feature has this type, features of other types are no genes
OTHER_TYPES = {  # if no feature has the type gene expression, features of these types are no genes
    *("antibody capture", "antibody", "antibodies", "protein", "prot", "adt", "antigen capture"),
    *("multiplexing capture", "hashtag", "hto", "crispr guide capture", "guide", "custom"),
    *("peaks", "peak", "atac", "chromatin accessibility", "spike in", "synthetic"),
    *(
        "negative control probe",
        "negative control codeword",
        "genomic control",
        "unassigned codeword",
    ),
    *("blank codeword", "deprecated codeword"),
}
# as after a join of tables; these features may be genes
MISSING_TYPES = ("", "nan", "none", "<na>", "na")
# Patterns of names that no gene has.
NAME_PATTERNS = {
    "spike-ins": r"(?:\w+[-_.])?ERCC[-_.]\d{5}(?:__chr\w+)?",
    # CITE-seq-Count writes the barcode of an antibody after its name, BD its type.
    "antibodies or hashtags": r"(?:AB|Ab|ADT|adt|HTO|hto)_.+|.+[-_. ](?:TotalSeq[-_.]?|Total)[ABCD]\d*"
    r"|.+-[ACGT]{15}|.+\|(?:p|st)AbO|(?:HTO|[Hh]ashtag|[Ss]ample[Tt]ag)[-_. ]?\d+.*|CMO3\d\d",
    "peaks": r"\S+:\d+-\d+|chr\w+[-_.]\d+[-_.]\d+",
    "control probes": r"(?:NegControl(?:Probe|Codeword)|UnassignedCodeword|DeprecatedCodeword|BLANK|Blank|NegPrb"
    r"|SystemControl|FalseCode)[-_. ]?\d+",
    "lines of a counting program": r"__(?:no_feature|ambiguous|too_low_aQual|not_aligned|alignment_not_unique)"
    r"|N_(?:unmapped|multimapping|noFeature|ambiguous)",
}
KINDS_BY_NAME = {kind: re.compile(pattern) for kind, pattern in NAME_PATTERNS.items()}
ANY_NAME = re.compile(
    "|".join(f"^(?:{pattern})$" for pattern in NAME_PATTERNS.values()), re.MULTILINE
)
# Of features that are named after genes, with a text in front or behind that several share.
BETWEEN = re.compile(r"[-_. :|()[\]]+")
MIN_ALIKE = 3  # features with the same text that have the name of a gene
ELSEWHERE, NO_GENE = -1, -2
MIN_GENE_NAME = 3  # characters; shorter parts of a name say little
# alevin-fry writes the unspliced and the ambiguous counts of each gene as separate features, CD4-U and CD4-A.
MIN_SPLICED_SHARE = 0.25  # of all features
SPLICED = "further counts of genes of the file"
# Of columns that are not genes by their values.
MIN_CELLS_OF_VALUES, MIN_JUDGED_COLUMNS = 5, 100  # with fewer, values do not tell
# of the columns may be of a different kind than the others; of few, `MAX_OTHER_COLUMNS`
MAX_OTHER_SHARE = 0.02
MAX_OTHER_COLUMNS = 20
MIN_FILLED = 0.5  # such a column has values in this share of the cells; most genes are expressed in few cells
MIN_DIVISOR = 1e-12  # in place of 0, where a quotient is taken
MIN_LARGE_RATIO = 5.0  # to the largest gene of a cell, from which a column is not expression


def gene_columns(var: pd.DataFrame) -> tuple[np.ndarray, dict[str, int]]:
    """Return whether each feature is a gene, boolean, and the number of features of other kinds."""
    is_gene = np.ones(len(var), dtype=bool)
    left_out = Counter[str]()
    columns = {str(name).lower(): name for name in reversed(list(var.columns))}
    if (
        column := next((columns[name] for name in TYPE_COLUMNS if name in columns), None)
    ) is not None:
        types = var[column].astype(object).where(var[column].notna(), "").astype(str)
        plain = types.map(
            {kind: re.sub(r"[\s_.-]+", " ", kind).strip().lower() for kind in types.unique()}
        )
        others = plain.isin(OTHER_TYPES)
        if (plain == GENE_TYPE).any():
            others = ~plain.isin([GENE_TYPE, *MISSING_TYPES])
        is_gene &= ~others.to_numpy()
        left_out.update(types[others.to_numpy()].tolist())
    names = unquoted([str(name).strip() for name in var.index])
    joined = "\n".join(names)
    if ANY_NAME.search(joined):  # one search is faster than some for each of 30,000 names
        for feature, name in enumerate(names):
            kind = next(
                (kind for kind, pattern in KINDS_BY_NAME.items() if pattern.fullmatch(name)), None
            )
            if kind is not None and is_gene[feature]:
                is_gene[feature] = False
                left_out[kind] += 1
    for group, genes in named_after_genes(tuple(names)):
        if (genes >= 0).all() and len(group) > MIN_SPLICED_SHARE * len(names):
            left_out[SPLICED] += int(is_gene[group].sum())
            is_gene[group] = False
    return is_gene, dict(left_out)


@lru_cache(maxsize=2)  # X and layers have the same features
def named_after_genes(names: tuple[str, ...]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Find features that share a text in front or behind, of which three or more are known genes without it.

    Returns the features of each such text, and of each of them the feature with the name of its gene, `ELSEWHERE` for
    a gene that the file lacks, or `NO_GENE`.
    """
    place = {name: feature for feature, name in enumerate(names)}
    groups: dict[tuple[str, bool], dict[int, str]] = {}  # the rest of the name of each feature
    for feature, name in enumerate(names):
        cuts = list(BETWEEN.finditer(name))
        is_sure = bool(cuts) and is_gene(name)
        for cut in cuts:
            for text, rest in (
                (name[: cut.end()], name[cut.end() :]),
                (name[cut.start() :], name[: cut.start()]),
            ):
                if rest and (rest in place or not is_sure):
                    groups.setdefault((text, name.startswith(text)), {})[feature] = rest
    alike = []
    for rests in groups.values():
        genes = []
        for rest in rests.values() if len(rests) >= MIN_ALIKE else ():
            parts = [part for part in (rest, *BETWEEN.split(rest)) if len(part) >= MIN_GENE_NAME]
            known = ELSEWHERE if any(is_gene(part.upper()) for part in parts) else NO_GENE
            genes.append(next((place[part] for part in parts if part in place), known))
        if sum(gene != NO_GENE for gene in genes) >= MIN_ALIKE:
            alike.append((np.array(list(rests)), np.array(genes)))
    return alike


def find_non_genes(x: csr_matrix, rows: np.ndarray, names: np.ndarray) -> np.ndarray:
    """Return which columns are not genes, boolean, G: they have names and values that genes have not.

    Antibodies are in more cells than their genes. `x` are some cells as they are stored, n x G, `rows` their ascending
    row numbers in the file, and `names` the names of the columns. Unknown names say nothing where most are unknown.
    """
    none = np.zeros(x.shape[1], dtype=bool)
    if x.shape[0] < MIN_CELLS_OF_VALUES or x.shape[1] < MIN_JUDGED_COLUMNS:
        return none
    filled = np.bincount(x.indices, minlength=x.shape[1])
    is_odd = (
        _of_another_kind(x, filled) | _numbers_of_rows(x, rows, filled) | _far_larger(x, filled)
    )
    for group, genes in named_after_genes(tuple(str(name).strip() for name in names)):
        is_full = filled[group] >= np.maximum(
            MIN_FILLED * x.shape[0], np.where(genes < 0, 0, filled[genes] + 1)
        )
        full_genes = is_full[genes != NO_GENE]
        # a text of most names is a genome, say
        if 2 * len(group) < len(names) and full_genes.sum() >= MIN_ALIKE:
            is_odd[group] |= is_full | ((genes != NO_GENE) & (full_genes.mean() > 0.5))
    odd = np.flatnonzero(is_odd)
    stored = [str(name).strip() for name in names[odd]]
    plain = without_affixes(stored, "human")
    is_odd[odd] = [
        not (is_gene(name) or is_gene(gene)) for name, gene in zip(stored, plain, strict=True)
    ]
    return is_odd if is_odd.any() and axis_shares(names.tolist())[0] >= AXIS_SHARE else none


def _of_another_kind(x: csr_matrix, filled: np.ndarray) -> np.ndarray:
    """Return columns with decimals among whole numbers, whole numbers among decimals, or the only negative or NaN."""
    with np.errstate(invalid="ignore"):
        has_decimals = np.bincount(x.indices[x.data != np.rint(x.data)], minlength=x.shape[1])
        is_impossible = np.bincount(x.indices[~(x.data >= 0)], minlength=x.shape[1]) > 0
    used = filled > 0
    full = filled >= MIN_FILLED * x.shape[0]
    few = max(MAX_OTHER_SHARE * used.sum(), MAX_OTHER_COLUMNS)
    is_other = np.zeros(x.shape[1], dtype=bool)
    kinds = is_impossible, full & (has_decimals > filled / 2), full & (has_decimals == 0)
    for kind, others in zip(
        kinds, (is_impossible, has_decimals > 0, used & (has_decimals == 0)), strict=True
    ):
        if 0 < others.sum() <= min(few, used.sum() / 2):  # nearly all columns are of the other kind
            is_other |= kind
    return is_other


def _numbers_of_rows(x: csr_matrix, rows: np.ndarray, filled: np.ndarray) -> np.ndarray:
    """Return columns that number the cells, from any number on."""
    numbers = np.zeros(x.shape[1], dtype=bool)
    columns = np.flatnonzero(filled >= x.shape[0] - 1)
    starts = x[:, columns].toarray() - rows[:, None]
    numbers[columns] = (starts == starts[:1]).all(axis=0)
    return numbers


def _far_larger(x: csr_matrix, filled: np.ndarray) -> np.ndarray:
    """Return columns that are far larger than the largest of all smaller ones, in most cells."""
    is_larger = np.zeros(x.shape[1], dtype=bool)
    columns = np.flatnonzero(filled >= MIN_FILLED * x.shape[0])
    dense = np.nan_to_num(x[:, columns].toarray())
    order = np.argsort(-np.median(dense, axis=0), kind="stable")
    others = np.delete(np.arange(x.shape[1]), columns)
    rest = x[:, others].max(axis=1).toarray().ravel() if len(others) else np.zeros(x.shape[0])
    # The largest of the smaller columns, for each of the largest columns in turn.
    below = np.maximum.accumulate(np.column_stack([rest, dense[:, order[::-1]]]), axis=1)[:, ::-1]
    ratios = np.median(dense[:, order] / np.maximum(below[:, 1:], MIN_DIVISOR), axis=0)[
        :MAX_OTHER_COLUMNS
    ]
    if (is_step := ratios >= MIN_LARGE_RATIO).any():
        is_larger[columns[order[: np.flatnonzero(is_step)[-1] + 1]]] = True
    return is_larger
