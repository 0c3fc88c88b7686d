"""The page of `scperformer app`: its address, files that are sent, jobs side by side, refusals; also in a browser."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import anndata as ad
import pandas as pd
import pytest
from support.inputs import write_mtx

pytest.importorskip("starlette")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DATA = Path(__file__).parents[2] / "data" / "pbmc3k.h5ad"
JOB = "0123abcd"


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("app") / "my sample.h5ad"
    ad.read_h5ad(DATA)[:200].copy().write_h5ad(path)
    return path


@pytest.fixture
def app(tmp_path):
    """Start the program; return its address. Interrupted, it ends without an error, and leaves no files."""
    environment = os.environ | {"TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "scperformer", "app", "browser=false"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    yield process.stdout.readline().split()[0]
    process.send_signal(signal.SIGINT)
    _, messages = process.communicate(timeout=60)
    assert process.returncode == 0, messages
    assert messages.splitlines()[-1] == "stopped"
    assert not list(tmp_path.glob("scperformer-app-*"))


def ask(address: str, method: str = "GET", body: bytes | None = None, **headers: str) -> bytes:
    request = urllib.request.Request(address, data=body, method=method, headers=headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.read()


def status_of(address: str, **named) -> int:
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(address, **named)
    return refused.value.code


def start(app: str, job: str, **options: str) -> None:
    ask(f"{app}jobs/{job}", "POST", json.dumps(options).encode())


def finished(app: str, job: str) -> dict:
    for _ in range(400):
        state = json.loads(ask(f"{app}jobs/{job}"))
        if state["state"] not in ("waiting", "running"):
            return state
        time.sleep(0.25)
    raise AssertionError(state)


def test_a_stranger_finds_nothing(app):
    assert b"Drop files here" in ask(app)
    root = app[: app.rstrip("/").rindex("/")]
    assert status_of(f"{root}/") == 404
    assert status_of(f"{root}/another-token/") == 404
    assert status_of(app, Host="evil.example") == 400  # a page of another site whose name leads here
    assert status_of(f"{app}jobs/..%2F..%2Fetc") == 404


def test_a_file_that_is_not_there_has_the_line_of_the_command(app, command, tmp_path):
    path = str(tmp_path / "none.h5ad")
    start(app, JOB, path=path)
    state = finished(app, JOB)
    assert state["state"] == "refused"
    assert state["files"] == []
    assert state["log"][-1] == command("predict", path).err.splitlines()[-1]


@pytest.mark.slow
def test_two_jobs_side_by_side(app, sample, tmp_path):
    """One is sent, one is read where it is; each has its files, and a removed one has none."""
    other = tmp_path / "other.h5ad"
    shutil.copy(sample, other)
    ask(f"{app}jobs/{JOB}/my%20sample.h5ad", "PUT", sample.read_bytes())
    start(app, JOB, model_path="pbmc3k")
    start(app, "4567cdef", path=str(other), tissue="blood")
    assert status_of(f"{app}jobs/{JOB}/my_sample.calls.csv") == 404  # not yet
    for job, name in ((JOB, "my_sample"), ("4567cdef", "other")):
        state = finished(app, job)
        assert state["state"] == "done", state
        assert sorted(state["files"]) == sorted(
            f"{name}{end}" for end in (".annotated.h5ad", ".calls.csv", ".report.html")
        )
        assert not any(str(tmp_path / "scperformer-app") in line for line in state["log"])
    table = tmp_path / "calls.csv"
    table.write_bytes(ask(f"{app}jobs/{JOB}/my_sample.calls.csv"))
    (tmp_path / "a.h5ad").write_bytes(ask(f"{app}jobs/{JOB}/my_sample.annotated.h5ad"))
    annotated = ad.read_h5ad(tmp_path / "a.h5ad")
    assert pd.read_csv(table)["scperformer_call"].tolist() == annotated.obs["scperformer_call"].tolist()
    assert not list(tmp_path.glob("other.*.h5ad"))  # nothing is written beside a file that stays where it is
    ask(f"{app}jobs/{JOB}", "DELETE")
    assert status_of(f"{app}jobs/{JOB}/my_sample.calls.csv") == 404


@pytest.mark.slow
def test_parts_of_a_matrix_are_one_input(app, tmp_path):
    cells = ad.read_h5ad(DATA)[:120].copy()
    cells.var["gene_ids"] = cells.var_names
    for part in write_mtx(cells, tmp_path).iterdir():
        ask(f"{app}jobs/{JOB}/{part.name}", "PUT", part.read_bytes())
    start(app, JOB, model_path="pbmc3k")
    state = finished(app, JOB)
    assert state["files"], state
    assert any("120 cells annotated" in line for line in state["log"])


def test_a_port_in_use_is_refused(app, refused):
    port = app.split(":")[2].split("/")[0]
    assert f"port={port}" in refused("app", f"port={port}", "browser=false")


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_the_page_annotates_what_is_dropped(app, sample, tmp_path):
    from playwright.sync_api import sync_playwright

    (tmp_path / "notes.txt").write_text("no cells\n")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM)
        first, second = browser.new_page(), browser.new_page()
        for page in (first, second):
            page.goto(app)
        first.set_input_files("#files", [str(sample), str(tmp_path / "notes.txt")])
        second.fill("#path", str(sample))
        second.press("#path", "Enter")
        for page in (first, second):
            page.wait_for_selector("iframe", timeout=120_000)
            report = page.frame_locator("iframe")
            report.locator("h1", has_text="Cell-type annotation").wait_for(timeout=30_000)
        refused = first.locator(".job", has_text="notes.txt").locator(".refused")
        refused.wait_for()
        assert refused.inner_text().startswith("error: notes.txt")
        assert second.locator(".job").count() == 1
        with first.expect_download() as download:
            first.click("text=my_sample.calls.csv")
        assert len(pd.read_csv(download.value.path())) == 200
        first.set_viewport_size({"width": 400, "height": 800})
        assert first.evaluate("document.documentElement.scrollWidth") <= 400
        browser.close()
