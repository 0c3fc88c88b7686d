"""Seeds of random streams: every stream and every step has its own, and the same one each time."""

from itertools import product

from scperformer.network.seeds import seed_of, seed_sequence

STREAMS = ("dropout", "redraw", "masked in training", "masked in validation", "batches", "drawn cells", "blocks")


def test_every_stream_and_step_has_its_own_seed():
    numbers = [*product(range(5), range(20)), *product(range(5), range(20), range(3))]
    seeds = {seed_of(stream, *parts) for stream in STREAMS for parts in numbers}
    assert len(seeds) == len(STREAMS) * len(numbers)


def test_zeros_at_the_end_count():
    assert seed_of("dropout", 1, 5) != seed_of("dropout", 1, 5, 0)
    first, second = (seed_sequence("batches", *numbers).generate_state(4) for numbers in ((3, 1), (3, 1, 0)))
    assert list(first) != list(second)


def test_a_seed_is_the_same_in_every_program():
    assert seed_of("dropout", 3, 4) == seed_of("dropout", 3, 4) != seed_of("dropout", 4, 3)
    # Written down when it was introduced: a resumed run must draw what the first one would have drawn.
    assert [seed_of("dropout", 0, 0), seed_of("batches", 0, 1, 2)] == [3724080882, 942370044]
