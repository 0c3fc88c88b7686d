"""The page of a report: complete, self-contained, escaped, reproducible; and refused input."""

import base64
import hashlib
import html
import re
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from support.annotated import TRUTH_KEY, annotated_sample, write_sample
from support.page import Page
from support.refusal import refusal

from scperformer.cli.evaluate import EvaluateConfig
from scperformer.cli.evaluate import run as run_evaluate
from scperformer.cli.report import ReportConfig
from scperformer.cli.report import run as run_report
from scperformer.results.evaluate import read_evaluation
from scperformer.results.read_annotations import read_annotated
from scperformer.results.report import render

SCRIPT = "<script>alert(1)</script>"
IMAGE = '"><img src=x onerror=alert(1)>'
HOSTILE = {
    "Dendritic": SCRIPT,
    "CD19+ B": IMAGE,
    "CD14+ Monocyte": "$\\alpha_{{ 7*7 }}$ & <b>",
    "CD34+": "'x' onload='y'",
}


def hostile_sample(first: int) -> ad.AnnData:
    sample = annotated_sample(first, 60, rename=HOSTILE, min_confidence=0.4)
    facts = sample.uns["scperformer"]
    facts["model"]["name"] = facts["model"]["trained_on"] = facts["model"]["label_key"] = (
        SCRIPT.replace("/", "")
    )
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
    inputs = [
        write_sample(folder, name, hostile_sample(60 * place)) for place, name in enumerate(names)
    ]
    evaluation = str(folder / "evaluation")
    run_evaluate(EvaluateConfig(inputs=inputs, truth_key=TRUTH_KEY, output=evaluation))
    run_report(ReportConfig(inputs=inputs, evaluation=evaluation, output=str(folder / "page.html")))
    return folder


@pytest.fixture(scope="module")
def text(folder) -> str:
    return (folder / "page.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(text) -> Page:
    return Page(text)


def page_of(*paths: str, **options: object) -> Page:
    """Return the page about files, which replaces an earlier one."""
    cfg = ReportConfig(inputs=list(paths), overwrite=True, **options)
    return Page(run_report(cfg).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Page:
    """A page without evaluation about 14 cells, which are too few for a UMAP."""
    folder = tmp_path_factory.mktemp("plain")
    return page_of(write_sample(folder, "small", annotated_sample(num_cells=14)))


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


def test_user_text_in_figures_has_no_tags(page):
    """plotly interprets some tags in texts, so their brackets are written as entities."""

    def texts(value) -> list[str]:
        if isinstance(value, dict):
            return [text for part in value.values() for text in texts(part)]
        return (
            [text for part in value for text in texts(part)]
            if isinstance(value, list)
            else [str(value)]
        )

    found = [
        text.replace("<br>", "").replace("<extra></extra>", "")
        for text in texts(page.data["figures"])
    ]
    assert any("&lt;script&gt;" in text for text in found)
    assert not [text for text in found if "<" in text and text != "<1"]


def test_page_loads_nothing_and_runs_no_other_scripts(text, page):
    ours = text
    for script in page.scripts[1:]:
        assert ours.count(script) == 1
        ours = ours.replace(script, "")
    assert not re.search(
        r"(https?:)?//[a-z]", re.sub(r'"data":"[\w+/=]+"', "", ours).replace(IMAGE, "")
    )
    assert "url(" not in ours
    assert "@import" not in ours
    assert not [attrs for tag, attrs in page.elements if tag == "script" and "src" in attrs]
    assert all(target.startswith("#") for target in page.values("a", "href"))
    [policy] = [attrs["content"] for tag, attrs in page.elements if attrs.get("http-equiv")]
    hashes = [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        for script in page.scripts[1:]
    ]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    assert policy.startswith("default-src 'none';")
    assert policy.endswith(f"script-src {allowed} 'unsafe-eval'")


@pytest.fixture(scope="module")
def obs(folder) -> pd.DataFrame:
    """The obs of both samples, in the order of the page."""
    paths = [folder / f"{name}.annotated.h5ad" for name in ('"x" onclick="y"', "a <b>1")]
    return pd.concat(
        [
            ad.read_h5ad(path).obs.assign(sample=path.name.removesuffix(".annotated.h5ad"))
            for path in paths
        ]
    )


def test_numbers_are_those_of_the_files(folder, page, obs):
    unknown = int((obs["scperformer_call"] == "unknown").sum())
    metrics = read_evaluation(folder / "evaluation").metrics
    assert "120 cells in 2 samples were annotated" in page.words
    assert f"{unknown} of them ({unknown / 120:.1%}) are unknown." in page.words
    assert f"{metrics['model']['accuracy']:.1%} of 120 cells have the correct label" in page.words
    assert (
        f"logistic regression on the same reference: {metrics['baseline']['accuracy']:.1%}"
        in page.words
    )
    assert page.tables["inputs-table"][1][5:8] == ["765", "752", "94.0%"]


def test_doublets_and_poor_cells_are_on_the_first_screen(tmp_path, plain):
    cells = annotated_sample(num_cells=14)
    cells.obs["scperformer_doublet"] = np.arange(14) < 3
    cells.obs["scperformer_low_quality"] = np.arange(14) == 5
    page = page_of(write_sample(tmp_path, "marked", cells))
    assert "Marked, not removed: 3 likely doublets, 1 cell of low quality." in page.words
    assert "Marked" not in plain.words


def test_composition_is_that_of_the_files(page, obs):
    title, *rows, total = page.tables["composition-table"]
    expected = pd.crosstab(obs["sample"], obs["scperformer_call"].astype(str))
    assert [row[0] for row in rows] == list(dict.fromkeys(obs["sample"]))
    assert set(title[2:]) == set(expected.columns)
    for row in rows:
        assert row[1:] == [
            str(expected.loc[row[0]].sum()),
            *map(str, expected.loc[row[0], title[2:]]),
        ]
    assert total == ["All samples", "120", *(str(expected[label].sum()) for label in title[2:])]


def test_confusion_matrix_and_confidence_are_those_of_the_files(page, obs):
    figure = page.figures["confusion-matrix"]
    expected = pd.crosstab(
        obs[TRUTH_KEY].astype(str), obs["scperformer_label"].astype(str), normalize="index"
    )
    true, predicted = (
        [html.unescape(text) for text in figure["layout"][axis]["ticktext"]]
        for axis in ("yaxis", "xaxis")
    )
    np.testing.assert_allclose(figure["data"][0]["z"], expected.loc[true, predicted], atol=1e-4)
    quartiles = obs.groupby(obs["scperformer_call"].astype(str))["scperformer_confidence"].quantile(
        [0.25, 0.5, 0.75]
    )
    for row in page.tables["confidence-table"][1:]:
        assert row[3:] == [f"{value:.2f}" for value in quartiles.loc[row[0]]]


def test_map_holds_every_cell(tmp_path):
    sample = annotated_sample(num_cells=40, min_confidence=0.4)
    sample.obsm["X_umap"] = np.random.default_rng(0).normal(size=(40, 2))
    path = write_sample(tmp_path, "s", sample)
    run_evaluate(
        EvaluateConfig(inputs=[path], truth_key=TRUTH_KEY, output=str(tmp_path / "evaluation"))
    )
    drawn = page_of(path, evaluation=str(tmp_path / "evaluation")).data["maps"][0]
    assert drawn["cells"] == list(sample.obs_names)
    np.testing.assert_allclose(
        np.array([drawn["x"], drawn["y"]]).T, sample.obsm["X_umap"], atol=1e-3
    )
    columns = {column["name"]: column for column in drawn["columns"]}

    def texts(name):
        values = [html.unescape(value["name"]) for value in columns[name]["values"]]
        return [values[code] for code in columns[name]["codes"]]

    assert texts("Call") == list(sample.obs["scperformer_call"])
    assert texts("Sample") == ["s"] * 40
    assert texts("True label") == list(sample.obs[TRUTH_KEY].astype(str))
    np.testing.assert_allclose(
        columns["Confidence"]["numbers"], sample.obs["scperformer_confidence"], atol=1e-3
    )


def test_the_map_has_levels_and_genes(tmp_path):
    paths = [
        write_sample(tmp_path, f"s{first}", annotated_sample(first, 40, min_confidence=0.4))
        for first in (0, 40)
    ]
    for path in paths:
        cells = ad.read_h5ad(path)
        cells.uns["scperformer"]["input"] |= {"source": "X", "kind": "log1p"}
        cells.X = np.random.default_rng(0).poisson(0.5, cells.shape).astype(np.float32)
        cells.obsm["scperformer_details"] = pd.DataFrame(
            {"level1": ["T"] * 40}, index=cells.obs_names
        )
        cells.write_h5ad(path)
    gene = str(cells.var_names[3])
    [drawn] = page_of(*paths, genes=[gene.lower()]).data["maps"]
    columns = {column["name"]: column for column in drawn["columns"]}
    assert [value["name"] for value in columns["Level 1"]["values"]] == ["T"]
    assert len(columns[gene.lower()]["numbers"]) == 80
    assert columns[gene.lower()]["highest"] >= max(columns[gene.lower()]["numbers"]) > 0
    with refusal("unknown-gene", "FOXP33"):
        page_of(*paths, genes=["FOXP33"])


def test_page_without_evaluation(plain):
    assert "14 cells in 1 sample were annotated" in plain.words
    assert "No cell is unknown." in plain.words
    assert "It says nothing about other cell types" in plain.words
    assert "Logistic regression, trained on the same reference, gives" in plain.words
    assert "Comparison with true labels" not in plain.words
    # a note about the input
    assert "X holds scaled values (negative), which cannot be used." in plain.words
    assert "No map: no raw in" in plain.words  # the recorded place of the expression
    assert plain.data["maps"] == []


def test_same_input_same_page(folder, text):
    inputs = [str(folder / f"{name}.annotated.h5ad") for name in ("a <b>1", '"x" onclick="y"')]
    samples = read_annotated(inputs, "scperformer", [])
    again = render(samples, [], read_evaluation(folder / "evaluation"))
    assert again.page == text
    assert again.summary.strip() in text  # the first screen, for notebooks


def test_evaluation_of_other_files_or_of_another_model_is_refused(folder, tmp_path):
    path = write_sample(tmp_path, "other", annotated_sample(num_cells=20))
    with refusal("other-samples"):
        run_report(ReportConfig(inputs=[path], evaluation=str(folder / "evaluation")))
    output = str(tmp_path / "evaluation")
    run_evaluate(EvaluateConfig(inputs=[path], truth_key=TRUTH_KEY, output=output))
    write_sample(tmp_path, "other", annotated_sample(num_cells=20, model_hash="f" * 64))
    with refusal("other-samples"):
        run_report(ReportConfig(inputs=[path], evaluation=output))
    assert not list(tmp_path.glob("*.html"))


def test_a_page_is_named_after_its_first_sample(tmp_path):
    paths = [
        write_sample(tmp_path, name, annotated_sample(num_cells=40)) for name in ("one", "two")
    ]
    pages = [run_report(ReportConfig(inputs=[path])).name for path in paths]
    assert pages == ["one.annotated.report.html", "two.annotated.report.html"]


def test_existing_page_is_refused_and_kept(folder, text):
    path = str(next(folder.glob("*.h5ad")))
    with refusal("output-exists"):
        run_report(ReportConfig(inputs=[path], output=str(folder / "page.html")))
    assert (folder / "page.html").read_text(encoding="utf-8") == text


def test_samples_are_grouped_by_the_sample_sheet(tmp_path):
    groups = {"s1": "b", "s2": "a", "s3": "b"}
    paths = []
    for place, (name, group) in enumerate(groups.items()):
        sample = annotated_sample(40 * place, 40)
        sample.obs["condition"] = pd.Categorical([group] * 40)
        sample.obs["id"] = pd.Categorical([name] * 40)
        sample.uns["scperformer"] |= {"sheet": np.array(["id", "condition"], dtype=object)}
        sample.uns["scperformer"] |= {"sheet_values": np.array([name, group], dtype=object)}
        sample.obsm["X_umap"] = np.zeros((40, 2))
        paths.append(write_sample(tmp_path, name, sample))
    page = page_of(*paths)
    assert [row[:2] for row in page.tables["composition-table"]][1:4] == [
        ["s2", "a"],
        ["s1", "b"],
        ["s3", "b"],
    ]
    assert page.tables["samples-table"][0][:3] == ["Sample", "condition", "id"]
    rows = page.figures["composition"]["data"][0]["y"]
    assert rows[1] - rows[0] > rows[2] - rows[1]  # a gap between groups
    assert page_of(*paths, group_key="id").tables["composition-table"][1][:2] == ["s1", "s1"]
    with refusal("no-column", "colour"):
        page_of(*paths, group_key="colour")


def test_the_tables_are_a_workbook(tmp_path):
    sample = annotated_sample(num_cells=40, rename={"Dendritic": "=1+1"})
    path = write_sample(tmp_path, "s", sample)
    run_report(ReportConfig(inputs=[path], output=str(tmp_path / "report.xlsx")))
    sheets = pd.read_excel(tmp_path / "report.xlsx", sheet_name=None)
    table = sheets["Confidence per call"]
    assert dict(zip(table["Call"], table["Cells"], strict=True)) == dict(
        sample.obs["scperformer_call"].value_counts()
    )
    assert "=1+1" in set(table["Call"])
    assert {"Status and scores", "Cells per sample and call"} <= set(sheets)


def test_numbers_of_the_first_screen_are_apart_in_a_notebook(tmp_path):
    path = write_sample(tmp_path, "s", annotated_sample(num_cells=40))
    summary = render(read_annotated([path], "scperformer")).summary
    text = re.sub(r"<[^>]+>", "", summary)  # without a style sheet, as in a notebook
    assert re.search(r"\d [\d.]+%", text)
    assert not re.search(r"[A-Za-z]\d+\d\.\d%", text)


@pytest.mark.parametrize(
    ("expected", "word", "grade"),
    [
        ((0.36, 0.36), "Poor: do not use these labels", "bad"),
        ((0.6, 0.95), "A rough guide", "fair"),
        ((0.85, 0.95), "Good", "good"),
        ((np.nan, np.nan), "Good, accuracy not known", "good"),
    ],
)
def test_a_word_says_what_the_expected_accuracy_means(tmp_path, expected, word, grade):
    sample = annotated_sample(num_cells=40)
    facts = {
        "kind": "like the reference",
        "expected_lowest": expected[0],
        "expected_highest": expected[1],
    }
    sample.uns["scperformer"]["shift"] = facts
    summary = render(read_annotated([write_sample(tmp_path, "s", sample)], "scperformer")).summary
    assert f'<li class="{grade}"><b class="word">{word}</b>' in summary
