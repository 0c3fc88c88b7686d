"""Non-gene features of a file: antibodies, hashtags, peaks, guides, spike-ins, control probes.

They are recognised by a column of var with the type of each feature, as 10x writes it, and by names that no gene has.
"""

import re
from collections import Counter
from functools import lru_cache

import numpy as np
import pandas as pd

# Columns of var with the type of each feature, as 10x and scanpy, loom files, CELLxGENE and muon call them.
TYPE_COLUMNS = ("feature_types", "feature_type", "feature_biotype", "modality")
GENE_TYPE = "gene expression"  # if any feature has this type, features of other types are no genes
OTHER_TYPES = {  # if no feature has the type gene expression, features of these types are no genes
    *("antibody capture", "antibody", "antibodies", "protein", "prot", "adt", "antigen capture"),
    *("multiplexing capture", "hashtag", "hto", "crispr guide capture", "guide", "custom"),
    *("peaks", "peak", "atac", "chromatin accessibility", "spike in", "synthetic"),
    *("negative control probe", "negative control codeword", "genomic control", "unassigned codeword"),
    *("blank codeword", "deprecated codeword"),
}
MISSING_TYPES = ("", "nan", "none", "<na>", "na")  # as after a join of tables; these features may be genes
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
ANY_NAME = re.compile("|".join(f"^(?:{pattern})$" for pattern in NAME_PATTERNS.values()), re.MULTILINE)
# alevin-fry writes the unspliced and the ambiguous counts of each gene as separate features.
UNSPLICED_SUFFIXES = ("-U", "-A")
UNSPLICED = "unspliced or ambiguous counts"
MIN_UNSPLICED_SHARE = 0.25  # share of the names with such a suffix; the name of a gene, such as HLA-A, may have one
# Names that are probably antibodies or hashtags.
PROBABLY_ANTIBODY = re.compile(
    r"(?:CD3|CD8a|CD10|CD11[abc]|CD16|CD20|CD25|CD31|CD45(?:R[AO])?|CD56|CD57|CD62L|CD64|CD127|CD197)"
    r"|(?:.*[-_. ])?(?:anti|isotype|igg\d?[ab]?|hashtag|hto|adt|prot|protein|antibody)(?:[-_. ].*)?",
)
# An antibody whose name was made unique, if the gene of the same name is in the file.
MADE_UNIQUE = re.compile(r"(CD\d+\w*|TIGIT|CTLA4|PDCD1|HLA-DR)[-.]\d")


def _types(var: pd.DataFrame) -> pd.Series | None:
    """Return the type of each feature, as stored; None if there is no column with types."""
    # Reversed, so that the first of several columns that differ only in case is used.
    columns = {str(name).lower(): name for name in reversed(list(var.columns))}
    name = next((columns[name] for name in TYPE_COLUMNS if name in columns), None)
    return None if name is None else var[name].astype(object).where(var[name].notna(), "").astype(str)


@lru_cache(maxsize=8)  # gene tables that several steps ask about: of X, of raw
def _kinds_by_name(names: tuple[str, ...]) -> dict[int, str]:
    """Return the positions of non-gene features by their names, and the kind of each."""
    if not ANY_NAME.search("\n".join(names)):
        return {}
    kinds = (next((kind for kind, pattern in KINDS_BY_NAME.items() if pattern.fullmatch(name)), "") for name in names)
    return {feature: kind for feature, kind in enumerate(kinds) if kind}


def gene_columns(var: pd.DataFrame) -> tuple[np.ndarray | None, dict[str, int]]:
    """Recognise the features that are genes.

    Returns
    -------
    Whether each feature is a gene, boolean, or None if all are genes; and the number of features of each other kind.
    """
    is_gene = np.ones(len(var), dtype=bool)
    left_out = Counter[str]()
    types = _types(var)
    if types is not None:
        plain = types.map({kind: re.sub(r"[\s_.-]+", " ", kind).strip().lower() for kind in types.unique()})
        others = plain.isin(OTHER_TYPES)
        if (plain == GENE_TYPE).any():
            others = ~plain.isin([GENE_TYPE, *MISSING_TYPES])
        is_gene &= ~others.to_numpy()
        left_out.update(types[others.to_numpy()].tolist())
    names = [str(name).strip() for name in var.index]
    for feature, kind in _kinds_by_name(tuple(names)).items():
        if is_gene[feature]:
            is_gene[feature] = False
            left_out[kind] += 1
    joined = "\n".join(names)
    if any(f"{suffix}\n" in joined for suffix in UNSPLICED_SUFFIXES):
        existing = set(names)
        is_unspliced = np.array([name.endswith(UNSPLICED_SUFFIXES) and name[:-2] in existing for name in names])
        if is_unspliced.mean() > MIN_UNSPLICED_SHARE:
            left_out[UNSPLICED] += int((is_unspliced & is_gene).sum())
            is_gene &= ~is_unspliced
    return (None if is_gene.all() else is_gene), dict(left_out)


def probable_antibodies(names: list[str]) -> np.ndarray:
    """Return which names are probably antibodies or hashtags, although a gene might have them; boolean."""
    existing = set(names)

    def is_probable(name: str) -> bool:
        match = MADE_UNIQUE.fullmatch(name)
        return PROBABLY_ANTIBODY.fullmatch(name) is not None or (match is not None and match[1] in existing)

    return np.array([is_probable(name) for name in names], dtype=bool)
