"""`scperformer app`: open a page of this computer to drop files on."""

import json
import logging
import re
import secrets
import shutil
import socket
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Thread

from scperformer.base.errors import DiskFull, InputError, as_disk_full
from scperformer.base.outputs import ANOTHER_OUTPUT, MARK, is_left_over, temporary_name
from scperformer.base.progress import say
from scperformer.config.steps import AppConfig

log = logging.getLogger(__name__)

USAGE = "app"
EXAMPLES = """\
  scperformer app                               # opens the page in the browser; Ctrl-C stops it
  scperformer app port=8000 browser=false       # only prints its address"""
HOST = "127.0.0.1"  # other computers cannot reach it
PREFIX = "scperformer-app-"  # of the folder of a server
KIND = "the files of a page"  # in the mark of this folder
JOB = "[0-9a-f-]{8,36}"  # the name of a job, and of its folder
SENT = "sample"  # the folder in it for the files that were sent
ENDINGS = (".annotated.h5ad", ".calls.csv", ".report.html")  # of the files that a job makes
OURS = re.compile(
    rf"{re.escape(MARK)}|{JOB}(/({SENT}(/.*)?|[^/]*({'|'.join(map(re.escape, ENDINGS))})|\.scperformer-[^/]*(/.*)?))?",
    re.DOTALL,
)


@contextmanager
def on_page(folder: Path) -> Iterator[None]:
    """Say what the user of a page can do about a full disk, where `output` is no option; `folder` is on this disk."""
    try:
        yield
    except Exception as error:
        full = error if isinstance(error, DiskFull) else as_disk_full(error)
        if full is None:
            raise
        others = "remove results on the page, or start 'TMPDIR=FOLDER scperformer app' with a folder of a larger disk"
        found = f"{full.found.partition(' (')[0]} ({folder})"
        remedy = full.remedy.replace(ANOTHER_OUTPUT, others)
        raise DiskFull("disk-full", found, "room for the files and their results", remedy) from error


@contextmanager
def folder_of_jobs() -> Iterator[Path]:
    """Yield a folder that is removed at the end; those of servers that were killed are removed now.

    Without it, files of 100,000 cells would fill a disk after some runs.
    """
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        mark = {"made_by": "scperformer", "kind": KIND, "folder": folder.name, "process": temporary_name()}
        (folder / MARK).write_text(json.dumps(mark), encoding="utf-8")
        for other in folder.parent.glob(f"{PREFIX}*"):
            if is_of_killed(other):
                shutil.rmtree(other, ignore_errors=True)
        yield folder


def is_of_killed(folder: Path) -> bool:
    """Return whether a folder is of a server that no longer runs, and holds nothing but what it has made."""
    try:
        mark = json.loads((folder / MARK).read_bytes())
        names = ("scperformer", KIND, folder.name)  # a copy under another name is somebody else's
        is_left = (mark["made_by"], mark["kind"], mark["folder"]) == names and is_left_over(mark["process"])
        inside = [path.relative_to(folder).as_posix() for path in folder.rglob("*")] if is_left else []
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False
    return is_left and not folder.is_symlink() and all(map(OURS.fullmatch, inside))


def run(cfg: AppConfig) -> None:
    """Serve the page until it is interrupted; files that were dropped, and what was made of them, are then removed."""
    try:
        import uvicorn

        from scperformer.cli.app_server import Jobs, app_of
    except ImportError as error:
        remedy = "install it: pip install 'scperformer[app]'"
        raise InputError("missing-library", f"no {error.name}", "the libraries of the page", remedy) from error
    try:
        listening = socket.create_server((HOST, cfg.port))
    except OSError as error:
        remedy = "choose another port=..., or leave it out"
        raise InputError("port-in-use", f"port={cfg.port} ({error.strerror})", "a free port", remedy) from error
    token = secrets.token_urlsafe(16)
    address = f"http://{HOST}:{listening.getsockname()[1]}/{token}/"
    with on_page(Path(tempfile.gettempdir())), folder_of_jobs() as folder, closing(Jobs(folder)) as jobs:
        server = uvicorn.Server(uvicorn.Config(app_of(jobs, token), log_level="warning", timeout_graceful_shutdown=1))
        # In a thread it leaves the signals to us: they end it in the same way, also when the terminal is closed.
        serving = Thread(target=server.run, kwargs={"sockets": [listening]})
        serving.start()
        try:
            with suppress(KeyboardInterrupt):  # the usual end
                say(f"{address}  (Ctrl-C stops it)")
                if cfg.browser:
                    webbrowser.open(address)
                serving.join()
        finally:
            server.should_exit = True
            serving.join()
        log.info("stopped")
