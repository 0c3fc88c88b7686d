"""The page: complete, self-contained, escaped, reproducible; and the inputs that are refused."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from html import escape as html_quoted
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import anndata as ad
import pytest
from support.annotated import TRUTH_KEY, add_trust, annotated_sample, write_sample

from scperformer.config.steps import EvaluateConfig, ReportConfig
from scperformer.errors import InputError
from scperformer.reports.annotated import read_annotated
from scperformer.reports.evaluate import read_evaluation, run_evaluate
from scperformer.reports.figures import MIN_CELLS
from scperformer.reports.report import render, run_report

SCRIPT, IMAGE = "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>'
EVIL = {"Dendritic": SCRIPT, "CD19+ B": IMAGE, "CD14+ Monocyte": "$\\alpha_{{ 7*7 }}$ & <b>", "CD34+": "'x' onload='y'"}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page(HTMLParser):
    """The text and the elements of a page."""

    def __init__(self, html: str):
        super().__init__()
        self.text: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())

    def values(self, tag: str, attribute: str) -> list[str]:
        return [attrs[attribute] or "" for name, attrs in self.elements if name == tag and attribute in attrs]


def evil_sample(first: int) -> ad.AnnData:
    sample = annotated_sample(first, 60, rename=EVIL, min_confidence=0.4)
    facts = sample.uns["scperformer"]
    facts["model"]["name"] = facts["model"]["trained_on"] = facts["model"]["label_key"] = SCRIPT.replace("/", "")
    facts["input"]["file"] = facts["input"]["source"] = SCRIPT.replace("/", "")
    facts["input"]["notes"][:] = IMAGE
    facts["genes"]["absent"][:] = SCRIPT
    facts["genes"]["dropped"][:] = IMAGE
    facts["versions"]["scperformer"] = IMAGE
    return sample


@pytest.fixture(scope="module", autouse=True)
def _quick_umap() -> Iterator[None]:
    """Coordinates without umap-learn, which compiles for 15 seconds; the slow tests of figures.py run it."""

    def coordinates(embedding, seed):
        return embedding[:, :2] if len(embedding) >= MIN_CELLS else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scperformer.reports.report.umap_coordinates", coordinates)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two evil samples of 60 cells, their evaluation and the report on them."""
    folder = tmp_path_factory.mktemp("report")
    names = ["a <b>1", '"x" onclick="y"']
    inputs = [write_sample(folder, name, evil_sample(60 * place)) for place, name in enumerate(names)]
    evaluation = str(folder / "evaluation")
    run_evaluate(EvaluateConfig(inputs=inputs, truth_key=TRUTH_KEY, output=evaluation))
    run_report(ReportConfig(inputs=inputs, evaluation=evaluation, output=str(folder / "page.html"), title=SCRIPT))
    return folder


@pytest.fixture(scope="module")
def html(folder) -> str:
    return (folder / "page.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(html) -> Page:
    return Page(html)


@pytest.fixture(scope="module")
def plain_html(tmp_path_factory) -> str:
    """A page about 14 cells without evaluation: too few for a UMAP."""
    folder = tmp_path_factory.mktemp("plain")
    path = write_sample(folder, "small", annotated_sample(num_cells=14))
    return run_report(ReportConfig(inputs=[path])).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def plain(plain_html) -> Page:
    return Page(plain_html)


def test_user_text_makes_no_element(page):
    tags = {tag for tag, _ in page.elements}
    assert "script" not in tags
    assert {"iframe", "object", "embed", "form", "link", "base"}.isdisjoint(tags)
    assert not [name for _, attrs in page.elements for name in attrs if name.startswith("on")]
    assert all(source.startswith("data:image/png;base64,") for source in page.values("img", "src"))
    assert len(page.values("img", "src")) == 2


def test_user_text_is_shown_unchanged(page):
    for label in EVIL.values():
        assert label in page.words
    assert page.words.count(SCRIPT) > 10
    assert "a <b>1" in page.words
    assert any(SCRIPT in title for title in page.values("span", "title"))


def test_page_loads_nothing(html, page):
    assert not re.search(r"(https?:)?//[a-z]", re.sub(r"base64,[\w+/=]+", "", html).replace(IMAGE, ""))
    assert "url(" not in html
    assert "@import" not in html
    assert all(target.startswith("#") for target in page.values("a", "href"))
    [policy] = [attrs["content"] for tag, attrs in page.elements if attrs.get("http-equiv")]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def test_no_path_of_the_machine_is_shown(html):
    assert "private" not in html


def test_links_lead_to_sections(page):
    ids = {attrs["id"] for _, attrs in page.elements if attrs.get("id")}
    targets = page.values("a", "href")
    assert len(targets) == 8
    assert {target.removeprefix("#") for target in targets} <= ids


def test_headings_do_not_skip_a_level(page):
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels.count(1) == 1
    assert all(later <= earlier + 1 for earlier, later in pairwise(levels))


def test_pictures_and_charts_have_text(page):
    assert all(page.values("img", "alt"))
    assert len(page.values("img", "alt")) == 2
    assert all(attrs.get("aria-label") for _, attrs in page.elements if attrs.get("role") in ("img", "region"))


def test_numbers_are_those_of_the_files(folder, page):
    samples = read_annotated([str(path) for path in sorted(folder.glob("*.h5ad"))], "scperformer")
    unknown = sum(int(sample.column("unknown").sum()) for sample in samples)
    dendritic = sum(int((sample.labels == SCRIPT).sum()) for sample in samples)
    metrics = read_evaluation(folder / "evaluation").metrics
    assert "120 cells in 2 samples were annotated" in page.words
    assert (
        f"{unknown} of them ({unknown / 120:.1%}) are flagged as unknown, because their confidence is below 0.4"
        in page.words
    )
    assert f"{SCRIPT} {dendritic} {dendritic / 120:.1%}" in page.words
    assert f"the label is correct for {metrics['model']['accuracy']:.1%} of 120 cells" in page.words
    assert f"is correct for {metrics['baseline']['accuracy']:.1%}" in page.words
    assert (
        f"Macro-F1 {metrics['model']['macro_f1']:.3f} logistic regression {metrics['baseline']['macro_f1']:.3f}"
        in page.words
    )
    assert "752 of the model’s 800 (94.0%)" in page.words


def test_scales_of_the_branches_are_shown(page, plain):
    for each in (page, plain):
        assert "0.90 × the linear branch + 0.40 × the encoder, with scales fitted on held-out cells" in each.words
        assert "linear branch only" not in each.words


def page_with_scales(tmp_path: Path, scales: dict[str, float] | None) -> Page:
    sample = annotated_sample(num_cells=20)
    sample.uns["scperformer"]["model"].pop("scales")
    if scales is not None:
        sample.uns["scperformer"]["model"]["scales"] = scales
    path = write_sample(tmp_path, "s", sample)
    return Page(run_report(ReportConfig(inputs=[path], overwrite=True)).read_text(encoding="utf-8"))


def page_with_condition(tmp_path: Path, **condition: object) -> Page:
    sample = annotated_sample(num_cells=20)
    if condition:
        sample.uns["scperformer"]["condition"] = {"key": "0" * 16, "accuracy_with_all_genes": 0.951, **condition}
    path = write_sample(tmp_path, "s", sample)
    return Page(run_report(ReportConfig(inputs=[path], overwrite=True)).read_text(encoding="utf-8"))


def test_the_expected_accuracy_is_shown(tmp_path):
    adapted = page_with_condition(tmp_path, adapted=True, expected_accuracy=0.876).words
    assert "Expected accuracy 87.6%, by a model fitted to the genes and the depth of this file" in adapted
    assert "(95.1% with all genes and the depth of the reference)" in adapted
    assert "48, left out: SAMD11" in adapted
    plain = page_with_condition(tmp_path, adapted=False, expected_accuracy=0.951).words
    assert "Expected accuracy 95.1%" in plain
    assert "fitted to the genes" not in plain
    assert "48, counted as not expressed: SAMD11" in plain


@pytest.mark.parametrize("condition", [{}, {"adapted": False, "expected_accuracy": float("nan")}], ids=["old", "NaN"])
def test_an_accuracy_that_is_not_known_is_not_shown(tmp_path, condition):
    assert "Expected accuracy" not in page_with_condition(tmp_path, **condition).words


def test_page_says_when_the_labels_do_not_depend_on_the_encoder(tmp_path):
    page = page_with_scales(tmp_path, {"deep": 0.009, "wide": 1.5})
    assert "The embedding comes from the encoder, which the labels do not depend on:" in page.words
    assert "1.50 × the linear branch + 0.01 × the encoder, with scales" in page.words
    assert "This model uses its linear branch only." in page.words
    page = page_with_scales(tmp_path, {"deep": 0.0, "wide": 1.5})  # the embedding comes from the linear branch, too
    assert "which the labels do not depend on" not in page.words
    assert "This model uses its linear branch only." in page.words


@pytest.mark.parametrize("scales", [{"wide": 1.5}, {"deep": 0.5}, None], ids=["wide", "deep", "not recorded"])
def test_a_branch_that_is_off_is_not_shown(tmp_path, scales):
    page = page_with_scales(tmp_path, scales)
    assert "linear branch only" not in page.words
    assert page.words.count("× the") == (1 if scales else 0)


def test_columns_of_the_confusion_matrix_are_titled_with_the_label(folder, page):
    heads = page.values("th", "title")
    assert set(heads) <= set(read_evaluation(folder / "evaluation").metrics["labels"])
    assert {SCRIPT, IMAGE} <= set(heads)


def test_labels_of_both_methods_look_alike_in_disagreements(html):
    table = html.partition("Most frequent disagreements</caption>")[2].partition("</table>")[0]
    rows = table.partition("<tbody>")[2].split("<tr>")[1:]
    assert len(rows) > 1
    for row in rows:
        assert re.findall(r'class="(chip|named)"', row) == ["named", "chip"] * 2


def test_umap_is_announced_in_the_log(tmp_path, caplog):
    path = write_sample(tmp_path, "s", annotated_sample(num_cells=20))
    with caplog.at_level("INFO", logger="scperformer"):
        run_report(ReportConfig(inputs=[path]))
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "computing the UMAP of 20 cells"
    assert said[1].startswith("report on 20 cells")


def test_page_without_evaluation(plain):
    assert "14 cells in 1 sample were annotated" in plain.words
    assert "No cell is flagged as unknown." in plain.words
    assert "Evidence on held-out cells" not in plain.words  # a file of an earlier version has none
    assert "It holds for similar cells only" in plain.words
    assert "Logistic regression, trained on the same reference, gives" in plain.words
    assert "Comparison with true labels" not in plain.words
    assert "log-normalised values in .raw" in plain.words


def test_the_evidence_has_a_section(tmp_path):
    sample = annotated_sample(num_cells=14)
    add_trust(sample)
    page = Page(run_report(ReportConfig(inputs=[write_sample(tmp_path, "s", sample)])).read_text(encoding="utf-8"))
    assert "because they look like none of the labels or they express none of the model’s genes" in page.words
    assert "1: s 400 0.020 14.3% 5.0%" in page.words  # two of 14 cells are novel
    sizes = sample.obs["scperformer_set_size"]
    shares = " ".join(f"{(sizes == size).mean():.1%}" for size in (0, 1, 2, 3))
    assert f"1: s 90.0% 90.0% {sizes.mean():.2f} {shares}" in page.words
    [picture] = page.values("img", "src")
    assert picture.startswith("data:image/png;base64,")
    assert "is it the right tissue" not in page.words


def test_a_sample_of_unknown_cells_is_among_the_things_to_check(tmp_path):
    sample = annotated_sample(num_cells=14)
    add_trust(sample)
    sample.obs["scperformer_unknown"] = [True] * 10 + [False] * 4
    page = Page(run_report(ReportConfig(inputs=[write_sample(tmp_path, "s", sample)])).read_text(encoding="utf-8"))
    assert "s: 71% of cells look like none of the 10 labels of this model: is it the right tissue?" in page.words


def test_too_few_cells_have_a_reason_instead_of_a_umap(plain):
    assert "No UMAP: it needs at least 15 cells" in plain.words
    assert not plain.values("img", "src")


def test_one_cell_is_enough_for_a_page(tmp_path):
    path = write_sample(tmp_path, "one", annotated_sample(num_cells=1))
    page = Page(run_report(ReportConfig(inputs=[path])).read_text(encoding="utf-8"))
    assert "1 cell in 1 sample was annotated" in page.words


def test_same_input_same_page(folder, html):
    inputs = [str(folder / f"{name}.annotated.h5ad") for name in ("a <b>1", '"x" onclick="y"')]
    samples = read_annotated(inputs, "scperformer", embedding=True)
    again = render(samples, read_evaluation(folder / "evaluation"), title=SCRIPT)
    assert again == html


def test_random_subset_is_seeded_and_mentioned(tmp_path):
    path = write_sample(tmp_path, "s", annotated_sample(num_cells=60))
    outputs = [str(tmp_path / name) for name in ("one.html", "two.html")]
    one, two = (run_report(ReportConfig(inputs=[path], max_cells=20, output=output)) for output in outputs)
    assert one.read_bytes() == two.read_bytes()
    assert "(20 of 60, drawn at random)" in Page(one.read_text(encoding="utf-8")).words


def test_evaluation_of_other_files_is_refused(folder, tmp_path):
    other = write_sample(tmp_path, "other", annotated_sample(num_cells=20))
    with pytest.raises(
        InputError, match=r"evaluates '.*; expected an evaluation of other only: run 'scperformer evaluate'"
    ):
        run_report(ReportConfig(inputs=[other], evaluation=str(folder / "evaluation")))
    assert not (tmp_path / "report.html").exists()


def test_evaluation_of_another_model_is_refused(folder, tmp_path):
    path = write_sample(tmp_path, "s", annotated_sample(num_cells=20))
    output = str(tmp_path / "evaluation")
    run_evaluate(EvaluateConfig(inputs=[path], truth_key=TRUTH_KEY, output=output))
    write_sample(tmp_path, "s", annotated_sample(num_cells=20, model_hash="f" * 64))
    with pytest.raises(InputError, match="evaluates another model"):
        run_report(ReportConfig(inputs=[path], evaluation=output))


def test_existing_page_is_refused_and_kept(folder, html):
    path = str(next(folder.glob("*.h5ad")))
    with pytest.raises(InputError, match=r"page\.html exists"):
        run_report(ReportConfig(inputs=[path], output=str(folder / "page.html")))
    assert (folder / "page.html").read_text(encoding="utf-8") == html


def test_page_is_small(folder):
    assert (folder / "page.html").stat().st_size < 3e6


def dom_of(page: Path, folder: Path) -> str:
    """The elements of a page after its scripts have run."""
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=5000", "--dump-dom", page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
@pytest.mark.parametrize("width", [pytest.param(1400, marks=pytest.mark.slow), 400])
def test_page_opens_in_a_browser_and_runs_nothing(folder, tmp_path, width):
    # The page in a frame of this width (headless Chromium's own window cannot be as narrow as a phone).
    probe = tmp_path / "probe.html"
    inside = html_quoted((folder / "page.html").read_text(encoding="utf-8"))
    probe.write_text(
        f'<iframe id="f" style="width:{width}px;height:900px;border:0" srcdoc="{inside}"></iframe><p id="p">?</p>'
        "<script>window.alert = () => document.body.append('ALERT');"
        "onload = () => { const d = document.getElementById('f').contentDocument, r = d.documentElement;"
        "  const loaded = d.defaultView.performance.getEntriesByType('resource');"
        "  document.getElementById('p').textContent = 'fits ' + (r.scrollWidth <= r.clientWidth)"
        "    + ', images ' + [...d.images].every(image => image.naturalWidth > 0)"
        "    + ', requests ' + loaded.filter(entry => !entry.name.startsWith('data:')).length; };</script>",
        encoding="utf-8",
    )
    dom = dom_of(probe, tmp_path)
    assert '<p id="p">fits true, images true, requests 0</p>' in dom
    assert "ALERT</body>" not in dom


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
@pytest.mark.slow
@pytest.mark.parametrize(("width", "beside"), [(1600, True), (700, False)])
def test_histogram_is_beside_the_table_in_a_wide_window(plain_html, tmp_path, width, beside):
    probe = tmp_path / "probe.html"
    probe.write_text(
        f'<iframe id="f" style="width:{width}px;height:900px;border:0" srcdoc="{html_quoted(plain_html)}"></iframe>'
        "<p id='p'></p><script>onload = () => { const d = document.getElementById('f').contentDocument;"
        "  const box = what => d.querySelector('#confidence ' + what).getBoundingClientRect();"
        "  document.getElementById('p').textContent = box('.hist').right < box('table').left; };</script>",
        encoding="utf-8",
    )
    assert f'<p id="p">{str(beside).lower()}</p>' in dom_of(probe, tmp_path)
