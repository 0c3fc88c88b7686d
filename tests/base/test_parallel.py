"""Blocks are worked on in threads: results in order, errors, early ends, and the threads of products."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from scperformer.base import parallel
from scperformer.base.parallel import cores_wanted, map_in_order, one_thread_each, usable_cores


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Numbers of threads; none is left after a test, and products have as many as before."""

    def settings() -> list[int]:
        return [torch.get_num_threads(), *(library["num_threads"] for library in threadpool_info())]

    num_torch = torch.get_num_threads()
    with threadpool_limits(2):
        torch.set_num_threads(2)
        before = threading.active_count(), settings()
        yield request.param
        assert (threading.active_count(), settings()) == before
        torch.set_num_threads(num_torch)


def test_results_are_in_the_order_of_the_items_whatever_takes_longer(threads: int):
    third_is_done = threading.Event()

    def squared(number: int) -> int:
        if number == 2:
            third_is_done.set()
        elif number == 0 and threads == 3:
            assert third_is_done.wait(60)
        return number**2

    assert list(map_in_order(squared, range(20), threads)) == [number**2 for number in range(20)]
    assert list(map_in_order(squared, [], threads)) == []


def test_the_first_error_is_raised_in_its_place(threads: int):
    def inverse(number: int) -> float:
        if number == 5:
            raise ValueError("five")
        return 1 / (number - 4)  # 4 is earlier

    results = map_in_order(inverse, range(100), threads)
    assert [next(results) for _ in range(4)] == [-1 / 4, -1 / 3, -1 / 2, -1]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_few_items_are_begun_before_their_results_are_taken(threads: int):
    begun: list[int] = []
    results = map_in_order(begun.append, range(100), threads)
    next(results)
    next(results)
    results.close()
    assert sorted(begun) == list(range(len(begun)))
    assert 2 <= len(begun) <= 2 + 2 * threads


PRODUCTS = ("blas", "openmp")  # others: SciPy's reader of mtx files


def test_each_item_has_products_in_one_thread_and_the_context_of_the_caller(threads: int):
    def seen(_: int) -> set[tuple[str, int]]:
        with pytest.raises(FloatingPointError):
            np.log(np.zeros(1))
        libraries = {
            (each["filepath"], each["num_threads"])
            for each in threadpool_info()
            if each["user_api"] in PRODUCTS
        }
        return libraries | {("torch", torch.get_num_threads())}

    with np.errstate(divide="raise"):
        for libraries in map_in_order(seen, range(6), threads):
            assert {each for each in libraries if each[1] != 1} == set()


@pytest.mark.parametrize(
    ("wanted", "environment", "quota", "expected"),
    [
        (None, {}, "max 100000", 8),
        (None, {"OMP_NUM_THREADS": "3"}, "max 100000", 3),
        (None, {"OMP_NUM_THREADS": "6", "SLURM_CPUS_PER_TASK": "4"}, "max 100000", 4),
        (None, {"OMP_NUM_THREADS": "many"}, "250000 100000", 2),
        (12, {"OMP_NUM_THREADS": "3"}, "max 100000", 12),
        (99, {}, "max 100000", 16),
        (None, {}, "1000 100000", 1),
    ],
)
def test_a_job_has_the_cores_that_it_may_use(
    wanted, environment, quota, expected, monkeypatch, tmp_path
):
    for name in parallel.LIMITS:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(parallel, "CGROUP_CORES", tmp_path / "cpu.max")
    monkeypatch.setattr(parallel.os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    with cores_wanted(wanted):
        assert usable_cores() == expected


def test_blocks_at_once_limit_blas_until_the_last_ends():
    def num_threads():
        return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}

    with threadpool_limits(2, user_api="blas"):
        before = num_threads()
        first, second = one_thread_each(), one_thread_each()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert num_threads() == {1} != before
        second.__exit__(None, None, None)
        assert num_threads() == before
