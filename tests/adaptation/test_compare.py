"""The distribution shift of batches."""

from types import SimpleNamespace

import numpy as np

from scperformer.adaptation.compare import UNCORRECTED, Comparer
from scperformer.cells.batches import Batches
from scperformer.trust.shift import Shift


def test_the_novelty_of_a_batch_is_divided_by_its_own_factor():
    """At least by that of the whole query, not by that of the last batch, whatever the order of the batches."""
    cells = np.repeat(np.arange(3), 30)
    query = SimpleNamespace(
        batches=Batches("run", ["a", "b", "c"], cells),
        plan=SimpleNamespace(num_genes=2),
        cell_rows=np.arange(90),
        path="cells.h5ad",
    )
    of_batches = [Shift(novelty, 0.5, 30) for novelty in (2.0, 3.0, 5.0)]
    whole = Shift(2.5, 0.5, 90)

    class Known(Comparer):
        def estimate(self, query, batch=None, usual=UNCORRECTED):
            return of_batches[batch], UNCORRECTED

    found = Known(None, None).of_batches(query, whole, UNCORRECTED)
    assert found.novelty.tolist() == [2.5, 3.0, 5.0]
    assert found.shifts == of_batches
