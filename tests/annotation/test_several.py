"""Several models on the same cells: each annotation is as if its model were alone, and their agreement is recorded."""

import json
import re
import shutil
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest

import scperformer as scp
from scperformer.annotation.columns import OBS_COLUMNS
from scperformer.base.errors import InputError
from scperformer.model.folder import read_model


@pytest.fixture
def models(tiny_model, tmp_path, monkeypatch) -> list[str]:
    """Two models of the library: another one, with other names for two of its labels, and the tiny one."""
    monkeypatch.setenv("SCPERFORMER_MODELS", str(tmp_path / "models"))
    for name in ("one", "two"):
        scp.import_model(tiny_model, name=name)
    info = tmp_path / "models" / "two" / "bundle.json"
    content = json.loads(info.read_text())
    content["labels"] = ["B cell", "CD14 monocyte", "lymphocyte of T"]
    content["ontology_term_ids"] = ["unknown", "CL:0000576", "unknown"]
    info.write_text(json.dumps(content))
    first = tmp_path / "models" / "one" / "bundle.json"
    content = json.loads(first.read_text())
    content["ontology_term_ids"] = ["unknown", "CL:0000576", "unknown"]
    first.write_text(json.dumps(content))
    return ["one", "two"]


def test_each_annotation_is_as_if_its_model_were_alone(models, counts_adata, write, command):
    path = write(counts_adata)
    ran = command("predict", path, "model_path=[one,two]", "output=both.h5ad")
    assert ran.code == 0, ran.err
    both = ad.read_h5ad("both.h5ad")
    for name, key in (("one", "scperformer"), ("two", "scperformer_two")):
        alone = ad.read_h5ad(scp.annotate(path, name, output=f"{name}.h5ad"))
        columns = [f"scperformer_{column}" for column in OBS_COLUMNS if f"scperformer_{column}" in alone.obs]
        found = both.obs[[column.replace("scperformer", key) for column in columns]].set_axis(columns, axis=1)
        pd.testing.assert_frame_equal(found, alone.obs[columns])
        np.testing.assert_array_equal(both.obsm[f"X_{key}"], alone.obsm["X_scperformer"])
        pd.testing.assert_frame_equal(both.obsm[f"{key}_proba"], alone.obsm["scperformer_proba"])
        for fact in ("file", "sha256", "kind"):
            assert both.uns[key]["input"][fact] == alone.uns["scperformer"]["input"][fact]
    assert not list(Path(".").glob(".scperformer-*"))


def test_labels_agree_by_name_or_by_ontology_id(models, counts_adata, command):
    scp.annotate(counts_adata, models)
    obs = counts_adata.obs
    first = obs["scperformer_label"].astype(str)
    second = obs["scperformer_two_label"].astype(str)
    expected = [
        one == other or (one, other) == ("Monocyte", "CD14 monocyte") for one, other in zip(first, second, strict=True)
    ]
    assert 0 < np.mean(expected) < 1
    np.testing.assert_array_equal(obs["scperformer_agreement"], np.array(expected, dtype=np.float32))
    record = counts_adata.uns["scperformer"]["models"]
    np.testing.assert_allclose(record["agreement"], [[1, np.mean(expected)], [np.mean(expected), 1]])
    assert list(record["keys"]) == ["scperformer", "scperformer_two"]


def test_the_report_shows_the_agreement(models, counts_adata, write, command):
    out = scp.annotate(write(counts_adata), models, output="both.h5ad")
    page = Path(scp.report(out, output="report.html")).read_text()
    assert "Several models on the same cells" in page
    assert "Same as two" in page
    ran = command("report", out, "key_added=scperformer_two", "output=second.html")
    assert ran.code == 0, ran.err


def test_what_cannot_be_done_with_several_models(models, counts_adata, write, command, tiny_model, tmp_path):
    path = write(counts_adata)
    for words, message in (
        (("model_path=[one,one]",), "two models of the name 'one'"),
        (("model_path=[one,two]", "output=x.csv"), "a name in .h5ad"),
        (("model_path=[one,three]",), "no folder at 'three'"),
    ):
        ran = command("predict", path, *words)
        assert ran.code == 2
        assert message in ran.err
    scp.annotate(path, models, output=tmp_path / "both.h5ad")
    with pytest.raises(InputError, match="already has obs"):
        scp.annotate(tmp_path / "both.h5ad", models, output=tmp_path / "again.h5ad")
    again = scp.annotate(tmp_path / "both.h5ad", models, output=tmp_path / "again.h5ad", replace_annotation=True)
    assert list(ad.read_h5ad(again).obs) == list(ad.read_h5ad(tmp_path / "both.h5ad").obs)


def test_an_output_in_a_new_folder_and_a_run_that_goes_on(models, counts_adata, write, command, tmp_path):
    words = ("predict", write(counts_adata), "model_path=[one,two]", "output=new/folder/out.h5ad")
    assert command(*words).code == 0
    assert [entry.name for entry in (tmp_path / "new" / "folder").iterdir()] == ["out.h5ad"]
    done = command(*words, "resume=true")
    assert done.code == 0
    assert "1 of 1 files are finished and stay as they are: new/folder/out.h5ad" in done.err
    for other, why in (("model_path=two", "no record|models"), ("model_path=[two,one]", "no record")):
        refused = command("predict", write(counts_adata), other, "output=new/folder/out.h5ad", "resume=true")
        assert refused.code == 2
        assert re.search(rf"new/folder/out.h5ad is of another run \(.*({why})", refused.err)
    missing = command("predict", "none.h5ad", "model_path=[one,two]", "output=other/out.h5ad")
    assert missing.code == 2
    assert not (tmp_path / "other").exists()


def test_models_of_the_package_are_found_by_their_name(tmp_path, monkeypatch):
    monkeypatch.setenv("SCPERFORMER_MODELS", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    model = scp.load_model("pbmc3k")
    assert model.saved.hash == scp.load_model().saved.hash
    shutil.copytree(model.path, "pbmc3k")
    assert read_model(scp.load_model("pbmc3k").path).hash == model.saved.hash
