"""The run of a training: its folder beside the model, with records, logs and checkpoints; it can be resumed."""

import json
import logging
import os
import platform
import re
import shutil
import subprocess
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

import yaml

from scperformer.base import outputs
from scperformer.base.errors import InputError
from scperformer.base.inputs import sha256
from scperformer.base.pictures import draw_reliability
from scperformer.base.signals import RESUME_NOTE, EndedBySignal
from scperformer.config.training import NetworkOptions, TrainOptions
from scperformer.io.read import checksum
from scperformer.model.content import INFO
from scperformer.model.folder import MODEL, write_model
from scperformer.model.saved_model import SavedModel
from scperformer.training.kept_fits import FITS, has_fits
from scperformer.training.trainer import CHECKPOINTS, EPOCHS_TABLE, LAST, device_of, is_damaged, require_loggers

log = logging.getLogger(__name__)

# Lightning or Slurm's srun sets these in every process of a distributed run; they are 0 in the first process.
RANKS = ("LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")
RECORD = "run.json"
FILES = (RECORD, "config.yaml", "provenance.json", "metrics.json", EPOCHS_TABLE, "mlflow.db", ".scperformer-*")
FOLDERS = (CHECKPOINTS, FITS, "csv", "tensorboard", "wandb", "study[1-9]", "study[1-9][0-9]")
RUN = outputs.FolderKind("the run of a training", more=(*FILES, *FOLDERS, *(f"{name}/*" for name in FOLDERS)))
# Options that are recorded without the folders of their files, like the inputs.
PATHS = ("init", "genes_path", "unlabelled", "model.gene2vec_path", "label_map", "ontology")


class Diverged(InputError):
    """A training whose loss is not finite any more; resuming it cannot help."""

    def __init__(self, sign: str, cfg: NetworkOptions):
        found = f"training that diverged ({sign} not finite)"
        super().__init__("diverged", found, "a loss that falls", f"lower optim.lr (now {cfg.optim.lr:g})")


@dataclass
class Run:
    """A training that is under way, with its folder."""

    cfg: NetworkOptions
    output: Path
    folder: Path
    data: str  # checksum of the data
    is_first: bool  # whether this is the process of a distributed training that writes and logs

    def read(self) -> dict[str, Any]:
        """Return the record of this run or of an earlier one in the folder, {} without one."""
        try:
            record = json.loads((self.folder / RECORD).read_text("utf-8"))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return {}
        return record if isinstance(record, dict) else {}

    def remember(self, **values: Any) -> None:
        """Add values to the record, which a resumed run finds there."""
        if self.is_first:
            _write_json(self.folder / RECORD, self.read() | values)

    @property
    def is_whole(self) -> bool:
        """Whether this is no part of a training of several studies."""
        return self.folder.name == f"{self.output.name}.run"

    def part(self, name: str) -> "Run":
        """Return the run of a part of this training, in a folder within its folder."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return replace(self, folder=folder)

    def record(self, cfg: NetworkOptions, facts: dict[str, Any]) -> dict[str, Any]:
        """Write the options and the provenance (`facts`, and what reproduces the model); return both for the model."""
        recorded = _run_options(cfg)
        for option in PATHS:
            group, _, name = option.rpartition(".")
            part = recorded[group] if group else recorded
            if part.get(name):
                part[name] = _without_folders(part[name])
        provenance = facts | {"seed": cfg.seed, "options": recorded, "versions": versions()}
        if cfg.model.encoder:
            device = device_of(cfg.trainer)
            provenance["device"] = f"{device.kind} ({device.why}), {device.precision}"
        if self.is_first:
            with outputs.new_file(self.folder / "config.yaml", overwrite=True) as temporary:
                text = yaml.safe_dump(asdict(cfg), sort_keys=False, allow_unicode=True)
                temporary.write_text(text, encoding="utf-8")
            _write_json(self.folder / "provenance.json", provenance)
        has_labels = isinstance(cfg, TrainOptions)
        groups = ("tokens", "model", "attention", *(["head"] if has_labels else []))
        config = {"target_sum": cfg.data.target_sum, **{group: asdict(cfg)[group] for group in groups}}
        if has_labels and cfg.model.uses_cross_attention:  # a model that adapts to a file is trained again
            steps = {"max_steps": cfg.trainer.max_steps, "batch_size": cfg.trainer.batch_size}
            config["training"] = {"optim": asdict(cfg.optim), **steps}
        if cfg.genes_path is not None:
            config["own_totals"] = True
        if cfg.model.gene2vec_path is not None:
            config["model"]["gene2vec_path"] = _without_folders(cfg.model.gene2vec_path)
        return {"provenance": provenance, "config": config}

    def write(self, saved: SavedModel) -> None:
        """Write the model folder, with its picture and table."""
        _write_json(self.folder / "metrics.json", saved.metrics)
        more = {}
        if saved.is_annotator and saved.metrics["best_epoch"]:  # branches that were fitted have no epochs
            more[EPOCHS_TABLE] = (self.folder / EPOCHS_TABLE).read_bytes()
        if "calibration" in saved.metrics:
            more["reliability.png"] = draw_reliability(saved.metrics["calibration"]["bins"])
        write_model(saved, self.output, overwrite=self.cfg.overwrite, more=more)
        self.remember(finished=True)
        log.info("written: %s", self.output)

    def differences(self) -> list[str]:
        """Return in words how this run differs from the earlier one in its folder: in options, or in its data."""
        before = {"options": {}, "reference_sha256": ""} | self.read()
        old = _flat(before["options"])
        new = _flat(json.loads(json.dumps(_run_options(self.cfg))))
        changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
        named = "; ".join(f"{name}={new.get(name)}, was {old.get(name)}" for name in changed)
        found = [f"other options ({named})"] if changed else []
        return found + (["another reference"] if before["reference_sha256"] != self.data else [])

    def resumes(self) -> bool:
        """Whether the run continues an interrupted one; refuse one that is neither to be continued nor replaced."""
        cfg = self.cfg
        folder = self.folder
        if not has_progress(folder) or (cfg.overwrite and not cfg.resume):
            if cfg.resume:
                log.info("nothing to resume in %s: starting anew", folder)
            return False
        checkpoints = sorted((folder / CHECKPOINTS).glob("*.ckpt"))
        damaged = [f"a damaged checkpoint ({path.name})" for path in checkpoints if is_damaged(path)]
        differ = " and ".join([*self.differences(), *damaged])
        if not cfg.resume or (differ and not cfg.overwrite):
            found = f"an unfinished run with {differ}" if differ else "an unfinished run"
            remedy = ("" if differ else "resume=true continues it, ") + "overwrite=true starts again"
            raise InputError("earlier-run", f"{found} in '{folder}'", "no earlier run", remedy)
        if differ:
            log.info("the unfinished run in %s has %s: starting anew", folder, differ)
            return False
        log.info("continuing the run in %s", folder)
        return True


@contextmanager
def training_run(cfg: NetworkOptions, output: Path, paths: Sequence[Path], init_hash: str = "") -> Iterator[Run | None]:
    """Open the run folder `<output>.run` for a training; yield None if `resume=true` finds the finished model.

    `paths` are the files of cells; none: cells in memory. `init_hash` is of the model from which the training starts.
    Another process that trains this output is refused until this one has ended. After an error of the user or a signal
    the folder is removed, unless it has a checkpoint from which the run can be resumed. The folder of an earlier run
    waits under another name until this run has ended, and comes back if this run leaves nothing. At the end the
    checkpoints are removed, and the logs stay.
    """
    real = [path.resolve() for path in paths]
    if twice := next((path for place, path in enumerate(paths) if real[place] in real[:place]), None):
        raise InputError("file-twice", f"the same file twice ({twice})", "each file once", "leave one of them out")
    require_loggers(cfg.logger)
    is_alone = cfg.trainer.devices * cfg.trainer.num_nodes == 1
    is_first = is_alone or not any(int(os.environ.get(name) or 0) for name in RANKS)
    folder = output.with_name(output.name + ".run")
    if not is_first:
        logging.getLogger("scperformer").setLevel(logging.ERROR)
        warnings.simplefilter("ignore")
    if is_first and not _may_be_finished(cfg, output):
        _require_place(output, folder, cfg.overwrite)
    with outputs.claimed(folder) if is_first else nullcontext():
        data = (checksum(*paths) if paths else "") + init_hash
        data += "" if cfg.genes_path is None else sha256(Path(cfg.genes_path))
        with _opened(Run(cfg, output, folder, data, is_first)) as run:
            yield run


@contextmanager
def _opened(run: Run) -> Iterator[Run | None]:
    """Open the folder of a run for `training_run`, which has claimed it."""
    cfg, output, folder, is_first = run.cfg, run.output, run.folder, run.is_first
    earlier = folder.with_name(f".scperformer-old-{folder.name}")
    if is_first and earlier.exists():  # a process was killed
        unwanted = earlier if has_progress(folder) else folder
        outputs.remove_folder(unwanted, RUN)
        if earlier.exists():
            earlier.rename(folder)
    if _may_be_finished(cfg, output):
        # The record tells: the model in the place of the output may be of an earlier run.
        if run.read().get("finished") and not run.differences():
            log.info("%s is finished: nothing to resume", output)
            yield None
            return
        if is_first:
            _require_place(output, folder, cfg.overwrite)
    resumes = is_first and run.resumes()
    try:
        with outputs.output_named(folder):
            if is_first and not resumes:
                if folder.exists():
                    folder.rename(earlier)
                with outputs.new_folder(folder, RUN):  # it appears together with its mark
                    pass
            run.remember(options=_run_options(cfg), reference_sha256=run.data, finished=False)
            yield run
    except BaseException as error:
        if isinstance(error, Diverged):  # resume=true must not continue from here
            _remove_progress(folder)
        is_ended = isinstance(error, InputError | KeyboardInterrupt | SystemExit)
        if is_first and not has_progress(folder):
            if is_ended or earlier.exists():
                with suppress(InputError):  # other files were added meanwhile
                    outputs.remove_folder(folder, RUN)
            if earlier.exists() and not folder.exists():
                earlier.rename(folder)
        elif is_first and is_ended and not isinstance(error, InputError):
            error.add_note(RESUME_NOTE)
        if isinstance(error, SystemExit) and not isinstance(error, EndedBySignal):  # Lightning's
            log.warning("; ".join(["interrupted", *getattr(error, "__notes__", [])]))
        raise
    if is_first:
        with suppress(InputError):
            outputs.remove_folder(earlier, RUN)
        _remove_progress(folder)


def _may_be_finished(cfg: NetworkOptions, output: Path) -> bool:
    return cfg.resume and (output / INFO).is_file()


def has_progress(folder: Path) -> bool:
    """Whether a run folder has a checkpoint or a finished fit, from which the run can be continued."""
    return (folder / CHECKPOINTS / LAST).is_file() or has_fits(folder)


def _remove_progress(folder: Path) -> None:
    for name in (CHECKPOINTS, FITS):
        shutil.rmtree(folder / name, ignore_errors=True)


def _require_place(output: Path, folder: Path, overwrite: bool) -> None:
    """Refuse an output that exists, unless it is replaced, and a run folder in which other files are."""
    outputs.require_absent(output, overwrite, MODEL)
    why = "is a file" if folder.is_file() else None
    if folder.is_dir() and any(folder.iterdir()):
        why = outputs.why_not_ours(folder, RUN)
    if why is not None:
        expected = f"nothing, or {RUN.name}: training writes its checkpoints and logs there"
        raise InputError("run-folder", f"{folder} {why}", expected, "move it away, or choose another output=...")


def versions() -> dict[str, str]:
    """Return the versions of Python, of scperformer, with the commit in a checkout, and of the libraries it needs."""
    required = [text for text in requires("scperformer") or () if "extra ==" not in text]
    names = ["scperformer", *sorted(re.findall(r"^[\w-]+", "\n".join(required), re.MULTILINE))]
    found = {name: version(name) for name in names} | {"python": platform.python_version()}
    root = Path(__file__).parents[2]
    if (root / ".git").exists() and shutil.which("git"):
        command = ["git", "-C", str(root), "rev-parse", "HEAD"]
        commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        found |= {"commit": commit} if commit else {}  # git refuses the checkout of another user
    return found


def _run_options(cfg: NetworkOptions) -> dict[str, Any]:
    """Return the options of a run except those about outputs."""
    options = asdict(cfg)
    for name in ("inputs", "output", "overwrite", "resume"):
        del options[name]
    return options


def _flat(options: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested options by their full names, such as `trainer.max_epochs`."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def _without_folders(paths: str | list[str]) -> str | list[str]:
    """Return the name of a file, or the names of files: the folders of a user are private."""
    return [Path(path).name for path in paths] if isinstance(paths, list) else Path(paths).name


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with outputs.new_file(path, overwrite=True) as temporary:
        temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
