"""Labels, names of cells and of files that mean harm: a right, escaped output, or one clear line."""

import os
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest

from scperformer.results.evaluate import read_evaluation


@pytest.mark.slow
def test_hostile_names_from_training_to_prediction(counts_adata, write, command):
    labels = np.array(["=1+1", "<script>alert(1)</script>", "../../x"])[np.arange(120) % 3]
    counts_adata.obs["cell_type"] = labels
    counts_adata.obs["=cmd"] = "<b>"
    counts_adata.obs_names = [
        "=HYPERLINK(1)",
        "<img src=x>",
        "../../etc",
        *counts_adata.obs_names[3:],
    ]
    counts_adata.var_names = ["=1+1", "<b>", "../x", *counts_adata.var_names[3:]]
    path = write(counts_adata)
    options = (
        "label_key=cell_type",
        "model=tiny",
        "trainer.max_epochs=1",
        "logger=none",
        "output=hostile",
    )
    assert command("train", path, *options).code == 0
    assert command("predict", path, "model_path=hostile", "output=out.h5ad").code == 0
    found = ad.read_h5ad("out.h5ad")
    assert list(found.obs["scperformer_label"].cat.categories) == sorted(set(labels))
    assert list(found.obs_names) == list(counts_adata.obs_names)
    assert command("predict", path, "model_path=hostile", "output=out.csv").code == 0
    table = pd.read_csv("out.csv")
    assert set(table["scperformer_label"]) <= {"'=1+1", "<script>alert(1)</script>", "../../x"}
    assert table["cell"][0] == "'=HYPERLINK(1)"
    assert command("evaluate", "out.h5ad", "truth_key=cell_type", "output=scores").code == 0
    assert command("predict", path, "model_path=hostile", "output=out.xlsx").code == 0
    assert list(pd.read_excel("out.xlsx")["cell"]) == list(counts_adata.obs_names)
    for name in ("per_class.csv", "confusion.csv"):
        text = Path("scores", name).read_text()
        assert "'=1+1" in text
        assert not [
            line for line in text.splitlines() if line.startswith(("=", "+", "@")) or ",=" in line
        ]
    evaluation = read_evaluation("scores")
    assert (
        list(evaluation.per_class["label"])
        == list(evaluation.confusion.index)
        == sorted(set(labels))
    )
    ran = command("report", "out.h5ad", "evaluation=scores", "output=page.html")
    assert ran.code == 0, ran.err
    page = Path("page.html").read_text()
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert sorted(path.name for path in Path("..").iterdir() if path.name in ("x", "etc")) == []


@pytest.mark.parametrize("label", ["a\nb", "x" * 10_000])
def test_labels_that_no_line_can_hold_are_refused_before_training(
    label, counts_adata, write, command
):
    counts_adata.obs["cell_type"] = np.array([label, "B", "C"])[np.arange(120) % 3]
    ran = command("train", write(counts_adata), "label_key=cell_type", "model=tiny", "output=m")
    assert ran.code == 2
    (line,) = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert "labels that are a short line of text" in line
    assert line.isprintable()
    assert not Path("m").exists()


BYTES = os.fsdecode(b"s\xff\xe9")  # of a name in Latin-1, as old disks have them


@pytest.mark.parametrize(
    "words",
    [["report", f"{BYTES}.h5ad"], ["preprocess", "ok.h5ad", f"output={BYTES}.h5ad"]],
    ids=" ".join,
)
def test_names_that_are_not_utf8_are_one_line(words, command, counts_adata, write, tmp_path):
    os.rename(write(counts_adata, "ok.h5ad"), tmp_path / f"{BYTES}.h5ad")
    write(counts_adata, "ok.h5ad")
    ran = command(*words)
    assert ran.code == 2
    assert "a name that is not UTF-8" in ran.err + ran.out
    assert "Traceback" not in ran.err
    assert len(list(tmp_path.iterdir())) == 2
