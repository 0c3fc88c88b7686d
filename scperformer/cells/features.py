"""Non-gene features of a file: antibodies, hashtags, peaks, guides, spike-ins, control probes.

They are recognised by a column of var with the type of each feature, as 10x writes it, and by names that no gene has.
"""

import re
from collections import Counter

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


def gene_columns(var: pd.DataFrame) -> tuple[np.ndarray | None, dict[str, int]]:
    """Return whether each feature is a gene, boolean, or None if all are; and the number of features of other kinds."""
    is_gene = np.ones(len(var), dtype=bool)
    left_out = Counter[str]()
    columns = {str(name).lower(): name for name in reversed(list(var.columns))}
    if (column := next((columns[name] for name in TYPE_COLUMNS if name in columns), None)) is not None:
        types = var[column].astype(object).where(var[column].notna(), "").astype(str)
        plain = types.map({kind: re.sub(r"[\s_.-]+", " ", kind).strip().lower() for kind in types.unique()})
        others = plain.isin(OTHER_TYPES)
        if (plain == GENE_TYPE).any():
            others = ~plain.isin([GENE_TYPE, *MISSING_TYPES])
        is_gene &= ~others.to_numpy()
        left_out.update(types[others.to_numpy()].tolist())
    names = [str(name).strip() for name in var.index]
    joined = "\n".join(names)
    if ANY_NAME.search(joined):  # one search is faster than some for each of 30,000 names
        for feature, name in enumerate(names):
            kind = next((kind for kind, pattern in KINDS_BY_NAME.items() if pattern.fullmatch(name)), None)
            if kind is not None and is_gene[feature]:
                is_gene[feature] = False
                left_out[kind] += 1
    if any(f"{suffix}\n" in joined for suffix in UNSPLICED_SUFFIXES):
        existing = set(names)
        is_unspliced = np.array([name.endswith(UNSPLICED_SUFFIXES) and name[:-2] in existing for name in names])
        if is_unspliced.mean() > MIN_UNSPLICED_SHARE:
            left_out[UNSPLICED] += int((is_unspliced & is_gene).sum())
            is_gene &= ~is_unspliced
    return (None if is_gene.all() else is_gene), dict(left_out)
