"""What glibc does with freed memory."""

import ctypes
import sys

import pytest

from scperformer.base.memory import GIVEN_BACK, GLIBC_DEFAULTS, KEPT, freed_memory


class Libc:
    """A C library that remembers how it was set."""

    gnu_get_libc_version = None

    def __init__(self):
        self.settings, self.trims = {}, 0

    def mallopt(self, parameter, value):
        self.settings[parameter] = value

    def malloc_trim(self, _):
        self.trims += 1


def test_blocks_in_blocks(monkeypatch):
    libc = Libc()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: libc)
    with freed_memory(GIVEN_BACK):
        assert libc.settings == GIVEN_BACK
        with freed_memory(KEPT):
            assert libc.settings == GIVEN_BACK | KEPT
        with pytest.raises(ValueError, match="stop"), freed_memory(KEPT):
            raise ValueError("stop")
        assert libc.settings == GIVEN_BACK
    assert (libc.settings, libc.trims) == (GLIBC_DEFAULTS, 3)


@pytest.mark.parametrize("platform", ["darwin", "linux"])
def test_other_systems_and_libraries_are_left_alone(platform, monkeypatch):
    libc = Libc()
    monkeypatch.delattr(Libc, "gnu_get_libc_version")
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: libc)
    with freed_memory(KEPT):
        assert libc.settings == {}
    assert (libc.settings, libc.trims) == ({}, 0)
