"""Models of CellTypist: scores and labels are CellTypist's own, on all forms of its files and of cells."""

import pickle
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from support import celltypist
from support.refusal import refusal

import scperformer as scp
from scperformer.base.inputs import sha256
from scperformer.model.folder import read_model

EXACT = {"genes": "exact"}
TOLERANCE = 1e-9  # the product adds up the genes in another order than CellTypist's dense one


@pytest.fixture(scope="module")
def cells() -> ad.AnnData:
    return celltypist.pbmc3k()


@pytest.fixture(scope="module")
def parts(cells) -> celltypist.Parts:
    return celltypist.fit(cells)


def imported(content: bytes, tmp_path, **named):
    (tmp_path / "immune.pkl").write_bytes(content)
    return scp.import_model(tmp_path / "immune.pkl", overwrite=True, **named)


def annotated(cells: ad.AnnData, model, **options) -> ad.AnnData:
    return scp.annotate(cells.copy(), model.load(), options=EXACT | options)


def changed(parts, **changes) -> celltypist.Parts:
    """A copy with other attributes of the classifier or the scaler; None: without the attribute."""
    classifier, scaler, description = pickle.loads(pickle.dumps(parts))
    for name, value in changes.items():
        part = scaler if name in ("scale_", "mean_", "with_mean") else classifier
        if value is None:
            delattr(part, name)
        else:
            setattr(part, name, value(getattr(part, name)))
    return classifier, scaler, description


def first_two(array):
    return array[:2]


FORMS = {
    "multinomial": ({}, {}),
    "two labels": ({"labels": 2}, {}),
    "SGD": ({"kind": "sgd"}, {}),
    "SGD of two labels": ({"kind": "sgd", "labels": 2}, {}),
    "without mean": ({"with_mean": False}, {}),
    # as `Model.subset` leaves a model of two labels
    "two rows": ({}, {"classes_": first_two, "coef_": first_two, "intercept_": first_two}),
    "genes as a list": ({}, {"features": list}),
    "genes as an index of pandas": ({}, {"features": lambda names: pd.Index(names, dtype=object)}),
    "no intercept": ({}, {"intercept_": lambda _: np.array([0.0])}),
    "one intercept": ({}, {"intercept_": lambda _: np.float64(0.25)}),
    "big-endian coefficients by columns": (
        {},
        {"coef_": lambda array: np.asfortranarray(array.astype(">f4"))},
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_scores_and_labels_of_all_forms(form, cells, parts, tmp_path):
    options, changes = FORMS[form]
    parts = changed(celltypist.fit(cells, **options) if options else parts, **changes)
    expected = celltypist.scores(parts, cells)
    found = annotated(cells, imported(celltypist.pickled(parts), tmp_path))
    np.testing.assert_allclose(
        found.obsm["X_scperformer"], expected, rtol=TOLERANCE, atol=TOLERANCE
    )
    np.testing.assert_allclose(
        found.obsm["scperformer_own_proba"], expit(expected), rtol=0, atol=TOLERANCE
    )
    assert list(found.obsm["scperformer_own_proba"].columns) == list(expected.columns)
    assert (
        found.obs["scperformer_label"].tolist()
        == expected.columns[expected.to_numpy().argmax(axis=1)].tolist()
    )
    np.testing.assert_allclose(found.obsm["scperformer_proba"].sum(axis=1), 1, rtol=1e-6)


def test_genes_that_a_file_lacks_and_that_cells_do_not_express(cells, parts, tmp_path):
    """The first count as nothing, the second as -mean / scale; a repeated name is the first gene of it."""
    some = cells[:, ~cells.var_names.isin(parts[0].features[::3])].copy()
    repeated = ad.concat([some, some[:, :50]], axis=1, merge="first")
    repeated.obs = some.obs
    expected = celltypist.scores(parts, some)
    assert np.abs(expected - celltypist.scores(parts, cells)).to_numpy().max() > 0.1
    model = imported(celltypist.pickled(parts), tmp_path)
    for file in (some, repeated):
        found = annotated(file, model, input_total=1e4)
        np.testing.assert_allclose(
            found.obsm["X_scperformer"], expected, rtol=TOLERANCE, atol=TOLERANCE
        )


def test_written_files_hold_the_same(cells, parts, tmp_path):
    """h5ad and zarr, block by block, as in memory: scores in float64."""
    model = imported(celltypist.pickled(parts), tmp_path)
    cells = cells[:60].copy()
    expected = annotated(cells, model)
    part = annotated(cells[10:17].copy(), model)  # the other cells do not matter
    np.testing.assert_array_equal(part.obsm["X_scperformer"], expected.obsm["X_scperformer"][10:17])
    cells.write_h5ad(tmp_path / "sample.h5ad")
    for ending in ("h5ad", "zarr"):
        out = tmp_path / f"out.{ending}"
        scp.annotate(tmp_path / "sample.h5ad", model.path, output=out, options=EXACT)
        found = ad.read_h5ad(out) if ending == "h5ad" else ad.read_zarr(out)
        for name in ("X_scperformer", "scperformer_proba", "scperformer_own_proba"):
            np.testing.assert_array_equal(
                np.asarray(found.obsm[name]), np.asarray(expected.obsm[name])
            )
        assert found.obsm["X_scperformer"].dtype == np.float64


@pytest.fixture
def immune(cells, parts, tmp_path, command):
    """The imported model `immune`, and sample.h5ad annotated with it as out.h5ad; the log lines of both commands."""
    path = tmp_path / "Immune_All.pkl"
    path.write_bytes(celltypist.pickled(parts))
    cells.write_h5ad(tmp_path / "sample.h5ad")
    done = command("models", "import", path, "tissue=blood", "licence=CC BY 4.0", "name=immune")
    assert done.code == 0, done.err
    ran = command(
        "predict", tmp_path / "sample.h5ad", "model_path=immune", "output=out.h5ad", "alpha=0.1"
    )
    assert ran.code == 0, ran.err
    return done.err, ran.err


def test_a_model_says_where_it_is_from_and_what_it_cannot_do(immune, tmp_path, command, library):
    path = tmp_path / "Immune_All.pkl"
    saved = read_model(library / "immune")
    assert (saved.imported["sha256"], saved.imported["file"]) == (sha256(path), "Immune_All.pkl")
    assert saved.ontology_term_ids[
        saved.labels.index("B cell" if "B cell" in saved.labels else saved.labels[0])
    ]
    assert "without calibrated confidence, novelty" in immune[0]
    assert "was imported from CellTypist without: calibrated confidence" in immune[1]
    assert "import it with reference=FILE" in immune[1]
    shown = command("models", "show", "immune").out
    for text in (
        "A model of CellTypist",
        sha256(path),
        "It lacks: calibrated confidence",
        "CC BY 4.0",
        "v2",
    ):
        assert text in shown
    record = ad.read_h5ad("out.h5ad").uns["scperformer"]["model"]
    assert record["imported"]["sha256"] == sha256(path)
    assert "adapting to panels and depth" in list(record["lacks"])


@pytest.mark.slow
def test_every_step_takes_annotations_of_an_imported_model(immune, command):
    for words in (
        ("evaluate", "out.h5ad", "truth_key=cell_type", "output=evaluation"),
        ("report", "out.h5ad", "output=report.html", "evaluation=evaluation"),
        ("check", "sample.h5ad", "model_path=immune"),
        ("explain", "out.h5ad", "output=explanation"),
    ):
        ran = command(*words)
        assert ran.code == 0, ran.err
    page = Path("report.html").read_text()
    assert "was imported from CellTypist" in page
    assert "with logistic regression" not in page  # it has no baseline


def test_contributions_of_genes_add_up_to_the_scores(cells, parts, tmp_path):
    model = imported(celltypist.pickled(parts), tmp_path).load()
    found = scp.annotate(cells.copy(), model, options=EXACT)
    explained = scp.explain(found, model, num_cells=5).adata
    scores = celltypist.scores(parts, cells).loc[explained.obs_names]
    labels = explained.obs["scperformer_label"].astype(str)
    expected = [scores.loc[name, label] for name, label in labels.items()]
    total = np.asarray(explained.X.sum(axis=1)).ravel() + explained.obs["scperformer_bias"]
    np.testing.assert_allclose(total, expected, atol=1e-4)  # contributions are float32


def with_nan(array):
    array = array.astype(float)
    array.flat[3] = np.nan
    return array


def with_twice(names):
    return np.array([*names[:-1], names[0]], dtype=object)


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ({"coef_": None}, "without coef_"),
        ({"coef_": with_nan}, "coef_"),
        ({"coef_": lambda array: array[:, :-1]}, "9 labels and 400 genes"),
        ({"coef_": lambda array: array.astype(str)}, "coef_"),
        ({"features": with_twice}, "twice"),
        ({"scale_": lambda array: array * 0}, "scale"),
        ({"intercept_": lambda array: array[:-1]}, "8 intercepts"),
    ],
)
def test_damaged_models_are_refused(changes, value, parts, tmp_path, library):
    with refusal("foreign-model", value):
        imported(celltypist.pickled(changed(parts, **changes)), tmp_path)
    assert not library.exists()


def test_truncated_and_other_files_are_refused(parts, tmp_path, library):
    content = celltypist.pickled(parts)
    for part in (content[:20], content[: len(content) // 2], content[:-1]):
        with refusal("foreign-model"):
            imported(part, tmp_path)
    with refusal("foreign-model"):
        imported(pickle.dumps({"weights": [1, 2]}), tmp_path)
    with refusal("foreign-model"):
        imported(b"\x80\x09" + content[2:], tmp_path)
    assert not library.exists()


def test_files_on_the_command_line(parts, cells, tmp_path, command, library):
    """Several are imported at once, but not under one name; one in place of a model says how to import it."""
    low, high = (tmp_path / f"{name}.pkl" for name in ("low", "high"))
    for path in (low, high):
        path.write_bytes(celltypist.pickled(parts))
    ran = command("models", "import", low, high)
    assert ran.code == 0, ran.err
    assert {folder.name for folder in library.iterdir()} == {"low", "high"}
    assert command("models", "import", low, high, "name=x").code == 2
    cells.write_h5ad(tmp_path / "sample.h5ad")
    ran = command("predict", tmp_path / "sample.h5ad", f"model_path={low}")
    assert ran.code == 2
    assert f"'scperformer models import {low}'" in ran.err
