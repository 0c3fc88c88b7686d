"""The run folder beside a model: what was asked for, checkpoints to continue from, logs."""

import json
import logging
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scperformer.config import TrainConfig
from scperformer.errors import InputError
from scperformer.outputs import new_file

log = logging.getLogger(__name__)


def run_options(cfg: TrainConfig, reference_sha256: str) -> dict[str, Any]:
    """What must be the same for a run to be continued: every option but where it writes and how it shows progress."""
    options = asdict(cfg)
    for name in ("inputs", "output", "overwrite", "resume"):
        del options[name]
    del options["trainer"]["progress_bar"]
    return {"options": options, "reference_sha256": reference_sha256}


def changed_options(cfg: TrainConfig) -> list[str]:
    """The options that are not at their defaults, as they would be typed; neither paths nor the seed."""
    default = run_options(TrainConfig(inputs=[""], label_key=""), "")["options"]
    changed = []
    for name, value in run_options(cfg, "")["options"].items():
        if isinstance(value, dict):
            changed += [f"{name}.{key}={item}" for key, item in value.items() if item != default[name][key]]
        elif value != default[name] and name != "seed":
            changed.append(f"{name}={value}")
    return changed


def open_run(cfg: TrainConfig, output: Path, reference_sha256: str) -> Path:
    """The run folder `<output>.run`, ready: empty, or holding the checkpoints of the same run that was cut off.

    Raises
    ------
    InputError
        An unfinished run is there and neither `resume` nor `overwrite` is on, or it ran with other options.
    """
    folder = output.with_name(output.name + ".run")
    record, last = folder / "run.json", folder / "checkpoints" / "last.ckpt"
    options = run_options(cfg, reference_sha256)
    if last.is_file() and not (cfg.overwrite and not cfg.resume):
        same = record.is_file() and json.loads(record.read_text()) == json.loads(json.dumps(options))
        if same and cfg.resume:
            log.info("continuing the run in %s", folder)
            return folder
        if not cfg.overwrite:
            found = "an unfinished run" if same else "an unfinished run with other options or another reference"
            remedy = "resume=true continues it, overwrite=true starts again" if same else "overwrite=true starts again"
            raise InputError(f"{found} in '{folder}'", "no earlier run", remedy)
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    with new_file(record) as temporary:
        temporary.write_text(json.dumps(options, indent=1) + "\n")
    return folder
