"""Work on the blocks of a file in several threads, with the same results as in one.

The last bits of a product may depend on the number of its threads. So each block has products in one thread, also where
blocks are worked on one after the other.
"""

import contextvars
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TypeVar

from threadpoolctl import ThreadpoolController

Item = TypeVar("Item")
Result = TypeVar("Result")

# that a job takes by itself: more wait for the interpreter, and each has a block in memory
MOST_CORES = 8
LIMITS = ("OMP_NUM_THREADS", "SLURM_CPUS_PER_TASK")  # variables of the environment
# of a container: microseconds of cores in a period, and the period
CGROUP_CORES = Path("/sys/fs/cgroup/cpu.max")


_wanted: contextvars.ContextVar[int | None] = contextvars.ContextVar("wanted", default=None)


def usable_cores() -> int:
    """Return the number of cores for a job: the wanted ones, or as many as the environment leaves it, up to 8.

    It is never more than this process may use.
    """
    wanted = _wanted.get()
    has_affinity = hasattr(os, "sched_getaffinity")
    limits = [len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1]
    limits.append(MOST_CORES if wanted is None else wanted)
    for name in LIMITS if wanted is None else ():
        with suppress(KeyError, ValueError):
            limits.append(int(os.environ[name]))
    with suppress(OSError, ValueError):  # "max" is no limit
        quota, period = CGROUP_CORES.read_text().split()
        limits.append(round(int(quota) / int(period)))
    return max(1, min(limits))


@contextmanager
def one_thread_each() -> Iterator[Callable[[], None]]:
    """Compute each product in one thread within a block; yield what a new thread calls for its own products."""
    controller = ThreadpoolController()
    openmp = controller.select(user_api="openmp")
    torch = sys.modules.get("torch")  # what has not imported it has no products by it
    before = torch.get_num_threads() if torch else 1

    def limit() -> None:  # OpenMP and torch have a number for each thread
        openmp.limit(limits=1)
        if torch:
            torch.set_num_threads(1)

    with _blas_of_all.limited(controller.select(user_api="blas")), openmp.limit(limits=1):
        limit()
        try:
            yield limit
        finally:
            if torch:
                torch.set_num_threads(before)


class _Blas:
    """The number of threads of BLAS, which all threads share: the last block that limits it restores it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.num_blocks = 0

    @contextmanager
    def limited(self, blas: ThreadpoolController) -> Iterator[None]:
        with self.lock:
            self.num_blocks += 1
            if self.num_blocks == 1:
                self.restored = blas.limit(limits=1)
        try:
            yield
        finally:
            with self.lock:
                self.num_blocks -= 1
                if self.num_blocks == 0:
                    self.restored.restore_original_limits()


_blas_of_all = _Blas()


def _after_fork() -> None:
    """Give a child process a lock that no other thread holds."""
    _blas_of_all.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def cores_wanted(number: int | None) -> Iterator[None]:
    """Let `usable_cores` return a number within a block, in which each product is computed in one thread.

    None stands for as many cores as the environment leaves the job.
    """
    before = _wanted.get()
    _wanted.set(number)
    try:
        with one_thread_each():
            yield
    finally:
        _wanted.set(before)


def map_in_order(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> Generator[Result, None, None]:
    """Yield what a function returns for each item, in the order of the items.

    Up to `threads` items are worked on at a time, each in the context of the caller, and as many results wait for the
    caller. The first error of an item is raised in its place. No thread is left when the iteration ends; a caller that
    may end it earlier closes it.
    """
    with one_thread_each() as limit:
        if threads == 1:
            yield from map(function, items)
            return
        pool = ThreadPoolExecutor(threads, initializer=limit)
        try:
            waiting = iter(items)
            begun: deque[Future[Result]] = deque()
            while True:
                for item in islice(waiting, 2 * threads - len(begun)):
                    begun.append(pool.submit(contextvars.copy_context().run, function, item))
                if not begun:
                    return
                yield begun.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)
