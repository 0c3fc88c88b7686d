"""Cells of the reference in a file, by hashes or by stored cells."""

from pathlib import Path

import anndata as ad
import pytest
from support.opened import opened
from support.words import as_options

import scperformer
from scperformer.adaptation.coverage import find_repeats, no_cells
from scperformer.cells.query import find_query
from scperformer.model.folder import load_reference_cells, read_model
from scperformer.model.saved_model import SavedModel

QUICK = ["experiment=linear", "logger=none", "data.min_genes=0"]


@pytest.fixture(params=[20000, 0], ids=["stored cells", "no stored cells"])
def path(request, counts_adata, tmp_path) -> Path:
    options = as_options([*QUICK, f"keep_cells={request.param}"])
    return scperformer.train(
        counts_adata[:80].copy(), "cell_type", output=tmp_path / "model", options=options
    ).path


def repeats_in(cells: ad.AnnData, saved: SavedModel, path: Path):
    query = find_query(opened(cells, min_overlap=0.0), saved)
    return find_repeats(
        query, saved, load_reference_cells(saved, path) or no_cells(len(saved.genes))
    )


def test_cells_of_the_reference_are_found_by_all_genes(counts_adata, path):
    found = repeats_in(counts_adata[60:].copy(), read_model(path), path)
    assert (found.num_seen, found.rows.tolist()) == (60, list(range(20)))
    assert (
        found.text(opened(counts_adata[60:])) == "20 of 60 cells looked at (33 %), such as 'cell60'"
    )


def test_a_file_with_some_of_the_genes_is_compared_with_stored_cells(counts_adata, path):
    saved = read_model(path)
    found = repeats_in(counts_adata[60:, ::2].copy(), saved, path)
    assert found.rows.tolist() == (list(range(20)) if saved.has_reference_cells else [])


def test_new_cells_cause_no_warning(counts_adata, path):
    found = repeats_in(counts_adata[80:].copy(), read_model(path), path)
    assert (found.num_seen, len(found.rows)) == (40, 0)
