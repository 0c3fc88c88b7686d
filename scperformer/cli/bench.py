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
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from scperformer.base.errors import InputError, one_line
from scperformer.base.outputs import new_file
from scperformer.base.signals import handle_signals

log = logging.getLogger(__name__)

USAGE = "bench REFERENCE option=A,B,..."
EXAMPLES = """\
  scperformer bench reference.h5ad label_key=cell_type model=tiny attention=favor,linformer seed=0,1,2
  scperformer bench reference.h5ad label_key=cell_type model=performer,pooled seed=0,1 data.split_seed=0 output=mine
  scperformer bench reference.h5ad label_key=cell_type data.split=column data.split_key=side optim.lr=1e-3,3e-3"""

OUTPUT = "bench"  # the folder without output=...
MARK = "multirun.yaml"  # Hydra writes it into the folder at the start
RECORD = "run.json"  # in the folder of each run: options, files, results and error
KILLED = "ended without a result: killed, out of memory or out of time"
PROGRAM = str(Path(__file__).parents[1] / "__main__.py")  # in a job of a cluster, sys.argv[0] is submitit's
OF_BENCH = ("output", "overwrite", "resume")  # options that its runs do not get
LOST_JOB_ERRORS = ("UncompletedJobError", "FailedJobError")  # raised by submitit when a job has ended without a result


def run(words: Sequence[str], presets: Path | None, plugins: list[str]) -> int:
    """Train for each combination of the values in `words`; write, print and draw the results; 2 if a run has failed.

    A run with a result is not repeated, unless the words say `overwrite=true`. `presets` is the user's folder of
    presets, `plugins` are files with mechanisms of attention.
    """
    from scperformer.cli.arguments import quoted
    from scperformer.cli.bench_table import write_results
    from scperformer.cli.compose import hand_to_hydra

    given = dict(word.partition("=")[::2] for word in words)
    output = Path(given.get("output", OUTPUT).strip("'\""))
    is_new = not output.exists()
    if not is_new and not (output / MARK).is_file():
        raise InputError(
            "not-a-bench", f"'{output}', which is no bench", "a new folder, or an earlier bench", "choose output=..."
        )

    def run_job(tree: Any) -> None:
        """Do one run; a cluster may have started this process."""
        from hydra.core.hydra_config import HydraConfig

        from scperformer.cli.main import set_up_logging

        set_up_logging()
        chosen = list(HydraConfig.get().overrides.task)
        options = dict(word.partition("=")[::2] for word in chosen if not word.startswith("inputs="))
        digest = hashlib.sha256(json.dumps(sorted(options.items())).encode()).hexdigest()[:8]
        differ = [re.sub(r"\W", "-", value) for name, value in options.items() if "," in given.get(name, "")]
        folder = next(output.glob(f"*{digest}"), output / "_".join([*differ, digest]))
        found = [os.stat(name) for name in [*tree.inputs, *plugins] if os.path.exists(name)]
        files = [[each.st_size, each.st_mtime_ns] for each in found]
        path = folder / RECORD
        before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"error": KILLED}
        if given.get("overwrite") != "true" and not before["error"] and before["files"] == files:
            log.info("%s: done before", folder)
            return
        folder.mkdir(exist_ok=True)
        _write(path, {"options": options, "files": files, "results": {}, "error": KILLED})
        own = [] if presets is None else ["--config-dir", str(presets)]
        _in_new_process(folder, [*chosen, f"output={quoted(str(folder / 'model'))}", "overwrite=true", *own], plugins)

    # Hydra makes no folder for a run, as the numbers of its runs change with the values.
    of_hydra = [f"hydra.sweep.dir={quoted(str(output))}", "hydra.sweep.subdir=."]
    words = [word for word in words if word.partition("=")[0] not in OF_BENCH]
    try:
        with _all_jobs(output):
            hand_to_hydra("train", [*words, *of_hydra], ["-m"], run_job, presets)
    finally:
        num_failed = write_results(output) if any(output.glob(f"*/{RECORD}")) else 0
        if is_new and not any(output.glob("*/")):  # Hydra has refused the words
            shutil.rmtree(output, ignore_errors=True)
    return 2 if num_failed else 0


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
        for task in sorted((folder / ".submitit").glob("[0-9]*_[0-9]*")):  # folders JOB_TASK of a job array
            submitit.SlurmJob(folder=task.parent / "%j", job_id=task.name).wait()


def _write(path: Path, record: dict[str, Any]) -> None:
    with new_file(path, overwrite=True) as temporary:
        temporary.write_text(json.dumps(record, indent=1), encoding="utf-8")


def _in_new_process(*args: Any) -> None:
    """Train in a new process, which gets the signals of this one."""
    process = get_context("spawn").Process(target=_train_and_measure, args=args)
    process.start()
    try:
        process.join()
    except BaseException:
        if process.pid is not None and process.is_alive():
            os.kill(process.pid, signal.SIGTERM)
        process.join()
        raise


def _train_and_measure(folder: Path, words: list[str], plugins: list[str]) -> None:
    """Run `train` in this process, which is new, and complete the record in the folder of the run."""
    from scperformer.cli.arguments import own_presets, plugin_words, sort_words
    from scperformer.cli.compose import command_line, make_config
    from scperformer.cli.main import call, load_plugins, refuse, set_up_logging
    from scperformer.cli.train import run as train

    handle_signals()
    set_up_logging()
    start = time.perf_counter()
    record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    try:
        load_plugins(plugins)
        options, flags = sort_words(words, "train")
        config = make_config("train", options, own_presets(flags))
        # By these words Lightning starts the other processes of a ddp run.
        with command_line(PROGRAM, *plugin_words(plugins), "train", *words):
            call(train, config)
        cost = _cost(time.perf_counter() - start, config.trainer.devices * config.trainer.num_nodes)
        from scperformer.token_attention.measure import measure  # after the cost: it imports more

        results = cost | measure(config)
    except Exception as error:
        _write(folder / RECORD, record | {"error": one_line(str(error)) or type(error).__name__})
        raise SystemExit(refuse(error)) from error  # of this process: the other runs go on
    _write(folder / RECORD, record | {"results": results, "error": ""})


def _cost(seconds: float, num_devices: int) -> dict[str, float]:
    """Return the cost of a training of so many seconds, all that this process has done; GPU memory is of one GPU."""
    import resource

    import torch

    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    unit = 2**30 if sys.platform == "darwin" else 2**20  # bytes, else KiB
    cost = {"seconds": seconds, "cpu_seconds": sum(each.ru_utime + each.ru_stime for each in used)}
    cost["peak_gib"] = max(each.ru_maxrss for each in used) / unit
    if torch.cuda.is_initialized():
        cost |= {"gpu_seconds": seconds * num_devices, "gpu_peak_gib": torch.cuda.max_memory_allocated() / 2**30}
    return cost
