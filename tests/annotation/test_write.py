"""Annotations written block by block into a copy of a file, which is otherwise bit for bit the same."""

import warnings

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import zarr
from conftest import make_counts
from scipy.sparse import csr_matrix
from support.inputs import nullable, write_nullable
from support.record import record_of
from support.refusal import refusal

import scperformer
from scperformer.adaptation.predictions import Predictions
from scperformer.annotation.annotate import Annotation, without_slashes
from scperformer.annotation.write import write_annotation
from scperformer.base.errors import InputError
from scperformer.base.inputs import sha256
from scperformer.cells.opened import open_cells
from scperformer.config.options import ModelOptions
from scperformer.io.read import fingerprint, read_cells


def stored(path):
    """All datasets and attributes of an HDF5 file by name: bytes, type and shape, or the value of the attribute."""
    content = {}

    def add(name, node):
        if isinstance(node, h5py.Dataset):
            values = np.asarray(node[()])
            raw = repr(values.tolist()) if node.dtype.hasobject else values.tobytes()
            content[name] = (raw, str(node.dtype), node.shape)
        for key, value in node.attrs.items():
            content[f"{name}@{key}"] = repr(np.asarray(value).tolist())

    with h5py.File(path, "r") as file:
        file.visititems(add)
    return content


def annotation_of(num, num_blocks=5):
    """An annotation of `num` cells."""
    obs = pd.DataFrame(
        {
            "new_label": pd.Categorical(np.array(["a", "b"])[np.arange(num) % 2], ["a", "b", "c"]),
            "new_confidence": np.linspace(0, 1, num, dtype=np.float32),
            "new_low_quality": np.arange(num) % 3 == 0,
        }
    )
    details = pd.DataFrame(
        {"margin": np.linspace(0, 1, num), "level1": pd.Categorical(["a"] * num)}
    )
    embedding = np.arange(num * 4, dtype=np.float32).reshape(num, 4)
    proba = np.random.default_rng(0).random((num, 2)).astype(np.float32)
    nothing = [
        np.zeros(num, dtype=kind)
        for kind in (np.int32, bool, float, float, bool, float, float, np.int16)
    ]
    blocks = [
        np.array_split(array, num_blocks) for array in (proba, embedding, *nothing, proba[:, :0])
    ]
    novel = np.arange(0), csr_matrix((0, 1))
    parts = [Predictions(*arrays, *novel) for arrays in zip(*blocks, strict=True)]
    record = record_of(["a", "b"])
    return Annotation("new", obs, details, lambda: parts, ["CD8+|CD45RA+ T", "b"], record)


def write_copy(source, target, annotation, overwrite=False):
    with open_cells(source, ModelOptions(inputs=["x"])) as cells:
        assert cells.is_on_disk
        options = {"overwrite": overwrite, "scratch": target.parent, "seen": fingerprint(source)}
        write_annotation(annotation, cells, target, **options)


def test_added_keys_are_read_back(rich, write, tmp_path):
    """They equal those that anndata writes, also over an earlier annotation."""
    source = write(rich)
    output = tmp_path / "out.h5ad"
    expected = tmp_path / "expected.h5ad"
    annotation = annotation_of(rich.n_obs)
    annotation.write_into(rich)
    rich.write_h5ad(expected)
    write_copy(source, output, annotation)
    assert stored(output) == stored(expected)
    write_copy(output, output, annotation_of(rich.n_obs, num_blocks=3), overwrite=True)
    assert stored(output) == stored(expected)


def test_everything_else_is_bit_for_bit_the_same(rich, write, tmp_path):
    source = write(rich)
    digest = sha256(source)
    write_copy(source, tmp_path / "out.h5ad", annotation_of(rich.n_obs))
    assert sha256(source) == digest
    before = stored(source)
    after = stored(tmp_path / "out.h5ad")
    changed = {name for name in before if after.get(name) != before[name]}
    assert changed == {"obs@column-order"}
    ours = ("obs/new_", "obsm/X_new", "obsm/new_", "uns/new")
    assert all(name.startswith(ours) for name in after.keys() - before.keys())


def test_a_file_without_obs_columns_obsm_and_uns(counts_adata, write, tmp_path):
    source = write(ad.AnnData(counts_adata.X))
    with h5py.File(source, "r+") as file:
        del file["obsm"], file["uns"]
    write_copy(source, tmp_path / "out.h5ad", annotation_of(counts_adata.n_obs))
    result = read_cells(tmp_path / "out.h5ad", everything=True)
    assert list(result.obs) == ["new_label", "new_confidence", "new_low_quality"]
    assert (sorted(result.obsm), list(result.uns)) == (
        ["X_new", "new_details", "new_proba"],
        ["new"],
    )


def test_labels_with_slashes_stay_distinct():
    assert without_slashes(["a/b", "a|b", "c", "a/b|", "d/e/f"]) == [
        "a|b|",
        "a|b",
        "c",
        "a|b||",
        "d|e|f",
    ]


NULLABLE = {
    "strings": {},
    "a cell without a name": {"missing": "obs"},
    "a gene without a name": {"missing": "var"},
    "names in raw": {"missing": "raw"},
}


# Each form from and to one kind, and pairs of kinds with one form.
PAIRS = [(form, "h5ad", "h5ad") for form in NULLABLE]
PAIRS += [("strings", *kinds) for kinds in (("h5ad", "zarr"), ("zarr", "h5ad"), ("zarr", "csv"))]


@pytest.fixture(scope="module")
def without_nullable(tiny_model) -> pd.DataFrame:
    """The annotation of the same cells without nullable values."""
    return scperformer.annotate(make_counts(), scperformer.load_model(tiny_model)).obs


@pytest.mark.parametrize(("form", "kind", "output"), PAIRS)
def test_nullable_values_are_kept(
    form, kind, output, counts_adata, tiny_model, without_nullable, command, tmp_path
):
    given = nullable(counts_adata, **NULLABLE[form])
    write_nullable(given, tmp_path / f"sample.{kind}")
    words = ["predict", f"sample.{kind}", f"model_path={tiny_model}", "source=X"]
    assert command(*words, f"output=out.{output}").code == 0
    assert not ad.settings.allow_write_nullable_strings  # as it was
    plain = without_nullable
    if output == "csv":
        obs = pd.read_csv(tmp_path / "out.csv", index_col="cell", keep_default_na=False)
        assert list(obs.index) == [str(name) for name in given.obs_names]
    else:
        annotated = (ad.read_h5ad if output == "h5ad" else ad.read_zarr)(tmp_path / f"out.{output}")
        obs = annotated.obs
        columns = [name for name in obs if not name.startswith("scperformer")]
        read_back = (ad.read_h5ad if kind == "h5ad" else ad.read_zarr)(tmp_path / f"sample.{kind}")
        pd.testing.assert_frame_equal(obs[columns], read_back.obs)
        assert [str(obs[name].dtype) for name in ("text", "number", "flag")] == [
            "string",
            "Int32",
            "boolean",
        ]
        pd.testing.assert_frame_equal(annotated.obsm["table"], read_back.obsm["table"])
        pd.testing.assert_frame_equal(annotated.var, read_back.var)
    if form != "a gene without a name":  # with it, the model misses a gene
        assert list(obs["scperformer_label"]) == list(plain["scperformer_label"])
        np.testing.assert_allclose(
            obs["scperformer_confidence"], plain["scperformer_confidence"], rtol=1e-6
        )


PLACES = ["obs/score", "obsm", "obsm/X_umap", "uns", "uns/nested/a", "raw"]
OURS = ["obs/new_label", "obsm/new_proba", "uns/new"]


@pytest.mark.parametrize("place", [*PLACES, *OURS])
def test_dangling_links_are_kept_or_replaced(place, rich, write, tmp_path):
    source = write(rich)
    with h5py.File(source, "r+") as file:
        if place in file:
            del file[place]
        file[place] = h5py.SoftLink("/nowhere")
    annotation = annotation_of(rich.n_obs)
    write_copy(source, tmp_path / "out.h5ad", annotation)
    with h5py.File(tmp_path / "out.h5ad") as file:
        assert {"model", "input", "genes"} <= set(file["uns/new"])
        np.testing.assert_array_equal(
            file["obsm/X_new"][:10], next(iter(annotation.blocks())).embedding[:10]
        )
        assert file["obs/new_label/codes"].shape == (rich.n_obs,)
        assert set(file["obsm/new_proba"]) >= {"b"}


def test_a_matrix_without_its_values_is_damaged(rich, write, tmp_path):
    source = write(rich)
    with h5py.File(source, "r+") as file:
        del file["layers/counts/data"]
        file["layers/counts/data"] = h5py.SoftLink("/nowhere")
    with refusal("damaged-file"):
        write_copy(source, tmp_path / "out.zarr", annotation_of(rich.n_obs))


NAMES = {
    "columns that differ in case": lambda cells: cells.obs.assign(
        Sample=["x", "y"] * 60, sample=["u", "v"] * 60
    ),
    "a name of two dots": lambda cells: cells.obs.assign(**{"..": 1}),
    "a name of zarr": lambda cells: cells.obs.assign(**{".zarray": 1}),
    "another name of zarr": lambda cells: cells.obs.assign(**{".zgroup": 1}),
    "a long name": lambda cells: cells.obs.assign(**{"x" * 300: 1}),
    "line breaks and slashes": lambda cells: cells.obs.assign(
        **{"a\nb": 1, "a\\b": 2, "é": 3, "e\u0301": 4}
    ),
}


@pytest.mark.parametrize("case", NAMES)
def test_any_names_of_an_h5ad_file_end_in_zarr_that_can_be_read_or_in_one_line(
    case, counts_adata, write, tmp_path
):
    counts_adata.obs = NAMES[case](counts_adata)
    counts_adata.uns["A"], counts_adata.uns["a"] = {"x": 1}, {"y": 2}
    source = write(counts_adata)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", zarr.errors.ZarrUserWarning)  # about our mark in the folder
        if case in ("a name of zarr", "another name of zarr", "a long name"):
            match = "a name that zarr cannot have.*rename it, or write the output as .h5ad"
            with pytest.raises(InputError, match=match):
                write_copy(source, tmp_path / "out.zarr", annotation_of(counts_adata.n_obs))
            assert not (tmp_path / "out.zarr").exists()
            return
        write_copy(source, tmp_path / "out.zarr", annotation_of(counts_adata.n_obs))
        found = ad.read_zarr(tmp_path / "out.zarr")
    expected = counts_adata.obs.rename(columns={"..": "..|"})
    pd.testing.assert_frame_equal(
        found.obs[expected.columns], expected, check_categorical=False, check_dtype=False
    )
    assert (found.uns["A"], found.uns["a"]) == ({"x": 1}, {"y": 2})
