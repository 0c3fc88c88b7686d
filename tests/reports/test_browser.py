"""The report in a browser: figures, map, tables and downloads work; user texts run no code, and nothing is loaded."""

import csv
import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import anndata as ad
import numpy as np
import pytest
from playwright.sync_api import Page, sync_playwright
from support.annotated import TRUTH_KEY, add_trust, annotated_sample, write_sample

from scperformer.config import EvaluateConfig, ReportConfig
from scperformer.reports.evaluate import run_evaluate
from scperformer.reports.report import run_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium"),
]
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
    return run_report(ReportConfig(inputs=inputs, evaluation=evaluation, title="<script>window.ran = 1</script>"))


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
        opened.wait_for_selector("#map-legend li")
        assert problems.pop(0) == html.as_uri()
        yield opened
        assert [problem for problem in problems if not problem.startswith(("data:", "blob:"))] == []
        assert opened.evaluate("window.ran") is None
        browser.close()


def saved(page: Page, button) -> str:
    with page.expect_download() as download:
        button.click()
    return Path(download.value.path()).read_text(encoding="utf-8")


def num_points(page: Page) -> int:
    return page.evaluate("document.querySelector('#figure-map .canvas').data.reduce((n, t) => n + t.x.length, 0)")


def test_all_figures_are_drawn(page):
    names = ["composition", "map", "confidence", "calibration", "markers", "quality", "confusion-matrix"]
    for name in names:
        assert page.locator(f"#figure-{name} .main-svg").count() > 0, name
    assert num_points(page) == 120


def test_hostile_texts_are_texts(page):
    labels = page.locator("#map-legend button").all_inner_texts()
    assert any(HOSTILE["Dendritic"] in label for label in labels)
    assert page.locator("#figure-composition text", has_text=HOSTILE["CD14+ Monocyte"][:20]).count() > 0
    assert page.locator("svg a").count() == 0
    assert page.locator("h1").inner_text() == "<script>window.ran = 1</script>"
    assert page.locator("img, i:has-text('-1')").count() == 0


def test_hover_names_the_cell(page, samples):
    spot = page.evaluate(
        """() => { const map = document.querySelector('#figure-map .canvas'), {xaxis, yaxis} = map._fullLayout;
        map.scrollIntoView({block: 'center', behavior: 'instant'});
        const box = map.querySelector('.nsewdrag').getBoundingClientRect(), t = map.data[0];
        return [box.left + xaxis.d2p(t.x[0]), box.top + yaxis.d2p(t.y[0])]; }"""
    )
    page.mouse.move(spot[0] - 3, spot[1])
    page.mouse.move(*spot)
    tip = page.locator("#map-tip")
    tip.wait_for(state="visible")
    lines = tip.locator("div").all_inner_texts()
    place = {name: list(sample.obs_names) for name, sample in samples.items()}
    sample = lines[2].removeprefix("Sample: ")
    row = place[sample].index(lines[0])
    obs = samples[sample].obs.iloc[row]
    assert lines[1].removeprefix("Label: ").removesuffix(" (unknown)") == obs["scperformer_label"]
    assert lines[1].endswith(" (unknown)") == obs["scperformer_unknown"]
    assert lines[3] == f"Confidence: {obs['scperformer_confidence']:.2f}"
    page.mouse.move(5, 5)


def test_colour_by_a_gene_and_by_confidence(page, samples):
    option = page.locator("#map-colour option", has_text="<svg").get_attribute("value")
    page.select_option("#map-colour", option)
    colours = page.evaluate("Array.from(document.querySelector('#figure-map .canvas').data.at(-1).marker.color)")
    expected = np.concatenate([sample[:, GENE].X.toarray().ravel() for sample in samples.values()])
    np.testing.assert_allclose(colours, np.sort(expected), atol=expected.max() / 254)
    page.select_option("#map-colour", "confidence")
    colours = page.evaluate("Array.from(document.querySelector('#figure-map .canvas').data[0].marker.color)")
    expected = np.concatenate([sample.obs["scperformer_confidence"] for sample in samples.values()])
    np.testing.assert_allclose(colours, np.sort(expected)[::-1], atol=1e-4)
    page.select_option("#map-colour", "c0")


def test_samples_and_labels_are_filtered(page):
    page.locator("#map-samples summary").click()
    page.get_by_label("s10").uncheck()
    assert num_points(page) == NUM_CELLS["s2 <b>"]
    page.get_by_role("button", name="All", exact=True).click()
    assert num_points(page) == 120
    page.locator("#map-samples summary").click()
    first = page.locator("#map-legend button").first
    num = int(first.locator(".sub").inner_text())
    first.click()
    assert num_points(page) == 120 - num
    assert first.get_attribute("aria-pressed") == "false"
    page.locator("#map-legend button").first.click()
    assert num_points(page) == 120


def test_a_cell_is_found_by_its_name(page, samples):
    name = samples["s10"].obs_names[5]
    page.fill("#map-find", name)
    page.press("#map-find", "Enter")
    assert page.locator("#map-tip div").first.inner_text() == name
    assert page.evaluate("document.querySelector('#figure-map .canvas').layout.shapes.length") == 1
    page.fill("#map-find", "")
    page.press("#map-find", "Enter")


def column(page: Page, table: str, place: int) -> list[str]:
    return page.locator(f"#{table} tbody tr:visible > :nth-child({place})").all_inner_texts()


def test_a_table_is_sorted_by_keyboard(page):
    button = page.locator("#confidence-table thead button").nth(1)
    button.focus()
    for sign in (-1, 1):
        page.keyboard.press("Enter")
        numbers = [int(text.replace(",", "")) for text in column(page, "confidence-table", 2)]
        assert numbers == sorted(numbers, key=lambda number: sign * number)
    assert page.locator("#confidence-table th").nth(1).get_attribute("aria-sort") == "ascending"
    samples = page.locator("#samples-table thead button").first
    samples.click()
    assert column(page, "samples-table", 1) == ["<u>absent", "s2 <b>", "s10"]  # s2 before s10


def test_a_table_is_searched_and_saved(page):
    search = page.get_by_label("Search in Confidence per label")
    search.fill("cd8")
    shown = column(page, "confidence-table", 1)
    assert len(shown) > 0
    assert all("CD8" in label for label in shown)
    text = saved(page, page.locator("#confidence-table").get_by_text("CSV", exact=True))
    assert len(list(csv.reader(io.StringIO(text)))) == 1 + len(shown)
    search.fill("")
    rows = list(csv.DictReader(io.StringIO(saved(page, page.get_by_label("Download Confidence per label as CSV")))))
    assert sum(int(row["Cells"]) for row in rows) == 120
    labels = [row["Label"] for row in rows]
    assert HOSTILE["Dendritic"] in labels
    assert HOSTILE["CD34+"] not in labels  # a formula, which has a ' in front


def test_figures_are_saved(page):
    svg = saved(page, page.locator("#figure-composition").get_by_text("SVG"))
    assert svg.startswith("<svg")
    assert "s10" in svg
    elements = list(ElementTree.fromstring(svg).iter())
    assert not [element.tag for element in elements if element.tag.rpartition("}")[2] in ("script", "a", "image")]
    assert not [
        name for element in elements for name in element.attrib if name.startswith("on") or name.endswith("href")
    ]
    assert "<image" in saved(page, page.locator("#map-tools").get_by_role("button", name="SVG"))


def test_controls_are_reached_by_keyboard(page):
    page.focus(".skip")
    assert page.locator(".skip").bounding_box()["x"] >= 0  # visible while it has the focus
    page.focus("#map-colour")
    names = []
    for _ in range(7):
        page.keyboard.press("Tab")
        names.append(page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.id"))
    assert {"map-names", "map-find", "Zoom in", "Zoom out", "Show all cells"} <= set(names)
    before = page.evaluate("[...document.querySelector('#figure-map .canvas').layout.xaxis.range]")
    page.get_by_role("button", name="Zoom in").press("Enter")
    after = page.evaluate("[...document.querySelector('#figure-map .canvas').layout.xaxis.range]")
    assert after[1] - after[0] < 0.7 * (before[1] - before[0])


@pytest.mark.parametrize("width", [1400, 400])
def test_page_fits_its_window(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
