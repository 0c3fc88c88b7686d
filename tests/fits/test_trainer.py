"""The loop over epochs: signals in the middle of an epoch, the table of epochs, and who starts the processes."""

import os
import signal
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from pytorch_lightning.loggers import wandb as of_wandb
from pytorch_lightning.plugins.environments import LightningEnvironment, SLURMEnvironment
from support.killed import interrupted
from support.learning import cells, cfg, last_state, new_network  # noqa: F401 - fixtures
from support.refusal import refusal

from scperformer.cli.compose import make_config
from scperformer.config.training import LoggerConfig, TrainerConfig
from scperformer.fits import trainer
from scperformer.fits.steps import Device, device_of
from scperformer.fits.trainer import require_loggers
from scperformer.lab.epochs import processes_from, run_epochs
from scperformer.lab.supervised import Learner


@pytest.fixture
def machine(monkeypatch):
    """Make a machine with GPUs of NVIDIA, or one of Apple."""

    def make(num_gpus: int = 0, bfloat16: bool = True, is_apple: bool = False) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: num_gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bfloat16)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100")
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: is_apple)

    return make


DEVICES = {
    "no GPU": ({}, {}, Device("cpu", "32-true", "no GPU that torch can use")),
    "a GPU": ({"num_gpus": 1}, {}, Device("cuda", "bf16-mixed", "NVIDIA H100")),
    "an old GPU": (
        {"num_gpus": 1, "bfloat16": False},
        {},
        Device("cuda", "32-true", "NVIDIA H100"),
    ),
    "a Mac": ({"is_apple": True}, {}, Device("mps", "32-true", "Apple GPU")),
    "given": (
        {"num_gpus": 1},
        {"accelerator": "cpu", "precision": "bf16-mixed"},
        Device("cpu", "bf16-mixed", "trainer.accelerator=cpu"),
    ),
}


@pytest.mark.parametrize("case", DEVICES)
def test_a_gpu_trains_where_there_is_one(case, machine):
    kinds, options, device = DEVICES[case]
    machine(**kinds)
    assert device_of(TrainerConfig(**options)) == device


def test_a_missing_gpu_is_refused(machine):
    machine()
    with refusal("no-gpu"):
        device_of(TrainerConfig(accelerator="gpu"))
    machine(num_gpus=1)
    with refusal("devices"):
        device_of(TrainerConfig(devices=2))


@pytest.mark.parametrize(
    ("number", "epoch", "step"),
    [pytest.param(signal.SIGUSR1, 0, 1, marks=pytest.mark.slow), (signal.SIGTERM, 1, -1)],
    ids=["USR1 in the first epoch", "TERM in the last step"],
)
def test_a_signal_loses_nothing(cells, cfg, tmp_path, monkeypatch, number, epoch, step):
    train, val, _ = cells
    torch.set_num_threads(1)
    run_epochs(
        Learner(new_network(cells, cfg), train.known_labels, cfg),
        train,
        val,
        cfg,
        tmp_path / "whole",
    )

    steps = -(-len(train) // cfg.trainer.batch_size)
    seen = []
    batch = type(train).labelled_batch

    def counted(cells, rows):
        seen.extend([rows] if cells is train else [])
        return batch(cells, rows)

    monkeypatch.setattr(type(train), "labelled_batch", counted)
    before = signal.getsignal(number)

    def run() -> None:
        run_epochs(
            Learner(new_network(cells, cfg), train.known_labels, cfg),
            train,
            val,
            cfg,
            tmp_path / "cut",
        )

    code = interrupted(monkeypatch, Learner, run, epoch=epoch, step=step % steps, number=number)
    assert code == 128 + number
    assert signal.getsignal(number) == before
    run()

    whole, resumed = last_state(tmp_path / "whole"), last_state(tmp_path / "cut")
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    # No step was made twice; Lightning has fetched a batch ahead when the signal comes.
    assert len(seen) <= cfg.trainer.max_epochs * steps + 1


JOB = {"SLURM_JOB_ID": "7"}


def step(tasks: int, nodes: int) -> dict[str, str]:
    """The environment that srun gives to its processes."""
    numbers = {
        "SLURM_STEP_NUM_TASKS": tasks,
        "SLURM_STEP_NUM_NODES": nodes,
        "SLURM_NTASKS_PER_NODE": tasks // nodes,
    }
    return JOB | {"SLURM_STEP_ID": "0"} | {name: str(number) for name, number in numbers.items()}


def asked(num_nodes: int, devices: int) -> TrainerConfig:
    return TrainerConfig(num_nodes=num_nodes, devices=devices)


def test_outside_of_slurm_lightning_finds_out_itself():
    assert processes_from(asked(2, 2), {}) is None


@pytest.mark.parametrize("where", [JOB, step(1, 1)], ids=["batch script", "srun"])
def test_a_single_process_of_slurm_starts_its_own_helpers(where):
    assert type(processes_from(asked(1, 2), where)) is LightningEnvironment


@pytest.mark.parametrize(("num_nodes", "devices"), [(2, 2), (1, 2)])
def test_the_processes_of_srun_are_the_training(num_nodes, devices):
    processes = processes_from(asked(num_nodes, devices), step(num_nodes * devices, num_nodes))
    assert isinstance(processes, SLURMEnvironment)
    assert not processes.auto_requeue


REFUSED = {
    "no srun": (asked(2, 1), JOB, ["num_nodes=2", "srun --nodes=2 --ntasks-per-node=1"]),
    "too many": (asked(1, 1), step(2, 1), ["2 processes", "1 nodes", "1 on 1"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_processes_than_asked_for_are_refused(case):
    options, where, values = REFUSED[case]
    with refusal("processes", *values):
        processes_from(options, where)


def module(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> ModuleType:
    """Put a module with this content in the place of a library."""
    made = ModuleType(name)
    made.__path__ = []  # it has submodules
    made.__spec__ = SimpleNamespace(name=name)  # as find_spec expects
    vars(made).update(content)
    monkeypatch.setitem(sys.modules, name, made)
    return made


def fake_wandb(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """Install a wandb; its `init` notes how a run begins, and returns a run that notes what it gets."""
    run = MagicMock()
    init = MagicMock(return_value=run)
    module(monkeypatch, "wandb", init=init, run=None)
    module(monkeypatch, "wandb.sdk.lib", RunDisabled=type("RunDisabled", (), {}))
    module(monkeypatch, "wandb.sdk")
    module(monkeypatch, "wandb.wandb_run", Run=type("Run", (), {}))
    monkeypatch.setattr(of_wandb, "_WANDB_AVAILABLE", True)
    return init


def one_epoch(cells, cfg, folder, logger: str) -> None:
    """Train for an epoch with a preset of `logger`."""
    options = replace(cfg, trainer=replace(cfg.trainer, max_epochs=1))
    options.logger = make_config("train", ["inputs=[x]", "label_key=x", f"logger={logger}"]).logger
    options.logger.csv = False
    train, val, _ = cells
    run_epochs(
        Learner(new_network(cells, options), train.known_labels, options),
        train,
        val,
        options,
        folder,
    )


def test_wandb_gets_the_scores_and_stays_offline_unless_asked(cells, cfg, tmp_path, monkeypatch):
    init = fake_wandb(monkeypatch)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    seen = []
    init.side_effect = lambda **_: seen.append(os.environ["WANDB_MODE"]) or init.return_value
    one_epoch(cells, cfg, tmp_path / "mine.run", "wandb")
    assert seen == ["dryrun"]  # wandb's name for its offline mode
    assert (init.call_args.kwargs["name"], init.call_args.kwargs["project"]) == (
        "mine",
        "scperformer",
    )
    run = init.return_value
    assert any("val_macro_f1" in call.args[0] for call in run.log.call_args_list)
    options = run.config.update.call_args.args[0]
    assert options["model"]["dim"] == cfg.model.dim
    assert "gene2vec_path" not in options["model"]
    run.finish.assert_called_once_with()


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_logger_that_is_not_installed_is_refused(name, monkeypatch):
    monkeypatch.setattr(trainer.importlib.util, "find_spec", lambda name: None)
    with refusal("no-logger", name, name, name):
        require_loggers(LoggerConfig(**{name: True}))
    require_loggers(LoggerConfig())
