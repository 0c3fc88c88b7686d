"""A labelled file on disk gives the same reference as in memory, or a sample that contains every label."""

import numpy as np
import pytest
from support.logs import said
from support.words import config_of as config

from scperformer.cells import reference
from scperformer.cells.collection import stored_cells
from scperformer.cells.opened import OpenedCells, whole_cells
from scperformer.cells.reference import make_reference, read_unlabelled


@pytest.mark.parametrize(
    "split", ["data.split=stratified", "data.split=column data.split_key=side"]
)
def test_a_file_on_disk_gives_the_same_reference_as_in_memory(counts_adata, tmp_path, split):
    counts_adata.obs["cell_type"] = counts_adata.obs["cell_type"].astype(object)
    counts_adata.obs.loc[counts_adata.obs_names[:7], "cell_type"] = np.nan
    counts_adata.obs["side"] = np.array(["train", "val", "test", "train"])[np.arange(120) % 4]
    counts_adata.obs["cell_type_ontology_term_id"] = counts_adata.obs["cell_type"].map(
        {"B cell": "CL:0000236"}
    )
    path = tmp_path / "reference.h5ad"
    counts_adata.write_h5ad(path)
    cfg = config("train", "data.min_genes=125", "data.min_cells=60", *split.split())
    expected, found = (
        make_reference([open_file(path, cfg)]) for open_file in (whole_cells, stored_cells)
    )
    assert (found.genes, found.label_names) == (expected.genes, expected.label_names)
    assert found.terms == expected.terms
    assert np.array_equal(found.counts, expected.counts)
    assert found.split.record == expected.split.record
    stream = found.stream
    for side, cells in (
        ("train", stream.collection.read(stream.cells)),
        ("val", found.x[found.split.val]),
    ):
        assert (cells != expected.x[getattr(expected.split, side)]).nnz == 0
    assert np.array_equal(stream.labels, expected.labels[expected.split.train])
    assert np.array_equal(found.labels[found.split.val], expected.labels[expected.split.val])


def test_large_references_load_a_sample_that_contains_every_label(
    counts_adata, tmp_path, monkeypatch, caplog
):
    caplog.set_level("INFO", logger="scperformer")
    monkeypatch.setattr("scperformer.cells.splits.MAX_LOADED_CELLS", 20)
    monkeypatch.setattr("scperformer.cells.splits.MAX_VAL_CELLS", 10)
    labels = np.array(["common"] * 100 + ["rare"] * 18 + ["rarest"] * 2)
    counts_adata.obs["cell_type"] = labels
    counts_adata.write_h5ad(tmp_path / "a.h5ad")
    cfg = config("train")
    cfg.data.val_fraction = 0.5
    found = make_reference([stored_cells(tmp_path / "a.h5ad", cfg)])
    assert len(found.split.train) == pytest.approx(20, abs=1)
    assert len(found.split.val) == 11  # 8 and 2 of the 10, and one cell of the rarest label
    assert set(found.labels[found.split.train]) == {0, 1, 2}
    # others than these 11 are used for training
    assert len(found.stream.cells) + len(found.split.val) == 120
    assert found.counts.tolist() == [100, 18, 2]
    assert "21 of them" in " ".join(found.notes)
    assert said(caplog, "_sample_of", 21)


def test_a_reference_of_a_panel_is_normalised_over_its_genes(counts_adata, tmp_path):
    """In memory and on disk; the filters use all genes, as without a panel."""
    panel = [*counts_adata.var_names[10:70], "ABSENT"]
    (tmp_path / "panel.txt").write_text("\n".join(reversed(panel)))
    path = tmp_path / "reference.h5ad"
    counts_adata.write_h5ad(path)
    cfg = config("train", f"genes_path='{tmp_path / 'panel.txt'}'", "data.min_genes=150")
    found = make_reference([OpenedCells(counts_adata, cfg, path)])
    from_disk = make_reference([stored_cells(path, cfg)])
    kept = counts_adata[(counts_adata.X.toarray() > 0).sum(axis=1) >= 150]
    assert 0 < kept.n_obs < counts_adata.n_obs
    counts = kept[:, panel[:-1]].X.toarray().astype(float)
    np.testing.assert_allclose(
        found.x.toarray(), np.log1p(counts / counts.sum(axis=1, keepdims=True) * 1e4), rtol=1e-5
    )
    assert found.genes == from_disk.genes == panel[:-1]
    assert all("60 genes of panel.txt" in each.summary for each in (found, from_disk))
    stream = from_disk.stream
    assert (stream.collection.read(stream.cells) != found.x[found.split.train]).nnz == 0


def test_unlabelled_cells_are_a_sample_of_each_file_read_from_disk(
    counts_adata, write, tmp_path, monkeypatch, caplog
):
    """The same share of each file is drawn by the seed, from the place that `source` names."""
    caplog.set_level("INFO", "scperformer")
    counts_adata.layers["counts"] = counts_adata.X.copy()
    counts_adata.X = np.ones(counts_adata.shape, dtype=np.float32)
    labelled = make_reference(
        [OpenedCells(counts_adata, config("train", "source=layers/counts"), tmp_path)]
    )
    parts = {"large": counts_adata[:90, ::-1].copy(), "small": counts_adata[90:].copy()}
    paths = [write(part, f"{name}.h5ad") for name, part in parts.items()]
    monkeypatch.setattr("scperformer.cells.splits.MAX_FIT_CELLS", 40)
    monkeypatch.setattr(reference, "whole_cells", None)  # no file is read into memory

    def read(*overrides: str) -> np.ndarray:
        # there are 200; unlabelled cells are not filtered
        options = ("source=layers/counts", "data.min_genes=201")
        cfg = config("train", f"unlabelled={[str(path) for path in paths]}", *options, *overrides)
        return read_unlabelled(labelled, cfg).toarray()

    found, again, other = read(), read(), read("seed=1")
    counts = counts_adata.layers["counts"].toarray()
    logged = np.log1p(counts / counts.sum(axis=1, keepdims=True) * 1e4)
    order = counts_adata.var_names.get_indexer(labelled.genes)
    rows = [int(np.abs(logged[:, order] - row).max(axis=1).argmin()) for row in found]
    np.testing.assert_allclose(found, logged[np.ix_(rows, order)], rtol=1e-5)
    assert np.array_equal(rows, np.unique(rows))
    assert [sum(row < 90 for row in rows), len(rows)] == [30, 40]
    assert np.array_equal(found, again)
    assert not np.array_equal(found, other)
    assert said(caplog, "read_unlabelled", paths[0], 30, 90, 200)
