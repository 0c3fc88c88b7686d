"""A file whose cells are called in shares, by as many processes as one likes: the same answers, and nothing missing."""

from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest

from scperformer.base.errors import InputError
from scperformer.config import PredictConfig
from scperformer.files import rows as rows
from scperformer.prediction import predict, run_predict
from scperformer.prediction.parts import parts_of

NUM_SHARES = 3


def config(path: Path, model: Path, **options) -> PredictConfig:
    return PredictConfig(inputs=[str(path)], model_path=str(model), **options)


@pytest.fixture
def sample(counts_adata, write, monkeypatch):
    """A file of eight blocks."""
    monkeypatch.setattr(rows, "MAX_BLOCK_CELLS", 17)
    return write(counts_adata)


@pytest.fixture
def shares(sample, tiny_model):
    """The folders of its three shares."""
    return [
        str(run_predict(config(sample, tiny_model, share=f"{number}/{NUM_SHARES}"))[0])
        for number in range(1, NUM_SHARES + 1)
    ]


def test_shares_together_are_the_file_annotated_at_once(sample, shares, tiny_model, tmp_path, monkeypatch):
    (whole,) = run_predict(config(sample, tiny_model, output=str(tmp_path / "whole.h5ad")))
    assert [Path(share).name for share in shares] == [f"sample.share-{number}-of-3" for number in (1, 2, 3)]
    monkeypatch.setattr(predict, "call_block", None)  # nothing is called twice
    (gathered,) = run_predict(config(sample, tiny_model, shares=shares[::-1]))
    one, other = ad.read_h5ad(whole), ad.read_h5ad(gathered)
    pd.testing.assert_frame_equal(one.obs, other.obs)
    pd.testing.assert_frame_equal(one.obsm["scperformer_proba"], other.obsm["scperformer_proba"])
    np.testing.assert_array_equal(one.obsm["X_scperformer"], other.obsm["X_scperformer"])
    assert (one.X != other.X).nnz == 0
    assert sorted(entry.name for entry in sample.parent.glob("sample.*partial")) == []
    assert all(Path(share).is_dir() for share in shares)


def test_every_part_is_in_one_share():
    for num_parts in (1, 2, 7, 100):
        for count in (1, 2, 3, 8):
            shares = [part for number in range(1, count + 1) for part in parts_of(f"{number}/{count}", num_parts)]
            assert shares == list(range(num_parts))
    assert parts_of(None, 5) == range(5)


@pytest.mark.slow
def test_a_table_can_be_gathered_too(sample, shares, tiny_model, tmp_path):
    (table,) = run_predict(config(sample, tiny_model, shares=shares, output=str(tmp_path / "calls.csv")))
    assert len(pd.read_csv(table)) == 120


@pytest.mark.slow
def test_a_share_that_is_missing_is_not_passed_over(sample, shares, tiny_model):
    with pytest.raises(InputError, match=r"lack 3 of 8 parts; expected all shares of the file, 1/N to N/N"):
        run_predict(config(sample, tiny_model, shares=[shares[0], shares[2]]))
    assert not sample.with_name("sample.annotated.h5ad").exists()


def test_shares_of_other_cells_or_options_are_refused(sample, shares, counts_adata, tiny_model):
    with pytest.raises(InputError, match=r"of another run \(other options\).*make all shares again"):
        run_predict(config(sample, tiny_model, shares=shares, min_overlap=0.3))
    counts_adata[::-1].copy().write_h5ad(sample)
    with pytest.raises(InputError, match=r"of another run \(other input\)"):
        run_predict(config(sample, tiny_model, shares=shares))


def test_a_folder_that_is_no_share_is_refused(sample, tiny_model, tmp_path):
    with pytest.raises(InputError, match=r"in shares; expected a folder with a share"):
        run_predict(config(sample, tiny_model, shares=[str(tmp_path)]))


def test_a_share_is_an_output_like_others(sample, shares, tiny_model):
    with pytest.raises(InputError, match="share-1-of-3 exists"):
        run_predict(config(sample, tiny_model, share="1/3"))
    run_predict(config(sample, tiny_model, share="1/3", overwrite=True))
    run_predict(config(sample, tiny_model, shares=shares))


@pytest.mark.parametrize("share", ["0/3", "4/3", "1", "a/b", "1/3/4", "-1/2"])
def test_a_share_that_cannot_be(share):
    with pytest.raises(InputError, match=r"share=.*K/N with K from 1 to N"):
        PredictConfig(inputs=["a.h5ad"], share=share)


@pytest.mark.slow
def test_a_file_of_another_kind_has_shares_too(sample, tiny_model, tmp_path):
    path = tmp_path / "table.csv"
    ad.read_h5ad(sample).to_df().to_csv(path)
    (whole,) = run_predict(config(path, tiny_model, output=str(tmp_path / "whole.h5ad")))
    shares = [str(run_predict(config(path, tiny_model, share=f"{number}/2"))[0]) for number in (1, 2)]
    (gathered,) = run_predict(config(path, tiny_model, shares=shares))
    pd.testing.assert_frame_equal(ad.read_h5ad(whole).obs, ad.read_h5ad(gathered).obs)


def test_a_folder_of_the_users_in_the_place_of_a_share_stays(sample, tiny_model, tmp_path):
    """It may even hold files of the names of ours."""
    theirs = tmp_path / "share"
    theirs.mkdir()
    for name in ("run.json", "part-000000.npz", "thesis.txt"):
        (theirs / name).write_text("years of work")
        with pytest.raises(InputError, match=r"share (is a folder|holds).*so it is not replaced"):
            run_predict(config(sample, tiny_model, share="1/3", output=str(theirs), overwrite=True))
    assert {file.name: file.read_text() for file in theirs.iterdir()} == dict.fromkeys(
        ("run.json", "part-000000.npz", "thesis.txt"), "years of work"
    )


def test_a_folder_of_the_users_in_the_place_of_the_parts_stays(sample, tiny_model, tmp_path):
    theirs = tmp_path / "out.h5ad.partial"
    theirs.mkdir()
    (theirs / "part-000000.npz").write_text("years of work")
    with pytest.raises(InputError, match=r"out\.h5ad\.partial is in the way: it is a folder without"):
        run_predict(config(sample, tiny_model, output=str(tmp_path / "out.h5ad"), overwrite=True))
    assert (theirs / "part-000000.npz").read_text() == "years of work"
