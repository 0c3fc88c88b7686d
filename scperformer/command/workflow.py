"""Run the Snakemake workflow of the installed package, or of its source checkout, in the working folder."""

import json
import logging
import os
import shlex
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scperformer.base.errors import InputError
from scperformer.base.signals import EndedBySignal
from scperformer.base.yaml_files import read_yaml_file
from scperformer.command.workflow_config import read_workflow
from scperformer.config import WORKFLOW_KEYS, WorkflowConfig

log = logging.getLogger(__name__)

# Options of snakemake that say how many jobs run at the same time; a value may follow a short option directly (-j4).
CORES = ("--cores", "--jobs", "--profile", "--executor")
SHORT_CORES = ("-c", "-j", "-e")
MAX_CORES = 8  # unless the user gives one of these options; stated in docs/workflow.md


def workflow_folder() -> Path:
    """Return the folder of the Snakefile: inside an installed package, beside it in a source checkout."""
    package = Path(__file__).parents[1]
    installed = package / "snakefiles"
    return installed if installed.is_dir() else package.parent / "workflow"


def snakemake_words(cfg: WorkflowConfig) -> list[str]:
    """Return the arguments of the snakemake command that runs the workflow with these options."""
    values = {key: getattr(cfg, key) for key in WORKFLOW_KEYS if getattr(cfg, key) is not None}
    # As JSON, a text such as "3" stays a text.
    entries = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    # The user's words come first: they may be files to make, and an option before them, such as --config, would take
    # these files for its values.
    words = [*cfg.snakemake, "--snakefile", str(workflow_folder() / "Snakefile")]
    if not any(word.partition("=")[0] in CORES or word.startswith(SHORT_CORES) for word in cfg.snakemake):
        words += ["--cores", str(min(MAX_CORES, os.cpu_count() or 1))]
    words += ["--configfile", cfg.configfile] if cfg.configfile else []
    return [*words, "--config", *entries] if entries else words


def _code_of(command: list[str]) -> int:
    """Run a command and return its exit code; after a signal, first let it end its jobs and release its locks."""
    process = subprocess.Popen(command)
    try:
        return process.wait()
    except (KeyboardInterrupt, EndedBySignal) as error:
        # Ctrl-C reaches all processes of a terminal by itself: a second signal would interrupt their cleanup.
        is_on_terminal = sys.stdin is not None and sys.stdin.isatty()
        if not (isinstance(error, KeyboardInterrupt) and is_on_terminal):
            process.send_signal(signal.SIGINT)
        process.wait()
        raise


def run_workflow(cfg: WorkflowConfig) -> None:
    """Run the workflow.

    Raises
    ------
    InputError
        Snakemake is not installed; the configuration or the sample sheet is wrong (`read_workflow`); or there are no
        samples, and no example data beside the workflow.
    SystemExit
        Snakemake failed: with its exit code.
    """
    if find_spec("snakemake") is None:
        raise InputError("no snakemake", "the program that runs workflows", "pip install snakemake")
    content: Any = {}
    if cfg.configfile is not None:
        try:
            content = read_yaml_file(cfg.configfile) or {}  # Snakemake would follow any alias in it
        except (OSError, ValueError) as error:
            found = f"{cfg.configfile} cannot be read ({error})"
            raise InputError(found, "a YAML file like config/config.yaml", "see docs/workflow.md") from error
    if isinstance(content, dict):  # else the next line refuses it
        content |= {key: getattr(cfg, key) for key in WORKFLOW_KEYS if getattr(cfg, key) is not None}
    workflow = read_workflow(content, cfg.configfile or "configuration")
    if not workflow.samples and not (workflow_folder().parent / "data" / "pbmc3k.h5ad").exists():
        remedy = "name it: scperformer workflow samples.tsv reference=reference.h5ad label_key=cell_type"
        raise InputError("no sample sheet", "one with the columns sample and path, as the first word", remedy)
    words = snakemake_words(cfg)
    log.info("snakemake %s", shlex.join(words))
    code = _code_of([sys.executable, "-P", "-m", "snakemake", *words])
    if code:
        raise SystemExit(code)
