"""The processes of a distributed training on this machine: they leave no trace, and none dies without a word."""

import logging
import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import torch
from pytorch_lightning.strategies.launchers import subprocess_script

from scperformer.errors import InputError

log = logging.getLogger(__name__)

# What Lightning sets for the processes that it starts; where LOCAL_RANK is set already, it starts none.
PROCESS_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE")
SECONDS_BETWEEN_LOOKS = 1.0
GRACE_SECONDS = 20.0  # in which gloo or NCCL notice by themselves that a process is gone: most times they do


@contextmanager
def processes_ended() -> Iterator[None]:
    """Leave no trace of a distributed run: the next one in this process, a job of a sweep, starts its own helpers."""
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
    """A block in which the death of a process that Lightning starts is one line of error, exit code 2 and no hang.

    Lightning's own watch kills this process, and says nothing.
    """
    ended = threading.Event()

    def watch(helpers: Sequence[subprocess.Popen]) -> None:
        threading.Thread(target=_watch, args=(helpers, ended), daemon=True).start()

    # create: if Lightning calls its watch otherwise one day, there is that.
    with patch.object(subprocess_script, "_launch_process_observer", watch, create=True):
        try:
            yield
        finally:
            ended.set()


def _watch(helpers: Sequence[subprocess.Popen], ended: threading.Event) -> None:
    while not any(helper.poll() for helper in helpers):
        if ended.wait(SECONDS_BETWEEN_LOOKS):
            return
    if ended.wait(GRACE_SECONDS):
        return
    for helper in helpers:
        helper.kill()
    log.error(str(lost_process(len(helpers) + 1)))
    os._exit(2)  # the training itself waits for an answer that will never come


def lost_process(num: int, reason: str = "") -> InputError:
    """The error of a training of so many processes of which one has ended."""
    found = f"one of the {num} processes of this training ended{f' ({reason})' if reason else ''}"
    return InputError(
        found, "all of them to go on", "see what it said above, then run the same command with resume=true"
    )
