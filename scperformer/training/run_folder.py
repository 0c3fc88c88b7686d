"""The run of a training: its folder beside the model, with records, logs and checkpoints; it can be resumed."""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import shutil
import subprocess
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

import yaml

from scperformer.base import outputs
from scperformer.base.errors import InputError
from scperformer.base.inputs import how_to_find, sha256
from scperformer.base.pictures import draw_reliability
from scperformer.base.records import from_plain
from scperformer.base.signals import RESUME_NOTE, EndedBySignal
from scperformer.config.training import NetworkOptions, TrainOptions
from scperformer.fits.steps import device_of
from scperformer.fits.trainer import CHECKPOINTS, EPOCHS_TABLE, LAST, is_damaged, require_loggers
from scperformer.io.read import checksum
from scperformer.model.bundle import NetworkConfig, Provenance, TrainingConfig
from scperformer.model.content import INFO, to_json
from scperformer.model.folder import MODEL, write_model
from scperformer.model.saved_model import SavedModel

log = logging.getLogger(__name__)

# Lightning or Slurm's srun sets these in every process of a distributed run; they are 0 in the first process.
RANKS = ("LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")
RUN_RECORD = "run.json"
FILES = (
    RUN_RECORD,
    "config.yaml",
    "provenance.json",
    "metrics.json",
    EPOCHS_TABLE,
    "mlflow.db",
    ".scperformer-*",
)
FOLDERS = (CHECKPOINTS, "csv", "tensorboard", "wandb", "study[1-9]", "study[1-9][0-9]")
RUN = outputs.FolderKind(
    "the run of a training", more=(*FILES, *FOLDERS, *(f"{name}/*" for name in FOLDERS))
)
# Options that are recorded without the folders of their files, like the inputs.
PATHS = (
    "init",
    "genes_path",
    "unlabelled",
    "model.gene2vec_path",
    "label_map",
    "labels",
    "ontology",
)


class Diverged(InputError):
    """A training whose loss is not finite any more; resuming it cannot help."""

    def __init__(self, sign: str, lr: float):
        found = f"training that diverged ({sign} not finite)"
        super().__init__("diverged", found, "a loss that falls", f"lower optim.lr (now {lr:g})")


@dataclass(kw_only=True)
class Recorded:
    """What a run folder records about its run, so that it is resumed."""

    options: dict[str, object] = field(default_factory=dict)
    reference_sha256: str = ""
    finished: bool = False


@dataclass
class RunFolder:
    """A training that is under way, with its folder `<output>.run`."""

    cfg: NetworkOptions
    output: Path
    folder: Path
    is_first: bool  # whether this is the process of a distributed training that writes and logs
    data: str = ""  # checksum of the data

    @property
    def earlier(self) -> Path:
        """The folder of an earlier run, under the name that it has until this run has ended."""
        return self.folder.with_name(f".scperformer-old-{self.folder.name}")

    @property
    def may_be_finished(self) -> bool:
        """Whether the output is there, and the run is to be resumed."""
        return self.cfg.resume and (self.output / INFO).is_file()

    @property
    def has_progress(self) -> bool:
        """Whether there is a checkpoint from which the run can be continued."""
        return (self.folder / CHECKPOINTS / LAST).is_file()

    def part(self, name: str) -> RunFolder:
        """Return the run of a part of this training, in a folder within its folder."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return replace(self, folder=folder)

    def require_place(self) -> None:
        """Refuse an output that exists, unless it is replaced, and a run folder in which other files are."""
        if not self.is_first:
            return
        folder = self.folder
        outputs.require_absent(self.output, self.cfg.overwrite, MODEL)
        why = "is a file" if folder.is_file() else None
        if folder.is_dir() and any(folder.iterdir()):
            why = outputs.why_not_ours(folder, RUN)
        if why is not None:
            expected = f"nothing, or {RUN.name}: training writes its checkpoints and logs there"
            raise InputError(
                "run-folder",
                f"{folder} {why}",
                expected,
                "move it away, or choose another output=...",
            )

    def restore(self) -> None:
        """Put back the folder of an earlier run, if there is one, unless this one has progress."""
        if self.is_first and self.earlier.exists():
            outputs.remove_folder(self.earlier if self.has_progress else self.folder, RUN)
            if self.earlier.exists():
                self.earlier.rename(self.folder)

    def is_finished(self) -> bool:
        """Return whether the output is of this run: it may be of an earlier one, but the record tells."""
        return self.may_be_finished and self.recorded().finished and not self.differences()

    def resumes(self) -> bool:
        """Return whether an interrupted run is continued; refuse one that is neither to be continued nor replaced."""
        cfg = self.cfg
        folder = self.folder
        if not self.is_first:
            return True  # what the first process has opened
        if not self.has_progress or (cfg.overwrite and not cfg.resume):
            if cfg.resume:
                log.info("nothing to resume in %s: starting anew", folder)
            return False
        checkpoints = sorted((folder / CHECKPOINTS).glob("*.ckpt"))
        damaged = [
            f"a damaged checkpoint ({path.name})" for path in checkpoints if is_damaged(path)
        ]
        differ = " and ".join([*self.differences(), *damaged])
        if not cfg.resume or (differ and not cfg.overwrite):
            found = f"an unfinished run with {differ}" if differ else "an unfinished run"
            remedy = (
                "" if differ else "resume=true continues it, "
            ) + "overwrite=true starts again"
            raise InputError("earlier-run", f"{found} in '{folder}'", "no earlier run", remedy)
        if differ:
            log.info("the unfinished run in %s has %s: starting anew", folder, differ)
            return False
        log.info("continuing the run in %s", folder)
        return True

    def open(self, resumes: bool) -> None:
        """Open the folder: a new one, unless the run is resumed."""
        if not resumes:
            if self.folder.exists():
                self.folder.rename(self.earlier)
            with outputs.new_folder(self.folder, RUN):  # it appears together with its mark
                pass
        self.remember(options=_run_options(self.cfg), reference_sha256=self.data, finished=False)

    def abandon(self, error: BaseException) -> None:
        """Leave the folder after an error: it stays if the run can be resumed, else that of the earlier run is back."""
        if isinstance(error, Diverged):  # resume=true must not continue from here
            self.remove_progress()
        is_ended = isinstance(error, InputError | KeyboardInterrupt | SystemExit)
        if self.is_first and not self.has_progress:
            with suppress(InputError):  # other files were added meanwhile
                if self.earlier.exists():
                    self.restore()
                elif is_ended:
                    outputs.remove_folder(self.folder, RUN)
        elif self.is_first and is_ended and not isinstance(error, InputError):
            error.add_note(RESUME_NOTE)
        if isinstance(error, SystemExit) and not isinstance(error, EndedBySignal):  # Lightning's
            log.warning("; ".join(["interrupted", *getattr(error, "__notes__", [])]))

    def close(self) -> None:
        """Remove the checkpoints, and the folder of the earlier run; the logs stay."""
        if self.is_first:
            with suppress(InputError):
                outputs.remove_folder(self.earlier, RUN)
            self.remove_progress()

    def remove_progress(self) -> None:
        shutil.rmtree(self.folder / CHECKPOINTS, ignore_errors=True)

    def recorded(self) -> Recorded:
        """Return the record of this run or of an earlier one in the folder, an empty one without it."""
        try:
            return from_plain(
                Recorded, json.loads((self.folder / RUN_RECORD).read_text("utf-8")), RUN_RECORD
            )
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return Recorded()

    def remember(self, **values: Any) -> None:
        """Add values to the record, which a resumed run finds there."""
        if self.is_first:
            outputs.write_json(self.folder / RUN_RECORD, asdict(replace(self.recorded(), **values)))

    def differences(self) -> list[str]:
        """Return in words how this run differs from the earlier one in its folder: in options, or in its data."""
        before = self.recorded()
        old = _flat(before.options)
        new = _flat(json.loads(json.dumps(_run_options(self.cfg))))
        changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
        named = "; ".join(f"{name}={new.get(name)}, was {old.get(name)}" for name in changed)
        found = [f"other options ({named})"] if changed else []
        return found + (["another reference"] if before.reference_sha256 != self.data else [])

    def record(self, cfg: NetworkOptions, made: Provenance) -> tuple[Provenance, NetworkConfig]:
        """Write the options and the provenance (`made`, and what reproduces the model); return both for the model."""
        options = _run_options(cfg)
        for option in PATHS:
            group, _, name = option.rpartition(".")
            part = options[group] if group else options
            if path := part.get(name):  # the folders of a user are private
                part[name] = (
                    Path(path).name if isinstance(path, str) else [Path(each).name for each in path]
                )
        made = replace(made, options=options, versions=versions())
        if cfg.model.encoder:
            device = device_of(cfg.trainer)
            made.device = f"{device.kind} ({device.why}), {device.precision}"
        if self.is_first:
            with outputs.new_file(self.folder / "config.yaml", overwrite=True) as temporary:
                text = yaml.safe_dump(asdict(cfg), sort_keys=False, allow_unicode=True)
                temporary.write_text(text, encoding="utf-8")
            outputs.write_json(self.folder / "provenance.json", to_json(made))
        groups = asdict(cfg)
        groups["model"]["gene2vec_path"] = options["model"]["gene2vec_path"]
        parts = {name: groups[name] for name in ("tokens", "model", "attention")}
        own_totals = None if cfg.genes_path is None else True
        config = NetworkConfig(target_sum=cfg.data.target_sum, own_totals=own_totals, **parts)
        if isinstance(cfg, TrainOptions):
            config.head = groups["head"]
            if cfg.model.uses_cross_attention:  # a model that adapts to a file is trained again
                trainer = cfg.trainer
                config.training = TrainingConfig(
                    groups["optim"], trainer.max_steps, trainer.batch_size
                )
        return made, config

    def write(self, saved: SavedModel) -> None:
        """Write the model folder, with its picture and table."""
        outputs.write_json(self.folder / "metrics.json", to_json(saved.metrics))
        more = {}
        if saved.labels and saved.metrics.best_epoch:  # branches that were fitted have no epochs
            more[EPOCHS_TABLE] = (self.folder / EPOCHS_TABLE).read_bytes()
        if saved.metrics.calibration is not None:
            more["reliability.png"] = draw_reliability(saved.metrics.calibration.bins)
        write_model(saved, self.output, overwrite=self.cfg.overwrite, more=more)
        self.remember(finished=True)
        log.info("written: %s", self.output)


@contextmanager
def training_run(
    cfg: NetworkOptions, output: Path, paths: Sequence[Path], init_hash: str = ""
) -> Iterator[RunFolder | None]:
    """Open the run folder `<output>.run` for a training; yield None if `resume=true` finds the finished model.

    `paths` are the files of cells, none for cells in memory. `init_hash` is of the model from which the training
    starts. Another process that trains this output is refused until this one has ended. After an error of the user or a
    signal the folder is removed, unless it has a checkpoint from which the run can be resumed. The folder of an earlier
    run waits under another name until this run has ended, and comes back if this run leaves nothing.
    """
    real = [path.resolve() for path in paths]
    if twice := next(
        (path for number, path in enumerate(paths) if real[number] in real[:number]), None
    ):
        raise InputError(
            "file-twice",
            f"the same file twice ({twice})",
            "each file once",
            "leave one of them out",
        )
    require_loggers(cfg.logger)
    is_alone = cfg.trainer.devices * cfg.trainer.num_nodes == 1
    is_first = is_alone or not any(int(os.environ.get(name) or 0) for name in RANKS)
    run = RunFolder(cfg, output, output.with_name(output.name + ".run"), is_first)
    if not is_first:
        logging.getLogger("scperformer").setLevel(logging.ERROR)
        warnings.simplefilter("ignore")
    if not run.may_be_finished:
        run.require_place()
    with outputs.claimed(run.folder) if is_first else nullcontext():
        run.data = (checksum(*paths) if paths else "") + init_hash
        for table in filter(None, (cfg.genes_path, getattr(cfg, "labels", None))):
            if not Path(table).is_file():
                raise InputError(
                    "no-file", f"no file {table}", "a file of genes or labels", how_to_find(table)
                )
            run.data += sha256(Path(table))
        run.restore()
        if run.is_finished():
            log.info("%s is finished: nothing to resume", output)
            yield None
            return
        if run.may_be_finished:
            run.require_place()
        resumes = run.resumes()
        try:
            with outputs.output_named(run.folder):
                run.open(resumes)
                yield run
        except BaseException as error:
            run.abandon(error)
            raise
        run.close()


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


def _flat(options: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Return nested options by their full names, such as `trainer.max_epochs`."""
    found: dict[str, object] = {}
    for name, value in options.items():
        found |= (
            _flat(value, f"{prefix}{name}.")
            if isinstance(value, dict)
            else {f"{prefix}{name}": value}
        )
    return found
