"""The processes of a distributed training: who starts them, that they end cleanly, and what happens when one dies."""

import logging
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import torch
from pytorch_lightning.plugins.environments import ClusterEnvironment, LightningEnvironment, SLURMEnvironment
from pytorch_lightning.strategies.launchers import subprocess_script

from scperformer.config import TrainerConfig
from scperformer.errors import InputError

log = logging.getLogger(__name__)

# Lightning sets these for the processes that it starts; where LOCAL_RANK is set already, it starts none.
PROCESS_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE")
SECONDS_BETWEEN_LOOKS = 1.0
GRACE_SECONDS = 20.0  # gloo and NCCL usually notice within this time that a process has ended


def processes_from(trainer: TrainerConfig, environment: Mapping[str, str] = os.environ) -> ClusterEnvironment | None:
    """Choose who starts the processes: Lightning or Slurm's srun; None outside of Slurm, where Lightning decides.

    Refused: srun has started other processes than the options ask for, or none although they ask for several machines.
    """
    if "SLURM_JOB_ID" not in environment:
        return None
    num_nodes, devices = trainer.num_nodes, trainer.devices
    asked = f"trainer.num_nodes={num_nodes} trainer.devices={devices}"
    remedy = f"begin the command with 'srun --nodes={num_nodes} --ntasks-per-node={devices}'"
    if "SLURM_STEP_ID" not in environment:  # a line of the batch script, without srun
        if num_nodes > 1:
            raise InputError(f"{asked} without srun", "a process on each node", remedy)
        return LightningEnvironment()
    tasks, nodes = (int(environment.get(f"SLURM_STEP_NUM_{unit}", 1)) for unit in ("TASKS", "NODES"))
    if (tasks, nodes) == (1, num_nodes):
        return LightningEnvironment()
    if (tasks, nodes) != (num_nodes * devices, num_nodes) or "SLURM_NTASKS_PER_NODE" not in environment:
        found = f"{asked} in {tasks} processes of srun on {nodes} nodes"
        raise InputError(found, f"{num_nodes * devices} on {num_nodes}", remedy)
    return SLURMEnvironment(auto_requeue=False)  # the batch script requeues the job: docs/hpc.md


@contextmanager
def processes_ended() -> Iterator[None]:
    """Clean up after a distributed run, so that the next one in this process (a sweep) starts its own helpers."""
    before = {name: os.environ.get(name) for name in PROCESS_VARIABLES}
    try:
        yield
    finally:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextmanager
def helpers_watched() -> Iterator[None]:
    """Exit with code 2 and one line of error if a process that Lightning started dies, instead of waiting forever.

    Lightning's own watch kills this process without a message.
    """
    ended = threading.Event()

    def watch(helpers: Sequence[subprocess.Popen]) -> None:
        while not any(helper.poll() for helper in helpers):
            if ended.wait(SECONDS_BETWEEN_LOOKS):
                return
        if ended.wait(GRACE_SECONDS):
            return
        for helper in helpers:
            helper.kill()
        log.error(str(lost_process(len(helpers) + 1)))
        os._exit(2)  # the main thread is stuck in a call that waits for the dead process

    def start_watch(helpers: Sequence[subprocess.Popen]) -> None:
        threading.Thread(target=watch, args=(helpers,), daemon=True).start()

    # create: later versions of Lightning may lack the function; then nothing is replaced.
    with patch.object(subprocess_script, "_launch_process_observer", start_watch, create=True):
        try:
            yield
        finally:
            ended.set()


def lost_process(num: int, reason: str = "") -> InputError:
    """Make the error of a training of `num` processes in which one has ended."""
    found = f"one of the {num} processes of this training ended{f' ({reason})' if reason else ''}"
    remedy = "read its messages above, then run the same command with resume=true"
    return InputError(found, "all of them to continue", remedy)
