"""Seeds of the random streams of a training run: one per purpose, so that no two streams share their draws."""

import zlib

import numpy as np


def seed_sequence(stream: str, *numbers: int) -> np.random.SeedSequence:
    """The seed of one draw of a named stream, such as `seed_sequence("dropout", seed, step)`.

    NumPy pads its entropy with zeros, so [1, 5] and [1, 5, 0] would be the same seed. Hence the name of the stream and
    the number of its numbers go into the spawn key, which is hashed separately.

    Parameters
    ----------
    stream
        The purpose: "dropout", "order of cells", ...
    numbers
        The seed of the run and the place of the draw in the run; not negative.
    """
    return np.random.SeedSequence(numbers, spawn_key=(zlib.crc32(stream.encode()), len(numbers)))


def seed_of(stream: str, *numbers: int) -> int:
    """`seed_sequence` as one number of 32 bits, for a `torch.Generator`."""
    return int(seed_sequence(stream, *numbers).generate_state(1)[0])
