"""Batch sizes that fit: bytes are measured rightly, the choice keeps to the budget, and a resumed run keeps to it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from support.killed import run_until_killed

from scperformer.base.errors import InputError
from scperformer.cells.on_disk import Sample
from scperformer.cells.reference import make_reference
from scperformer.cli.compose import make_config
from scperformer.cli.train import run as run_train
from scperformer.lab import batch_size as batchsize
from scperformer.lab.batch_size import (
    MEMORY_SHARE,
    WEIGHT_COPIES,
    available_memory,
    fitting_batch_size,
    peak_bytes,
    step_bytes,
)
from scperformer.lab.supervised import Learner
from scperformer.model.batches import Cells
from scperformer.model.folder import read_model
from scperformer.training.train import new_network

MIB = 2**20
FAST = ["label_key=cell_type", "model=tiny", "data.min_genes=0", "logger=none", "trainer.max_epochs=1"]


def config(path, *overrides):
    return make_config("train", [f"inputs=['{path}']", *FAST, *overrides])


@pytest.fixture
def trial(counts_adata):
    """An untrained network, its training cells and options."""
    return trial_of(counts_adata)


def trial_of(adata, *overrides):
    cfg = config("x", "trainer.batch_size=auto", *overrides)
    reference = make_reference(Sample(adata, Path("x")), cfg)
    train = Cells(reference.x, cfg.tokens, reference.labels)
    return Learner(new_network(reference, cfg), train.known_labels, cfg), train, cfg


def memory_of(num_cells, learner, train, cfg) -> float:
    """The memory into which a step on so many cells fits exactly."""
    weights = WEIGHT_COPIES * sum(p.numel() * p.element_size() for p in learner.network.parameters())
    return (step_bytes(learner, train, num_cells, cfg) + weights) / MEMORY_SHARE


# measuring


def two_tensors():
    a = torch.zeros(MIB // 4)
    b = a + 1  # 2 MiB
    b.view(2, -1).add_(1)  # neither a view nor a change in place is new
    del a, b
    torch.zeros(MIB // 4)


def backward_pass(weight=torch.ones(MIB // 4, requires_grad=True)):  # noqa: B008
    kept = weight
    for _ in range(5):
        kept = kept.exp()  # the backward pass of exp needs its result: 5 MiB, and one or two gradients at a time
    kept.sum().backward()


@pytest.mark.parametrize(("step", "least", "most"), [(two_tensors, 2, 2.001), (backward_pass, 6, 8)])
def test_the_most_bytes_at_a_time_are_measured(step, least, most):
    assert least * MIB <= peak_bytes(step, "cpu") <= most * MIB


def test_bytes_of_a_step_are_the_same_each_time_and_grow_with_the_cells(trial):
    learner, train, cfg = trial
    before = {name: tensor.clone() for name, tensor in learner.network.state_dict().items()}
    state = torch.get_rng_state()
    sizes = [step_bytes(learner, train, num, cfg) for num in (2, 4, 8, 16, 4)]
    assert sizes[1] == sizes[4]
    steps = np.diff(sizes[:4]) / [2, 4, 8]
    # The line through 2 and 4 cells reaches far: shapes differ a little, as dropout hides other genes of each cell.
    assert steps == pytest.approx(steps[0], rel=0.15)
    assert all(parameter.grad is None for parameter in learner.network.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in learner.network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


# choosing


def test_the_largest_size_that_fits_is_chosen(trial):
    assert [fitting_batch_size(*trial, memory_of(num, *trial)) for num in (3, 6, 12, 24)] == [2, 4, 8, 16]
    assert fitting_batch_size(*trial, 2**40) == 32  # an epoch of 120 cells has no use for more


@pytest.mark.parametrize(("attention", "is_bounded"), [("favor", True), ("softmax", False)])
def test_few_tokens_tell_the_memory_of_many_where_it_is_linear(
    attention, is_bounded, counts_adata, monkeypatch, caplog
):
    learner, train, cfg = trial_of(counts_adata, f"attention={attention}", "tokens.unexpressed=full")
    memory = memory_of(12, learner, train, cfg)
    tokens = []
    original = Learner.training_step
    count = lambda self, batch, index: tokens.append(batch[0].keep_BL.numel()) or original(self, batch, index)  # noqa: E731
    monkeypatch.setattr(Learner, "training_step", count)
    monkeypatch.setattr(batchsize, "TRIAL_TOKENS", 400)
    with caplog.at_level("INFO", logger="scperformer"):
        size = fitting_batch_size(learner, train, cfg, memory)
    assert size == 8 or (is_bounded and size == 4)  # on the safe side
    longest = train.x.shape[1] + 1
    assert tokens == ([200, 400] if is_bounded else [2 * longest, 4 * longest])
    said = f"measured on 100 tokens of each cell, and extrapolated to the {longest} of the longest"
    assert (said in caplog.text) == is_bounded


def test_a_budget_too_small_for_one_cell_is_refused(trial):
    with pytest.raises(InputError, match=r"one cell of \d+ tokens needs about .* MiB; .*: choose a smaller model"):
        fitting_batch_size(*trial, 2**18)


# training


@pytest.mark.slow
def test_auto_trains_the_model_of_the_chosen_size_and_a_resumed_run_keeps_it(
    counts_adata, write, tmp_path, monkeypatch, caplog
):
    caplog.set_level("INFO", logger="scperformer")
    words = ["trainer.batch_size=auto", "trainer.max_epochs=2", f"output={tmp_path}/auto"]
    path = write(counts_adata)
    monkeypatch.setattr(batchsize, "available_memory", lambda: 2**23)
    run_until_killed(monkeypatch, Learner, lambda: run_train(config(path, *words)))
    size = json.loads((tmp_path / "auto.run" / "run.json").read_text())["batch_size"]
    assert size in (2, 4, 8, 16)
    assert f"batch size {size}: steps on cells of up to" in caplog.text
    monkeypatch.setattr(batchsize, "available_memory", lambda: 2**40)
    auto = run_train(config(path, *words, "resume=true"))
    assert read_model(auto).provenance["options"]["trainer"]["batch_size"] == size
    assert f"trainer.batch_size={size}" in (auto / "MODEL_CARD.md").read_text()
    words = [f"trainer.batch_size={size}", "trainer.max_epochs=2", f"output={tmp_path}/told"]
    ours, theirs = read_model(auto).weights, read_model(run_train(config(path, *words))).weights
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def test_too_little_memory_leaves_no_run_folder(counts_adata, write, tmp_path, monkeypatch):
    monkeypatch.setattr(batchsize, "available_memory", lambda: 10**5)
    options = ["trainer.batch_size=auto", f"output={tmp_path}/m"]
    with pytest.raises(InputError, match="choose a smaller model"):
        run_train(config(write(counts_adata), *options))
    assert [path.name for path in tmp_path.iterdir()] == ["sample.h5ad"]


# the memory that is free


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


def old_group(path, limit, used, cached=0):
    """The files of a control group of version 1, which says of all groups inside of it how many pages are cached."""
    folder = f"sys/fs/cgroup/memory/{path}"
    return {
        f"{folder}memory.limit_in_bytes": str(limit * 2**30),
        f"{folder}memory.usage_in_bytes": str(used * 2**30),
        f"{folder}memory.stat": f"inactive_file 0\ntotal_inactive_file {cached * 2**30}\n",
    }


NEW, OLD = {"proc/self/cgroup": "0::/job/step\n"}, {"proc/self/cgroup": "9:cpu:/x\n4:hugetlb,memory:/job/step\n0::/\n"}


@pytest.mark.parametrize(("own", "group"), [(NEW, group), (OLD, old_group)], ids=["version 2", "version 1"])
def test_limits_of_groups_count_wherever_they_are(machine, own, group):
    assert machine({}) == 8
    assert machine({**own, **group("job/", 6, 4, cached=1)}) == 3
    assert machine({**group("job/step/", 5, 3)}) == 2
    assert machine({**group("", 2, 1)}) == 1
    assert machine({**group("", 1, 2)}) == 0


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({**NEW, **group("", "max", 3)}, 8),
        ({**OLD, **old_group("", 4, 3, cached=2)}, 3),
        ({**OLD, **old_group("job/step/", 2**33 - 1, 3)}, 8),
        ({**OLD, **old_group("other/", 2, 1), **group("", 2, 1)}, 1),
        ({"proc/self/cgroup": "9:cpu:/x\n"}, 8),
    ],
    ids=["no limit", "container: own group at the top", "no limit in version 1", "other process", "no memory group"],
)
def test_free_memory_of_other_machines(machine, files, free):
    assert machine(files) == free


def test_without_such_files_half_of_the_machine(tmp_path):
    assert 2**26 < available_memory(tmp_path) < 2**45
    assert 0 < available_memory() < 2**45
