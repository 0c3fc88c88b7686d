"""Sweeps (`-m`) and `--cfg hydra`: Hydra makes the runs of a sweep and launches them, here or on a cluster.

Only words of the command line reach Hydra, and their options and presets are known to exist; what a preset of the user
holds was read as plain values (presets.py). So no file can set an option of Hydra itself, which can call any function.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from scperformer.base.errors import InputError
from scperformer.cli.compose import option_tree
from scperformer.cli.overrides import Word, read_words
from scperformer.cli.presets import conf_dir, preset_groups, read_preset
from scperformer.cli.steps import SCHEMAS

OF_HYDRA = re.compile(r"[+~]*hydra[./]")  # words about Hydra itself, such as its launcher


@contextmanager
def command_line(program: str, *words: str) -> Iterator[None]:
    """Set `sys.argv` for a block, the only place that does so.

    Hydra reads its arguments from there, and Lightning starts the other processes of a ddp run from there.
    """
    before = sys.argv
    sys.argv = [program, *words]
    try:
        yield
    finally:
        sys.argv = before


@cache  # storing takes longer than composing
def _store_schema(step: str) -> None:
    """Register the dataclass of a step with Hydra, so that it knows the options that presets do not name."""
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(name=f"{step}_schema", node=SCHEMAS[step])


def _store_own(group: str, name: str, own: Path | None) -> None:
    """Register a preset with Hydra if it is the user's own, and the presets that it chooses."""
    from hydra.core.config_store import ConfigStore

    preset = read_preset(group, name, own)
    if preset.is_own:
        package = "_global_" if preset.is_global else group
        ConfigStore.instance().store(group=group, name=name, node=dict(preset.content), package=package)
    for other, theirs in preset.chooses.items():
        _store_own(other, theirs, own)


def _values(word: Word) -> list[Any]:
    """Return the values of a word as a list, also a single one."""
    return word.value if word.several else [word.value]


def words_for_hydra(step: str, words: Sequence[str], own: Path | None) -> list[str]:
    """Check the words of a sweep, register presets with Hydra, and return the words as Hydra takes them.

    `own` is the user's folder of presets.
    """
    _store_schema(step)
    groups = preset_groups(step)
    read = read_words(words)
    for word in read:
        if not word.changes:
            raise InputError(f"option {word.text}", f"an option of '{step}' as option=value", "leave + and ~ out")
        for value in _values(word) if word.name in groups else []:
            read_preset(word.name, value, own, word=word.text)
            _store_own(word.name, value, own)
    option_tree(step, {word.name: _values(word)[0] for word in read}, own)  # refuses unknown options
    return [word.text for word in read]


def hand_to_hydra(
    step: str, words: Sequence[str], flags: Sequence[str], task: Callable[[], None], own: Path | None = None
) -> None:
    """Call a task once per run of a sweep, where Hydra's launcher runs it; with `--cfg` in the flags, only print.

    Parameters
    ----------
    words
        Options of the step and of Hydra, from the command line.
    flags
        Flags of Hydra, such as `-m`.
    own
        The user's folder of presets.

    Raises
    ------
    InputError
        A word is wrong, or Hydra itself refuses the words.
    """
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    of_hydra = [word for word in words if OF_HYDRA.match(word)]
    options = words_for_hydra(step, [word for word in words if not OF_HYDRA.match(word)], own)

    def run(_: Any) -> None:  # Hydra's configuration is not used: the task makes its own from the words of the run
        task()

    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises errors instead of printing them
    try:
        with command_line(sys.argv[0], *options, *of_hydra, *flags):
            hydra.main(config_path=str(conf_dir()), config_name=step, version_base="1.3")(run)()
    except (HydraException, OmegaConfBaseException) as error:
        reason = " ".join(str(error).partition("Config search path")[0].split())
        raise InputError(reason, "words that Hydra takes", "see docs/workflow.md#sweeps") from error


def sweep_job() -> tuple[Path, list[str]]:
    """Return the folder and the words of the run of a sweep (`-m`) in which this is called."""
    from hydra.core.hydra_config import HydraConfig

    job = HydraConfig.get()
    return Path(job.runtime.output_dir), list(job.overrides.task)
