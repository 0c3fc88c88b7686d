"""The names of the columns of an annotation, which predict, check and the reports share."""

import anndata as ad
import numpy as np
import pandas as pd
import pytest

from scperformer.base.errors import InputError
from scperformer.prediction import OBS_COLUMNS, REQUIRED_COLUMNS, require_not_annotated


def test_reports_require_columns_that_are_written():
    assert set(REQUIRED_COLUMNS) < set(OBS_COLUMNS)


@pytest.mark.parametrize("column", ["mine_label", "mine_set_size", "mine_level3", "mine_doublet"])
def test_any_column_of_an_annotation_is_refused_under_the_same_prefix(column):
    cells = ad.AnnData(np.zeros((2, 1)), obs=pd.DataFrame({column: [1, 2]}, index=["a", "b"]))
    with pytest.raises(InputError, match=rf"already has obs\['{column}'\]; .*replace_annotation=true"):
        require_not_annotated(cells, "mine")
    require_not_annotated(cells, "other")


def test_columns_with_similar_names_are_the_users_own():
    obs = pd.DataFrame({"mine_levels": [1], "mine_level": [1], "mine_sets": [1]}, index=["a"])
    require_not_annotated(ad.AnnData(np.zeros((1, 1)), obs=obs), "mine")
