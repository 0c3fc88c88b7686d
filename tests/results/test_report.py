"""The page of a report: complete, self-contained, escaped, reproducible; and refused input."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from support.annotated import TRUTH_KEY, add_trust, annotated_sample, write_sample

from scperformer.base.errors import InputError
from scperformer.config.steps import EvaluateConfig, ReportConfig
from scperformer.results.evaluate import read_evaluation, run_evaluate
from scperformer.results.read_annotations import read_samples
from scperformer.results.report import page_scripts, render, run_report

SCRIPT = "<script>alert(1)</script>"
IMAGE = '"><img src=x onerror=alert(1)>'
HOSTILE = {
    "Dendritic": SCRIPT,
    "CD19+ B": IMAGE,
    "CD14+ Monocyte": "$\\alpha_{{ 7*7 }}$ & <b>",
    "CD34+": "'x' onload='y'",
}


class Page(HTMLParser):
    """The text, elements and tables of a page, and the data of its figures."""

    def __init__(self, html: str):
        super().__init__()
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.rows: list[list[str]] = []
        self.in_cell = False
        self.feed(html)
        self.data = json.loads(self.scripts[0])
        self.figures = {figure["name"]: figure for figure in self.data["figures"]}

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if dict(attrs).get("class") == "table" or (tag == "table" and "id" in dict(attrs)):
            self.rows = self.tables[str(dict(attrs)["id"])] = []
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td") and self.rows:
            self.rows[-1].append("")
            self.in_cell = True
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        if tag in ("th", "td"):
            self.in_cell = False

    def handle_data(self, data):
        if self.cdata_elem == "script":
            self.scripts[-1] += data
            return
        self.text.append(data)
        if self.in_cell:
            self.rows[-1][-1] += re.sub("^[●◆■✚✖▲]$", "", data).strip()

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())

    def values(self, tag: str, attribute: str) -> list[str]:
        return [attrs[attribute] or "" for name, attrs in self.elements if name == tag and attribute in attrs]

    def array(self, packed: dict[str, str]) -> np.ndarray:
        return np.frombuffer(base64.b64decode(packed["data"]), f"<{packed['kind']}")


def hostile_sample(first: int) -> ad.AnnData:
    sample = annotated_sample(first, 60, rename=HOSTILE, min_confidence=0.4)
    facts = sample.uns["scperformer"]
    facts["model"]["name"] = facts["model"]["trained_on"] = facts["model"]["label_key"] = SCRIPT.replace("/", "")
    facts["input"]["file"] = facts["input"]["source"] = SCRIPT.replace("/", "")
    facts["input"]["notes"][:] = IMAGE
    facts["genes"]["absent"][:] = SCRIPT
    facts["genes"]["dropped"][:] = IMAGE
    facts["versions"]["scperformer"] = IMAGE
    return sample


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with two samples of 60 cells that have hostile names, their evaluation, and the report about them."""
    folder = tmp_path_factory.mktemp("report")
    names = ["a <b>1", '"x" onclick="y"']
    inputs = [write_sample(folder, name, hostile_sample(60 * place)) for place, name in enumerate(names)]
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
    """A page without evaluation about 14 cells, which are too few for a UMAP."""
    folder = tmp_path_factory.mktemp("plain")
    path = write_sample(folder, "small", annotated_sample(num_cells=14))
    return run_report(ReportConfig(inputs=[path])).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def plain(plain_html) -> Page:
    return Page(plain_html)


def test_user_text_makes_no_element(page):
    tags = [tag for tag, _ in page.elements]
    assert tags.count("script") == 3  # the data, the library and our own
    assert {"iframe", "object", "embed", "form", "link", "base", "img"}.isdisjoint(tags)
    assert not [name for _, attrs in page.elements for name in attrs if name.startswith("on")]


def test_user_text_is_shown_unchanged(page):
    for label in HOSTILE.values():
        assert label in page.words
    assert page.words.count(SCRIPT) > 10
    assert "a <b>1" in page.words
    assert [label["name"] for label in page.data["labels"]].count(SCRIPT) == 1


def test_user_text_in_figures_has_no_tags(page):
    """plotly interprets some tags in texts, so their brackets are written as entities."""

    def texts(value) -> list[str]:
        if isinstance(value, dict):
            return [text for part in value.values() for text in texts(part)]
        return [text for part in value for text in texts(part)] if isinstance(value, list) else [str(value)]

    found = [text.replace("<br>", "").replace("<extra></extra>", "") for text in texts(page.data["figures"])]
    assert any("&lt;script&gt;" in text for text in found)
    assert not [text for text in found if "<" in text and text != "<1"]


def test_page_loads_nothing_and_runs_no_other_scripts(html, page):
    ours = html
    for script in page_scripts():
        assert ours.count(script) == 1
        ours = ours.replace(script, "")
    assert not re.search(r"(https?:)?//[a-z]", re.sub(r'"data":"[\w+/=]+"', "", ours).replace(IMAGE, ""))
    assert "url(" not in ours
    assert "@import" not in ours
    assert not [attrs for tag, attrs in page.elements if tag == "script" and "src" in attrs]
    assert all(target.startswith("#") for target in page.values("a", "href"))
    [policy] = [attrs["content"] for tag, attrs in page.elements if attrs.get("http-equiv")]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in page.scripts[1:]]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    assert policy.startswith("default-src 'none';")
    assert policy.endswith(f"script-src {allowed} 'unsafe-eval'")


def test_no_path_of_the_machine_is_shown(page):
    assert "private" not in page.words + page.scripts[0]


def test_links_lead_to_sections(page):
    ids = {attrs["id"] for _, attrs in page.elements if attrs.get("id")}
    targets = page.values("a", "href")
    assert len(targets) == 8
    assert {target.removeprefix("#") for target in targets} <= ids


def test_headings_do_not_skip_a_level(page):
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels.count(1) == 1
    assert all(later <= earlier + 1 for earlier, later in pairwise(levels))


def test_figures_and_tables_have_a_name(page):
    assert all(attrs.get("aria-label") for _, attrs in page.elements if attrs.get("role") in ("img", "region"))
    places = {attrs["data-figure"] for _, attrs in page.elements if attrs.get("data-figure")}
    assert set(page.figures) == {"confidence", "confusion-matrix", "disagreements"}
    assert places == {"composition", *page.figures}


@pytest.fixture(scope="module")
def obs(folder) -> pd.DataFrame:
    """The obs of both samples, in the order of the page."""
    paths = [folder / f"{name}.annotated.h5ad" for name in ('"x" onclick="y"', "a <b>1")]
    return pd.concat(
        [ad.read_h5ad(path).obs.assign(sample=path.name.removesuffix(".annotated.h5ad")) for path in paths]
    )


def test_numbers_are_those_of_the_files(folder, page, obs):
    unknown = int((obs["scperformer_call"] == "unknown").sum())
    metrics = read_evaluation(folder / "evaluation").metrics
    assert "120 cells in 2 samples were annotated" in page.words
    reason = "because their confidence is below 0.4"
    assert f"{unknown} of them ({unknown / 120:.1%}) are flagged as unknown, {reason}" in page.words
    assert f"the label is correct for {metrics['model']['accuracy']:.1%} of 120 cells" in page.words
    assert f"is correct for {metrics['baseline']['accuracy']:.1%}" in page.words
    assert "752 of the model’s 800 genes (94.0%)" in page.words


def final_labels(obs: pd.DataFrame) -> pd.Series:
    """The label of each cell, or unknown."""
    return obs["scperformer_call"].astype(str)


def test_composition_is_that_of_the_files(page, obs):
    title, *rows, total = page.tables["composition-table"]
    expected = pd.crosstab(obs["sample"], final_labels(obs))
    assert [row[0] for row in rows] == list(dict.fromkeys(obs["sample"]))
    assert set(title[2:]) == set(expected.columns)
    for row in rows:
        assert row[1:] == [str(expected.loc[row[0]].sum()), *map(str, expected.loc[row[0], title[2:]])]
    assert total == ["All samples", "120", *(str(expected[label].sum()) for label in title[2:])]
    composition = page.data["composition"]
    calls, labels = composition["kinds"]
    assert (calls["name"], labels["name"]) == ("Call", "Most probable label")
    assert calls["counts"] == expected.loc[composition["samples"], calls["values"]].to_numpy().tolist()
    by_label = pd.crosstab(obs["sample"], obs["scperformer_label"].astype(str))
    assert labels["counts"] == by_label.loc[composition["samples"], labels["values"]].to_numpy().tolist()
    assert sorted(composition["order"]) == [0, 1]


def test_confusion_matrix_and_confidence_are_those_of_the_files(page, obs):
    title, *rows = page.tables["confusion-table"]
    expected = pd.crosstab(obs[TRUTH_KEY].astype(str), obs["scperformer_label"].astype(str))
    for row in rows:
        counts = [expected.loc[row[0]].get(label, 0) for label in title[2:]]
        assert row[1:] == [str(expected.loc[row[0]].sum()), *map(str, counts)]
    quartiles = obs.groupby(final_labels(obs))["scperformer_confidence"].quantile([0.25, 0.5, 0.75])
    for row in page.tables["confidence-table"][1:]:
        assert row[3:] == [f"{value:.2f}" for value in quartiles.loc[row[0]]]


def test_map_holds_every_cell(page, obs, html):
    drawn = page.data["map"]
    assert drawn["cells"] == list(obs.index)
    names = [label["name"] for label in page.data["labels"]]
    by_name = {column["name"]: column for column in drawn["columns"]}

    def texts(column):
        return [(names if column["values"] is None else column["values"])[code] for code in page.array(column["codes"])]

    assert texts(by_name["Call"]) == list(final_labels(obs))
    assert texts(by_name["Sample"]) == list(obs["sample"])
    confidence = by_name["Confidence"]
    found = confidence["low"] + page.array(confidence) / 65534 * (confidence["high"] - confidence["low"])
    np.testing.assert_allclose(found, obs["scperformer_confidence"], atol=1e-4)
    np.testing.assert_array_equal(page.array(by_name["Unknown"]["codes"]), obs["scperformer_call"] == "unknown")
    assert texts(by_name[f"True label: {TRUTH_KEY}"]) == list(obs[TRUTH_KEY].astype(str))
    assert "percent_mito" in by_name  # a column of the files
    # The recorded place of the expression is a script, so it cannot be read.
    assert "Expression" not in {column["group"] for column in drawn["columns"]}
    assert "UMAP of the probabilities of the labels" in page.words


def test_scales_of_the_branches_are_shown(page, plain):
    for shown in (page, plain):
        assert "0.90 × the linear branch + 0.40 × the encoder, with scales fitted on held-out cells" in shown.words
        assert "linear branch only" not in shown.words


def test_the_encoder_and_what_each_branch_adds_are_shown(tmp_path, plain):
    sample = annotated_sample(num_cells=20)
    numbers = {"accuracy": 0.9321, "macro_f1": 0.8766, "loss": 0.2109}
    encoder = {"kind": "Performer", "size": "13,656 gene tokens, 1 layer", "attention": "favor", "device": "cpu"}
    scores = dict.fromkeys(("linear", "encoder", "both"), numbers)
    sample.uns["scperformer"]["model"] |= {"encoder": encoder, "branch_scores": scores}
    path = write_sample(tmp_path, "s", sample)
    page = Page(run_report(ReportConfig(inputs=[path])).read_text(encoding="utf-8"))
    assert "Performer 13,656 gene tokens, 1 layer, trained by Lightning on cpu. Attention is on (favor)." in page.words
    assert page.tables["branches-table"][2] == ["Performer", "0.932", "0.877", "0.211"]
    assert "branches-table" not in plain.tables
    assert "Lightning" not in plain.words


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
    assert "Expected accuracy 88%, by a model fitted to the genes and the depth of this file" in adapted
    assert "(on the reference 87.6%, and 95.1% with all genes and the depth of the reference)" in adapted
    assert "48, left out: SAMD11" in adapted
    plain = page_with_condition(tmp_path, adapted=False, expected_accuracy=0.951).words
    assert "Expected accuracy 95%" in plain
    assert "fitted to the genes" not in plain
    assert "48, counted as not expressed: SAMD11" in plain


@pytest.mark.parametrize("condition", [{}, {"adapted": False, "expected_accuracy": float("nan")}], ids=["old", "NaN"])
def test_a_missing_expected_accuracy_is_not_shown(tmp_path, condition):
    assert "Expected accuracy" not in page_with_condition(tmp_path, **condition).words


def test_page_says_when_the_labels_do_not_depend_on_the_encoder(tmp_path):
    page = page_with_scales(tmp_path, {"encoder": 0.009, "linear": 1.5})
    assert "1.50 × the linear branch + 0.01 × the encoder, with scales" in page.words
    assert "This model uses its linear branch only." in page.words
    page = page_with_scales(tmp_path, {"encoder": 0.0, "linear": 1.5})
    assert "This model uses its linear branch only." in page.words


@pytest.mark.parametrize("scales", [{"linear": 1.5}, {"encoder": 0.5}, None], ids=["linear", "encoder", "not recorded"])
def test_a_missing_branch_is_not_shown(tmp_path, scales):
    page = page_with_scales(tmp_path, scales)
    assert "linear branch only" not in page.words
    assert page.words.count("× the") == (1 if scales else 0)


def test_progress_is_logged(tmp_path, caplog):
    path = write_sample(tmp_path, "s", annotated_sample(num_cells=20))  # too few for a map
    with caplog.at_level("INFO", logger="scperformer"):
        run_report(ReportConfig(inputs=[path]))
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "reading 1 annotated file"
    assert "reading the expression of 1 sample" in said
    assert "placing 20 cells on the map by the probabilities of their labels" in said
    assert said[-1].startswith("report on 20 cells in 1 sample")


def test_a_failed_sample_has_a_row(tmp_path):
    path = write_sample(tmp_path, "s", annotated_sample(num_cells=20))
    page = Page(run_report(ReportConfig(inputs=[path, str(tmp_path / "s2.h5ad")])).read_text(encoding="utf-8"))
    rows = page.tables["samples-table"][1:]
    assert [row[0] for row in rows] == ["s", "s2"]
    assert rows[1][1].startswith("failed: ")
    assert "s2.h5ad" in rows[1][1]
    assert "in 1 sample; 1 failed" in page.words
    assert page.tables["failed"] == [["Sample", "Reason"], ["s2", rows[1][1].removeprefix("failed: ")]]


def test_the_first_screen_has_ten_failed_samples(tmp_path):
    path = write_sample(tmp_path, "s", annotated_sample(num_cells=20))
    paths = [path, *(str(tmp_path / f"gone{number}.h5ad") for number in range(12))]
    page = Page(run_report(ReportConfig(inputs=paths)).read_text(encoding="utf-8"))
    assert len(page.tables["failed"]) == 11
    assert "12 samples without annotation" in page.words
    assert "2 more are in the table of samples." in page.words
    assert len(page.tables["samples-table"]) == 14


def test_page_without_evaluation(plain):
    assert "14 cells in 1 sample were annotated" in plain.words
    assert "No cell is flagged as unknown." in plain.words
    assert "Evidence on held-out cells" not in plain.words  # as in files of earlier versions
    assert "It says nothing about other cell types" in plain.words
    assert "Logistic regression, trained on the same reference, gives" in plain.words
    assert "Comparison with true labels" not in plain.words
    assert "using log-normalised values in .raw" in plain.words


def test_evidence_on_held_out_cells_is_shown(tmp_path):
    sample = annotated_sample(num_cells=14)
    add_trust(sample)
    page = Page(run_report(ReportConfig(inputs=[write_sample(tmp_path, "s", sample)])).read_text(encoding="utf-8"))
    assert "because they look like none of the labels or they express none of the model’s genes" in page.words
    mean = sample.obs["scperformer_confidence"].mean()
    row = ["s", "400", "0.020", "0.86", f"{mean:.2f}", "14.3%", "5.0%"]  # two of 14 cells are novel
    assert page.tables["trust-table"][1] == row
    sizes = sample.obs["scperformer_set_size"]
    shares = [f"{(sizes == size).mean():.1%}" for size in (0, 1, 2, 3)]
    assert page.tables["sets-table"][1] == ["s", "90.0%", "90.0%", f"{sizes.mean():.2f}", *shares]
    _, curve = page.figures["calibration"]["data"]
    assert (curve["x"], curve["y"], curve["customdata"]) == ([0.6, 0.95], [0.55, 0.96], [100, 300])
    assert "is it the right tissue" not in page.words


def test_a_sample_of_unknown_cells_is_among_the_things_to_check(tmp_path):
    sample = annotated_sample(num_cells=14)
    add_trust(sample)
    sample.obs["scperformer_call"] = ["unknown"] * 10 + list(sample.obs["scperformer_label"][10:])
    page = Page(run_report(ReportConfig(inputs=[write_sample(tmp_path, "s", sample)])).read_text(encoding="utf-8"))
    assert "s: 71% of cells look like none of the 10 labels of this model: is it the right tissue?" in page.words


def test_too_few_cells_have_a_reason_instead_of_a_map(plain):
    assert "No map: it needs at least 30 cells" in plain.words
    assert plain.data["map"] is None


def test_one_cell_is_enough_for_a_page(tmp_path):
    path = write_sample(tmp_path, "one", annotated_sample(num_cells=1))
    page = Page(run_report(ReportConfig(inputs=[path])).read_text(encoding="utf-8"))
    assert "1 cell in 1 sample was annotated" in page.words


def test_same_input_same_page(folder, html):
    inputs = [str(folder / f"{name}.annotated.h5ad") for name in ("a <b>1", '"x" onclick="y"')]
    samples, _ = read_samples(inputs, "scperformer")
    cfg = ReportConfig(inputs=inputs, title=SCRIPT)
    again, summary = render(samples, [], read_evaluation(folder / "evaluation"), cfg)
    assert again == html
    assert summary.strip() in html  # the first screen, for notebooks


def test_a_random_subset_is_reproducible_and_mentioned(tmp_path):
    path = write_sample(tmp_path, "s", annotated_sample(num_cells=60))
    outputs = [str(tmp_path / name) for name in ("first.html", "second.html")]
    first, second = (run_report(ReportConfig(inputs=[path], max_cells=40, output=output)) for output in outputs)
    assert first.read_bytes() == second.read_bytes()
    assert "(40 of 60, drawn at random)" in Page(first.read_text(encoding="utf-8")).words


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
    assert (folder / "page.html").stat().st_size < 5.5e6
