"""Descriptions of imported networks that are refused; tests/importing compares their scores with CellTypist's."""

import pytest

from scperformer.model.imported import ImportedNetwork


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "dense"}, "a network of the unknown kind 'dense': update scperformer"),
        ({"name": "standardised", "clip": -1}, "clip is not a number above 0"),
    ],
)
def test_networks_that_cannot_be_made_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ImportedNetwork(6, 2, options)
