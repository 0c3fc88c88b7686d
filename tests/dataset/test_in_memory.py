"""Large files and several labelled files stay on disk; cells in memory do not."""

import pytest

from scperformer.config.compose import make_config
from scperformer.dataset import in_memory
from scperformer.errors import InputError
from scperformer.training import pretrain as pretraining
from scperformer.training import train as training

FAST = ["trainer.max_epochs=2", "logger=none", "data.min_genes=0"]


def config(step, *overrides, paths=("a.h5ad",)):
    needed = {"train": ["label_key=cell_type"], "pretrain": []}[step]
    inputs = ",".join(f"'{path}'" for path in paths)
    return make_config(step, [f"inputs=[{inputs}]", *needed, *FAST, *overrides])


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


def test_several_labelled_files_stay_on_disk(counts_adata, write):
    paths = [write(counts_adata[start::2].copy(), f"part{start}.h5ad") for start in (0, 1)]
    assert in_memory.settle_in_memory(config("train", paths=paths), paths).data.in_memory is False
    with pytest.raises(InputError, match=r"2 files to train on and data\.in_memory=true; expected one file"):
        in_memory.settle_in_memory(config("train", "data.in_memory=true", paths=paths), paths)
    with pytest.raises(InputError, match="the same file twice"):
        in_memory.settle_in_memory(config("train", paths=paths), [paths[0], paths[0]])


def test_cells_in_memory_cannot_stay_on_disk(counts_adata, tmp_path):
    for call in (pretraining.pretrain, lambda adata, **kw: training.train(adata, "cell_type", **kw)):
        with pytest.raises(InputError, match=r"data\.in_memory=false and cells in memory"):
            call(counts_adata, output=tmp_path / "m", overrides=["data.in_memory=false"])
