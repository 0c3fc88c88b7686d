"""The range of accuracy by profiles: it falls with the resemblance of a file and with its number of cells."""

import numpy as np
import pandas as pd
import pytest

from scperformer.annotation.expectation import ABOVE, BELOW, range_by_profiles
from scperformer.trust.resemblance import FEW_RESEMBLE


def expected(num_cells: int, resemblance: float) -> tuple[float, float]:
    predictions = pd.DataFrame(
        {"call_confidence": np.full(num_cells, 0.9), "family": np.full(num_cells, 0.92)}
    )
    return range_by_profiles(predictions, resemblance, BELOW)


def test_the_range_of_many_cells_that_resemble_the_profiles():
    lowest, highest = expected(100_000, 0.7)
    assert lowest == pytest.approx(0.9 - BELOW, abs=0.01)
    assert highest == pytest.approx(0.92 + ABOVE)


def test_the_range_falls_with_the_resemblance_and_the_number_of_cells():
    lows = [expected(num, value)[0] for num, value in ((1000, 0.7), (12, 0.7), (12, 0.2), (3, 0.2))]
    assert lows == sorted(lows, reverse=True)
    assert len(set(lows)) == 4
    assert expected(1000, FEW_RESEMBLE / 2)[0] == pytest.approx(0.4, abs=0.05)


@pytest.mark.parametrize("resemblance", [0.06, -0.1, np.nan])
def test_there_is_none_of_a_file_that_resembles_nothing(resemblance):
    assert np.isnan(expected(1000, resemblance)).all()


def test_there_is_none_without_cells():
    assert np.isnan(expected(0, np.nan)).all()
