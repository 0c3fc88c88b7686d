"""The server of `scperformer app`: it takes files, annotates each in a process and a folder of its own, and shows them.

Without the token in its address nothing is found, and the pages of other sites cannot name the host. The command line
has the same steps, so a file that is refused gets the same line as there.
"""

import multiprocessing
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route

from scperformer.base import progress
from scperformer.base.errors import as_input_error
from scperformer.base.outputs import new_file
from scperformer.base.signals import handle_signals
from scperformer.cli.running import call, refuse, set_up_logging
from scperformer.config.annotation import PredictConfig
from scperformer.config.compose import make_options
from scperformer.config.steps import ReportConfig
from scperformer.io.read import default_output
from scperformer.model.folder import PACKAGED_MODEL, imported_models, library_folder
from scperformer.model.tissues import collection
from scperformer.results.pages import render_page

LOG = "log.txt"
SENT = "sample"  # the folder of the files that were sent
ENDINGS = (".annotated.h5ad", ".calls.csv", ".report.html")  # of the files that a job makes
AT_ONCE = 2  # jobs that run; the others wait
SECONDS_BETWEEN_LINES = 2.0  # of the progress that the page shows
KILLED = "error: the process was ended: out of memory? Annotate the file on a machine with more memory."
NO_REFERRER = {"Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}  # the address holds the token


@dataclass
class Job:
    """Cells to annotate, and the process that does so; the job is waiting as long as there is none."""

    folder: Path
    process: BaseProcess | None = None
    is_removed: bool = False

    def run(self, options: dict[str, Any]) -> None:
        """Annotate in a new process, and wait for its end."""
        if not self.is_removed:
            self.process = multiprocessing.get_context("spawn").Process(target=annotate, args=(self.folder, options))
            self.process.start()
            self.process.join()

    def state(self) -> dict[str, Any]:
        """Return what the page shows: the state, the log, and the files that can be loaded down."""
        code = None if self.process is None else self.process.exitcode
        names = {None: "waiting" if self.process is None else "running", 0: "done"}
        log = self.folder / LOG
        text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
        for place in (self.folder / SENT, self.folder):  # the user knows the names of files alone
            text = text.replace(f"{place}/", "")
        lines = text.splitlines()
        if code and not any("error: " in line for line in lines):
            lines.append(KILLED)
        files = [path.name for ending in ENDINGS for path in self.folder.glob(f"*{ending}")] if code == 0 else []
        return {"state": names.get(code, "refused"), "log": lines, "files": files}

    def remove(self) -> None:
        """Stop the process, and remove the files."""
        self.is_removed = True
        if self.process is not None and self.process.is_alive():
            self.process.terminate()
            self.process.join()
        shutil.rmtree(self.folder, ignore_errors=True)


class Jobs:
    """The jobs of all open pages by the names that the pages gave them, in a folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.known: dict[str, Job] = {}
        self.pool = ThreadPoolExecutor(AT_ONCE)

    def of(self, request: Request) -> Job:
        """Return the job that a request names; the first request makes it."""
        name = request.path_params["job"]
        if not re.fullmatch(r"[0-9a-f-]{8,36}", name):
            raise HTTPException(404)
        return self.known.setdefault(name, Job(self.folder / name))

    def close(self) -> None:
        """Stop all jobs."""
        for job in self.known.values():
            job.remove()
        self.pool.shutdown(cancel_futures=True)


def annotate(folder: Path, options: dict[str, Any]) -> None:
    """Annotate the cells of a job and make its report and table, in this process, which is new and logs into a file."""
    with (folder / LOG).open("wb") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    handle_signals()
    set_up_logging()
    progress.SECONDS_BETWEEN_LINES = SECONDS_BETWEEN_LINES
    import anndata

    from scperformer.annotation.run import annotate_files
    from scperformer.annotation.write import write_text
    from scperformer.results.run import write_page

    output, table, page = (folder / f"{default_output(options['inputs'][0], '').name}{ending}" for ending in ENDINGS)
    try:
        call(annotate_files, make_options(PredictConfig, options | {"output": str(output)}))
        obs = anndata.read_h5ad(output, backed="r").obs
        calls = obs[[name for name in obs if name.startswith(f"{PredictConfig.key_added}_")]]
        with new_file(table, overwrite=False) as temporary:
            write_text(temporary, table.name, iter([calls.rename_axis("cell").reset_index()]))
        call(write_page, make_options(ReportConfig, {"inputs": [str(output)], "output": str(page)}))
    except Exception as error:
        raise SystemExit(refuse(error)) from error


def app_of(jobs: Jobs, token: str) -> Starlette:
    """Return the app: the page, files that are sent, jobs that start, their state, their end, and what they made."""

    async def page(request: Request) -> Response:
        tissues = collection().tissues()["name"].unique().tolist()
        models = [folder.name for folder in (PACKAGED_MODEL, *imported_models(library_folder()))]
        return HTMLResponse(render_page("app.html.jinja", tissues=tissues, models=models), headers=NO_REFERRER)

    async def send(request: Request) -> Response:
        folder = jobs.of(request).folder / SENT
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / (re.sub(r"[^\w.+-]", "_", Path(request.path_params["file"]).name).lstrip(".") or "file")
        try:
            with path.open("wb") as file:
                async for chunk in request.stream():
                    file.write(chunk)
        except (OSError, ClientDisconnect) as error:  # the disk is full, or the page was closed
            with suppress(OSError):
                path.unlink()
            return JSONResponse({"error": str(as_input_error(error) or error)}, 507)
        return JSONResponse({})

    async def start(request: Request) -> Response:
        job = jobs.of(request)
        options = {name: value for name, value in (await request.json()).items() if value}
        if set(options) - {"path", "tissue", "model_path"} or job.process is not None:
            raise HTTPException(400)
        job.folder.mkdir(exist_ok=True)
        folder = job.folder / SENT
        sent = sorted(folder.glob("*"))
        options["inputs"] = [options.pop("path", None) or str(sent[0] if len(sent) == 1 else folder)]
        jobs.pool.submit(job.run, options)
        return JSONResponse({})

    async def state(request: Request) -> Response:
        return JSONResponse(jobs.of(request).state())

    async def remove(request: Request) -> Response:
        jobs.of(request).remove()
        return JSONResponse({})

    async def made(request: Request) -> Response:
        job = jobs.of(request)
        name = request.path_params["file"]
        if name not in job.state()["files"]:
            raise HTTPException(404)
        kind = "inline" if name.endswith(".html") else "attachment"
        return FileResponse(job.folder / name, filename=name, content_disposition_type=kind, headers=NO_REFERRER)

    of_job = "/jobs/{job}"
    of_file = f"{of_job}/{{file}}"
    routes = [Route("/", page), Route(of_job, start, methods=["POST"]), Route(of_job, state)]
    routes += [Route(of_job, remove, methods=["DELETE"]), Route(of_file, send, methods=["PUT"]), Route(of_file, made)]
    local = Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
    return Starlette(routes=[Mount(f"/{token}", routes=routes)], middleware=[local])
