"""A reference of several studies: labels joined, a model of each, their probabilities joined, and what to expect."""

import json
import shutil
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from support.logs import said
from support.refusal import refusal
from support.words import as_options

import scperformer
from scperformer.adaptation.load import load_model
from scperformer.base.errors import InputError
from scperformer.model.content import INFO
from scperformer.model.folder import read_model

LABELS = ("B", "Naive CD4 T", "Memory CD4 T", "NK")
QUICK = ["experiment=linear", "data.min_genes=0", "data.min_cells=0", "logger=none"]


def made_cells(
    num_cells: int, seed: int, *, labels: tuple[str, ...] = LABELS, genes: range = range(300)
) -> ad.AnnData:
    """Poisson counts: each label has 40 of 300 genes of its own, and each study a factor for each gene."""
    rng = np.random.default_rng(seed)
    codes = np.array([LABELS.index(label) for label in labels])[np.arange(num_cells) % len(labels)]
    mean = np.full((num_cells, 300), 1.0)
    for label in range(4):
        mean[np.ix_(codes == label, range(40 * label, 40 * label + 40))] = 2.0
    mean *= np.exp(rng.normal(0, 0.3, 300))
    cells = ad.AnnData(
        sparse.csr_matrix(rng.poisson(mean), dtype=np.float32),
        obs=pd.DataFrame(
            {"cell_type": np.array(LABELS)[codes]}, index=[f"s{seed}c{i}" for i in range(num_cells)]
        ),
        var=pd.DataFrame(index=[f"GENE{i}" for i in range(300)]),
    )
    return cells[:, list(genes)].copy()


def with_coarse_labels(cells: ad.AnnData) -> ad.AnnData:
    cells.obs["cell_type"] = cells.obs["cell_type"].replace(
        {"Naive CD4 T": "CD4 T", "Memory CD4 T": "CD4 T"}
    )
    return cells


@pytest.fixture(scope="module")
def studies(tmp_path_factory) -> list[Path]:
    """All labels; without NK, other genes; coarse labels."""
    folder = tmp_path_factory.mktemp("studies")
    parts = {
        "first": made_cells(240, 1),
        "second": made_cells(240, 2, labels=LABELS[:3], genes=range(20, 300)),
        "third": with_coarse_labels(made_cells(240, 3, genes=range(280))),
    }
    for name, cells in parts.items():
        cells.write_h5ad(folder / f"{name}.h5ad")
    return [folder / f"{name}.h5ad" for name in parts]


@pytest.fixture(scope="module")
def folder(studies, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("model") / "joint"
    return scperformer.train(studies, "cell_type", output=output, options=as_options(QUICK)).path


def test_the_folder_has_a_model_of_each_study_and_what_to_expect(folder):
    saved = read_model(folder)
    assert saved.labels == sorted(LABELS)
    assert saved.genes == [f"GENE{i}" for i in range(300)]
    assert [study.name for study in saved.studies] == ["first.h5ad", "second.h5ad", "third.h5ad"]
    assert [len(study.saved.genes) for study in saved.studies] == [300, 280, 280]
    assert saved.tree is not None
    third = saved.studies[2]
    row = third.saved.labels.index("CD4 T")
    assert [saved.labels[place] for place in np.flatnonzero(third.meaning[row])] == [
        "Memory CD4 T",
        "Naive CD4 T",
    ]
    assert not saved.studies[1].meaning[:, saved.labels.index("NK")].any()
    assert len(saved.batch_scores.accuracy) == 3
    assert saved.metrics.out_of_fold.num_cells == 720
    assert 0.8 < saved.metrics.out_of_fold.accuracy <= 1
    card = (folder / "MODEL_CARD.md").read_text()
    assert "| second.h5ad | 240 | 280 | 3 |" in card
    assert "| NK | 120 | CL:0000623 | first.h5ad, third.h5ad |" in card
    assert load_model(folder / "study2").saved.labels == sorted(LABELS[:3])  # a model as any other


def test_cells_of_a_fourth_study_are_called_by_all(folder):
    cells = made_cells(400, 9)
    model = load_model(folder)
    assert len(model.members) == 3
    done = scperformer.annotate(cells.copy(), model, alpha=0.1)
    accuracy = (
        done.obs["scperformer_label"].astype(str) == done.obs["cell_type"].astype(str)
    ).mean()
    alone = []
    for number in (1, 2, 3):
        one = scperformer.annotate(cells.copy(), load_model(folder / f"study{number}"))
        alone.append(
            (one.obs["scperformer_label"].astype(str) == one.obs["cell_type"].astype(str)).mean()
        )
    assert accuracy > max(alone) - 0.02
    record = done.uns["scperformer"]
    table = record["coverage"]["studies"]
    assert table["name"].tolist() == ["first.h5ad", "second.h5ad", "third.h5ad"]
    assert table["weight"] == pytest.approx([1 / 3] * 3)
    lowest, highest = (record["shift"][f"expected_{end}"] for end in ("lowest", "highest"))
    assert lowest - 0.05 < accuracy < highest + 0.05
    assert (done.obs["scperformer_call"] == "unknown").mean() < 0.15
    np.testing.assert_allclose(done.obsm["scperformer_proba"].sum(axis=1), 1, atol=1e-5)
    assert done.obsm["X_scperformer"].shape == (400, 4 + 3 + 3)
    assert "scperformer_baseline_label" not in done.obs


def test_calls_do_not_depend_on_the_other_cells(folder):
    cells = made_cells(60, 9)
    options = {"shift": "false", "adapt": "false"}
    whole = scperformer.annotate(cells.copy(), load_model(folder), options=options).obsm[
        "scperformer_proba"
    ]
    some = scperformer.annotate(cells[[3, 40]].copy(), load_model(folder), options=options).obsm[
        "scperformer_proba"
    ]
    np.testing.assert_array_equal(some.to_numpy(), whole.to_numpy()[[3, 40]])


def test_the_model_travels_in_an_archive(folder, tmp_path, monkeypatch, command):
    monkeypatch.setenv("SCPERFORMER_MODELS", str(tmp_path / "library"))
    shutil.make_archive("joint", "zip", folder.parent, folder.name)
    assert command("models", "import", "joint.zip").code == 0
    imported = tmp_path / "library" / "joint"
    assert read_model(imported).hash == read_model(folder).hash
    made_cells(40, 4).write_h5ad("q.h5ad")
    assert command("predict", "q.h5ad", "model_path=joint").code == 0
    assert command("predict", "q.h5ad", f"model_path={folder}", "output=own.h5ad").code == 0
    same = [
        ad.read_h5ad(name).obsm["scperformer_proba"] for name in ("q.annotated.h5ad", "own.h5ad")
    ]
    pd.testing.assert_frame_equal(*same)
    for words in (("explain", "own.h5ad"), ("adapt", folder, "q.h5ad", "output=adapted")):
        refused = command(*words)
        assert refused.code == 2
        assert "study1" in refused.err


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda info: info["files"].pop("study2/bundle.json"), "without the checksum of study2"),
        (lambda info: info["studies"][0]["meaning"].__setitem__(0, [99]), "stand for no label"),
        (lambda info: info["files"].update({"../study1/bundle.json": "0"}), "missing or changed"),
    ],
    ids=["checksum", "beyond", "outside"],
)
def test_a_damaged_folder_is_refused(change, match, folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    info = json.loads((copy / INFO).read_text())
    change(info)
    (copy / INFO).write_text(json.dumps(info))
    with pytest.raises(InputError, match=match):
        read_model(copy)


def test_the_batches_of_one_file_can_be_studies(studies, tmp_path):
    cells = ad.concat(
        {path.stem: ad.read_h5ad(path) for path in studies[:2]}, label="study", join="inner"
    )
    options = as_options([*QUICK, "studies=true"])
    made = scperformer.train(
        cells, "cell_type", output=tmp_path / "m", batch_key="study", options=options
    )
    assert [study.name for study in made.load().saved.studies] == ["first", "second"]
    with refusal("studies-one-file"):
        scperformer.train(cells, "cell_type", output=tmp_path / "n", options=options)


def renamed(cells: ad.AnnData, seed: int) -> ad.AnnData:
    """The same cells under other names, genes and cells in another order."""
    rng = np.random.default_rng(seed)
    cells = cells[rng.permutation(cells.n_obs), rng.permutation(cells.n_vars)].copy()
    cells.obs_names = [f"other{i}" for i in range(cells.n_obs)]
    return cells


def test_a_study_whose_cells_are_all_in_another_one_is_refused(studies, refused, tmp_path):
    """Half of its cells, normalised."""
    copy = renamed(made_cells(240, 1)[:120], 0)
    copy.X = sparse.csr_matrix(
        np.log1p(copy.X.toarray() / np.asarray(copy.X.sum(axis=1)) * 1e4), dtype=np.float32
    )
    copy.write_h5ad(tmp_path / "copy.h5ad")
    error = refused(
        "train", str(studies[0]), str(tmp_path / "copy.h5ad"), "label_key=cell_type", *QUICK
    )
    assert "(50 %) are also in copy.h5ad, such as 's1c" in error
    assert "', there 'other" in error
    assert "alone: leave one of the two files out" in error


def test_the_same_file_twice_is_refused_before_it_is_read(studies, command, monkeypatch):
    monkeypatch.chdir(studies[0].parent)
    done = command(
        "train", "first.h5ad", f"{studies[0].parent}/./first.h5ad", "label_key=cell_type", *QUICK
    )
    assert done.code == 2
    assert "first.h5ad); expected each file once" in done.err
    assert "read " not in done.err


def test_cells_in_two_studies_do_not_count_as_evidence(studies, tmp_path, caplog):
    """And `predict` and `check` say that a file has cells of the reference, and how many."""
    shared = renamed(made_cells(240, 1)[:60], 0)
    ad.concat([shared, made_cells(180, 5)]).write_h5ad(tmp_path / "with_shared.h5ad")
    output = tmp_path / "m"
    files = [studies[0], tmp_path / "with_shared.h5ad"]
    path = scperformer.train(files, "cell_type", output=output, options=as_options(QUICK)).path
    assert said(caplog, "_repeats", 60, "first.h5ad", "25 %", "with_shared.h5ad", "'s1c0'")
    assert read_model(path).metrics.out_of_fold.num_cells == 180 + 180
    cells = ad.concat([renamed(made_cells(240, 1), 1)[:100], made_cells(100, 9)])
    done = scperformer.annotate(cells, load_model(path))
    assert done.uns["scperformer"]["repeats"] == {"num_seen": 200, "num_cells": 100}
    assert said(
        caplog, "annotation_of", 100, 200, "50 %", done.uns["scperformer"]["remarks"]["value"][0]
    )


@pytest.mark.parametrize("mapped", [False, True])
def test_spellings_within_a_study_are_joined_unless_the_map_says_what_they_are(
    mapped, studies, tmp_path
):
    cells = ad.read_h5ad(studies[1])
    labels = cells.obs["cell_type"].astype(str)
    cells.obs["cell_type"] = labels.mask(
        (labels == "B") & (np.arange(len(labels)) % 2 == 0), "B cells"
    )
    cells.write_h5ad(tmp_path / "spelled.h5ad")
    (tmp_path / "map.csv").write_text("B cells,NK\n")
    options = as_options(QUICK) | ({"label_map": str(tmp_path / "map.csv")} if mapped else {})
    files = [studies[0], tmp_path / "spelled.h5ad"]
    saved = read_model(
        scperformer.train(files, "cell_type", output=tmp_path / "m", options=options).path
    )
    spelled = saved.studies[1]
    assert ("B cells" in spelled.saved.labels) == mapped
    assert spelled.meaning[:, saved.labels.index("NK")].any() == mapped


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["label_map=other.csv"], "label 'nobody' in other.csv"),
        (["init=somewhere"], "init with several studies"),
        (["batch_key=none"], "no column 'none' in obs"),
    ],
)
def test_what_cannot_be_joined_is_refused_before_anything_is_trained(
    words, match, studies, refused, tmp_path
):
    (tmp_path / "other.csv").write_text("nobody,B\n")
    assert match in refused(
        "train", *studies[:2], "label_key=cell_type", "output=m", *QUICK, *words
    )
