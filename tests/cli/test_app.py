"""The page of `scperformer app`: its address, files that are sent, jobs side by side, refusals; also in a browser."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from support.inputs import write_mtx
from support.refusal import refusal

from scperformer.base import outputs
from scperformer.cli.app import run
from scperformer.cli.app_folder import MARK, folder_of_jobs, on_page
from scperformer.config.steps import AppConfig

pytest.importorskip("starlette")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DATA = Path(__file__).parents[2] / "data" / "pbmc3k.h5ad"


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("app") / "my sample.h5ad"
    ad.read_h5ad(DATA)[:200].copy().write_h5ad(path)
    return path


def start_app(folder: Path) -> tuple[subprocess.Popen, str]:
    """Start the program with a folder for its files; return its process and its address."""
    environment = os.environ | {"TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "scperformer", "app", "browser=false"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **streams, env=environment, start_new_session=True)
    return process, process.stdout.readline().split()[0]


def end_app(process: subprocess.Popen, number: int) -> list[str]:
    """End the program by a signal; return its messages, which have no traceback."""
    process.send_signal(number)
    _, messages = process.communicate(timeout=600)
    assert "Traceback" not in messages
    return messages.splitlines()


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[str]:
    """Start the program; return its address. Interrupted, it ends without an error, and leaves no files."""
    folder = tmp_path_factory.mktemp("server")
    process, address = start_app(folder)
    yield address
    messages = end_app(process, signal.SIGINT)
    assert (process.returncode, messages[-1]) == (0, "stopped")
    assert list(folder.iterdir()) == []


@pytest.fixture
def app(server) -> Iterator[str]:
    """The address of the program, which has no jobs."""
    yield server
    for job in json.loads(ask(f"{server}jobs")):
        ask(f"{server}jobs/{job['name']}", "DELETE")


def new_job() -> str:
    return uuid.uuid4().hex


def ask(address: str, method: str = "GET", body: bytes | None = None, **headers: str) -> bytes:
    request = urllib.request.Request(address, data=body, method=method, headers=headers)
    with urllib.request.urlopen(request) as response:
        return response.read()


def status_of(address: str, **named) -> int:
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(address, **named)
    return refused.value.code


def start(app: str, job: str, **options: str | list[str]) -> None:
    ask(f"{app}jobs/{job}", "POST", json.dumps(options).encode())


def state_of(app: str, job: str) -> dict:
    return json.loads(ask(f"{app}jobs/{job}"))


def finished(app: str, job: str) -> dict:
    """Return the state of a job that has ended."""
    while (state := state_of(app, job))["state"] in ("waiting", "running"):
        time.sleep(0.1)
    return state


def wait_for_process(app: str, job: str) -> None:
    """Wait until a job has a process, which then imports its libraries."""
    while state_of(app, job)["state"] == "waiting":
        time.sleep(0.01)


def test_a_stranger_finds_nothing(app):
    assert b"Drop files here" in ask(app)
    root = app[: app.rstrip("/").rindex("/")]
    assert status_of(f"{root}/") == 404
    assert status_of(f"{root}/another-token/") == 404
    # a page of another site whose name leads here
    assert status_of(app, Host="evil.example") == 400
    assert status_of(f"{app}jobs/..%2F..%2Fetc") == 404


def test_a_file_that_is_not_there_has_the_line_of_the_command(app, command, tmp_path):
    job = new_job()
    path = str(tmp_path / "none.h5ad")
    start(app, job, path=path)
    state = finished(app, job)
    assert state["state"] == "refused"
    assert state["files"] == []
    assert state["log"][-1] == command("predict", path).err.splitlines()[-1]


def test_all_pages_see_the_jobs_until_they_are_removed(app, tmp_path):
    first_job, second_job = new_job(), new_job()
    assert json.loads(ask(f"{app}jobs")) == []
    assert status_of(f"{app}jobs/{first_job}") == 404  # asking makes no job
    path = str(tmp_path / "none.h5ad")
    start(app, first_job, path=f"'{Path(path).as_uri()}'")
    ask(f"{app}jobs/{second_job}/a/matrix.mtx?title=a&size=20", "PUT", b"0123456789")
    first, second = json.loads(ask(f"{app}jobs"))
    assert (first["name"], first["title"]) == (first_job, path)
    assert (second["title"], second["state"], second["share"]) == ("a", "copying", 0.5)
    for job in (first_job, second_job):
        ask(f"{app}jobs/{job}", "DELETE")
    assert json.loads(ask(f"{app}jobs")) == []
    assert status_of(f"{app}jobs/{first_job}", method="POST", body=b"{}") == 404


BODIES = [
    b"{[",
    b"\xff",
    b"[1]",
    b"5",
    b"[" * 100_000,
    b'{"path": 3}',
    b'{"of": 3}',
    b'{"of": ["x"]}',
    b'{"path": "file://["}',
    b'{"make": "x"}',
    b'{"make": ["names"]}',
]


def test_requests_that_no_page_makes_are_refused(app):
    job = new_job()
    for body in (*BODIES, b'{"output": "/srv/x"}'):
        assert status_of(f"{app}jobs/{job}", method="POST", body=body) == 400
    for body in (b"[1]", b"{", b"5"):
        assert status_of(f"{app}jobs/{job}/names", method="POST", body=body) in (400, 404)
    for path in ("a/..%2F..%2Fb", "a/%00", "a//b", "a/.", "a%2F%5C"):
        assert status_of(f"{app}jobs/{job}/{path}", method="PUT", body=b"") == 404
    assert json.loads(ask(f"{app}jobs")) == []
    for path in ("a\0b", "\ud800"):
        job = new_job()
        start(app, job, path=path)
        assert json.loads(ask(f"{app}jobs/{job}"))["state"] == "refused"


def test_paths_are_taken_as_people_copy_them(monkeypatch):
    from scperformer.cli.app_server import as_path

    monkeypatch.setenv("HOME", "/srv/me")
    for text in ("~/a b.h5ad", ' "/srv/me/a b.h5ad"', "'~/a b.h5ad'", "file:///srv/me/a%20b.h5ad"):
        assert as_path(text) == "/srv/me/a b.h5ad"
    assert as_path("blood") == "blood"


def test_files_of_a_folder_keep_their_places(tmp_path):
    from starlette.exceptions import HTTPException

    from scperformer.cli.app_server import sent_input, sent_path

    assert sent_path("my sample.h5ad") == Path("my_sample.h5ad")
    assert sent_path("../x") == Path("file/x")
    assert sent_path("a.zarr/obsm/CD14+ Mono/.zarray") == Path("a.zarr/obsm/CD14+ Mono/.zarray")
    for path in ("a/../b", "a/", "a/b\0", "a/b\\c"):
        with pytest.raises(HTTPException):
            sent_path(path)
    inner = tmp_path / "run" / "outs"
    inner.mkdir(parents=True)
    (inner / "matrix.mtx").touch()
    assert sent_input(tmp_path) == inner / "matrix.mtx"
    (inner / "barcodes.tsv").touch()
    assert sent_input(tmp_path) == inner


def test_a_full_disk_has_a_remedy_of_the_page(tmp_path):
    with refusal("disk-full", tmp_path, "TMPDIR") as caught, on_page(tmp_path):
        raise OSError(28, "No space left on device")
    assert "output" not in str(caught.value)
    with pytest.raises(KeyError), on_page(tmp_path):
        raise KeyError


@pytest.mark.parametrize(
    ("number", "ending"),
    [(signal.SIGHUP, (129, "ended by SIGHUP")), (signal.SIGINT, (0, "stopped"))],
)
def test_a_terminal_ends_it_and_its_jobs_cleanly(number, ending, tmp_path, sample):
    """A terminal sends its signals to the program and to its jobs."""
    job = new_job()
    process, address = start_app(tmp_path)
    start(address, job, path=str(sample))
    wait_for_process(address, job)
    os.killpg(process.pid, number)
    messages = end_app(process, 0)
    assert (process.returncode, messages[-1]) == ending
    assert list(tmp_path.iterdir()) == []


def test_interrupted_it_waits_for_the_end_of_its_server(monkeypatch):
    """Thread.join of Python 3.11, once interrupted, takes a thread for ended."""
    ended = []

    class Server:
        should_exit = False

        def __init__(self, _):
            pass

        def run(self, sockets):
            while sys._current_frames()[
                threading.main_thread().ident
            ].f_back.f_code.co_name not in ("join", "result"):
                time.sleep(0.01)  # the main thread does not wait yet
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            while not self.should_exit:
                time.sleep(0.01)
            time.sleep(0.3)
            ended.append(True)

    monkeypatch.setattr("uvicorn.Server", Server)
    run(AppConfig(browser=False))
    assert ended == [True]


def test_a_killed_program_leaves_no_process_and_the_next_one_removes_its_files(tmp_path, sample):
    job = new_job()
    psutil = pytest.importorskip("psutil")
    process, address = start_app(tmp_path)
    ask(f"{address}jobs/{job}/my%20sample.h5ad", "PUT", sample.read_bytes())
    start(address, job)
    wait_for_process(address, job)
    children = psutil.Process(process.pid).children(recursive=True)
    end_app(process, signal.SIGKILL)
    assert children
    psutil.wait_procs(children)
    [left] = tmp_path.iterdir()
    process, _ = start_app(tmp_path)
    assert not left.exists()
    end_app(process, signal.SIGINT)
    assert list(tmp_path.iterdir()) == []


def test_only_folders_of_killed_programs_are_removed(tmp_path, monkeypatch):
    """Not those of a running one, without a mark, of another kind, with other files, or under another name."""
    id_of_job = new_job()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True
    )
    ours = {"made_by": "scperformer", "kind": "the files of a page"}
    gone = f"{outputs._temporary_prefix()}{dead.stdout.strip()}-x"
    marks = {
        "dead": ours | {"process": gone},
        "alive": ours | {"process": outputs.temporary_name()},
        "elsewhere": ours | {"process": gone.replace(".scperformer-", ".scperformer-x")},
        "model": ours | {"kind": "a model", "process": gone},
        "odd": [gone],
        "notes": ours | {"process": gone},
        "inside": ours | {"process": gone},
    }
    for name, mark in marks.items():
        job = tmp_path / f"scperformer-app-{name}" / id_of_job
        (job / "sample" / "a.zarr").mkdir(parents=True)
        named = mark | {"folder": job.parent.name} if isinstance(mark, dict) else mark
        (job.parent / MARK).write_text(json.dumps(named))
        (job / "a.model").mkdir()
        made = (
            "a.calls.csv",
            "a.annotated.h5ad",
            "a.curated.rds",
            "a.model.zip",
            "a.model/genes.tsv",
            "genes.h5ad",
        )
        for file in (*made, ".scperformer-a", "sample/a.zarr/.zgroup"):
            (job / file).touch()
    (tmp_path / "scperformer-app-notes" / "notes.txt").touch()
    (tmp_path / "scperformer-app-inside" / id_of_job / "notes.txt").touch()
    (tmp_path / "scperformer-app-mine").mkdir()
    (tmp_path / "scperformer-app-link").symlink_to(tmp_path / "scperformer-app-dead")
    shutil.copytree(tmp_path / "scperformer-app-dead", tmp_path / "scperformer-app-dead2")
    before = {path.name for path in tmp_path.iterdir()}
    with folder_of_jobs() as folder:
        assert before - {path.name for path in tmp_path.iterdir()} == {"scperformer-app-dead"}
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()


@pytest.mark.slow
def test_two_jobs_side_by_side(app, sample, tmp_path):
    """One is sent, one is read where it is; each has its files, and a removed one has none."""
    first_job, second_job = new_job(), new_job()
    other = tmp_path / "other.h5ad"
    shutil.copy(sample, other)
    ask(f"{app}jobs/{first_job}/my%20sample.h5ad", "PUT", sample.read_bytes())
    start(app, first_job, model_path="pbmc3k")
    start(app, second_job, path=str(other), tissue="blood")
    assert status_of(f"{app}jobs/{first_job}/my_sample.calls.csv") == 404  # not yet
    for job, name in ((first_job, "my_sample"), (second_job, "other")):
        state = finished(app, job)
        assert state["state"] == "done", state
        assert sorted(state["files"]) == sorted(
            f"{name}{end}"
            for end in (".annotated.h5ad", ".calls.csv", ".clusters.tsv", ".report.html")
        )
        assert not any("scperformer-app" in line for line in state["log"])
    table = tmp_path / "calls.csv"
    table.write_bytes(ask(f"{app}jobs/{first_job}/my_sample.calls.csv"))
    (tmp_path / "a.h5ad").write_bytes(ask(f"{app}jobs/{first_job}/my_sample.annotated.h5ad"))
    annotated = ad.read_h5ad(tmp_path / "a.h5ad")
    assert (
        pd.read_csv(table)["scperformer_call"].tolist()
        == annotated.obs["scperformer_call"].tolist()
    )
    # nothing is written beside a file that stays where it is
    assert not list(tmp_path.glob("other.*.h5ad"))
    ask(f"{app}jobs/{job}", "DELETE")
    assert status_of(f"{app}jobs/{job}/my_sample.calls.csv") == 404


@pytest.mark.slow
def test_parts_of_a_matrix_are_one_input(app, tmp_path):
    job = new_job()
    cells = ad.read_h5ad(DATA)[:120].copy()
    cells.var["gene_ids"] = cells.var_names
    for part in write_mtx(cells, tmp_path).iterdir():
        ask(f"{app}jobs/{job}/{part.name}", "PUT", part.read_bytes())
    start(app, job, model_path="pbmc3k")
    state = finished(app, job)
    assert state["files"], state
    assert any("120 cells annotated" in line for line in state["log"])


def test_a_port_in_use_is_refused(app, refused):
    port = app.split(":")[2].split("/")[0]
    assert f"port={port}" in refused("app", f"port={port}", "browser=false")


@pytest.mark.slow
def test_one_report_on_several_files(app, sample):
    """Files of one name get different names, in the report, too."""
    first_job, second_job = new_job(), new_job()
    for job in (first_job, second_job):
        ask(f"{app}jobs/{job}/my%20sample.h5ad", "PUT", sample.read_bytes())
        start(app, job, model_path="pbmc3k")
        assert finished(app, job)["state"] == "done"
    start(app, "89abcdef", of=[first_job, second_job])
    state = finished(app, "89abcdef")
    assert state["files"] == ["2_files.report.html"], state
    page = ask(f"{app}jobs/89abcdef/2_files.report.html").decode()
    assert "400 cells" in page
    assert "my_sample-2" in page


@pytest.mark.slow
def test_names_and_genes_of_a_job(app, sample, tmp_path):
    job, names = new_job(), new_job()
    start(app, job, path=str(sample), model_path="pbmc3k")
    assert status_of(f"{app}jobs/{job}/genes/CD3D") == 404  # not yet
    state = finished(app, job)
    clusters = [row["cluster"] for row in state["clusters"]]
    assert len(clusters) > 3
    ask(
        f"{app}jobs/{job}/names",
        "POST",
        json.dumps({clusters[0]: "mine", clusters[1]: ""}).encode(),
    )
    assert json.loads(ask(f"{app}jobs/{job}"))["names"][clusters[0]] == "mine"
    counts = ad.read_h5ad(sample)
    x = counts.X.toarray()
    expected = np.log1p(1e4 * x / x.sum(1, keepdims=True))[:, counts.var_names.get_loc("CD3D")]
    np.testing.assert_allclose(json.loads(ask(f"{app}jobs/{job}/genes/cd3d")), expected, atol=0.006)
    for gene in ("NOTAGENE", "a/b", "%00"):
        assert status_of(f"{app}jobs/{job}/genes/{gene}") == 404
    start(app, names, of=[job], make="names")
    state = finished(app, names)
    assert state["title"] == f"Names of clusters of {sample}"
    assert sorted(state["files"]) == [f"my sample.curated.{end}" for end in ("csv", "h5ad", "rds")]
    (tmp_path / "c.h5ad").write_bytes(ask(f"{app}jobs/{names}/my%20sample.curated.h5ad"))
    curated = ad.read_h5ad(tmp_path / "c.h5ad").obs
    is_mine = curated["scperformer_cluster"].astype(str) == clusters[0]
    assert set(curated["scperformer_curated"][is_mine]) == {"mine"}
    ask(f"{app}jobs/{job}/names", "POST", json.dumps({clusters[0]: "a\tb"}).encode())
    refused = new_job()
    start(app, refused, of=[job], make="model")
    assert "control character" in finished(app, refused)["log"][-1]


@pytest.fixture
def browser() -> Iterator:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM)
        yield started
        started.close()


def drop(page, *paths: Path) -> None:
    """Drop files and folders on a page, as a file manager does."""
    session = page.context.new_cdp_session(page)
    page.locator("#drop").scroll_into_view_if_needed()
    place = page.locator("#drop").bounding_box()
    data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        where = {"x": place["x"] + 20, "y": place["y"] + 20}
        session.send("Input.dispatchDragEvent", {"type": kind, **where, "data": data})


def card(page, title: str):
    return page.locator(
        ".job", has=page.locator("h2", has_text=re.compile(f"^{re.escape(title)}$"))
    )


IN_BROWSER = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium"),
]


def in_browser(test):
    for mark in IN_BROWSER:
        test = mark(test)
    return test


@in_browser
def test_the_page_annotates_what_is_dropped(app, sample, tmp_path, browser):
    (tmp_path / "notes.txt").write_text("no cells\n")
    first, second = browser.new_page(), browser.new_page()
    for page in (first, second):
        page.goto(app)
    first.set_input_files("#files", [str(sample), str(tmp_path / "notes.txt")])
    second.fill("#path", f'"{sample}"')
    second.press("#path", "Enter")
    questions: list[str] = []
    first.on("dialog", lambda dialog: (questions.append(dialog.type), dialog.accept()))
    card(first, sample.name).wait_for()
    first.reload()
    assert questions == ["beforeunload"]
    for page in (first, second):  # both show all jobs, also after it was loaded again
        for title in (sample.name, str(sample)):
            done = card(page, title)
            done.locator("iframe").wait_for(timeout=240_000)
            done.scroll_into_view_if_needed()
            report = done.frame_locator("iframe")
            report.locator("h1", has_text="Cell-type annotation").wait_for(timeout=120_000)
        refused = card(page, "notes.txt").locator(".refused")
        assert refused.inner_text().startswith("error: notes.txt")
        assert page.locator(".job").count() == 3
    with first.expect_download() as download:
        first.click("text=my_sample.calls.csv")
    assert len(pd.read_csv(download.value.path())) == 200
    first.click("text=Make one report")
    both = card(second, f"Report on {sample.name}, {sample}")
    both.locator(".files a", has_text="2_files.report.html").wait_for(timeout=240_000)
    both.locator(".remove").click()
    card(first, f"Report on {sample.name}, {sample}").wait_for(state="detached")
    first.set_viewport_size({"width": 400, "height": 800})
    assert first.evaluate("document.documentElement.scrollWidth") <= 400
    first.close(run_before_unload=True)
    assert len(questions) == 1  # nothing runs


@in_browser
def test_from_a_file_to_the_second_sample_in_five_actions(tmp_path, browser):
    cells = ad.read_h5ad(DATA)
    for place, name in enumerate(("first.h5ad", "second.h5ad")):
        cells[300 * place : 300 * (place + 1)].copy().write_h5ad(tmp_path / name)
    folder = tmp_path / "server"
    folder.mkdir()
    process, address = start_app(folder)
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(address)
    drop(page, tmp_path / "first.h5ad")  # 1
    done = card(page, "first.h5ad")
    done.locator(".map canvas").first.wait_for(timeout=240_000)
    rows = done.locator("tbody tr")
    monocytes = rows.filter(has_text="CST3").first.locator("input")
    monocytes.fill('<b>mine"')  # 2
    rows.filter(has_text="NKG7").first.locator("input").fill("NK cells")  # 3
    done.locator("[data-make=model]").click()  # 4
    model = card(page, "Model of first.h5ad")
    model.locator("a", has_text="first.model.zip").wait_for(timeout=400_000)
    page.wait_for_function("document.getElementById('model').value.endsWith('first.model')")
    page.reload()  # the names, the model and its choice are on the server
    done.locator(".map canvas").first.wait_for(timeout=60_000)
    assert monocytes.input_value() == '<b>mine"'
    page.wait_for_function("document.getElementById('model').value.endsWith('first.model')")
    done.locator(".markers button", has_text="CST3").first.click()
    done.locator(".said", has_text="expression of CST3").wait_for()
    done.locator(".look select").select_option(label="Your names")
    assert '<b>mine"' in done.locator(".legend").inner_text()
    drop(page, tmp_path / "second.h5ad")  # 5
    second = card(page, "second.h5ad")
    with page.expect_download(timeout=240_000) as download:
        second.locator("a", has_text="second.calls.csv").click(timeout=240_000)
    calls = pd.read_csv(download.value.path())["scperformer_call"]
    assert (calls == '<b>mine"').sum() > 20
    assert "; labels by a person: " in second.locator("pre").text_content()
    for width in (1400, 400):
        page.set_viewport_size({"width": width, "height": 1000})
        page.wait_for_function(f"document.documentElement.scrollWidth <= {width}")
    assert problems == []
    page.close()
    end_app(process, signal.SIGINT)
    assert not [path for path in folder.iterdir() if not path.name.startswith("torch")]


@in_browser
def test_folders_are_dropped_and_a_killed_program_is_said(tmp_path, browser):
    cells = ad.read_h5ad(DATA)[:20].copy()
    cells.var["gene_ids"] = cells.var_names
    folder = tmp_path / "dropped"
    (folder / "run A" / "outs").mkdir(parents=True)
    write_mtx(cells, folder / "run A" / "outs").rename(
        folder / "run A" / "outs" / "filtered_feature_bc_matrix"
    )
    (folder / "run A" / "outs" / "metrics.csv").write_text("a,b\n1,2\n")
    cells.write_h5ad(folder / "b.h5ad")
    cells.write_zarr(folder / "c.zarr")
    (folder / "empty").mkdir()
    (folder / "empty" / "notes.docx").touch()
    process, address = start_app(tmp_path)
    page = browser.new_page()
    page.goto(address)
    drop(page, *(folder / name for name in ("run A", "b.h5ad", "c.zarr", "empty")))
    for title in ("run A/outs/filtered_feature_bc_matrix", "b.h5ad", "c.zarr"):
        card(page, title).locator(".status", has_text=re.compile("running|waiting|:")).wait_for()
    assert "three files" in card(page, "empty").locator(".refused").inner_text()
    [files] = tmp_path.glob("scperformer-app-*/*/sample/c.zarr")
    sent = {path.relative_to(files) for path in files.rglob("*")}
    assert sent == {path.relative_to(folder / "c.zarr") for path in (folder / "c.zarr").rglob("*")}
    card(page, "b.h5ad").locator(".remove").click()
    card(page, "b.h5ad").wait_for(state="detached")
    process.kill()  # a job that begins just then has a traceback
    process.communicate(timeout=600)
    page.locator("#ended").wait_for()
    assert page.locator(".refused:visible").count() == 1  # of the empty folder
    process, _ = start_app(tmp_path)
    end_app(process, signal.SIGINT)
    assert not list(tmp_path.glob("scperformer-app-*"))


@in_browser
def test_a_full_disk_is_said_on_the_page(tmp_path, sample, browser):
    size = sample.stat().st_size
    disk = tmp_path / "disk"
    disk.mkdir()
    options = f"size={size * 3 // 2}"
    if (
        shutil.which("mount") is None
        or subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk]).returncode
    ):
        pytest.skip("disks cannot be mounted here")
    try:
        process, address = start_app(disk)
        page = browser.new_page()
        page.goto(address)
        (tmp_path / "large.h5ad").write_bytes(bytes(2 * size))
        # the copy, and the result
        page.set_input_files("#files", [str(tmp_path / "large.h5ad"), str(sample)])
        for title in ("large.h5ad", sample.name):
            refused = card(page, title).locator(".refused")
            refused.wait_for(timeout=240_000)
            assert "the disk is full" in refused.inner_text()
            assert str(disk) in refused.inner_text()
            assert "output" not in refused.inner_text()
        end_app(process, signal.SIGINT)
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", disk], check=True)
