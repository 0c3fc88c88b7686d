"""The server of `scperformer app`: it takes files, annotates each in a process and a folder of its own, and shows them.

Without the token in its address nothing is found, and the pages of other sites cannot name the host. The command line
has the same steps, so a file that is refused gets the same line as there. All open pages show the same jobs.
"""

import errno
import json
import multiprocessing
import os
import re
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
from plotly.offline import get_plotlyjs
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route

from scperformer.annotation.curate import NO_TYPES
from scperformer.base import progress
from scperformer.base.errors import InputError, as_input_error, one_line
from scperformer.base.outputs import new_file
from scperformer.base.signals import handle_signals
from scperformer.cli.app_folder import CURATED, ENDINGS, GENES, JOB, MODEL, SENT, on_page
from scperformer.cli.running import call, refuse, set_up_logging
from scperformer.config.annotation import PredictConfig
from scperformer.config.compose import make_options
from scperformer.config.steps import CurateConfig, ReportConfig
from scperformer.config.training import TrainOptions
from scperformer.io.hdf5_guard import open_hdf5
from scperformer.io.read import default_output
from scperformer.io.sheet import read_sheet
from scperformer.labels.ontology import packaged_ontology
from scperformer.model.folder import PACKAGED_MODEL, imported_models, library_folder
from scperformer.model.tissues import collection
from scperformer.results.pages import render_page

if TYPE_CHECKING:
    from scperformer.results.report import Report

ALL_ENDINGS = (*ENDINGS, *CURATED, MODEL)
# of jobs on others
TITLES = {"report": "Report on ", "names": "Names of clusters of ", "model": "Model of "}
AT_ONCE = 2  # jobs that run; the others wait
SECONDS_BETWEEN_LINES = 2.0  # of the progress that the page shows
SECONDS_TO_END = 5.0  # of a process that is asked to end
# of a job whose files are sent; a page that sends none for longer was closed
SECONDS_BETWEEN_FILES = 10.0
KILLED = (
    "error: the process was ended: out of memory? Annotate the file on a machine with more memory."
)
INTERRUPTED = "error: the copy is not complete: the page was closed, or the file cannot be read. Drop it again."
# the address holds the token
NO_REFERRER = {"Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}


@dataclass
class Job:
    """Cells to annotate, or annotated files to report on, and the process that does so."""

    folder: Path
    title: str = ""
    result: str = ""  # the name of its files without their endings
    options: dict[str, Any] | None = None  # None: its files are being sent
    log: list[str] = field(default_factory=list)
    process: BaseProcess | None = None  # None: the job waits
    size: int = 0  # bytes of all files to be sent
    num_sent: int = 0
    num_open: int = 0  # files that are being received
    last_sent: float = 0.0  # time
    names: dict[str, str] = field(default_factory=dict)  # of clusters, by the user
    is_refused: bool = False  # as a file could not be received
    is_removed: bool = False
    has_ended: Event = field(default_factory=Event)

    def run(self) -> None:
        """Do the job in a new process, keep what it says, and wait for its end."""
        if self.is_removed:
            return
        # Ctrl-C is for the server, which then ends its jobs
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        # Its lines come through a pipe: a full disk could not keep the one that says so.
        said, saying = multiprocessing.Pipe(duplex=False)
        arguments = (self.folder / self.result, self.options, saying)
        process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
        try:
            # A terminal interrupts jobs, too: a new one takes the signal once `work` can end it cleanly.
            # the first start would run it, which lets signals through again
            resource_tracker.ensure_running()
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            process.start()
        except OSError as error:
            self.refuse(error)
            return
        self.process = process
        saying.close()
        if self.is_removed:  # in the meantime
            process.terminate()
        with open(os.dup(said.fileno()), encoding="utf-8", errors="replace") as lines:
            for line in lines:
                self.say(line)
        process.join()
        if process.exitcode and not any("error: " in line for line in self.log):
            self.say(KILLED)
        self.has_ended.set()

    def refuse(self, error: Exception) -> None:
        """End the job before it has a process."""
        self.is_refused = True
        self.say(
            INTERRUPTED
            if isinstance(error, ClientDisconnect)
            else f"error: {as_input_error(error) or error}"
        )

    def say(self, text: str) -> None:
        """Add a line to what the page shows; the user knows the names of files alone."""
        for place in (self.folder / SENT, self.folder):
            text = text.replace(f"{place}/", "")
        self.log.append(text.rstrip("\n"))

    def state(self) -> dict[str, Any]:
        """Return what the page shows: the title, the state, the log, and the files that can be loaded down."""
        code = (
            self.process.exitcode if self.process is not None and self.has_ended.is_set() else None
        )
        state = {None: "running", 0: "done"}.get(code, "refused")
        log = self.log
        if self.is_refused:
            state = "refused"
        elif self.options is None:
            state = "copying"
            if self.num_open == 0 and time.monotonic() - self.last_sent > SECONDS_BETWEEN_FILES:
                state, log = "refused", [*log, INTERRUPTED]
        elif self.process is None:
            state = "waiting"
        files = (
            [path.name for end in ALL_ENDINGS for path in self.folder.glob(f"*{end}")]
            if state == "done"
            else []
        )
        share = self.num_sent / self.size if self.size else None
        shown: dict[str, Any] = {
            "title": self.title,
            "state": state,
            "log": log,
            "files": files,
            "share": share,
        }
        if state == "done":
            model = self.folder / f"{self.result}.model"
            shown |= {
                "clusters": self.clusters,
                "names": self.names,
                "model": str(model) if model.is_dir() else "",
            }
        return {"name": self.folder.name, **shown}

    @cached_property
    def clusters(self) -> list[dict[str, str]]:
        """The rows of the table of clusters, once the job is done."""
        path = self.folder / f"{self.result}{ENDINGS[3]}"
        return read_sheet(path) if path.is_file() else []

    def remove(self) -> None:
        """Stop the process, and remove the files."""
        self.is_removed = True
        if self.process is not None:
            self.process.terminate()
            if not self.has_ended.wait(SECONDS_TO_END):
                self.process.kill()
                self.has_ended.wait(SECONDS_TO_END)
        shutil.rmtree(self.folder, ignore_errors=True)


class Jobs:
    """The jobs of all open pages by the names that the pages gave them, in a folder; its methods answer requests."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.known: dict[str, Job] = {}
        self.pool = ThreadPoolExecutor(AT_ONCE)

    def of(self, request: Request, is_new: bool = False) -> Job:
        """Return the job that a request names; only the first file or the start of a job makes one."""
        name = request.path_params["job"]
        if not re.fullmatch(JOB, name):
            raise HTTPException(404)
        job = (
            self.known.setdefault(name, Job(self.folder / name)) if is_new else self.known.get(name)
        )
        if job is None or job.is_removed:
            raise HTTPException(404)
        return job

    def new(self, request: Request) -> Job:
        """Return the job that a request makes or sends a file to; none that has started or was refused."""
        job = self.of(request, is_new=True)
        if job.options is not None or job.is_refused:
            raise HTTPException(409)
        return job

    def close(self) -> None:
        """Stop all jobs."""
        for job in self.known.values():
            job.remove()
        self.pool.shutdown(cancel_futures=True)

    async def page(self, request: Request) -> Response:
        """Return the page."""
        models = [folder.name for folder in (PACKAGED_MODEL, *imported_models(library_folder()))]
        types = [*NO_TYPES.values(), *sorted(packaged_ontology().names.values())]
        html = render_page(
            "app.html.jinja", tissues=collection().with_synonyms(), models=models, types=types
        )
        return HTMLResponse(html, headers=NO_REFERRER)

    async def plotly(self, request: Request) -> Response:
        """Return the library that draws maps."""
        return Response(await run_in_threadpool(get_plotlyjs), media_type="text/javascript")

    async def all(self, request: Request) -> Response:
        """Return the state of each job, the oldest first."""
        jobs = [job.state() for job in [*self.known.values()] if not job.is_removed]
        return JSONResponse(jobs, headers=NO_REFERRER)

    async def one(self, request: Request) -> Response:
        """Return the state of a job."""
        return JSONResponse(self.of(request).state(), headers=NO_REFERRER)

    async def name(self, request: Request) -> Response:
        """Keep the names of the clusters of a job, which all pages show."""
        try:
            self.of(request).names = dict(json.loads(await request.body()).items())
        except (ClientDisconnect, ValueError, AttributeError, RecursionError) as error:
            raise HTTPException(400) from error
        return JSONResponse({})

    async def gene(self, request: Request) -> Response:
        """Return the expression of a gene in the cells on the map of a job."""
        path = self.of(request).folder / GENES
        values = await run_in_threadpool(expression_of, path, request.path_params["gene"])
        return JSONResponse(values, headers=NO_REFERRER)

    async def send(self, request: Request) -> Response:
        """Receive a file; `title` and `size` are of all files of the job."""
        path = request.path_params["file"]
        place = sent_path(path)
        job = self.new(request)
        job.title = one_line(request.query_params.get("title") or path)
        size = request.query_params.get("size", "")
        job.size = int(size) if re.fullmatch(r"\d{1,18}", size) else 0
        target = job.folder / SENT / place
        job.num_open += 1
        try:
            with on_page(self.folder.parent):
                target.parent.mkdir(parents=True, exist_ok=True)
                if job.size - job.num_sent > shutil.disk_usage(target.parent).free:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                with target.open("xb") as file:
                    async for chunk in request.stream():
                        if job.is_removed:
                            raise HTTPException(404)
                        file.write(chunk)
                        job.num_sent += len(chunk)
        except (OSError, InputError, ClientDisconnect) as error:
            job.refuse(error)
            shutil.rmtree(job.folder, ignore_errors=True)
            return JSONResponse({}, 507)
        finally:
            job.num_open -= 1
            job.last_sent = time.monotonic()
        return JSONResponse({})

    async def start(self, request: Request) -> Response:
        """Start a job: with the files that were sent, with a file or folder that stays where it is, or on others."""
        try:
            given = json.loads(await request.body())
            make = given.pop("make", "report")
            title = TITLES[make]
            earlier = [self.known[name] for name in given.pop("of", ())]
            options: dict[str, Any] = {
                name: as_path(value) for name, value in given.items() if value
            }
        except (
            ClientDisconnect,
            ValueError,
            TypeError,
            AttributeError,
            KeyError,
            RecursionError,
        ) as error:
            raise HTTPException(400) from error
        if set(options) - {"path", "tissue", "model_path"}:
            raise HTTPException(400)
        job = self.new(request)
        if earlier:
            job.title = title + ", ".join(each.title for each in earlier)
            options["inputs"] = [
                str(path) for each in earlier for path in each.folder.glob(f"*{ENDINGS[0]}")
            ]
            options |= {"make": make, "names": earlier[0].names}
        elif path := options.pop("path", None):
            job.title = one_line(path)
            options["inputs"] = [path]
        else:
            options["inputs"] = [str(sent_input(job.folder / SENT))]
        try:
            name = (
                f"{len(earlier)}_files"
                if earlier
                else default_output(options["inputs"][0], "").name
            )
            taken = {each.result for each in self.known.values() if not each.is_removed}
            if earlier and make != "report":
                name = earlier[0].result
                taken = set()
            job.result = next(
                each
                for each in chain([name], (f"{name}-{n}" for n in count(2)))
                if each not in taken
            )
            with on_page(self.folder.parent):
                job.folder.mkdir(exist_ok=True)
            job.options = options
            self.pool.submit(job.run)
        except (OSError, InputError) as error:
            job.refuse(error)
        return JSONResponse({})

    async def remove(self, request: Request) -> Response:
        """Remove a job."""
        await run_in_threadpool(self.of(request).remove)
        return JSONResponse({})

    async def made(self, request: Request) -> Response:
        """Return a file that a job has made."""
        job = self.of(request)
        name = request.path_params["file"]
        if name not in job.state()["files"]:
            raise HTTPException(404)
        kind = "inline" if name.endswith(".html") else "attachment"
        return FileResponse(
            job.folder / name, filename=name, content_disposition_type=kind, headers=NO_REFERRER
        )


def as_path(text: str) -> str:
    """Return a path as people copy it: in quotes, as an address that begins with file://, or with ~."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1]
    if text.startswith("file:"):
        text = url2pathname(urlsplit(text).path)
    return os.path.expanduser(text)


def sent_path(path: str) -> Path:
    """Return where a file that was sent is kept: `sample.h5ad`, or `folder/a/file`, whose names are part of a store."""
    first, *others = path.split("/")
    if any(part in ("", ".", "..") or re.search(r"[\0\\]", part) for part in others):
        raise HTTPException(404)
    return Path(re.sub(r"[^\w.+-]", "_", first).lstrip(".") or "file", *others)


def sent_input(folder: Path) -> Path:
    """Return the file or folder that was sent: the innermost folder that has all of it."""
    while folder.is_dir() and len(inside := [*folder.iterdir()]) == 1:
        folder = inside[0]
    return folder


def end_with_server() -> None:
    """Wait for the end of the server, and end this process: nobody else ends it if the server is killed."""
    server = multiprocessing.parent_process()
    assert server is not None
    server.join()
    os.kill(os.getpid(), signal.SIGKILL)


def work(result: Path, options: dict[str, Any], saying: Connection) -> None:
    """Annotate cells, report on annotated files, or name their clusters, in this process, which is new.

    `result` is the path of the files without their endings; what is logged goes into `saying`.
    """
    for stream in (1, 2):
        os.dup2(saying.fileno(), stream)
    Thread(target=end_with_server, daemon=True).start()
    handle_signals()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    set_up_logging()
    progress.SECONDS_BETWEEN_LINES = SECONDS_BETWEEN_LINES
    make = options.pop("make", None)
    try:
        with on_page(result.parents[2]):
            if make is None:
                annotate(options, result)
            elif make == "report":
                write_report(options["inputs"], result)
            else:
                curate(result, options["inputs"], options["names"], make == "model")
    except Exception as error:
        raise SystemExit(refuse(error)) from error


def write_report(inputs: list[str], result: Path) -> "Report":
    """Write the report on annotated files, and return it."""
    from scperformer.tasks.results import write_page

    return write_page(
        make_options(ReportConfig, {"inputs": inputs, "output": f"{result}{ENDINGS[2]}"})
    )[1]


def annotate(options: dict[str, Any], result: Path) -> None:
    """Annotate cells, write tables of their calls and clusters, a report, and the expression of cells on its map."""
    import anndata
    from scipy.sparse import csc_matrix

    from scperformer.annotation.write import write_text
    from scperformer.tasks.predict import annotate_files

    annotated, table, _, clusters = (f"{result}{ending}" for ending in ENDINGS)
    options |= {"output": annotated, "clusters": "auto", "markers_output": clusters}
    call(annotate_files, make_options(PredictConfig, options))
    obs = anndata.read_h5ad(annotated, backed="r").obs
    calls = obs[[name for name in obs if name.startswith(f"{PredictConfig.key_added}_")]]
    with new_file(table) as temporary:
        write_text(temporary, table, iter([calls.rename_axis("cell").reset_index()]))
    expression = write_report([annotated], result).drawn.expression
    if expression is not None:
        expression.X = csc_matrix(expression.X)
        expression.write_h5ad(result.with_name(GENES))


def expression_of(path: Path, gene: str) -> list[float]:
    """Return ln(1 + counts per 10,000) of a gene, in upper or lower case, in each cell of `GENES`."""
    with suppress(OSError, ValueError), open_hdf5(path) as file:
        place = [name.upper() for name in file["var/_index"].asstr()[:]].index(gene.upper())
        start, stop = file["X/indptr"][place : place + 2]
        values = np.zeros(len(file["obs/_index"]))
        values[file["X/indices"][start:stop]] = file["X/data"][start:stop]
        return values.round(2).tolist()
    raise HTTPException(404)


def curate(result: Path, inputs: list[str], names: dict[str, str], trains: bool) -> None:
    """Write the names of clusters as files and, if asked for, train a model of them."""
    from scperformer.tasks.curate import curate_file

    for ending in CURATED:
        options = {"inputs": inputs, "names": "the page", "output": f"{result}{ending}"}
        curate_file(make_options(CurateConfig, options), names)
    if trains:
        from scperformer.tasks.train import train_model

        options = {
            "inputs": [f"{result}{CURATED[0]}"],
            "output": f"{result}.model",
            "logger": "none",
        }
        folder = train_model(make_options(TrainOptions, options))
        shutil.make_archive(str(folder), "zip", folder.parent, folder.name)


def app_of(jobs: Jobs, token: str) -> Starlette:
    """Return the app: the page, files that are sent, jobs that start, their state, their end, and what they made."""
    of_job = "/jobs/{job}"
    of_file = f"{of_job}/{{file:path}}"
    routes = [Route("/", jobs.page), Route("/plotly.js", jobs.plotly), Route("/jobs", jobs.all)]
    routes += [Route(of_job, jobs.start, methods=["POST"]), Route(of_job, jobs.one)]
    routes += [Route(of_job, jobs.remove, methods=["DELETE"])]
    routes += [
        Route(f"{of_job}/names", jobs.name, methods=["POST"]),
        Route(f"{of_job}/genes/{{gene:path}}", jobs.gene),
    ]
    routes += [Route(of_file, jobs.send, methods=["PUT"]), Route(of_file, jobs.made)]
    local = Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
    return Starlette(routes=[Mount(f"/{token}", routes=routes)], middleware=[local])
