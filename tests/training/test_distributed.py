"""Who starts the processes of a training in a Slurm job, and what is refused there."""

import pytest
from pytorch_lightning.plugins.environments import LightningEnvironment, SLURMEnvironment

from scperformer.config.groups import TrainerConfig
from scperformer.errors import InputError
from scperformer.training.trainer import processes_from

JOB = {"SLURM_JOB_ID": "7"}


def step(tasks: int, nodes: int) -> dict[str, str]:
    """The environment that srun gives to its processes."""
    numbers = {"SLURM_STEP_NUM_TASKS": tasks, "SLURM_STEP_NUM_NODES": nodes, "SLURM_NTASKS_PER_NODE": tasks // nodes}
    return JOB | {"SLURM_STEP_ID": "0"} | {name: str(number) for name, number in numbers.items()}


def trainer(num_nodes: int, devices: int) -> TrainerConfig:
    return TrainerConfig(num_nodes=num_nodes, devices=devices)


def test_outside_of_slurm_lightning_finds_out_itself():
    assert processes_from(trainer(2, 2), {}) is None


@pytest.mark.parametrize("where", [JOB, step(1, 1)], ids=["batch script", "srun"])
@pytest.mark.parametrize("devices", [1, 2])
def test_a_single_process_of_slurm_starts_its_own_helpers(where, devices):
    assert type(processes_from(trainer(1, devices), where)) is LightningEnvironment


@pytest.mark.parametrize(("num_nodes", "devices"), [(2, 1), (2, 2), (1, 2)])
def test_the_processes_of_srun_are_the_training(num_nodes, devices):
    processes = processes_from(trainer(num_nodes, devices), step(num_nodes * devices, num_nodes))
    assert isinstance(processes, SLURMEnvironment)
    assert not processes.auto_requeue


REFUSED = {
    "no srun": (trainer(2, 1), JOB, r"num_nodes=2 .* without srun;.*begin.*srun --nodes=2 --ntasks-per-node=1'"),
    "one node of two": (trainer(2, 1), step(1, 1), r"in 1 processes of srun on 1 nodes; expected 2 on 2"),
    "too many": (trainer(1, 1), step(2, 1), r"in 2 processes of srun on 1 nodes; expected 1 on 1"),
    "too few": (
        trainer(2, 2),
        step(2, 2),
        r"expected 4 on 2: begin the command with 'srun --nodes=2 --ntasks-per-node=2'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_processes_than_asked_for_are_refused(case):
    options, where, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        processes_from(options, where)


def test_srun_with_ntasks_alone_is_refused():
    where = step(2, 2)
    del where["SLURM_NTASKS_PER_NODE"]
    with pytest.raises(InputError, match="--ntasks-per-node=1"):
        processes_from(trainer(2, 1), where)
