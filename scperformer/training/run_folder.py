"""The run folder beside a model: what was asked for and of what, checkpoints to continue from, what came out."""

import json
import logging
import os
import platform
import shutil
import warnings
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from scperformer.attention import attention_options
from scperformer.config import NetworkConfig, PretrainConfig, TrainConfig, yaml_text
from scperformer.errors import InputError
from scperformer.outputs import new_file
from scperformer.training.curve import draw_learning_curve
from scperformer.training.history import TABLE, read_history

log = logging.getLogger(__name__)

# Set in every process of a distributed run, above 0 in all but the first, by Lightning or by Slurm's srun.
RANKS = ("LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")
CONFIG, ORIGIN, RESULT, CURVE = "config.yaml", "provenance.json", "metrics.json", "learning_curve.png"
RECORD = "run.json"
PATHS = ("init", "genes_path")  # recorded without their folders, as the inputs are
PACKAGES = ("scperformer", "torch", "scanpy", "anndata", "numpy", "scikit-learn")
NUM_NAMED = 3  # options named in an error


def is_helper(cfg: NetworkConfig) -> bool:
    """Whether this process only helps the first one of a distributed run, which writes and says everything."""
    distributed = cfg.trainer.devices * cfg.trainer.num_nodes > 1
    return distributed and any(int(os.environ.get(name) or 0) > 0 for name in RANKS)


def hush_helper(cfg: NetworkConfig) -> None:
    """In a helping process: leave log lines and warnings to the first process."""
    if is_helper(cfg):
        logging.getLogger("scperformer").setLevel(logging.ERROR)
        warnings.simplefilter("ignore")


def run_options(cfg: NetworkConfig, reference_sha256: str) -> dict[str, Any]:
    """What must be the same for a run to be continued: every option but where it writes and how it shows progress."""
    options = asdict(cfg)
    for name in ("inputs", "output", "overwrite", "resume", "estimate"):
        options.pop(name, None)  # a pretraining has no estimate
    del options["trainer"]["progress_bar"]
    return {"options": options, "reference_sha256": reference_sha256}


def recorded_options(cfg: NetworkConfig) -> dict[str, Any]:
    """The options for the record of a model: as `run_options`, but files without their folders."""
    options = run_options(cfg, "")["options"]
    return options | {name: Path(options[name]).name for name in PATHS if options.get(name)}


def recorded_versions() -> dict[str, str]:
    """The versions of what takes part in training."""
    return {package: version(package) for package in PACKAGES} | {"python": platform.python_version()}


def changed_options(cfg: NetworkConfig) -> list[str]:
    """The options that are not at their defaults, as they would be typed; neither paths nor the seed."""

    def typed(value: Any) -> str:
        return str(value).lower() if isinstance(value, bool) else str(value)

    blank = PretrainConfig(inputs=[""]) if isinstance(cfg, PretrainConfig) else TrainConfig(inputs=[""], label_key="")
    default = run_options(blank, "")["options"]
    changed = []
    for name, value in run_options(cfg, "")["options"].items():
        if name == "attention":
            mechanism, options = attention_options(value)
            changed += [f"attention={value['name']}"] if value["name"] != default[name]["name"] else []
            default[name] |= asdict(mechanism.Options())
            value = asdict(options)
        if isinstance(value, dict):
            changed += [f"{name}.{key}={typed(item)}" for key, item in value.items() if item != default[name][key]]
        elif value != default[name] and name != "seed":
            changed.append(f"{name}={Path(value).name if name in PATHS else typed(value)}")
    return changed


def changes(before: dict[str, Any], now: dict[str, Any]) -> str:
    """What differs between two results of `run_options`, in a few words; "" for nothing."""
    old, new = _flat(before["options"]), _flat(now["options"])
    differ = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    named = [f"{name}={new.get(name)}, was {old.get(name)}" for name in differ[:NUM_NAMED]]
    named += [f"{len(differ) - NUM_NAMED} more"] if len(differ) > NUM_NAMED else []
    found = [f"other options ({'; '.join(named)})"] if named else []
    found += ["another reference"] if before["reference_sha256"] != now["reference_sha256"] else []
    return " and ".join(found)


def _flat(options: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Options by their full names, such as `trainer.max_epochs`."""
    flat: dict[str, Any] = {}
    for name, value in options.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def open_run(cfg: NetworkConfig, output: Path, reference_sha256: str) -> Path:
    """The run folder `<output>.run`, ready: empty, or holding the checkpoints of the same run that was cut off.

    Raises
    ------
    InputError
        An unfinished run is there and neither `resume` nor `overwrite` is on, or it ran with other options.
    """
    folder = output.with_name(output.name + ".run")
    if is_helper(cfg):
        return folder
    record, last = folder / RECORD, folder / "checkpoints" / "last.ckpt"
    options = run_options(cfg, reference_sha256)
    if last.is_file() and (cfg.resume or not cfg.overwrite):
        before = json.loads(record.read_text("utf-8")) if record.is_file() else {"options": {}, "reference_sha256": ""}
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
        _write_json(record, options)
    except OSError:  # a full disk
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def recorded_batch_size(folder: Path) -> int | None:
    """The batch size that was chosen when the run began; None: none yet."""
    record = folder / RECORD
    return json.loads(record.read_text("utf-8")).get("batch_size") if record.is_file() else None


def record_batch_size(folder: Path, size: int) -> None:
    """Add the chosen batch size to what the run folder says of the run."""
    before = json.loads((folder / RECORD).read_text("utf-8"))
    _write_json(folder / RECORD, before | {"batch_size": size})


def record_start(folder: Path, cfg: TrainConfig, provenance: dict[str, Any]) -> None:
    """Write what is known before training: the whole configuration, and where data and program come from."""
    if is_helper(cfg):
        return
    with new_file(folder / CONFIG, overwrite=True) as temporary:
        temporary.write_text(yaml_text(asdict(cfg)), encoding="utf-8")
    _write_json(folder / ORIGIN, provenance)


def record_end(folder: Path, metrics: dict[str, Any]) -> dict[str, bytes]:
    """Write what came out, and the learning curve; the table of epochs and the curve, for the model folder.

    A linear branch that is fitted and not trained has no epochs, hence neither.
    """
    _write_json(folder / RESULT, metrics)
    if not metrics["best_epoch"]:
        return {}
    picture = draw_learning_curve(read_history(folder), metrics["best_epoch"], metrics["baseline"])
    with new_file(folder / CURVE, overwrite=True) as temporary:
        temporary.write_bytes(picture)
    return {CURVE: picture, TABLE: (folder / TABLE).read_bytes()}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with new_file(path, overwrite=True) as temporary:
        temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
