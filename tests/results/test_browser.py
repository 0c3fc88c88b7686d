"""The report in a browser: figures, map, tables and downloads work; user texts run no code, and nothing is loaded."""

import csv
import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import Page, sync_playwright
from support.annotated import TRUTH_KEY, add_trust, annotated_sample, write_sample

from scperformer.config.steps import EvaluateConfig, ReportConfig
from scperformer.results.evaluate import run_evaluate
from scperformer.results.report import run_report

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
        sample.obs["condition"] = pd.Categorical(["A", "B <i>"][place : place + 1] * num)
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
    title = "<script>window.ran = 1</script>"
    return run_report(ReportConfig(inputs=inputs, evaluation=evaluation, title=title, group_by=["condition"]))


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
    names = [
        "composition",
        "map",
        "confidence",
        "calibration",
        "markers",
        "quality",
        "confusion-matrix",
        "novelty",
        "disagreements",
        "clusters",
    ]
    for name in names:
        assert page.locator(f"#figure-{name} .main-svg").count() > 0, name
    assert num_points(page) == 120


def test_hostile_texts_are_texts(page):
    labels = page.locator("#map-legend button").all_inner_texts()
    assert any(HOSTILE["Dendritic"] in label for label in labels)
    assert page.locator("#figure-composition text", has_text=HOSTILE["CD14+ Monocyte"][:20]).count() > 0
    assert page.locator("#figure-clusters text", has_text=HOSTILE["CD14+ Monocyte"][:20]).count() > 0
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
    name, *lines = tip.locator("div").all_inner_texts()
    told = dict(line.split(": ", 1) for line in lines if not line.startswith("True label"))
    place = {name: list(sample.obs_names) for name, sample in samples.items()}
    obs = samples[told["Sample"]].obs.iloc[place[told["Sample"]].index(name)]
    assert told["Label"] == obs["scperformer_label"]
    assert told["Call"] == obs["scperformer_call"]
    assert float(told["Confidence"]) == pytest.approx(obs["scperformer_confidence"], abs=1e-3)
    assert {"Novelty", "Cluster", "Genes per cell", "percent_mito"} <= set(told)
    page.mouse.move(5, 5)


def test_colour_by_a_gene_and_by_confidence(page, samples):
    option = page.locator("#map-colour option", has_text="<svg").get_attribute("value")
    page.select_option("#map-colour", option)
    colours = page.evaluate("Array.from(document.querySelector('#figure-map .canvas').data.at(-1).marker.color)")
    expected = np.concatenate([sample[:, GENE].X.toarray().ravel() for sample in samples.values()])
    np.testing.assert_allclose(colours, np.sort(expected), atol=expected.max() / 254)
    page.select_option("#map-colour", label="Confidence")
    colours = page.evaluate("Array.from(document.querySelector('#figure-map .canvas').data[0].marker.color)")
    expected = np.concatenate([sample.obs["scperformer_confidence"] for sample in samples.values()])
    np.testing.assert_allclose(colours, np.sort(expected)[::-1], atol=1e-4)
    page.select_option("#map-colour", label="Call")


def test_samples_and_labels_are_filtered(page):
    page.select_option("#map-colour", label="Sample")
    page.locator("#map-legend button", has_text="s10").click()
    assert num_points(page) == NUM_CELLS["s2 <b>"]
    page.select_option("#map-colour", label="Call")
    assert num_points(page) == NUM_CELLS["s2 <b>"]  # a choice holds for all columns
    page.get_by_role("button", name="Show all cells again").click()
    assert num_points(page) == 120
    first = page.locator("#map-legend button[aria-pressed]").first
    num = int(first.locator(".sub").inner_text())
    first.click()
    assert num_points(page) == 120 - num
    assert page.locator("#map-legend button[aria-pressed='false']").count() == 1
    page.get_by_role("button", name="Show all cells again").click()
    assert num_points(page) == 120


def test_every_colour_can_be_drawn_as_points_and_as_hexagons(page):
    values = page.locator("#map-colour option").evaluate_all("options => options.map(({value}) => value)")
    assert len(values) > 30
    for shape in ("hexagons", "points"):
        page.select_option("#map-view", shape)
        for value in values:
            page.select_option("#map-colour", value)
            assert page.evaluate("document.querySelector('#figure-map .canvas').data.length") > 0, (shape, value)
    page.select_option("#map-colour", label="Call")


def test_the_composition_is_shown_in_each_way(page, samples):
    rows = "document.querySelector('#figure-composition .canvas').layout.yaxis.ticktext"
    assert page.evaluate(rows) == ["s2 &lt;b&gt;", "s10"]
    kinds = page.locator("#composition-kind option").all_inner_texts()
    assert kinds == ["Call", "Most probable label"]
    for kind in kinds:
        page.select_option("#composition-kind", label=kind)
        for view in ("heat map", "bars"):
            page.select_option("#composition-view", label=view)
            for order in page.locator("#composition-order option").evaluate_all("all => all.map(({value}) => value)"):
                page.select_option("#composition-order", order)
                assert sorted(page.evaluate(rows)) == ["s10", "s2 &lt;b&gt;"]
    page.select_option("#composition-kind", label="Call")
    call = page.evaluate(
        "JSON.parse(document.getElementById('report-data').textContent).composition.kinds[0].values[0]"
    )
    shares = {name: np.mean(np.array(calls_of(sample.obs)) == call) for name, sample in samples.items()}
    page.select_option("#composition-order", "0")
    first = max(shares, key=lambda name: shares[name])
    assert page.evaluate(rows)[0] == first.replace("<", "&lt;").replace(">", "&gt;")
    page.select_option("#composition-order", "name")


def test_samples_are_compared_by_their_groups(page):
    traces = page.evaluate("document.querySelector('#figure-groups .canvas').data.map(({name, y}) => [name, y.length])")
    num_calls = page.locator("#groups-0-table tbody tr").count()
    assert traces == [["A (1)", num_calls], ["B &lt;i&gt; (1)", num_calls]]


def test_the_cells_are_saved_with_all_that_is_known(page, samples):
    rows = list(csv.DictReader(io.StringIO(saved(page, page.get_by_text("CSV of the cells")))))
    calls = [call for sample in samples.values() for call in calls_of(sample.obs)]
    assert sorted(row["Call"].removeprefix("'") for row in rows) == sorted(calls)
    assert {"cell", "Sample", "Novelty", "Cluster", "condition"} <= set(rows[0])


def calls_of(obs) -> list[str]:
    return list(obs["scperformer_call"].astype(str))


def test_sections_are_folded_and_opened_by_their_link(page):
    section = page.locator("#quality details.folded")
    page.locator("#quality summary").first.click()
    assert section.get_attribute("open") is None
    page.locator("nav a[href='#quality']").click()
    assert section.get_attribute("open") is not None
    assert page.locator("#evidence details.folded").get_attribute("open") is None  # the appendix is folded at first
    page.locator("#evidence summary").first.click()


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
    for _ in range(8):
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
    canvas = page.locator("#figure-map .canvas")
    drawn = canvas.locator(".main-svg").first.evaluate("svg => svg.getBoundingClientRect().width")
    assert drawn == pytest.approx(canvas.evaluate("canvas => canvas.clientWidth"), abs=2)
