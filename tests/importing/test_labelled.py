"""Labelled cells beside an imported model: its evidence, and its adaptation to panels."""

import numpy as np
import pytest
from scipy.special import expit
from support import celltypist
from support.logs import said
from support.refusal import refusal

import scperformer as scp
from scperformer.adaptation.imported import KEPT_SCORES
from scperformer.model.folder import load_reference_cells


@pytest.fixture(scope="module")
def halves():
    """Log-normalised cells that a model is fitted to, and the counts of labelled cells and of a sample."""
    counts = celltypist.pbmc3k(log=False)
    order = np.random.default_rng(0).permutation(counts.n_obs)
    train = celltypist.pbmc3k()[order[:120]].copy()
    rest = counts[order[120:]]
    rest = rest[rest.obs["cell_type"].isin(train.obs["cell_type"].unique())]
    sample = celltypist.pbmc3k(log=False, first=1)
    return (
        celltypist.fit(train),
        rest[:150].copy(),
        sample[sample.obs["cell_type"].isin(rest.obs["cell_type"])].copy(),
    )


@pytest.fixture
def model(halves, tmp_path):
    parts, labelled, _ = halves
    (tmp_path / "immune.pkl").write_bytes(celltypist.pickled(parts))
    labelled.write_h5ad(tmp_path / "labelled.h5ad")
    named = {"reference": tmp_path / "labelled.h5ad", "label_key": "cell_type"}
    return scp.import_model(tmp_path / "immune.pkl", **named)


def test_evidence_is_that_of_the_scores(halves, model):
    """Accuracy and calibration are of the model's own scores on cells that it has not seen."""
    _, labelled, _ = halves
    loaded = model.load()
    saved = loaded.saved
    assert saved.lacks == []
    kept = load_reference_cells(saved, model.path)
    assert kept.are_counts
    assert kept.values.sum() == labelled[:, saved.genes].X.sum()
    found = scp.annotate(labelled.copy(), loaded, options={"adapt": "false", "shift": "false"})
    truth = labelled.obs["cell_type"].astype(str).to_numpy()
    accuracy = (found.obs["scperformer_label"].astype(str) == truth).mean()
    assert saved.metrics.out_of_fold.accuracy == pytest.approx(accuracy)
    assert saved.metrics.calibration.num_cells == 150
    scores = np.asarray(found.obsm["X_scperformer"])
    np.testing.assert_allclose(
        np.sort(saved.weights[KEPT_SCORES], axis=0), np.sort(scores, axis=0), rtol=1e-4
    )
    # The scale has the lowest loss of these cells, up to its prior of one cell.
    place = {label: code for code, label in enumerate(saved.labels)}
    codes = np.array([place[label] for label in truth])

    def loss(scale: float) -> float:
        logits = scale * scores
        return float(
            (np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(codes)), codes]).mean()
        )

    scale = saved.config.network["scale"]
    assert loss(scale) < min(loss(0.7 * scale), loss(1.4 * scale))
    # Each label's own probability stays CellTypist's.
    np.testing.assert_allclose(found.obsm["scperformer_own_proba"], expit(scores), atol=1e-12)


def test_a_model_with_labelled_cells_flags_strangers_and_gives_sets(halves, model):
    _, _, sample = halves
    strange = sample.copy()
    shuffled = np.random.default_rng(1).permutation(sample.n_vars)
    strange.X = strange.X[:, shuffled]
    options = {"adapt": "false", "shift": "false"}
    annotated = scp.annotate(sample.copy(), model.path, alpha=0.2, options=options)
    usual = annotated.obs
    other = scp.annotate(strange, model.path, options=options).obs
    assert (usual["scperformer_call"] == "unknown").mean() < 0.3
    assert (other["scperformer_call"] == "unknown").mean() > 0.9
    truth = sample.obs["cell_type"].astype(str)
    covered = [
        label in names.split("|")
        for label, names in zip(truth, usual["scperformer_set"], strict=True)
    ]
    assert np.mean(covered) > 0.65


def test_a_model_with_labelled_cells_adapts_to_a_panel(halves, model):
    """Its scores of the panel's genes become like those of all genes, much more than if genes are left out."""
    parts, _, sample = halves
    loaded = model.load()
    whole = scp.annotate(sample.copy(), loaded, options={"adapt": "false"})
    panel = sample[:, list(parts[0].features[::4])].copy()
    adapted = scp.annotate(panel.copy(), loaded)
    plain = scp.annotate(panel.copy(), loaded, options={"adapt": "false"})
    record = adapted.uns["scperformer"]["coverage"]
    assert record["adapted"]
    assert 0.3 < record["expected_accuracy"] < 1

    def error(found) -> float:
        return float(np.mean((found.obsm["X_scperformer"] - whole.obsm["X_scperformer"]) ** 2))

    assert error(adapted) < 0.5 * error(plain)
    accuracy = (
        adapted.obs["scperformer_label"].astype(str) == sample.obs["cell_type"].astype(str)
    ).mean()
    assert accuracy == pytest.approx(record["expected_accuracy"], abs=0.15)
    explained = scp.explain(adapted, loaded, num_cells=3).adata
    assert explained.n_vars == panel.n_vars


def test_labels_of_some_types_alone(halves, tmp_path, caplog):
    """The others stay labels of the model, also when it adapts."""
    parts, labelled, sample = halves
    some = labelled[labelled.obs["cell_type"].isin(["B", "CD14+ Mono", "NK"])].copy()
    some.obs["names"] = (
        some.obs["cell_type"].astype(str).replace({"B": "B cell", "NK": "natural killer cell"})
    )
    some.obs.loc[some.obs_names[:3], "names"] = "stranger"
    some.write_h5ad(tmp_path / "some.h5ad")
    (tmp_path / "immune.pkl").write_bytes(celltypist.pickled(parts))
    with caplog.at_level("INFO", "scperformer"):
        named = {"reference": tmp_path / "some.h5ad", "label_key": "names"}
        made = scp.import_model(tmp_path / "immune.pkl", name="some", **named)
    assert said(caplog, "_codes", 3, "stranger")
    assert said(caplog, "with_labelled_cells", 5, 8)
    panel = sample[:, list(parts[0].features[::2])].copy()
    found = scp.annotate(panel, made.path, options={"unknown_fpr": 0.0})
    assert found.uns["scperformer"]["coverage"]["adapted"]
    labels = set(found.obs["scperformer_label"])
    assert len(labels - {"B", "CD14+ Mono", "NK"}) >= 2


def test_cells_without_labels_of_the_model_are_refused(halves, tmp_path):
    parts, labelled, _ = halves
    cells = labelled.copy()
    cells.obs["cell_type"] = "nonsense"
    cells.write_h5ad(tmp_path / "labelled.h5ad")
    (tmp_path / "immune.pkl").write_bytes(celltypist.pickled(parts))
    with refusal("few-cells"):
        scp.import_model(
            tmp_path / "immune.pkl", reference=tmp_path / "labelled.h5ad", label_key="cell_type"
        )
    assert not (tmp_path / "models").exists()
