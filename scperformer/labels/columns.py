"""The columns of an annotation in obs, by their names without the prefix, in their order."""

import re
from collections.abc import Iterable

# The columns that every annotation has.
CALLED = ("label", "confidence", "margin", "unknown", "novelty")
BASELINE = ("ontology_term_id", "baseline_label")
# The others depend on the model and on the options.
TREE = ("call", "call_confidence")  # and a column `level1`, `level2`, ... for each level of the label tree
SETS = ("set", "set_size")
QUALITY = ("low_quality", "doublet_score", "doublet")
CLUSTERS = ("cluster_label", "cluster_disagrees")
OPTIONAL = (*TREE, "level1", *SETS, *QUALITY, *CLUSTERS)
COLUMNS = (*CALLED, *OPTIONAL, *BASELINE)  # with the first level alone
ORDER = (*CALLED, *TREE, "level", *BASELINE, *SETS, *QUALITY, *CLUSTERS)


def in_order(names: Iterable[str]) -> list[str]:
    """Return the columns of an annotation in their order; levels are in the order of their numbers already."""
    return sorted(names, key=lambda name: ORDER.index(re.sub(r"^level\d+$", "level", name)))


def is_optional(name: str) -> bool:
    """Whether a column depends on the model and on the options: another annotation may lack it."""
    return re.sub(r"^level\d+$", "level1", name) in OPTIONAL
