"""Who starts the processes of a distributed training: Lightning itself, or Slurm's srun; what has to fit each other."""

import os
from collections.abc import Mapping

from pytorch_lightning.plugins.environments import ClusterEnvironment, LightningEnvironment, SLURMEnvironment

from scperformer.config import TrainerConfig
from scperformer.errors import InputError


def processes_from(trainer: TrainerConfig, environment: Mapping[str, str] = os.environ) -> ClusterEnvironment | None:
    """Where Lightning's processes come from; None, outside of Slurm: as Lightning finds out itself.

    Parameters
    ----------
    trainer
        How many processes there are to be, and on how many machines.
    environment
        What Slurm says of the job, and of the step that srun has started.

    Raises
    ------
    InputError
        srun has started other processes than the options ask for, or none where there is more than one machine.
    """
    if "SLURM_JOB_ID" not in environment:
        return None
    num_nodes, devices = trainer.num_nodes, trainer.devices
    asked = f"trainer.num_nodes={num_nodes} trainer.devices={devices}"
    srun = f"srun --nodes={num_nodes} --ntasks-per-node={devices}"
    if "SLURM_STEP_ID" not in environment:  # a line of the batch script, without srun
        if num_nodes > 1:
            raise InputError(f"{asked} without srun", "a process on each node", f"begin the command with '{srun}'")
        return LightningEnvironment()
    tasks, nodes = (int(environment.get(f"SLURM_STEP_NUM_{what}", 1)) for what in ("TASKS", "NODES"))
    if (tasks, nodes) == (1, num_nodes):
        return LightningEnvironment()
    if (tasks, nodes) != (num_nodes * devices, num_nodes) or "SLURM_NTASKS_PER_NODE" not in environment:
        found = f"{asked} in {tasks} processes of srun on {nodes} nodes"
        raise InputError(found, f"{num_nodes * devices} on {num_nodes}", f"begin the command with '{srun}'")
    return SLURMEnvironment(auto_requeue=False)  # requeueing is the batch script's: docs/hpc.md
