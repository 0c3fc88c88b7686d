"""Time and memory in words."""

import numpy as np
import pytest

from scperformer.resources import in_gib, in_time, peak_memory

DURATIONS = {0: "0.0 s", 9.94: "9.9 s", 9.96: "10 s", 59.4: "59 s", 59.6: "1 min 00 s", 200: "3 min 20 s"}
DURATIONS |= {3599.6: "1 h 00 min", 7500: "2 h 05 min", 100_000: "27 h 46 min"}
SIZES = {0.42: "0.42 GiB", 0.999: "1.0 GiB", 3.06: "3.1 GiB", 24.4: "24 GiB"}


@pytest.mark.parametrize("seconds", DURATIONS)
def test_durations(seconds):
    assert in_time(seconds) == DURATIONS[seconds]


@pytest.mark.parametrize("size", SIZES)
def test_sizes(size):
    assert in_gib(size * 2**30) == SIZES[size]


def test_peak_memory_grows_with_what_is_in_use():
    before = peak_memory()
    block = np.ones(before // 8 + 2**23)  # more than the peak so far, and 64 MiB
    assert block.sum() > 0
    assert peak_memory() > before + 2**25
