"""The report in a browser: figures, map, tables and downloads work; user texts run no code, and nothing is loaded."""

import csv
import io
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import anndata as ad
import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from support.annotated import TRUTH_KEY, add_trust, annotated_sample, write_sample
from support.tissues import cells_of_tissue

import scperformer
from scperformer.cli.evaluate import EvaluateConfig
from scperformer.cli.evaluate import run as run_evaluate
from scperformer.cli.report import ReportConfig
from scperformer.cli.report import run as run_report

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium"),
]
# WebGL without a graphics card.
ARGUMENTS = [
    "--no-sandbox",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--ignore-gpu-blocklist",
]
HOSTILE = {
    "Dendritic": "<script>window.ran = 1</script>",
    "CD19+ B": '"><img src=x onerror="window.ran = 1">',
    "CD14+ Monocyte": '<a href="javascript:window.ran = 1">x</a>',
    "CD34+": "=HYPERLINK(1)",
}
GENE = "<svg onload='window.ran = 1'>"
NUM_CELLS = {"s10": 90, "s2 <b>": 110}


@pytest.fixture(scope="module")
def samples() -> dict[str, ad.AnnData]:
    samples = {}
    for place, (name, num) in enumerate(NUM_CELLS.items()):
        sample = annotated_sample(110 * place, num, rename=HOSTILE, min_confidence=0.4)
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
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def page(browser, html) -> Iterator[Page]:
    """The page in a window of 1,400 pixels; fails at the end if it loaded or ran anything, or had errors."""
    opened = browser.new_page(viewport={"width": 1400, "height": 900})
    problems: list[str] = []
    opened.on(
        "console",
        lambda said: problems.append(said.text) if said.type in ("error", "warning") else None,
    )
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("request", lambda asked: problems.append(asked.url))
    opened.goto(html.as_uri())
    opened.wait_for_selector("#figure-map .legend button")
    assert problems.pop(0) == html.as_uri()
    yield opened
    assert [problem for problem in problems if not problem.startswith(("data:", "blob:"))] == []
    assert opened.evaluate("window.ran") is None


def test_hostile_texts_are_texts(page):
    labels = page.locator("#figure-map .legend button").all_text_contents()
    assert any(HOSTILE["Dendritic"] in label for label in labels)
    assert (
        page.locator("#figure-composition text", has_text=HOSTILE["CD14+ Monocyte"][:20]).count()
        > 0
    )
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
    rows = list(
        csv.DictReader(
            io.StringIO(saved(page, page.get_by_label("Download Confidence per call as CSV")))
        )
    )
    assert sum(int(row["Cells"]) for row in rows) == sum(NUM_CELLS.values())
    labels = [row["Call"] for row in rows]
    assert HOSTILE["Dendritic"] in labels
    assert HOSTILE["CD34+"] not in labels  # a formula, which has a ' in front


def test_a_figure_is_saved_with_its_legend(page):
    svg = saved(page, page.locator("#figure-composition .modebar-btn[data-title='Save as SVG']"))
    assert svg.startswith("<svg")
    assert page.locator("#figure-composition .legend button").count() == svg.count(
        'class="legendtext"'
    )


def boxes(page: Page, selector: str) -> list[dict[str, float]]:
    """The places of elements in the window: x, y, width and height in pixels."""
    return [
        place for each in page.locator(selector).all() if (place := each.bounding_box()) is not None
    ]


def overlap(one: dict[str, float], other: dict[str, float]) -> bool:
    pairs = (("x", "width"), ("y", "height"))
    return all(
        one[at] < other[at] + other[size] and other[at] < one[at] + one[size] for at, size in pairs
    )


def test_a_telephone_shows_the_whole_page(page):
    page.set_viewport_size({"width": 400, "height": 900})
    page.wait_for_timeout(500)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    canvas = page.locator("#figure-map .canvas")
    drawn = canvas.locator(".main-svg").first.evaluate("svg => svg.getBoundingClientRect().width")
    assert drawn == pytest.approx(canvas.evaluate("canvas => canvas.clientWidth"), abs=2)
    [plot] = boxes(page, "#figure-map .nsewdrag")
    assert plot["height"] > 300  # the legend takes nothing of it
    ticks = boxes(page, "#figure-confidence .xtick text")
    assert len(ticks) >= 3
    assert not [1 for one, other in pairwise(ticks) if overlap(one, other)]
    assert not page.locator("#figure-confidence .scroll").evaluate(
        "box => box.scrollHeight > box.clientHeight + 20"
    )


def test_names_on_the_map_do_not_cover_each_other(page):
    for width in (1400, 400):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(500)
        names = page.locator("#figure-map .annotation-text-g").all_text_contents()
        places = boxes(page, "#figure-map .annotation-text-g .bg")
        assert len(places) == len(names) > 2
        assert not [
            1 for i, one in enumerate(places) for other in places[:i] if overlap(one, other)
        ]
        # the largest group first
        legend = page.locator("#figure-map .legend button").all_text_contents()
        assert any(names[0] in entry for entry in legend[:2])


def test_a_hidden_label_has_no_name(page):
    page.set_viewport_size({"width": 1400, "height": 900})
    page.wait_for_timeout(500)
    names = page.locator("#figure-map .annotation-text-g")
    first = names.first.text_content()
    entry = page.locator("#figure-map .legend button", has_text=first).first
    entry.click()
    page.wait_for_timeout(500)
    assert first not in names.all_text_contents()
    entry.click()
    page.wait_for_timeout(500)
    assert first in names.all_text_contents()


def test_a_dark_page(browser, html):
    """Text, marks and figures are seen on a dark page; paper is light."""
    opened = browser.new_page(viewport={"width": 1400, "height": 900}, color_scheme="dark")
    opened.goto(html.as_uri())
    opened.wait_for_selector("#figure-map .legend button")
    light = "(text) => text.match(/\\d+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0) / 765"

    def lightness(selector: str, name: str) -> float:
        text = opened.locator(selector).first.evaluate(
            f"element => getComputedStyle(element).{name}"
        )
        return opened.evaluate(light, text)

    for selector in ("body", "nav", "th", "#figure-composition .main-svg"):
        assert lightness(selector, "backgroundColor") < 0.2, selector
    for selector in ("h1", "p", ".verdicts b", "td"):
        assert lightness(selector, "color") > 0.5, selector
    for mark in opened.locator(".mark").all():
        text = mark.evaluate("element => getComputedStyle(element).color")
        assert opened.evaluate(light, text) > 0.25
    opened.emulate_media(color_scheme="light")
    opened.wait_for_timeout(500)
    assert lightness("body", "backgroundColor") > 0.9
    assert lightness("#figure-composition .main-svg", "backgroundColor") > 0.9
    opened.close()


def test_an_entry_of_a_legend_hides_its_cells(page):
    entry = page.locator("#figure-composition .legend button").first
    hidden = "canvas => canvas.data.filter((each) => each.visible === 'legendonly').length"
    canvas = page.locator("#figure-composition .canvas")
    entry.click()
    assert (canvas.evaluate(hidden), entry.get_attribute("aria-pressed")) == (1, "false")
    entry.click()
    assert (canvas.evaluate(hidden), entry.get_attribute("aria-pressed")) == (0, "true")


def test_a_touch_names_a_segment(browser, html):
    telephone = browser.new_context(
        viewport={"width": 400, "height": 900}, has_touch=True, is_mobile=True
    )
    opened = telephone.new_page()
    opened.goto(html.as_uri())
    segment = opened.locator("#figure-composition .bars .point").first
    segment.scroll_into_view_if_needed()
    place = segment.bounding_box()
    opened.touchscreen.tap(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    opened.wait_for_function(
        "() => document.querySelector('#figure-composition .said').textContent"
    )
    said = opened.locator("#figure-composition .said").text_content()
    first = (
        opened.locator("#figure-composition .legend button").first.text_content().split(" ", 1)[1]
    )
    assert said.startswith(f"s2 <b>, {first}; ")
    assert "cells, " in said


def test_an_explanation_is_whole_on_a_telephone(browser, tmp_path, monkeypatch):
    monkeypatch.delenv("SCPERFORMER_MODEL", raising=False)
    cells = scperformer.annotate(cells_of_tissue("blood")[:, ::4].copy())
    scperformer.explain(cells, num_cells=3, output=tmp_path / "explanation")
    opened = browser.new_page(viewport={"width": 400, "height": 900})
    opened.goto((tmp_path / "explanation" / "report.html").as_uri())
    assert opened.evaluate("document.documentElement.scrollWidth") <= 400
    cut = "tables => tables.filter((each) => each.getBoundingClientRect().right > 400).length"
    assert opened.locator("table").evaluate_all(cut) == 0
    assert opened.locator(".genes td").count() > 20
    words = opened.locator("header, #genes, #cells, #deletion").all_inner_texts()
    assert "logit" not in " ".join(words)  # a word for developers
