"""The run folder beside a model: its records, its learning curve, and whether it can be resumed."""

import json
import logging
import os
import platform
import shlex
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from scperformer.attention.registry import attention_options
from scperformer.base.errors import InputError
from scperformer.base.inputs import sha256
from scperformer.base.outputs import (
    MARK,
    FolderKind,
    new_file,
    output_named,
    remove_folder,
    require_absent,
    why_not_ours,
    write_mark,
)
from scperformer.base.pictures import PALETTE, draw_reliability, png
from scperformer.base.signals import RESUME_NOTE
from scperformer.config.options import yaml_text
from scperformer.config.training import NetworkConfig, ReferenceOptions
from scperformer.lab.initialise import Init
from scperformer.model.content import INFO
from scperformer.model.folder import MODEL, write_model
from scperformer.model.inference import torch_state_kept
from scperformer.model.saved_model import SavedModel
from scperformer.training.trainer import CHECKPOINTS, EPOCHS_TABLE, LAST, checkpoint_problem, require_loggers

log = logging.getLogger(__name__)

# Lightning or Slurm's srun sets these in every process of a distributed run; they are 0 in the first process.
RANKS = ("LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")
RECORD = "run.json"
CURVE = "learning_curve.png"
RELIABILITY = "reliability.png"
NAMES = (
    *(RECORD, "config.yaml", "provenance.json", "metrics.json", CURVE, EPOCHS_TABLE, ".scperformer-*"),
    *(CHECKPOINTS, f"{CHECKPOINTS}/*", "csv", "csv/*", "tensorboard", "tensorboard/*"),
    *("wandb", "wandb/*", "mlflow.db"),
    *("study*", "study*/*"),
)
RUN = FolderKind("the run of a training", more=NAMES)
RAISABLE = ("trainer.max_epochs", "trainer.patience")  # a resumed run may have larger values of these
# Options that are recorded without the folders of their files, like the inputs.
PATHS = (
    "init",
    "genes_path",
    "unlabelled",
    "conditions.genes",
    "model.gene2vec_path",
    "label_tree",
    "label_map",
    "ontology",
)
PACKAGES = ("scperformer", "torch", "scanpy", "anndata", "numpy", "scikit-learn")
SCORES = {"macro_f1": "macro-F1", "accuracy": "accuracy"}  # in the figure of the learning curve


class Diverged(InputError):
    """A training whose loss is not finite any more; resuming it cannot help."""

    def __init__(self, sign: str, cfg: NetworkConfig):
        found = f"training that diverged ({sign} not finite)"
        super().__init__(found, "a loss that falls", f"lower optim.lr (now {cfg.optim.lr:g})")


def is_helper(cfg: NetworkConfig) -> bool:
    """Whether this is not the first process of a distributed run, which alone writes and logs."""
    distributed = cfg.trainer.devices * cfg.trainer.num_nodes > 1
    return distributed and any(int(os.environ.get(name) or 0) > 0 for name in RANKS)


def run_options(cfg: NetworkConfig, checksum: str) -> dict[str, Any]:
    """Return the checksum of a run's data, and its options except those about outputs and progress."""
    options = asdict(cfg)
    for name in ("inputs", "output", "overwrite", "resume"):
        del options[name]
    del options["trainer"]["progress_bar"]
    return {"options": options, "reference_sha256": checksum}


def flat(options: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested options by their full names, such as `trainer.max_epochs`."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file in place of an earlier one."""
    with new_file(path, overwrite=True) as temporary:
        temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_record(folder: Path) -> dict[str, Any]:
    """Return the record of a run: its options, its data's checksum and a batch size that was chosen; {} without one."""
    try:
        record = json.loads((folder / RECORD).read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def run_folder_of(output: Path) -> Path:
    """Return the run folder of a model."""
    return output.with_name(output.name + ".run")


def require_own_run(output: Path) -> None:
    """Refuse the run folder of a model if anything in it is not from an earlier training."""
    folder = run_folder_of(output)
    if folder.is_dir() and any(folder.iterdir()):
        why = why_not_ours(folder, RUN)
        if why is None and "options" not in read_record(folder):
            why = f"has no {RECORD} of a training"
    else:
        why = "is a file" if folder.exists() and not folder.is_dir() else ""
    if why:
        expected = f"nothing, or {RUN.name}: training writes its checkpoints and logs there"
        raise InputError(f"{folder} {why}", expected, "move it away, or choose another output=...")


def differences(cfg: NetworkConfig, folder: Path, checksum: str) -> tuple[dict[str, tuple[Any, Any]], bool]:
    """Return the options in which a run differs from the earlier one in its folder (old, new), and if its data do."""
    before = {"options": {}, "reference_sha256": ""} | read_record(folder)
    old = flat(before["options"])
    new = flat(json.loads(json.dumps(run_options(cfg, checksum)))["options"])
    changed = {name: (old.get(name), new.get(name)) for name in {**old, **new} if old.get(name) != new.get(name)}
    return changed, before["reference_sha256"] != checksum


def open_run(cfg: NetworkConfig, output: Path, checksum: str) -> Path:
    """Open the run folder `<output>.run`: empty, or (`resume`) with the checkpoints of the same run, cut off before.

    The number of epochs and the patience of a run that is resumed may be larger than before. Checkpoints that are
    damaged or of other versions of torch and Lightning are refused; with `overwrite` the run starts again.
    """
    folder = run_folder_of(output)
    if is_helper(cfg):
        return folder
    record = run_options(cfg, checksum)
    if (folder / CHECKPOINTS / LAST).is_file() and (cfg.resume or not cfg.overwrite):
        changed, other_data = differences(cfg, folder, checksum)
        raised = {name: values for name, values in changed.items() if name in RAISABLE and cfg.resume}
        raised = {name: (old, new) for name, (old, new) in raised.items() if old is not None and new > old}
        named = [f"{name}={new}, was {old}" for name, (old, new) in changed.items() if name not in raised]
        others = [f"other options ({'; '.join(named)})"] if named else []
        others += ["another reference"] if other_data else []
        problems = map(checkpoint_problem, sorted((folder / CHECKPOINTS).glob("*.ckpt")))
        others += dict.fromkeys(filter(None, problems))  # each of them once
        differ = " and ".join(others)
        if cfg.resume and not differ:
            log.info("continuing the run in %s", folder)
            for name, (old, new) in raised.items():
                log.info("%s is %s from here on, it was %s", name, new, old)
            if "trainer.max_epochs" in raised and (cfg.optim.final_lr_fraction < 1 or cfg.optim.warmup_fraction > 0):
                log.warning(
                    "the schedule now spans the new max_epochs, so the result differs from one uninterrupted run"
                )
            write_json(folder / RECORD, read_record(folder) | record)
            return folder
        if not cfg.overwrite:
            found = f"an unfinished run with {differ}" if differ else "an unfinished run"
            remedy = ("" if differ else "resume=true continues it, ") + "overwrite=true starts again"
            raise InputError(f"{found} in '{folder}'", "no earlier run", remedy)
        log.info("the unfinished run in %s has %s: starting anew", folder, differ)
    elif cfg.resume:
        log.info("nothing to resume in %s: starting anew", folder)
    require_own_run(output)  # again: other files may have been added while the cells were read
    if folder.exists() and any(folder.iterdir()):
        remove_folder(folder, RUN)
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with output_named(folder):
            write_mark(folder, RUN)
            write_json(folder / RECORD, record)
    except BaseException:  # a full disk, or Ctrl-C
        if (folder / MARK).exists():
            remove_folder(folder, RUN)
        elif is_new:
            folder.rmdir()
        raise
    return folder


def without_folders(paths: str | list[str]) -> str | list[str]:
    """Return the name of a file, or the names of files: the folders of a user are private."""
    return [Path(path).name for path in paths] if isinstance(paths, list) else Path(paths).name


def record_start(folder: Path, cfg: NetworkConfig, data: dict[str, Any], files: Sequence[str]) -> dict[str, Any]:
    """Write the configuration and the provenance: `data`, and all that is needed to reproduce the model.

    The recorded command has the options that differ from their defaults. Without input files it is a call in Python.
    Returns the `provenance` and `config` of the model folder: the options that its use needs.
    """
    trains = isinstance(cfg, ReferenceOptions)
    needed: dict[str, Any] = {"label_key": ""} if trains else {}
    blank = type(cfg)(inputs=[""], **needed)
    default, recorded, options = (run_options(each, "")["options"] for each in (blank, cfg, cfg))
    name = options["attention"]["name"]
    changed = {} if name == default["attention"]["name"] else {"attention": name}
    mechanism, own = attention_options(options["attention"])
    is_usual = name == blank.attention["name"]
    default["attention"] = asdict(attention_options(blank.attention)[1] if is_usual else mechanism.Options())
    options["attention"] = asdict(own)
    known = flat(default)
    for option, value in flat(options).items():
        if value != known[option] and option != "seed":
            changed[option] = without_folders(value) if option in PATHS else value
    if files:
        words = (
            f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in changed.items()
        )
        command = shlex.join(["scperformer", "train" if trains else "pretrain", *files, *words])
    elif isinstance(cfg, ReferenceOptions):
        changed.pop("label_key", None)
        command = f"scperformer.train(adata, label_key={cfg.label_key!r}, options={changed})"
    else:
        command = f"scperformer.pretrain(adatas, options={changed})"
    for option in PATHS:
        group, _, name = option.rpartition(".")
        part = recorded[group] if group else recorded
        if part.get(name):
            part[name] = without_folders(part[name])
    provenance = data | {
        "seed": cfg.seed,
        "command": command,
        "options": recorded,
        "versions": {package: version(package) for package in PACKAGES} | {"python": platform.python_version()},
    }
    if not is_helper(cfg):
        with new_file(folder / "config.yaml", overwrite=True) as temporary:
            temporary.write_text(yaml_text(asdict(cfg)), encoding="utf-8")
        write_json(folder / "provenance.json", provenance)
    groups = ("tokens", "model", "attention", "head" if trains else "masking")
    config = {"target_sum": cfg.data.target_sum, **{group: asdict(cfg)[group] for group in groups}}
    if trains and cfg.model.reads_genes:  # a model that adapts to a file is trained again
        steps = {"max_steps": cfg.trainer.max_steps, "batch_size": cfg.trainer.batch_size}
        config["training"] = {"optim": asdict(cfg.optim), **steps}
    config |= {} if cfg.conditions.genes is None else {"own_totals": True}
    if cfg.model.gene2vec_path is not None:
        config["model"]["gene2vec_path"] = without_folders(cfg.model.gene2vec_path)
    return {"provenance": provenance, "config": config}


def draw_learning_curve(epochs: pd.DataFrame, best_epoch: int, baseline: Mapping[str, float]) -> bytes:
    """Draw the training loss and the validation scores by epoch, as a PNG; the scores of `baseline` as dashed lines."""
    figure = Figure(figsize=(9.0, 3.9), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)  # draws without a display, whatever backend the user has set
    left, right = figure.subplots(1, 2)
    left.plot(epochs["epoch"], epochs["train_loss"], color="#333333", marker=".")
    left.set_title("training loss", loc="left")
    best = epochs[epochs["epoch"] == best_epoch]
    for colour, (name, text) in zip(PALETTE, SCORES.items(), strict=False):
        right.plot(epochs["epoch"], epochs[f"val_{name}"], color=colour, marker=".", label=text)
        right.plot(best["epoch"], best[f"val_{name}"], color=colour, marker="o", markersize=7)
        right.axhline(baseline[name], color=colour, linestyle="--", linewidth=1, label=f"{text}, logistic regression")
    right.set_title("scores on the validation cells", loc="left")
    for axes in (left, right):
        axes.axvline(best_epoch, color="#999999", linewidth=1, zorder=0)
        axes.set_xlabel(f"epoch (best: {best_epoch})")
        axes.set_xlim(0.5, len(epochs) + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#E6E6E6", linewidth=0.8)
        axes.set_axisbelow(True)
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return png(figure)


def is_finished(cfg: NetworkConfig, output: Path, checksum: str) -> bool:
    """Whether `resume=true` finds a model that the same options have made of the same data.

    Raises
    ------
    InputError
        The model is finished, and would have to be trained for longer: its optimiser is not kept.
    """
    folder = run_folder_of(output)
    if not (cfg.resume and (output / INFO).is_file() and read_record(folder)):
        return False
    changed, other_data = differences(cfg, folder, checksum)
    if changed and set(changed) <= set(RAISABLE) and not other_data and not cfg.overwrite:
        found = f"{output} is finished, with another {' and '.join(changed)}"
        remedy = "train for longer under another output=..., or add overwrite=true to train anew"
        raise InputError(found, "the options of the finished run, or a run that was cut off", remedy)
    return not changed and not other_data


def require_place(cfg: NetworkConfig, output: Path) -> None:
    """Refuse an output that exists, unless it is replaced or resumed, and a run folder that no training has made.

    Also refuse logs for which a library is missing.
    """
    require_loggers(cfg.logger)
    if not is_helper(cfg):
        require_own_run(output)
    may_be_finished = cfg.resume and (output / INFO).is_file() and bool(read_record(run_folder_of(output)))
    if not may_be_finished:
        require_absent(output, cfg.overwrite, MODEL)


@contextmanager
def opened_run(cfg: NetworkConfig, output: Path, checksum: str) -> Iterator[Path]:
    """Open the run folder for a training.

    After an error of the user or a signal it is removed, unless it has a checkpoint from which the run can be resumed;
    at the end the checkpoints are removed, and the logs stay.
    """
    if not is_helper(cfg):
        require_absent(output, cfg.overwrite, MODEL)
    folder = open_run(cfg, output, checksum)
    try:
        with torch_state_kept(cfg.trainer.threads), output_named(folder):
            yield folder
    except (InputError, KeyboardInterrupt, SystemExit) as error:
        if isinstance(error, Diverged):  # resume=true must not continue from here
            shutil.rmtree(folder / CHECKPOINTS)
        if is_helper(cfg):
            pass
        elif not (folder / CHECKPOINTS / LAST).is_file():
            with suppress(InputError):  # other files were added meanwhile
                remove_folder(folder, RUN)
        elif not isinstance(error, InputError):
            error.add_note(RESUME_NOTE)
        raise
    if not is_helper(cfg):
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)


def write_trained(saved: SavedModel, output: Path, folder: Path, *, overwrite: bool) -> None:
    """Write the model folder of a training, with its pictures."""
    metrics = saved.metrics
    write_json(folder / "metrics.json", metrics)
    pictures = {}
    # A pretraining has no learning curve, and branches that were fitted have no epochs.
    if metrics["best_epoch"] and "baseline" in metrics:
        picture = draw_learning_curve(pd.read_csv(folder / EPOCHS_TABLE), metrics["best_epoch"], metrics["baseline"])
        with new_file(folder / CURVE, overwrite=True) as temporary:
            temporary.write_bytes(picture)
        pictures = {CURVE: picture, EPOCHS_TABLE: (folder / EPOCHS_TABLE).read_bytes()}
    if "calibration" in metrics:
        bins = metrics["calibration"]["bins"]
        pictures |= {RELIABILITY: draw_reliability(bins)}
    write_model(saved, output, overwrite=overwrite, more=pictures)
    log.info("written: %s", output)


def quiet_if_helper(cfg: NetworkConfig) -> None:
    """Show only errors of processes other than the first, which logs for all."""
    if is_helper(cfg):
        logging.getLogger("scperformer").setLevel(logging.ERROR)
        warnings.simplefilter("ignore")


def checksum_with(cfg: NetworkConfig, checksum: str, init: Init | None) -> str:
    """Return the checksum of all data that a training depends on, from that of its cells."""
    checksum += "" if init is None else init.saved.hash
    return checksum + ("" if cfg.conditions.genes is None else sha256(Path(cfg.conditions.genes)))
