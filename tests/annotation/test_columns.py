"""The names of the columns of an annotation, which predict, check and the reports share."""

import anndata as ad
import numpy as np
import pandas as pd
import pytest

from scperformer.annotation.columns import OneType, require_not_annotated
from scperformer.base.errors import InputError
from scperformer.labels.tree import LabelTree


@pytest.mark.parametrize("column", ["mine_label", "mine_set_size", "mine_novelty", "mine_doublet"])
def test_any_column_of_an_annotation_is_refused_under_the_same_prefix(column):
    cells = ad.AnnData(np.zeros((2, 1)), obs=pd.DataFrame({column: [1, 2]}, index=["a", "b"]))
    with pytest.raises(InputError, match=rf"already has obs\['{column}'\]; .*replace_annotation=true"):
        require_not_annotated(cells, "mine")
    require_not_annotated(cells, "other")


def test_columns_with_similar_names_are_the_users_own():
    obs = pd.DataFrame({"mine_levels": [1], "mine_level": [1], "mine_sets": [1]}, index=["a"])
    require_not_annotated(ad.AnnData(np.zeros((1, 1)), obs=obs), "mine")


@pytest.mark.parametrize(
    ("counts", "with_tree", "named"),
    [
        ([95, 5, 0, 0], False, "95% of the known cells are CD4 T:"),
        ([50, 48, 2, 0], True, "98% of the known cells are T:"),  # half of the labels
        ([50, 48, 2, 0], False, None),
        ([50, 20, 20, 10], True, None),
        ([19, 0, 0, 0], False, None),  # too few cells
    ],
)
def test_a_file_of_one_type_is_warned_of(counts, with_tree, named):
    labels = ["CD4 T", "CD8 T", "B", "NK"]
    tree = LabelTree(labels, {"CD4 T": "T", "CD8 T": "T", **dict.fromkeys(("T", "B", "NK"), "lymphocyte")})
    codes = np.repeat(np.arange(4), counts)
    obs = pd.DataFrame({"label": pd.Categorical.from_codes([*codes, 3, 3, 3], labels)})  # and three unknown cells
    obs["unknown"] = obs.index >= len(codes)
    warnings = OneType(tree if with_tree else LabelTree(labels, {})).make(lambda: [], obs).warnings
    assert len(warnings) == (named is not None)
    assert all(warning.startswith(named) and "condition_of=WHOLE_SAMPLE" in warning for warning in warnings)
