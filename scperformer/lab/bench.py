"""`scperformer bench`: train once for each combination of options, and compare.

Hydra makes the combinations, and its launcher runs them: one after the other, or as the jobs of a cluster. Each model
is trained in a new process, so that time and memory are its own, and one that is killed ends no other.
"""

import hashlib
import json
import logging
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from scperformer.base.errors import InputError, one_line
from scperformer.base.outputs import write_json
from scperformer.base.signals import handle_signals
from scperformer.cli.arguments import PRESETS, option_word, own_presets, plugin_words, sort_words
from scperformer.cli.compose import OF_HYDRA, combinations, make_config, parse
from scperformer.cli.running import call, command_line, load_plugins, refuse, set_up_logging
from scperformer.cli.train import run as train

log = logging.getLogger(__name__)

USAGE = "bench REFERENCE option=A,B,..."
EXAMPLES = """\
  scperformer bench reference.h5ad label_key=cell_type model=tiny attention=favor,linformer seed=0,1,2
  scperformer bench reference.h5ad label_key=cell_type model=performer,pooled seed=0,1 data.split_seed=0 output=mine
  scperformer bench reference.h5ad label_key=cell_type data.split=column data.split_key=side optim.lr=1e-3,3e-3"""

MARK = "multirun.yaml"  # Hydra writes it into the folder at the start
# in a job of a cluster, sys.argv[0] is submitit's
PROGRAM = str(Path(__file__).parents[1] / "__main__.py")
RECORD = "run.json"  # in the folder of each run
KILLED = "ended without a result: killed, out of memory or out of time"
OF_BENCH = ("output", "overwrite", "resume")  # options that its runs do not get
# raised by submitit when a job has ended without a result
LOST_JOB_ERRORS = ("UncompletedJobError", "FailedJobError")
# Hydra makes no folder for a run, as the numbers of its runs change with the values, and no log.
QUIET = (
    *("hydra.sweep.subdir=.", "hydra.run.dir=.", "hydra.output_subdir=null"),
    *("hydra/job_logging=none", "hydra/hydra_logging=none"),
)


@dataclass(frozen=True)
class Bench:
    """A folder, and the words of each of its runs; a run with a result is repeated only if it `overwrites`."""

    folder: Path
    runs: list[list[str]]
    overwrites: bool
    presets: Path | None  # the user's folder of presets
    plugins: list[str]  # files with mechanisms of attention

    def run(self, number: int) -> None:
        """Train the model of one run, unless that is done; a cluster may have started this process."""
        set_up_logging()
        runs = [dict(map(_split, words)) for words in self.runs]
        options = {name: value for name, value in runs[number].items() if name != "inputs"}
        digest = hashlib.sha256(json.dumps(sorted(options.items())).encode()).hexdigest()[:8]
        differ = [
            re.sub(r"\W", "-", text)
            for name, text in options.items()
            if len({run[name] for run in runs}) > 1
        ]
        folder = next(self.folder.glob(f"*{digest}"), self.folder / "_".join([*differ, digest]))
        inputs = parse(self.runs[number], "train").get("inputs", [])
        stats = [os.stat(name) for name in [*inputs, *self.plugins] if os.path.exists(name)]
        files = [[each.st_size, each.st_mtime_ns] for each in stats]
        before = _read(folder) if (folder / RECORD).is_file() else None
        if (
            before is not None
            and not self.overwrites
            and not before["error"]
            and before["files"] == files
        ):
            log.info("%s: done before", folder)
            return
        folder.mkdir(exist_ok=True)
        write_json(
            folder / RECORD, {"options": options, "files": files, "results": {}, "error": KILLED}
        )
        own = [] if self.presets is None else [PRESETS, str(self.presets)]
        output = option_word("output", str(folder / "model"))
        words = [*self.runs[number], output, "overwrite=true", *own]
        process = get_context("spawn").Process(
            target=_train_and_measure, args=(folder, words, self.plugins)
        )
        process.start()
        try:
            process.join()
        except BaseException:  # it gets the signals of this one
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, signal.SIGTERM)
            process.join()
            raise


def _split(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    return name, value


def run(
    words: Sequence[str], presets: Path | None, plugins: list[str], flags: Sequence[str] = ()
) -> int:
    """Train for each combination of the values in `words`; write, print and draw the results; 2 if a run has failed.

    `presets` is the user's folder of presets, `plugins` are files with mechanisms of attention. With the `flags`
    `--cfg hydra`, only print the options of Hydra, such as those of its launcher.
    """
    from scperformer.lab.bench_table import write_results

    of_hydra = [word for word in words if OF_HYDRA.match(word)]
    of_bench = parse([word for word in words if _split(word)[0] in OF_BENCH], "train")
    of_train = [word for word in words if word not in of_hydra and _split(word)[0] not in OF_BENCH]
    runs = combinations(of_train, "train", presets)
    bench = Bench(
        Path(of_bench.get("output") or "bench"),
        runs,
        bool(of_bench.get("overwrite")),
        presets,
        plugins,
    )
    if flags:
        _hand_to_hydra(bench, [*of_hydra, *flags])
        return 0
    is_new = not bench.folder.exists()
    if not is_new and not (bench.folder / MARK).is_file():
        found = f"'{bench.folder}', which is no bench"
        raise InputError(
            "not-a-bench", found, "a new folder, or an earlier bench", "choose output=..."
        )
    numbers = f"+run={','.join(map(str, range(len(runs))))}"
    try:
        with _all_jobs(bench.folder):
            _hand_to_hydra(bench, [numbers, *of_hydra, "--multirun"])
    finally:
        records = {
            path.parent.name: _read(path.parent)
            for path in sorted(bench.folder.glob(f"*/{RECORD}"))
        }
        num_failed = write_results(bench.folder, records) if records else 0
        if is_new and not records:  # Hydra has refused the words
            shutil.rmtree(bench.folder, ignore_errors=True)
    return 2 if num_failed else 0


def _hand_to_hydra(bench: Bench, words: Sequence[str]) -> None:
    """Let Hydra call the runs of a bench by its launcher, or print its options."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf import DictConfig
    from omegaconf.errors import OmegaConfBaseException

    def run_job(tree: DictConfig) -> None:
        bench.run(tree.run)

    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises errors instead of printing them
    try:
        with command_line(
            sys.argv[0], option_word("hydra.sweep.dir", str(bench.folder)), *QUIET, *words
        ):
            hydra.main(config_path=None, version_base="1.3")(run_job)()
    except (HydraException, OmegaConfBaseException) as error:
        text = " ".join(str(error).partition("Config search path")[0].split())
        raise InputError(
            "bad-option", text, "options of Hydra", "see them by 'bench ... --cfg hydra'"
        ) from error


@contextmanager
def _all_jobs(folder: Path) -> Iterator[None]:
    """After the block, wait for all jobs of a cluster, even if it loses one: its launcher stops at the first."""
    try:
        yield
    except RuntimeError as error:
        if type(error).__name__ not in LOST_JOB_ERRORS:
            raise
        import submitit

        log.warning("a job of the cluster was lost: waiting for the others")
        # folders JOB_TASK of a job array
        for task in sorted((folder / ".submitit").glob("[0-9]*_[0-9]*")):
            submitit.SlurmJob(folder=task.parent / "%j", job_id=task.name).wait()


def _read(folder: Path) -> dict[str, Any]:
    return json.loads((folder / RECORD).read_text(encoding="utf-8"))


def _train_and_measure(folder: Path, words: list[str], plugins: list[str]) -> None:
    """Run `train` in this process, which is new, and complete the record in the folder of the run."""
    handle_signals()
    set_up_logging()
    start = time.perf_counter()
    record = _read(folder)
    try:
        load_plugins(plugins)
        options, flags = sort_words(words, "train")
        config = make_config("train", options, own_presets(flags))
        # By these words Lightning starts the other processes of a ddp run.
        with command_line(PROGRAM, *plugin_words(plugins), "train", *words):
            call(train, config)
        cost = _cost(time.perf_counter() - start, config.trainer.devices * config.trainer.num_nodes)
        from scperformer.lab.measure import measure  # after the cost: it imports more

        results = cost | measure(config)
    except Exception as error:
        write_json(
            folder / RECORD, {**record, "error": one_line(str(error)) or type(error).__name__}
        )
        raise SystemExit(refuse(error)) from error  # of this process: the other runs go on
    write_json(folder / RECORD, {**record, "results": results, "error": ""})


def _cost(seconds: float, num_devices: int) -> dict[str, float]:
    """Return the cost of a training of so many seconds, all that this process has done; GPU memory is of one GPU."""
    import resource

    import torch

    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    unit = 2**30 if sys.platform == "darwin" else 2**20  # bytes, else KiB
    cost = {"seconds": seconds, "cpu_seconds": sum(each.ru_utime + each.ru_stime for each in used)}
    cost["peak_gib"] = max(each.ru_maxrss for each in used) / unit
    if torch.cuda.is_initialized():
        cost |= {
            "gpu_seconds": seconds * num_devices,
            "gpu_peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        }
    return cost
