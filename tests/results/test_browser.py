"""The report in a browser: figures, map, tables and downloads work; user texts run no code, and nothing is loaded."""

import csv
import io
import shutil
from collections.abc import Iterator
from pathlib import Path

import anndata as ad
import pytest
from playwright.sync_api import Page, sync_playwright
from support.annotated import TRUTH_KEY, add_trust, annotated_sample, write_sample

from scperformer.cli.evaluate import EvaluateConfig
from scperformer.cli.evaluate import run as run_evaluate
from scperformer.cli.report import ReportConfig
from scperformer.cli.report import run as run_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")]
# WebGL without a graphics card.
ARGUMENTS = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist"]
HOSTILE = {
    "Dendritic": "<script>window.ran = 1</script>",
    "CD19+ B": '"><img src=x onerror="window.ran = 1">',
    "CD14+ Monocyte": '<a href="javascript:window.ran = 1">x</a>',
    "CD34+": "=HYPERLINK(1)",
}
GENE = "<svg onload='window.ran = 1'>"
NUM_CELLS = {"s10": 50, "s2 <b>": 70}


@pytest.fixture(scope="module")
def samples() -> dict[str, ad.AnnData]:
    samples = {}
    for place, (name, num) in enumerate(NUM_CELLS.items()):
        sample = annotated_sample(70 * place, num, rename=HOSTILE, min_confidence=0.4)
        add_trust(sample)
        sample.uns["scperformer"]["input"]["source"] = "X"
        sample.obs_names = [f"<i>{cell}</i>" for cell in sample.obs_names]
        sample.var_names = [GENE if gene == "NKG7" else gene for gene in sample.var_names]
        samples[name] = sample
    return samples


@pytest.fixture(scope="module")
def html(samples, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    inputs = [write_sample(folder, name, sample) for name, sample in samples.items()]
    evaluation = str(folder / "evaluation")
    run_evaluate(EvaluateConfig(inputs=inputs, truth_key=TRUTH_KEY, output=evaluation))
    inputs.append(str(folder / "<u>absent.h5ad"))
    return run_report(ReportConfig(inputs=inputs, evaluation=evaluation))


@pytest.fixture(scope="module")
def page(html) -> Iterator[Page]:
    """The page in a window of 1,400 pixels; fails at the end if it loaded or ran anything, or had errors."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        opened = browser.new_page(viewport={"width": 1400, "height": 900})
        problems: list[str] = []
        opened.on("console", lambda said: problems.append(said.text) if said.type in ("error", "warning") else None)
        opened.on("pageerror", lambda error: problems.append(str(error)))
        opened.on("request", lambda asked: problems.append(asked.url))
        opened.goto(html.as_uri())
        opened.wait_for_selector("#figure-map .legend")
        assert problems.pop(0) == html.as_uri()
        yield opened
        assert [problem for problem in problems if not problem.startswith(("data:", "blob:"))] == []
        assert opened.evaluate("window.ran") is None
        browser.close()


def test_hostile_texts_are_texts(page):
    labels = page.locator("#figure-map .legendtext").all_text_contents()
    assert any(HOSTILE["Dendritic"] in label for label in labels)
    assert page.locator("#figure-composition text", has_text=HOSTILE["CD14+ Monocyte"][:20]).count() > 0
    assert page.locator("svg a").count() == 0
    assert page.locator("img, i:has-text('-1')").count() == 0


def column(page: Page, table: str, place: int) -> list[str]:
    return page.locator(f"#{table} tbody tr > :nth-child({place})").all_inner_texts()


def test_a_table_is_sorted_by_keyboard(page):
    button = page.locator("#confidence-table thead button").nth(1)
    button.focus()
    for sign in (-1, 1):
        page.keyboard.press("Enter")
        numbers = [int(text.replace(",", "")) for text in column(page, "confidence-table", 2)]
        assert numbers == sorted(numbers, key=lambda number: sign * number)
    assert page.locator("#confidence-table th").nth(1).get_attribute("aria-sort") == "ascending"
    page.locator("#samples-table thead button").first.click()
    assert column(page, "samples-table", 1) == ["<u>absent", "s2 <b>", "s10"]  # s2 before s10


def saved(page: Page, button) -> str:
    with page.expect_download() as download:
        button.click()
    return Path(download.value.path()).read_text(encoding="utf-8")


def test_a_table_is_saved(page):
    rows = list(csv.DictReader(io.StringIO(saved(page, page.get_by_label("Download Confidence per call as CSV")))))
    assert sum(int(row["Cells"]) for row in rows) == 120
    labels = [row["Call"] for row in rows]
    assert HOSTILE["Dendritic"] in labels
    assert HOSTILE["CD34+"] not in labels  # a formula, which has a ' in front


@pytest.mark.parametrize("width", [400])
def test_page_fits_its_window(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    canvas = page.locator("#figure-map .canvas")
    drawn = canvas.locator(".main-svg").first.evaluate("svg => svg.getBoundingClientRect().width")
    assert drawn == pytest.approx(canvas.evaluate("canvas => canvas.clientWidth"), abs=2)
