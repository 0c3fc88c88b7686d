"""Memory that was used, and memory that is free on a machine and within its control groups."""

import pytest

from scperformer.training.memory import available_memory, peak_memory


def test_peak_memory_is_in_bytes():
    assert 2**20 < peak_memory() < 2**45


@pytest.fixture
def machine(tmp_path):
    """A machine with 8 GiB free: `machine({"sys/...": text})` adds files and tells what is available."""

    def available(files):
        for name, text in {"proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {8 * 2**20} kB\n", **files}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return available_memory(tmp_path) / 2**30

    return available


def group(path, limit, used, cached=0):
    """The files of a control group, sizes in GiB."""
    folder = f"sys/fs/cgroup/{path}"
    return {
        f"{folder}memory.max": limit if limit == "max" else str(limit * 2**30),
        f"{folder}memory.current": str(used * 2**30),
        f"{folder}memory.stat": f"anon 1\ninactive_file {cached * 2**30}\n",
    }


def test_what_is_free_on_the_machine(machine):
    assert machine({}) == 8
    assert machine(group("", "max", 3)) == 8


def test_limits_of_groups_count_wherever_they_are(machine):
    assert machine({"proc/self/cgroup": "0::/job/step\n", **group("job/", 6, 4, cached=1)}) == 3
    assert machine({**group("job/step/", 5, 3)}) == 2
    assert machine({**group("", 2, 1)}) == 1
    assert machine({**group("", 1, 2)}) == 0


def test_limits_of_groups_of_version_1(machine):
    old = {"memory.limit_in_bytes": str(4 * 2**30), "memory.usage_in_bytes": str(2**30)}
    assert machine({f"sys/fs/cgroup/memory/{name}": text for name, text in old.items()}) == 3


def test_without_such_files_half_of_the_machine(tmp_path):
    assert 2**26 < available_memory(tmp_path) < 2**45
    assert 0 < available_memory() < 2**45
