"""Durations and sizes with units, suggestions for names, and joined names."""

import pytest

from scperformer.base.messages import did_you_mean, in_bytes, in_time, join_names, split_names

DURATIONS = {0: "0.0 s", 9.94: "9.9 s", 9.96: "10 s", 59.4: "59 s", 59.6: "1 min 00 s", 200: "3 min 20 s"}
DURATIONS |= {3599.6: "1 h 00 min", 7500: "2 h 05 min", 100_000: "27 h 46 min"}
SIZES = {0.001: "1 MiB", 0.42: "430 MiB", 0.999: "1.0 GiB", 3.06: "3.1 GiB", 24.4: "24 GiB"}


@pytest.mark.parametrize("seconds", DURATIONS)
def test_durations(seconds):
    assert in_time(seconds) == DURATIONS[seconds]


@pytest.mark.parametrize("size", SIZES)
def test_sizes(size):
    assert in_bytes(size * 2**30) == SIZES[size]


@pytest.mark.parametrize(
    ("word", "suggestion"),
    [("celltype", "did you mean 'cell_type'? "), ("CELL_TYPE", "did you mean 'cell_type'? "), ("donor", "")],
)
def test_a_similar_name_is_suggested(word, suggestion):
    assert did_you_mean(word, ["cell_type", "batch"]) == suggestion


@pytest.mark.parametrize("names", [[], ["A"], ["A", "B"], ["A|B", "C"], ['"', "|", "\\"], ["a,b", " c "]], ids=str)
def test_joined_names_can_be_split(names):
    assert split_names(join_names(names)) == names
    if not any(letter in name for name in names for letter in '|"'):
        assert join_names(names) == "|".join(names)
