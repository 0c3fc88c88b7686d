"""`scperformer workflow`: annotate many samples with Snakemake, and make one report.

The Snakefile comes from the installed package or its source checkout; it runs in the working folder.
"""

import json
import logging
import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scperformer.base.errors import InputError
from scperformer.base.signals import ENDING_SIGNALS, EndedBySignal
from scperformer.base.yaml_files import read_yaml_file
from scperformer.config.steps import WORKFLOW_KEYS, WorkflowConfig

log = logging.getLogger(__name__)

USAGE = "workflow SAMPLES"
EXAMPLES = """\
  scperformer workflow samples.tsv                      # the tissue of each sample is found
  scperformer workflow samples.tsv reference=reference.h5ad label_key=cell_type
  scperformer workflow samples.tsv model_path=my_model -- -n          # show the jobs and run none
  scperformer workflow --config my.yaml -- --cores 16                 # words after -- are for snakemake
  scperformer workflow samples.tsv model_path=my_model -- --profile my_cluster"""

# Options of snakemake that say how many jobs run at the same time; a value may follow a short option directly (-j4).
CORES = ("--cores", "--jobs", "--profile", "--executor")
SHORT_CORES = ("-c", "-j", "-e")
MAX_CORES = 8  # unless the user gives one of these options; stated in docs/workflow.md


# Snakemake leads a group of processes, its jobs. After SIGINT it ends them and says nothing more: scperformer does.
RUN_SNAKEMAKE = """
import os, signal

def end(*_):
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    raise KeyboardInterrupt

signal.signal(signal.SIGINT, end)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
from snakemake.cli import main
main()
"""


def workflow_folder() -> Path:
    """Return the folder of the Snakefile: inside an installed package, or the source checkout around the package."""
    package = Path(__file__).parents[1]
    installed = package / "snakefiles"
    return installed if installed.is_dir() else package.parent


def _values_of(cfg: WorkflowConfig) -> dict[str, object]:
    """Return the options of a command that are no defaults."""
    return {key: getattr(cfg, key) for key in WORKFLOW_KEYS if getattr(cfg, key) is not None}


def snakemake_words(cfg: WorkflowConfig) -> list[str]:
    """Return the arguments of the snakemake command that runs the workflow with these options."""
    # As JSON, a text such as "3" stays a text.
    entries = [
        f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in _values_of(cfg).items()
    ]
    # The user's words come first: they may be files to make, and an option before them, such as --config, would take
    # these files for its values.
    words = [*cfg.snakemake, "--snakefile", str(workflow_folder() / "Snakefile")]
    if not any(
        word.partition("=")[0] in CORES or word.startswith(SHORT_CORES) for word in cfg.snakemake
    ):
        words += ["--cores", str(min(MAX_CORES, os.cpu_count() or 1))]
    words += ["--configfile", cfg.configfile] if cfg.configfile else []
    return [*words, "--config", *entries] if entries else words


def _code_of(words: list[str]) -> int:
    """Run snakemake and return its exit code, as a shell tells it; a signal ends its jobs and releases its locks."""
    # Signals wait until snakemake handles them: while Python starts, they would cause a traceback.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    process = subprocess.Popen([sys.executable, "-P", "-c", RUN_SNAKEMAKE, *words], process_group=0)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
        code = process.wait()
    except (KeyboardInterrupt, EndedBySignal) as error:
        process.send_signal(signal.SIGINT)
        try:
            process.wait()
        except (KeyboardInterrupt, EndedBySignal):  # the second one: the user does not want to wait
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        error.add_note("the same command continues it")
        raise
    if code < 0:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)  # its jobs
        name = signal.Signals(-code).name
        log.error(
            "snakemake was ended by %s: run the same command with --unlock, then without", name
        )
        return 128 - code
    return code


def run(cfg: WorkflowConfig) -> None:
    """Run the workflow; a SystemExit has the exit code of Snakemake, if that fails."""
    from scperformer.cli.workflow_config import WORKFLOW_FILE, read_workflow

    if find_spec("snakemake") is None:
        raise InputError(
            "no-snakemake",
            "no snakemake",
            "the program that runs workflows",
            "pip install snakemake",
        )
    content: Any = {}
    if cfg.configfile is not None:
        try:
            content = read_yaml_file(cfg.configfile) or {}  # Snakemake would follow any alias in it
        except (OSError, ValueError) as error:
            found = f"{cfg.configfile} cannot be read ({error})"
            raise InputError(
                "workflow-config", found, WORKFLOW_FILE, "see docs/workflow.md"
            ) from error
    if isinstance(content, dict):  # else the next line refuses it
        content |= _values_of(cfg)
    read_workflow(content, workflow_folder(), cfg.configfile or "configuration")
    words = snakemake_words(cfg)
    log.info("snakemake %s", shlex.join(words))
    code = _code_of(words)
    if code:
        raise SystemExit(code)
