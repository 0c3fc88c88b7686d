"""The run folder beside a model, and the frame of every training: open the folder, train in it, write the model.

The folder holds the options and the checksum of the data, checkpoints to continue from, the logs, and the results.
"""

import json
import logging
import os
import platform
import shlex
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from scperformer.attention import attention_options
from scperformer.config import NetworkConfig, PretrainConfig, TrainConfig, yaml_text
from scperformer.errors import InputError
from scperformer.model import Bundle, save_bundle
from scperformer.network import torch_state_kept
from scperformer.outputs import new_file
from scperformer.training.learning_curve import TABLE, draw_learning_curve, read_history
from scperformer.training.trainer import CHECKPOINTS, LAST

log = logging.getLogger(__name__)

# Lightning or Slurm's srun sets these in every process of a distributed run, to 0 in the first.
RANKS = ("LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")
CONFIG, ORIGIN, RESULT, CURVE = "config.yaml", "provenance.json", "metrics.json", "learning_curve.png"
RECORD = "run.json"
PATHS = ("init", "genes_path")  # recorded without their folders, as the inputs are
PACKAGES = ("scperformer", "torch", "scanpy", "anndata", "numpy", "scikit-learn")
NUM_NAMED = 3  # options named in an error


class Diverged(InputError):
    """A training whose losses are not finite any more; resuming it cannot help."""

    def __init__(self, sign: str, cfg: NetworkConfig):
        found = f"training that diverged ({sign} not finite)"
        super().__init__(found, "a loss that falls", f"lower optim.lr (now {cfg.optim.lr:g})")


def is_helper(cfg: NetworkConfig) -> bool:
    """Whether this process only helps the first one of a distributed run, which alone writes and logs."""
    distributed = cfg.trainer.devices * cfg.trainer.num_nodes > 1
    return distributed and any(int(os.environ.get(name) or 0) > 0 for name in RANKS)


def hush_helper(cfg: NetworkConfig) -> None:
    """In a helper (any process of a distributed run but the first), silence log lines and warnings."""
    if is_helper(cfg):
        logging.getLogger("scperformer").setLevel(logging.ERROR)
        warnings.simplefilter("ignore")


def run_options(cfg: NetworkConfig, checksum: str) -> dict[str, Any]:
    """The checksum of a run's data, and its options but for where it writes and how it shows progress."""
    options = asdict(cfg)
    for name in ("inputs", "output", "overwrite", "resume", "estimate"):
        options.pop(name, None)  # a pretraining has no estimate
    del options["trainer"]["progress_bar"]
    return {"options": options, "reference_sha256": checksum}


def flat(options: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Options by their full names, such as `trainer.max_epochs`."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def changed_options(cfg: NetworkConfig) -> list[str]:
    """The options that are not at their defaults, as they would be typed; neither paths nor the seed."""
    blank = PretrainConfig(inputs=[""]) if isinstance(cfg, PretrainConfig) else TrainConfig(inputs=[""], label_key="")
    default, options = (run_options(each, "")["options"] for each in (blank, cfg))
    mechanism, own = attention_options(options["attention"])
    name = options["attention"]["name"]
    changed = [] if name == default["attention"]["name"] else [f"attention={name}"]
    default["attention"], options["attention"] = asdict(mechanism.Options()), asdict(own)
    known = flat(default)
    for option, value in flat(options).items():
        if value != known[option] and option != "seed":
            typed = Path(value).name if option in PATHS else str(value).lower() if isinstance(value, bool) else value
            changed.append(f"{option}={typed}")
    return changed


def changes(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Name the differences between two results of `run_options` in a few words; "" for none."""
    old, new = flat(before["options"]), flat(now["options"])
    differ = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    named = [f"{name}={new.get(name)}, was {old.get(name)}" for name in differ[:NUM_NAMED]]
    named += [f"{len(differ) - NUM_NAMED} more"] if len(differ) > NUM_NAMED else []
    found = [f"other options ({'; '.join(named)})"] if named else []
    found += ["another reference"] if before["reference_sha256"] != now["reference_sha256"] else []
    return " and ".join(found)


def how_it_was_made(cfg: NetworkConfig, files: Sequence[str]) -> dict[str, Any]:
    """The part of a model's provenance that is needed to make it again: seed, command, options, versions.

    Without names of input files (cells in memory), the command is a call in Python.
    """
    options = changed_options(cfg)
    if files:
        step = "train" if isinstance(cfg, TrainConfig) else "pretrain"
        command = shlex.join(["scperformer", step, *files, *options])
    elif isinstance(cfg, TrainConfig):
        overrides = [option for option in options if not option.startswith("label_key=")]
        command = f"scperformer.train(adata, label_key={cfg.label_key!r}, overrides={overrides})"
    else:
        command = f"scperformer.pretrain(adatas, overrides={options})"
    recorded = run_options(cfg, "")["options"]
    return {
        "seed": cfg.seed,
        "command": command,
        "options": recorded | {name: Path(recorded[name]).name for name in PATHS if recorded.get(name)},
        "versions": {package: version(package) for package in PACKAGES} | {"python": platform.python_version()},
    }


def model_config(cfg: NetworkConfig, groups: Sequence[str]) -> dict[str, Any]:
    """The options that a model folder needs to be used: these groups, and the total of normalisation."""
    config = {"target_sum": cfg.data.target_sum, **{group: asdict(cfg)[group] for group in groups}}
    if cfg.model.gene2vec_path is not None:
        config["model"]["gene2vec_path"] = Path(cfg.model.gene2vec_path).name  # the folders of a user are private
    return config


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file in place of an earlier one."""
    with new_file(path, overwrite=True) as temporary:
        temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_record(folder: Path) -> dict[str, Any]:
    """The record of a run: its options, the checksum of its data, and a batch size that was chosen; {} for none."""
    record = folder / RECORD
    return json.loads(record.read_text("utf-8")) if record.is_file() else {}


def open_run(cfg: NetworkConfig, output: Path, checksum: str) -> Path:
    """Open the run folder `<output>.run`: empty, or with the checkpoints of the same run that was cut off.

    Raises
    ------
    InputError
        An unfinished run is there and neither `resume` nor `overwrite` is on, or it ran with other options.
    """
    folder = output.with_name(output.name + ".run")
    if is_helper(cfg):
        return folder
    options = run_options(cfg, checksum)
    if (folder / CHECKPOINTS / LAST).is_file() and (cfg.resume or not cfg.overwrite):
        before = {"options": {}, "reference_sha256": ""} | read_record(folder)
        differ = changes(before, json.loads(json.dumps(options)))
        if cfg.resume and not differ:
            log.info("continuing the run in %s", folder)
            return folder
        if not cfg.overwrite:
            found = f"an unfinished run with {differ}" if differ else "an unfinished run"
            remedy = ("" if differ else "resume=true continues it, ") + "overwrite=true starts again"
            raise InputError(f"{found} in '{folder}'", "no earlier run", remedy)
        log.info("the unfinished run in %s has %s: starting anew", folder, differ)
    elif cfg.resume:
        log.info("nothing to resume in %s: starting anew", folder)
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    try:
        write_json(folder / RECORD, options)
    except OSError:  # a full disk
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def record_start(folder: Path, cfg: NetworkConfig, provenance: dict[str, Any]) -> None:
    """Write what is known before training: the whole configuration, and the provenance of data and program."""
    if is_helper(cfg):
        return
    with new_file(folder / CONFIG, overwrite=True) as temporary:
        temporary.write_text(yaml_text(asdict(cfg)), encoding="utf-8")
    write_json(folder / ORIGIN, provenance)


def record_end(folder: Path, metrics: dict[str, Any]) -> dict[str, bytes]:
    """Write the metrics, and draw the learning curve; it and the table of epochs are returned for the model folder.

    A pretraining has no curve, and a linear branch that is fitted and not trained has no epochs.
    """
    write_json(folder / RESULT, metrics)
    if not metrics["best_epoch"] or "baseline" not in metrics:
        return {}
    picture = draw_learning_curve(read_history(folder), metrics["best_epoch"], metrics["baseline"])
    with new_file(folder / CURVE, overwrite=True) as temporary:
        temporary.write_bytes(picture)
    return {CURVE: picture, TABLE: (folder / TABLE).read_bytes()}


def train_in_run_folder(cfg: NetworkConfig, output: Path, checksum: str, fit: Callable[[Path], Bundle | None]) -> None:
    """Open the run folder, train in it, and write the model folder: the frame of every training.

    A run is resumed only if its data have the same `checksum`. `fit` trains in the run folder; it returns None in the
    helping processes of a distributed run.
    """
    folder = open_run(cfg, output, checksum)
    checkpoints = folder / CHECKPOINTS
    try:
        with torch_state_kept(cfg.trainer.threads):
            bundle = fit(folder)
    except InputError as error:
        if isinstance(error, Diverged):  # resume=true must not continue from here
            shutil.rmtree(checkpoints)
        if not is_helper(cfg) and not checkpoints.exists():  # nothing worth keeping has been written
            shutil.rmtree(folder)
        raise
    if bundle is None:
        return
    save_bundle(bundle, output, overwrite=cfg.overwrite, more=record_end(folder, bundle.metrics))
    shutil.rmtree(checkpoints, ignore_errors=True)  # the logs stay
    log.info("written: %s", output)
