"""Cells that stay on disk: the same cells and genes as in memory, every cell once an epoch, and the same models."""

import math
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from support.killed import run_until_killed

from scperformer.config.compose import make_config
from scperformer.config.groups import TokensConfig
from scperformer.dataset import collection, in_memory, part, reference
from scperformer.dataset.collection import make_collection
from scperformer.dataset.corpus import Sample, make_corpus, stream_corpus
from scperformer.dataset.reference import make_reference, stream_reference
from scperformer.errors import InputError
from scperformer.model.folder import load_bundle
from scperformer.network.batches import Cells, ahead, drawn_rows
from scperformer.training import datamodule
from scperformer.training import pretrain as pretraining
from scperformer.training import train as training
from scperformer.training.datamodule import BLOCK_CELLS, StreamedCells, block_order
from scperformer.training.learner import Learner
from scperformer.training.masked_learner import MaskedLearner
from scperformer.training.pretrain import run_pretrain
from scperformer.training.train import run_train

FAST = ["trainer.max_epochs=2", "logger=none", "data.min_genes=0"]


def config(step, *overrides, paths=("a.h5ad",)):
    needed = {"train": ["label_key=cell_type"], "pretrain": []}[step]
    inputs = ",".join(f"'{path}'" for path in paths)
    return make_config(step, [f"inputs=[{inputs}]", *needed, *FAST, *overrides])


@pytest.fixture
def files(counts_adata, tmp_path) -> list[Path]:
    """The 120 cells as an h5ad file of 50, with repeated gene names and few of the genes, and a zarr store of 70."""
    one = counts_adata[:50, :150].copy()
    one.var_names = [*one.var_names[:-1], one.var_names[3]]
    two = counts_adata[50:].copy()
    two.X = two.X.toarray()
    paths = [tmp_path / "one.h5ad", tmp_path / "two.zarr"]
    one.write_h5ad(paths[0])
    two.write_zarr(paths[1])
    return paths


@pytest.fixture
def read_either(files):
    readers = {".h5ad": ad.read_h5ad, ".zarr": ad.read_zarr}
    return [Sample(readers[path.suffix](path), path, "") for path in files]


def test_cells_and_genes_are_those_of_memory_bit_for_bit(files, read_either, monkeypatch):
    cfg = config("pretrain", "data.min_genes=125", "data.min_cells=60", "data.val_fraction=0.2")
    expected = make_corpus(read_either, cfg)
    assert 20 < len(expected.genes) < 200
    assert 20 < expected.x.shape[0] < 120
    found = make_collection(files, cfg, min_shared=2)
    assert found.genes == expected.genes
    assert np.array_equal(found.file_of_cell, expected.file_of_cell)
    order = np.random.default_rng(0).permutation(len(found))[:40]
    order[3] = order[4]  # a cell that is asked for twice
    assert (found.read(order) != expected.x[order]).nnz == 0
    monkeypatch.setattr(collection, "READ_CELLS", 7)
    in_pieces = found.read(order)
    assert in_pieces.dtype == np.float32
    assert (in_pieces != expected.x[order]).nnz == 0
    assert found.read(order[:0]).shape == (0, len(found.genes))
    streamed = stream_corpus(files, cfg)
    assert [file["num_cells"] for file in streamed.files] == [file["num_cells"] for file in expected.files]
    assert [file["input"] for file in streamed.files] == [file["input"] for file in expected.files]
    assert streamed.num_cells == expected.num_cells


def test_a_given_vocabulary_and_genes_that_become_one(files, read_either):
    names = ["GENE7", "ABSENT", *(f"GENE{i}" for i in range(30, 60))]
    expected = make_corpus(read_either, config("pretrain"), names)
    found = make_collection(files, config("pretrain"), names, min_shared=2)
    assert found.genes == names
    assert (found.read(np.arange(len(found))) != expected.x).nnz == 0


def test_scattered_rows_are_read_in_short_runs(files, monkeypatch):
    monkeypatch.setattr(part, "MAX_GAP", 3)
    monkeypatch.setattr(part, "MAX_RUN", 10)
    found = make_collection(files, config("pretrain"))
    everything = found.read(np.arange(120))
    read = []
    block = part.Rows.block
    monkeypatch.setattr(part.Rows, "block", lambda rows, a, b: read.append(b - a) or block(rows, a, b))
    wanted = np.array([119, 0, 1, 2, 5, 9, 40, *range(60, 85)])
    assert (found.read(wanted) != everything[wanted]).nnz == 0
    assert max(read) <= 10
    assert sum(read) <= 6 + 1 + 1 + 25 + 1


@pytest.mark.parametrize("split", ["data.split=stratified", "data.split=column data.split_key=side"])
def test_a_labelled_file_is_what_it_is_in_memory(counts_adata, tmp_path, split, caplog):
    counts_adata.obs["cell_type"] = counts_adata.obs["cell_type"].astype(object)
    counts_adata.obs.loc[counts_adata.obs_names[:7], "cell_type"] = np.nan
    counts_adata.obs["side"] = np.array(["train", "val", "test", "train"])[np.arange(120) % 4]
    counts_adata.obs["cell_type_ontology_term_id"] = counts_adata.obs["cell_type"].map({"B cell": "CL:0000236"})
    path = tmp_path / "reference.h5ad"
    counts_adata.write_h5ad(path)
    cfg = config("train", "data.min_genes=125", "data.min_cells=60", *split.split())
    expected, found = make_reference(ad.read_h5ad(path), cfg, path), stream_reference([path], cfg)
    assert (found.genes, found.label_names) == (expected.genes, expected.label_names)
    assert found.ontology_term_ids == expected.ontology_term_ids
    assert np.array_equal(found.counts, expected.counts)
    assert found.split.done == expected.split.done
    stream = found.stream
    for side, cells in (("train", stream.collection.read(stream.cells)), ("val", found.x[found.split.val])):
        assert (cells != expected.x[getattr(expected.split, side)]).nnz == 0
    assert np.array_equal(stream.labels, expected.labels[expected.split.train])
    assert np.array_equal(found.labels[found.split.val], expected.labels[expected.split.val])


def test_large_references_hold_a_sample_with_every_label(counts_adata, tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", logger="scperformer")
    monkeypatch.setattr(reference, "MAX_FIT_CELLS", 20)
    monkeypatch.setattr(reference, "MAX_VAL_CELLS", 10)
    labels = np.array(["common"] * 100 + ["rare"] * 18 + ["rarest"] * 2)
    counts_adata.obs["cell_type"] = labels
    counts_adata.write_h5ad(tmp_path / "a.h5ad")
    found = stream_reference([tmp_path / "a.h5ad"], config("train", "data.val_fraction=0.5"))
    assert len(found.split.train) == pytest.approx(20, abs=1)
    assert len(found.split.val) == 11  # 8 and 2 of 10, and one of the rarest
    assert set(found.labels[found.split.train]) == {0, 1, 2}
    assert len(found.stream.cells) + len(found.split.val) == 120  # held-out cells that are not needed train
    assert found.counts.tolist() == [100, 18, 2]
    assert "Linear fits are on a sample of 21 of these" in " ".join(found.notes)
    assert "Linear fits are on a sample" in caplog.text


# --- epochs --------------------------------------------------------------------------------------------------


class Numbered:
    """A collection of cells whose only value is their number, and what was read of it."""

    def __init__(self):
        self.reads = []

    def read(self, cells):
        self.reads.append(cells)
        rng = np.random.default_rng(0)
        x = sparse.random(len(cells), 40, density=0.5, format="lil", dtype=np.float32, random_state=rng)
        x[:, 0] = cells[:, None] + 1.0
        return sparse.csr_matrix(x)


def epoch(num_cells, batch_size=8, balance="none", labels=None, seed=0, number=0, rank=0, world_size=1, first=0):
    """The cell numbers of each batch, the lengths of its cells, and what was read."""
    source = Numbered()
    labels = np.zeros(num_cells, dtype=np.int64) if labels is None else labels
    stream = collection.Stream(source, np.arange(num_cells), labels)
    cells = StreamedCells(stream, TokensConfig(), Cells(sparse.csr_matrix((1, 40)), TokensConfig(), labels[:1]))
    shared = {"seed": seed, "epoch": number, "rank": rank, "world_size": world_size}
    batches = list(cells.epoch_batches(batch_size, balance=balance, first=first, **shared))
    assert len(batches) == cells.num_steps(batch_size, world_size) - first
    numbers = [(batch.x_BL[:, 0] - 1).long().tolist() for batch, _ in batches]
    assert all((labels[rows] == found.numpy()).all() for rows, (_, found) in zip(numbers, batches, strict=True))
    return numbers, [batch.keep_BL.sum(1).numpy() for batch, _ in batches], source.reads


@pytest.mark.parametrize("num_cells", [5, 8, 1000, 9001])
def test_an_epoch_has_every_cell_once(num_cells):
    batches, _, _ = epoch(num_cells)
    assert sorted(np.concatenate(batches)) == list(range(num_cells))
    assert len(batches) == -(-num_cells // 8)


@pytest.mark.parametrize("first", [1, 127, 128, 300])
def test_an_epoch_that_was_cut_off_goes_on_there_without_reading_what_is_done(first, monkeypatch):
    monkeypatch.setattr(datamodule, "MIN_BUFFER_CELLS", 1024)
    whole, _, reads = epoch(5000)
    rest, _, read_again = epoch(5000, first=first)
    assert rest == whole[first:]
    assert len(read_again) == len(reads) - first // 128


def test_epochs_repeat_and_differ():
    first, again, second, seeded = (epoch(5000, number=n, seed=s)[0] for n, s in ((0, 0), (0, 0), (1, 0), (0, 1)))
    assert first == again
    assert first != second
    assert first != seeded


def test_neighbours_are_read_together_and_mixed(monkeypatch):
    monkeypatch.setattr(datamodule, "MIN_BUFFER_CELLS", 1024)
    batches, lengths, reads = epoch(20_000, batch_size=32)
    for read in reads:
        jumps = np.count_nonzero(np.diff(read) != 1)
        assert jumps <= len(read) / BLOCK_CELLS + 2
    spread = [np.ptp(rows) for rows in batches]
    assert np.median(spread) > 15_000  # cells of a batch come from all over the files
    assert np.median([np.ptp(found) for found in lengths]) <= 1  # and have about the same length


@pytest.mark.parametrize("num_cells", [1000, 1001, 9001])
def test_processes_share_every_epoch(num_cells):
    shares = [epoch(num_cells, rank=rank, world_size=3)[0] for rank in range(3)]
    assert len({len(share) for share in shares}) == 1
    assert len(shares[0]) == math.ceil(num_cells / 24)
    seen = np.concatenate([np.concatenate(share) for share in shares])
    assert set(seen) == set(range(num_cells))
    assert len(seen) - num_cells < 3  # cells that are seen twice, for all to take the same number of steps


@pytest.mark.parametrize(("balance", "shares"), [("balanced", [1 / 3] * 3), ("sqrt", [0.7043, 0.2227, 0.0730])])
def test_balanced_epochs_show_rare_labels_oftener(balance, shares):
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [9000, 900, 97]))
    rows = drawn_rows(labels, balance, seed=0, epoch=0)
    assert len(rows) == len(labels)
    assert (np.diff(rows) >= 0).all()
    # sqrt: 94.87, 30, 9.85 of 134.72; the draw rounds each cell's count up or down, and the sum by one at most
    np.testing.assert_allclose(np.bincount(labels[rows]) / len(rows), shares, atol=0.005)
    times = np.bincount(rows, minlength=len(labels))
    for label in range(3):
        assert np.ptp(times[labels == label]) <= 1  # no cell more than once oftener than another of its label
    assert not np.array_equal(rows, drawn_rows(labels, balance, seed=0, epoch=1))
    batches, _, _ = epoch(len(labels), balance=balance, labels=labels)
    assert np.array_equal(np.sort(np.concatenate(batches)), rows)


def test_blocks_are_others_in_each_epoch():
    order = block_order(np.arange(1000), seed=0, epoch=0)
    assert sorted(order) == list(range(1000))
    starts = [set(block_order(np.arange(1000), seed=0, epoch=n)[:960:BLOCK_CELLS] % BLOCK_CELLS) for n in range(3)]
    assert len({tuple(sorted(start)) for start in starts}) == 3


def test_what_is_made_ahead_comes_in_order_and_errors_too():
    made = []

    def items():
        for i in range(6):
            made.append(i)
            yield i
        raise InputError("a", "b", "c")

    found = []
    with pytest.raises(InputError, match="a; expected b"):
        found.extend(ahead(items(), 2))
    assert found == list(range(6))
    made.clear()
    some = ahead(items(), 2)
    assert next(some) == 0
    some.close()
    assert len(made) <= 4  # nothing is made for nobody


# --- whole runs ----------------------------------------------------------------------------------------------


def test_training_from_disk_gives_almost_the_model_of_memory(counts_adata, write, tmp_path):
    path = write(counts_adata, "reference.h5ad")
    made = {}
    for word in ("true", "false"):
        words = [f"data.in_memory={word}", f"output='{tmp_path / word}'", "optim.deep_min_gain=0"]
        made[word] = load_bundle(run_train(config("train", *words, paths=[path])))
    one, two = made["true"], made["false"]
    assert (one.genes, one.labels) == (two.genes, two.labels)
    np.testing.assert_allclose(one.gene_means, two.gene_means, rtol=1e-5)
    # All cells are in the sample here, in another order: the fits are those of memory.
    np.testing.assert_allclose(one.weights["baseline.weight"], two.weights["baseline.weight"], atol=1e-3)
    assert one.provenance["cells_per_label"] == two.provenance["cells_per_label"]
    assert one.provenance["reference_sha256"] == two.provenance["reference_sha256"]
    assert "data.in_memory=false" in two.provenance["command"]


def test_several_labelled_files_train_one_model(counts_adata, write, tmp_path):
    paths = [write(counts_adata[start::2].copy(), f"part{start}.h5ad") for start in (0, 1)]
    bundle = load_bundle(run_train(config("train", paths=paths)))
    assert bundle.provenance["cells_per_label"] == {"B cell": 40, "Monocyte": 40, "T cell": 40}
    assert bundle.provenance["reference"] == "part0.h5ad, part1.h5ad"
    assert "scperformer train part0.h5ad part1.h5ad data.min_genes=0" in bundle.provenance["command"]
    with pytest.raises(InputError, match=r"2 files to train on and data\.in_memory=true; expected one file"):
        run_train(config("train", "data.in_memory=true", f"output='{tmp_path / 'b'}'", paths=paths))
    with pytest.raises(InputError, match="the same file twice"):
        run_train(config("train", paths=[paths[0], paths[0]]))


@pytest.mark.parametrize(("step", "learner"), [("pretrain", MaskedLearner), ("train", Learner)])
def test_what_is_cut_while_it_learns_from_disk_ends_with_the_same_weights(
    counts_adata, write, tmp_path, monkeypatch, step, learner
):
    path = write(counts_adata)

    def run(name, *words):
        options = ["data.in_memory=false", f"output='{tmp_path / name}'", "tokens=bins", *words]
        return {"pretrain": run_pretrain, "train": run_train}[step](config(step, *options, paths=[path]))

    whole = load_bundle(run("whole"))
    run_until_killed(monkeypatch, learner, lambda: run("cut"))
    cut = load_bundle(run("cut", "resume=true"))
    assert all(np.array_equal(whole.weights[name], cut.weights[name]) for name in whole.weights)
    assert whole.provenance["num_cells"] == 120


def test_init_puts_the_genes_of_streamed_cells_in_its_order(counts_adata, write, tmp_path):
    path = write(counts_adata)
    first = run_pretrain(config("pretrain", "model.dim=16", f"output='{tmp_path / 'enc'}'", paths=[path]))
    mixed = counts_adata[:, np.random.default_rng(0).permutation(200)].copy()
    words = [f"init='{first}'", "data.in_memory=false", f"output='{tmp_path / 'm'}'"]
    model = load_bundle(run_train(config("train", *words, paths=[write(mixed, "mixed.h5ad")])))
    assert model.genes == load_bundle(first).genes


# --- what decides, what is refused ---------------------------------------------------------------------------


def test_large_files_stay_on_disk_by_themselves(counts_adata, write, monkeypatch, caplog):
    caplog.set_level("INFO", logger="scperformer")
    path = write(counts_adata)
    cfg = config("pretrain", paths=[path])
    assert in_memory.settle_in_memory(cfg, [path]) is cfg
    monkeypatch.setattr(in_memory, "STREAM_ABOVE", 8 * counts_adata.X.nnz - 1)
    assert in_memory.settle_in_memory(cfg, [path]).data.in_memory is False
    assert "stay on disk during training (data.in_memory=false)" in caplog.text
    told = config("pretrain", "data.in_memory=true", paths=[path])
    assert in_memory.settle_in_memory(told, [path]) is told
    counts_adata.X = counts_adata.X.tocsc()  # cannot be read by rows: it is loaded
    by_columns = write(counts_adata, "csc.h5ad")
    assert in_memory.settle_in_memory(cfg, [by_columns]) is cfg


def test_files_that_cannot_be_read_by_rows_are_refused(counts_adata, write, tmp_path):
    cfg = config("pretrain", "data.in_memory=false")
    counts_adata.X = counts_adata.X.tocsc()
    with pytest.raises(InputError, match=r"X of .*csc.h5ad is stored by columns \(CSC\); expected rows"):
        make_collection([write(counts_adata, "csc.h5ad")], cfg)
    table = tmp_path / "cells.csv"
    pd.DataFrame(counts_adata.X.toarray(), counts_adata.obs_names, counts_adata.var_names).to_csv(table)
    with pytest.raises(InputError, match=r"cells.csv, a table; expected h5ad or zarr"):
        make_collection([table], cfg)


def test_filters_that_leave_nothing_are_refused(files):
    with pytest.raises(InputError, match=r"no cell of .*one.h5ad that expresses data.min_genes=500 genes"):
        make_collection(files, config("pretrain", "data.min_genes=500"))
    with pytest.raises(InputError, match=r"no gene that data.min_cells=500 of the 120 cells express"):
        make_collection(files, config("pretrain", "data.min_cells=500"))


def test_a_label_that_is_not_there_is_refused_with_those_that_are(counts_adata, write):
    cfg = config("train", "label_key=celltype", "data.in_memory=false")
    with pytest.raises(InputError, match=r"no column 'celltype' in obs of .*; expected cell_type \(3 values\)"):
        stream_reference([write(counts_adata)], cfg)


def test_cells_in_memory_cannot_stay_on_disk(counts_adata, tmp_path):
    for call in (pretraining.pretrain, lambda adata, **kw: training.train(adata, "cell_type", **kw)):
        with pytest.raises(InputError, match=r"data\.in_memory=false and cells in memory"):
            call(counts_adata, output=tmp_path / "m", overrides=["data.in_memory=false"])


def test_dense_files_of_half_precision(counts_adata, tmp_path):
    expected = counts_adata.copy()
    counts_adata.X = counts_adata.X.toarray().astype(np.float16)
    for name, adata in (("half", counts_adata), ("single", expected)):
        adata.write_h5ad(tmp_path / f"{name}.h5ad")
    half, single = (
        make_collection([tmp_path / f"{name}.h5ad"], make_config("train", ["inputs=[x]", "label_key=cell_type"]))
        for name in ("half", "single")
    )
    np.testing.assert_array_equal(half.read(np.arange(50)).toarray(), single.read(np.arange(50)).toarray())
