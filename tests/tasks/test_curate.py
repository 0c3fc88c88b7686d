"""From a table of clusters to a model of a person's labels: files, refusals, training, the next sample, the report."""

import io
import json
import zipfile

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from support.refusal import refusal

import scperformer as scp
from scperformer.io.excel import MAX_BYTES


@pytest.fixture
def annotated(counts_adata, tiny_model, write, tmp_path):
    """An annotated file with three clusters, and the table of them."""
    counts_adata.obs["group"] = counts_adata.obs["cell_type"].map(
        {"B cell": "0", "T cell": "1", "Monocyte": "2"}
    )
    del counts_adata.obs["cell_type"]
    options = {"markers_output": str(tmp_path / "clusters.tsv")}
    return scp.annotate(write(counts_adata), tiny_model, clusters="group", options=options)


def table(path, sep="\t", **names):
    """The text of the table of clusters with names."""
    read = pd.read_csv(path, sep="\t", dtype=str, keep_default_na=False)
    return read.assign(name=read["cluster"].map(names).fillna("")).to_csv(sep=sep, index=False)


def test_the_file_is_the_same_but_for_the_names(command, annotated, tmp_path):
    (tmp_path / "named.csv").write_text(
        table(tmp_path / "clusters.tsv", ",", **{"0": "plasmablast", "1": "doublets"})
    )
    ran = command("curate", "sample.annotated.h5ad", "names=named.csv", "by=Ada")
    assert "2 clusters named by Ada: " in ran.err
    before, after = (
        ad.read_h5ad(tmp_path / f"sample.{kind}.h5ad") for kind in ("annotated", "curated")
    )
    added = [name for name in after.obs if name not in before.obs]
    assert added == [
        f"scperformer_{name}" for name in ("curated", "curated_ontology_term_id", "named")
    ]
    pd.testing.assert_frame_equal(after.obs.drop(columns=added), before.obs)
    assert (after.X != before.X).nnz == 0
    made = after.uns["scperformer"].pop("curated")
    assert json.dumps(after.uns, default=repr) == json.dumps(before.uns, default=repr)
    assert (made["by"], sum(made["num_cells"])) == ("Ada", 80)
    in_memory = scp.curate(before, {"0": "plasmablast", 1: "doublet", "2": None}, by="Ada")
    assert in_memory is before
    pd.testing.assert_frame_equal(before.obs, after.obs)
    scp.curate(before, {})  # undone
    assert (
        before.obs["scperformer_curated"].astype(str) == before.obs["scperformer_call"].astype(str)
    ).all()
    assert not before.obs["scperformer_named"].any()


def test_every_output_and_every_table(command, annotated, tmp_path):
    pytest.importorskip("openpyxl")
    text = table(tmp_path / "clusters.tsv", **{"2": "x"})
    pd.read_csv(io.StringIO(text), sep="\t", dtype={"name": str}).to_excel(
        tmp_path / "named.xlsx", index=False
    )
    labels = []
    for name in ("c.csv", "c.tsv.gz", "c.xlsx"):
        assert (
            command("curate", "sample.annotated.h5ad", "names=named.xlsx", f"output={name}").code
            == 0
        )
        read = pd.read_excel if name == "c.xlsx" else pd.read_csv
        labels.append(
            read(tmp_path / name, **({"sep": "\t"} if ".tsv" in name else {})).set_index("cell")
        )
    assert all(
        set(each["scperformer_curated"][each["scperformer_cluster"] == 2]) == {"x"}
        for each in labels
    )
    assert command("curate", "sample.annotated.h5ad", "names=named.xlsx", "output=c.rds").code == 0
    curated = scp.curate(annotated, tmp_path / "named.xlsx")
    assert curated == tmp_path / "sample.curated.h5ad"
    again = scp.curate(curated, {}, overwrite=True)  # in place of itself
    obs = ad.read_h5ad(again, backed="r").obs
    assert (obs["scperformer_curated"].astype(str) == obs["scperformer_call"].astype(str)).all()


def test_what_cannot_be_curated_is_refused(refused, annotated, counts_adata, write, tmp_path):
    whole = table(tmp_path / "clusters.tsv", **{"0": "x"})
    lines = whole.splitlines()
    bad = {
        "unknown": (whole + "9\t1\t\t1\t\t\ty\n", "cluster '9'"),
        "column": ("cluster\tcells\n0\t1\n", "no column 'name'"),
        "case": ("cluster\tName\n0\tx\n", "'name', in lower case"),
        "twice": ("\n".join([*lines, lines[1]]), "two rows of cluster"),
        "null": (whole + "\0", "null characters"),
        "wide": (whole + "1\t" * 20 + "\n", "beyond the last column"),
        "field": ("cluster,name\n0," + "x" * 200_000, "not a table"),
        "large": ("x" * (MAX_BYTES + 1), f"{MAX_BYTES:,} bytes"),
        "cells": (
            table(tmp_path / "clusters.tsv").replace("\t\n", "\t\x07\n", 1),
            "control character",
        ),
    }
    for name, (text, _) in bad.items():
        (tmp_path / f"{name}.tsv").write_text(text)
    write(counts_adata, "plain.h5ad")
    for name, (_, found) in bad.items():
        assert found in refused("curate", annotated, f"names={name}.tsv"), name
    assert "no table none.tsv" in refused("curate", annotated, "names=none.tsv")
    assert "file of cells" in refused("curate", annotated, "names=plain.h5ad")
    assert "scperformer predict plain.h5ad" in refused("curate", "plain.h5ad", "names=clusters.tsv")
    assert "ends in .h5ad" in refused("curate", annotated, "names=clusters.tsv", "output=x.zarr")
    assert "exists" in refused("curate", annotated, "names=clusters.tsv", "output=clusters.tsv")
    assert "names" in refused("curate", annotated)


def workbook(path, sheet: bytes, name: str = "xl/worksheets/sheet1.xml") -> None:
    import openpyxl

    whole = io.BytesIO()
    openpyxl.Workbook().save(whole)
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for part in old.namelist():
            new.writestr(part, sheet if part == name else old.read(part))


ENTITIES = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">' + b"".join(
    b'<!ENTITY %c "%s">' % (code + 1, b"&%c;" % code * 10) for code in range(97, 106)
)


@pytest.mark.parametrize(
    "content", [b"", b"<x", ENTITIES + b"]><x>&j;</x>", b" " * (MAX_BYTES + 1)]
)
def test_a_hostile_workbook_is_refused(refused, annotated, tmp_path, content):
    pytest.importorskip("openpyxl")
    workbook(tmp_path / "names.xlsx", content)
    assert "names.xlsx" in refused("curate", annotated, "names=names.xlsx")
    workbook(tmp_path / "names.xlsx", content, "xl/workbook.xml")
    assert "names.xlsx" in refused("curate", annotated, "names=names.xlsx")


def test_cells_without_an_annotation_are_refused(counts_adata):
    with refusal("not-annotated", "scperformer.annotate"):
        scp.curate(counts_adata, {"0": "x"})


@pytest.fixture
def trained(annotated, tmp_path):
    """A model of the names, and the log of its training."""
    curated = scp.curate(annotated, {"0": "plasmablast", "1": "low quality"}, by="Ada")
    return scp.train(
        curated, output=tmp_path / "mine", options={"experiment": "linear", "logger": "none"}
    )


def test_a_model_knows_which_labels_a_person_gave(
    trained, command, caplog, write, counts_adata, tmp_path
):
    made = json.loads((tmp_path / "mine" / "bundle.json").read_text())
    assert made["provenance"]["label_key"] == "scperformer_curated"
    assert made["provenance"]["named"] == ["plasmablast"]
    assert made["provenance"]["called"] is True
    calls = ad.read_h5ad(tmp_path / "sample.curated.h5ad").obs
    own = calls["scperformer_curated"][~calls["scperformer_named"]].astype(str).value_counts()
    lines = [entry.getMessage() for entry in caplog.get_records("setup")]
    [warned] = [line for line in lines if "no independent evidence" in line]
    assert all(f"'{label}' ({num})" in warned for label, num in own.items() if label != "unknown")
    assert sum(made["provenance"]["cells_per_label"].values()) == 80 - own.get("unknown", 0)
    assert "plasmablast" in (tmp_path / "mine" / "MODEL_CARD.md").read_text()
    ran = command("predict", write(counts_adata, "next.h5ad"), "model_path=mine")
    assert "; labels by a person: plasmablast" in ran.err.splitlines()[1]


def test_labels_that_are_all_a_persons_are_evidence(annotated, tmp_path, caplog):
    cells = scp.curate(ad.read_h5ad(annotated), {"0": "a", "1": "b", "2": "c"})
    scp.train(cells, output=tmp_path / "mine", options={"experiment": "linear", "logger": "none"})
    made = json.loads((tmp_path / "mine" / "bundle.json").read_text())["provenance"]
    assert made["named"] == ["a", "b", "c"]
    assert "called" not in made
    assert not any("no independent evidence" in line for line in caplog.messages)


def test_a_report_shows_the_change(command, annotated, tmp_path):
    scp.curate(annotated, {"0": "<b>mine</b>"}, by="Ada <i>")
    assert command("report", "sample.curated.h5ad").code == 0
    page = (tmp_path / "sample.curated.report.html").read_text()
    assert "Clusters named by a person" in page
    assert "&lt;b&gt;mine&lt;/b&gt;" in page
    assert "<b>mine" not in page
    assert '"name":"Curated"' in page
    assert command("report", "sample.annotated.h5ad").code == 0
    assert "Clusters named" not in (tmp_path / "sample.annotated.report.html").read_text()


def test_a_new_annotation_has_no_names(command, annotated, tiny_model, tmp_path):
    curated = scp.curate(annotated, {"0": "mine"})
    assert (
        command(
            "predict", curated, f"model_path={tiny_model}", "overwrite=true", "output=n.h5ad"
        ).code
        == 0
    )
    new = ad.read_h5ad(tmp_path / "n.h5ad")
    assert not [name for name in new.obs if "curated" in name or "named" in name]
    assert "curated" not in new.uns["scperformer"]
    ran = command(
        "predict", "sample.h5ad", curated.name, f"model_path={tiny_model}", "overwrite=true"
    )
    assert f"skipping {curated.name}" in ran.err


def test_a_file_that_anndata_changed_since(annotated, tmp_path):
    """Columns of names have any type after another program."""
    cells = scp.curate(ad.read_h5ad(annotated), {"0": "mine"})
    cells.obs["scperformer_named"] = np.where(cells.obs["scperformer_named"], "yes", "no")
    trained = scp.train(
        cells, output=tmp_path / "m", options={"experiment": "linear", "logger": "none"}
    )
    assert "named" not in json.loads((trained.path / "bundle.json").read_text())["provenance"]
