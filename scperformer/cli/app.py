"""`scperformer app`: open a page of this computer to drop files on."""

import logging
import secrets
import socket
import tempfile
import webbrowser
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

from scperformer.base.errors import InputError
from scperformer.base.progress import say
from scperformer.cli.app_folder import folder_of_jobs, on_page
from scperformer.config.steps import AppConfig

log = logging.getLogger(__name__)

USAGE = "app"
EXAMPLES = """\
  scperformer app                               # opens the page in the browser; Ctrl-C stops it
  scperformer app port=8000 browser=false       # only prints its address"""
HOST = "127.0.0.1"  # other computers cannot reach it


def run(cfg: AppConfig) -> None:
    """Serve the page until it is interrupted; files that were dropped, and what was made of them, are then removed."""
    try:
        import uvicorn

        from scperformer.cli.app_server import Jobs, app_of
    except ImportError as error:
        remedy = "install it: pip install 'scperformer[app]'"
        raise InputError(
            "missing-library", f"no {error.name}", "the libraries of the page", remedy
        ) from error
    try:
        listening = socket.create_server((HOST, cfg.port))
    except OSError as error:
        remedy = "choose another port=..., or leave it out"
        raise InputError(
            "port-in-use", f"port={cfg.port} ({error.strerror})", "a free port", remedy
        ) from error
    token = secrets.token_urlsafe(16)
    address = f"http://{HOST}:{listening.getsockname()[1]}/{token}/"
    with (
        on_page(Path(tempfile.gettempdir())),
        folder_of_jobs() as folder,
        closing(Jobs(folder)) as jobs,
    ):
        server = uvicorn.Server(
            uvicorn.Config(app_of(jobs, token), log_level="warning", timeout_graceful_shutdown=1)
        )
        # In a thread it leaves the signals to us: they end it in the same way, also when the terminal is closed. A pool
        # waits for its end: Thread.join of Python 3.11, once interrupted, takes a thread for ended.
        with ThreadPoolExecutor(1) as pool:
            try:
                with suppress(KeyboardInterrupt):  # the usual end
                    serving = pool.submit(server.run, [listening])
                    say(f"{address}  (Ctrl-C stops it)")
                    if cfg.browser:
                        webbrowser.open(address)
                    serving.result()
            finally:
                server.should_exit = True
        log.info("stopped")
