"""Features of a file that are no genes: antibodies, hashtags, peaks, guides, spike-ins, control probes.

They are told by a column of var with the type of each feature, as 10x writes it, and by names that no gene has.
"""

import re
from collections import Counter

import numpy as np
import pandas as pd

# Columns of var that hold the type of a feature, as 10x and scanpy, loom files, CELLxGENE and muon call them.
TYPE_COLUMNS = ("feature_types", "feature_type", "feature_biotype", "modality")
EXPRESSION = "gene expression"  # where any feature has this type, those of other types are no genes
OTHER_TYPES = {  # types that are no genes where none is called gene expression
    *("antibody capture", "antibody", "antibodies", "protein", "prot", "adt", "antigen capture"),
    *("multiplexing capture", "hashtag", "hto", "crispr guide capture", "guide", "custom"),
    *("peaks", "peak", "atac", "chromatin accessibility", "spike in", "synthetic"),
    *("negative control probe", "negative control codeword", "genomic control", "unassigned codeword"),
    *("blank codeword", "deprecated codeword"),
}
BLANK = ("", "nan", "none", "<na>", "na")  # missing types, as after a join of tables: these features may be genes
# Names that no gene has.
NAMES = {
    "spike-ins": r"(?:\w+[-_.])?ERCC[-_.]\d{5}(?:__chr\w+)?",
    # CITE-seq-Count writes the barcode of an antibody after its name, BD its kind.
    "antibodies or hashtags": r"(?:AB|Ab|ADT|adt|HTO|hto)_.+|.+[-_. ](?:TotalSeq[-_.]?|Total)[ABCD]\d*"
    r"|.+-[ACGT]{15}|.+\|(?:p|st)AbO|(?:HTO|[Hh]ashtag|[Ss]ample[Tt]ag)[-_. ]?\d+.*|CMO3\d\d",
    "peaks": r"\S+:\d+-\d+|chr\w+[-_.]\d+[-_.]\d+",
    "control probes": r"(?:NegControl(?:Probe|Codeword)|UnassignedCodeword|DeprecatedCodeword|BLANK|Blank|NegPrb"
    r"|SystemControl|FalseCode)[-_. ]?\d+",
    "lines of a counting program": r"__(?:no_feature|ambiguous|too_low_aQual|not_aligned|alignment_not_unique)"
    r"|N_(?:unmapped|multimapping|noFeature|ambiguous)",
}
NAMED = {kind: re.compile(pattern) for kind, pattern in NAMES.items()}
ANY_NAME = re.compile("|".join(f"^(?:{pattern})$" for pattern in NAMES.values()), re.MULTILINE)
# alevin-fry writes unspliced and ambiguous counts of each gene as features of their own.
OF_GENE = ("-U", "-A")
UNSPLICED = "unspliced or ambiguous counts"
LEAST_OF_GENES = 0.25  # of the names; that of a gene, such as HLA-A, may end like this
# Names that are probably antibodies or hashtags, or such whose name was made unique beside that of a gene.
PERHAPS = re.compile(
    r"(?:CD3|CD8a|CD10|CD11[abc]|CD16|CD20|CD25|CD31|CD45(?:R[AO])?|CD56|CD57|CD62L|CD64|CD127|CD197)"
    r"|(?:.*[-_. ])?(?:anti|isotype|igg\d?[ab]?|hashtag|hto|adt|prot|protein|antibody)(?:[-_. ].*)?",
)
MADE_UNIQUE = re.compile(r"(CD\d+\w*|TIGIT|CTLA4|PDCD1|HLA-DR)[-.]\d")


def _types(var: pd.DataFrame) -> pd.Series | None:
    """Return the type of each feature, as stored; None if no column has it."""
    columns = {str(name).lower(): name for name in reversed(list(var.columns))}
    name = next((columns[name] for name in TYPE_COLUMNS if name in columns), None)
    return None if name is None else var[name].astype(object).where(var[name].notna(), "").astype(str)


def gene_columns(var: pd.DataFrame) -> tuple[np.ndarray | None, dict[str, int]]:
    """Find the features of a table that are genes: boolean, or None if all are; and the number of each other kind."""
    is_gene = np.ones(len(var), dtype=bool)
    left_out = Counter[str]()
    types = _types(var)
    if types is not None:
        plain = types.map({kind: re.sub(r"[\s_.-]+", " ", kind).strip().lower() for kind in types.unique()})
        others = plain.isin(OTHER_TYPES)
        if (plain == EXPRESSION).any():
            others = ~plain.isin([EXPRESSION, *BLANK])
        is_gene &= ~others.to_numpy()
        left_out.update(types[others.to_numpy()].tolist())
    names = [str(name).strip() for name in var.index]
    joined = "\n".join(names)
    if ANY_NAME.search(joined):
        for place in np.flatnonzero(is_gene).tolist():
            kind = next((kind for kind, pattern in NAMED.items() if pattern.fullmatch(names[place])), None)
            if kind is not None:
                is_gene[place] = False
                left_out[kind] += 1
    if any(f"{ending}\n" in joined for ending in OF_GENE):
        there = set(names)
        ends = np.array([name.endswith(OF_GENE) and name[:-2] in there for name in names])
        if ends.mean() > LEAST_OF_GENES:
            left_out[UNSPLICED] += int((ends & is_gene).sum())
            is_gene &= ~ends
    return (None if is_gene.all() else is_gene), dict(left_out)


def perhaps_no_genes(names: list[str]) -> np.ndarray:
    """Mark names that are probably those of antibodies or hashtags, though a gene might have them: boolean."""
    joined = set(names)
    return np.array(
        [
            bool(PERHAPS.fullmatch(name)) or bool((own := MADE_UNIQUE.fullmatch(name)) and own[1] in joined)
            for name in names
        ],
        dtype=bool,
    )
