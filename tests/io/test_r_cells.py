"""Objects of R: their matrices, names and tables, whatever holds them; what is not read names the lines of R."""

import bz2
import gzip
import logging
import lzma
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from support import r_files as r
from support.inputs import dense, same
from support.logs import said
from support.opened import detected
from support.refusal import refusal

from scperformer.io.axes import known_symbols
from scperformer.io.r_cells import _table, read_r_texts
from scperformer.io.rds import read_object, write_table
from scperformer.io.read import read_cells, require_readable

R_DATA = Path(__file__).parents[3] / "shared" / "data" / "r"


def seurat3(cells: ad.AnnData, **more) -> r.Item:
    counts = r.dgc(cells.X, cells.var_names, cells.obs_names)
    return r.seurat({"RNA": r.assay(counts, **more)}, cells.obs)


def logs(cells: ad.AnnData) -> sparse.csr_matrix:
    return sparse.csr_matrix(np.log1p(cells.X.toarray() / cells.X.sum(axis=1) * 1e4))


@pytest.mark.parametrize(
    "compress",
    [gzip.compress, bz2.compress, lzma.compress, bytes],
    ids=["gzip", "bz2", "xz", "none"],
)
def test_every_compression_of_save_rds(compress, cells, tmp_path):
    assert same(read_cells(r.save_rds(seurat3(cells), tmp_path / "a.rds", compress)), cells)
    assert (tmp_path / "a.rds").rename(tmp_path / "a.RDS")
    assert require_readable(tmp_path / "a.RDS") == "rds"


def test_the_layers_of_seurat_4(cells, tmp_path, caplog):
    caplog.set_level(logging.INFO, "scperformer")
    scaled = r.dense(dense(cells.X), cells.var_names, cells.obs_names)
    data = r.dgc(logs(cells), cells.var_names, cells.obs_names)
    made = seurat3(cells, data=data, **{"scale.data": scaled})
    found = read_cells(r.save_rds(made, tmp_path / "a.rds"))
    assert same(found, cells)
    assert list(found.layers) == ["data"]
    np.testing.assert_allclose(dense(found.layers["data"]), dense(logs(cells)), rtol=1e-6)
    assert said(
        caplog, "read_cells", "Seurat", "4.1.3", "RNA", "counts in X", "data in layers/data"
    )
    assert detected(found).kind == "counts"


def test_columns_of_meta_data(cells, tmp_path, caplog):
    caplog.set_level(logging.INFO, "scperformer")
    num = cells.n_obs
    cells.obs["kind"] = pd.Categorical.from_codes([-1, *[1, 0] * 14, 0], ["b", "a"])
    cells.obs["depth"] = np.arange(num) / 2
    cells.obs["cluster"] = [r.NA_INT, *range(num - 1)]
    cells.obs["text"] = [None, *["ä"] * (num - 1)]
    with_na = {"levels": r.texts([None, "y", "x"]), "class": r.texts(["factor"])}  # of addNA
    made = r.seurat(
        {"RNA": r.assay(r.dgc(cells.X, cells.var_names, cells.obs_names))},
        cells.obs,
        idents=["x", "y"] * (num // 2),
        flag=r.numbers([r.NA_INT, 1, *[0] * (num - 2)], 10),
        parts=r.listed([r.null] * num),
        level=r.integers([1, 2, r.NA_INT, *[3] * (num - 3)], **with_na),
        note=r.texts([None] * num),
    )
    obs = read_cells(r.save_rds(made, tmp_path / "a.rds")).obs
    assert list(obs["kind"].cat.categories) == ["b", "a"]
    assert list(obs["kind"].astype(object)[:3].fillna("?")) == ["?", "a", "b"]
    assert list(obs["level"].cat.categories) == ["y", "x"]
    assert list(obs["level"].astype(object)[:4].fillna("?")) == ["?", "y", "?", "x"]
    assert obs["note"].isna().all()
    assert list(obs["depth"]) == list(cells.obs["depth"])
    assert np.isnan(obs["cluster"].iloc[0])
    assert list(obs["cluster"][1:]) == list(range(num - 1))
    assert obs["text"].isna().sum() == 1
    assert obs["text"].iloc[1] == "ä"
    assert obs["flag"].isna().sum() == 1
    assert obs["flag"].sum() == 1
    assert list(obs["ident"][:3]) == ["x", "y", "x"]
    assert said(caplog, "read_cells", "meta.data", "parts")


def test_joined_layers_of_seurat_5(cells, tmp_path):
    names = cells.var_names, cells.obs_names
    layers = {"counts": (r.dgc(cells.X), *names), "data": (r.dgc(logs(cells)), *names)}
    found = read_cells(
        r.save_rds(r.seurat({"RNA": r.assay5(*names, layers)}, cells.obs), tmp_path / "a.rds")
    )
    assert same(found, cells)
    assert list(found.layers) == ["data"]


def test_split_layers_of_seurat_5_are_joined(cells, tmp_path, caplog):
    caplog.set_level(logging.INFO, "scperformer")
    layers = {}
    rows = {"a": np.arange(0, 30, 3), "b": np.setdiff1d(np.arange(30), np.arange(0, 30, 3))}
    columns = {"a": np.arange(50), "b": np.arange(10, 60)}
    for name in "ba":
        part = cells[rows[name], columns[name]]
        layers[f"counts.{name}"] = (r.dgc(part.X), part.var_names, part.obs_names)
        layers[f"scale.data.{name}"] = layers[f"counts.{name}"]
    part = cells[rows["a"]]
    layers["data.a"] = (r.dgc(part.X), part.var_names, part.obs_names)
    made = r.assay5(cells.var_names, cells.obs_names, layers)
    found = read_cells(r.save_rds(r.seurat({"RNA": made}, cells.obs), tmp_path / "a.rds"))
    expected = cells.copy()
    x = cells.X.toarray()
    x[np.ix_(rows["a"], np.arange(50, 60))] = 0
    x[np.ix_(rows["b"], np.arange(10))] = 0
    expected.X = x
    assert same(found, expected)
    assert said(caplog, "read_cells", "counts", 2, "counts.b, counts.a", 0, "data", 10, 30)


def test_the_assay_rna_beside_an_active_one(cells, tmp_path, caplog):
    caplog.set_level(logging.INFO, "scperformer")
    part = cells[:, :20]
    corrected = r.assay(
        r.numbers([], 10, dim=r.integers([0, 0])),
        r.dense(part.X.toarray() - 0.5, part.var_names, cells.obs_names),
    )
    assays = {
        "RNA": r.assay(r.dgc(cells.X, cells.var_names, cells.obs_names)),
        "integrated": corrected,
    }
    found = read_cells(r.save_rds(r.seurat(assays, cells.obs, "integrated"), tmp_path / "a.rds"))
    assert said(caplog, "read_cells", "integrated", "RNA, integrated", "data in X", "raw")
    assert found.shape == (30, 20)
    assert same(found.raw.to_adata(), cells)
    assert detected(found).source == "raw"


def seeds(cells: ad.AnnData) -> dict[str, r.Item]:
    names = cells.var_names, cells.obs_names
    x = cells.X.toarray()
    plain = r.dgc(x, *names)
    inner = {"seed": plain}
    coo = sparse.coo_matrix(x.T)
    rows = {"i": r.integers(coo.row), "j": r.integers(coo.col), "x": r.numbers(coo.data)}
    csr = sparse.csr_matrix(x.T)
    by_row = {"p": r.integers(csr.indptr), "j": r.integers(csr.indices), "x": r.numbers(csr.data)}
    listed_names = r.listed([r.texts(part) for part in names])
    backwards = r.dgc(x[::-1, ::-1], names[0][::-1], names[1][::-1])
    index = r.listed([r.integers(np.arange(60, 0, -1)), r.numbers(np.arange(30, 0, -1))])
    return {
        "dense doubles": r.dense(x, *names),
        "dense integers": r.dense(x, *names, kind=13),
        "dgRMatrix": r.s4(
            "dgRMatrix", "Matrix", **by_row, Dim=r.integers(coo.shape), Dimnames=listed_names
        ),
        "dgeMatrix": r.s4(
            "dgeMatrix",
            "Matrix",
            x=r.numbers(x.T),
            Dim=r.integers(coo.shape),
            Dimnames=listed_names,
        ),
        "dgTMatrix": r.s4(
            "dgTMatrix", "Matrix", **rows, Dim=r.integers(coo.shape), Dimnames=listed_names
        ),
        "delayed": r.s4("DelayedMatrix", "DelayedArray", **inner),
        "renamed": r.s4("DelayedSetDimnames", "DelayedArray", dimnames=listed_names, seed=r.dgc(x)),
        "transposed": r.s4(
            "DelayedAperm", "DelayedArray", perm=r.integers([2, 1]), seed=r.dgc(x.T, *names[::-1])
        ),
        "reordered": r.s4("DelayedSubset", "DelayedArray", index=index, seed=backwards),
        "a subset of all": r.s4(
            "DelayedSubset", "DelayedArray", index=r.listed([r.null, r.null]), **inner
        ),
    }


@pytest.mark.parametrize("kind", seeds(ad.AnnData(sparse.csr_matrix((30, 60)))))
@pytest.mark.parametrize("old", [False, True])
def test_matrices_of_experiments(kind, old, cells, tmp_path):
    made = r.experiment({"counts": seeds(cells)[kind]}, cells.obs, cells.var, old)
    found = read_cells(r.save_rds(made, tmp_path / "a.rds"))
    assert same(found, cells)
    assert list(found.obs["label"]) == list(cells.obs["label"])
    assert list(found.var["gene_ids"]) == list(cells.var["gene_ids"])


def rna_and_antibodies(cells: ad.AnnData) -> tuple[ad.AnnData, ad.AnnData]:
    """Real names of genes, by which RNA is known, and antibodies."""
    rna = cells.copy()
    rna.var_names = sorted(known_symbols())[: cells.n_vars]
    antibodies = cells[:, :5].copy()
    antibodies.var_names = [f"Antibody-{number}" for number in range(5)]
    return rna, antibodies


def test_rna_that_is_not_the_main_experiment(cells, tmp_path, caplog):
    caplog.set_level(logging.INFO, "scperformer")
    rna, antibodies = rna_and_antibodies(cells)
    x, y = (r.dgc(part.X, part.var_names, part.obs_names) for part in (rna, antibodies))
    for name in ("counts", "logcounts"):
        beside = r.experiment({name: x}, cells.obs, rna.var)
        by_column = r.s4("SummarizedExperimentByColumn", "SingleCellExperiment", se=beside)
        columns = {"altExps": r.data_frame_of({"GEX": by_column}, cells.n_obs)}
        made = r.experiment(
            {"counts": y},
            cells.obs,
            antibodies.var,
            int_colData=r.data_frame_of(columns, cells.n_obs),
        )
        found = read_cells(r.save_rds(made, tmp_path / "a.rds"))
        assert same(found, antibodies)
        assert same(found.raw.to_adata(), rna)
        assert said(caplog, "read_cells", f"{name} of the altExp GEX in raw")


def test_rna_of_another_name_beside_the_active_assay(cells, tmp_path):
    rna, antibodies = rna_and_antibodies(cells)
    assays = {
        name: r.assay(r.dgc(part.X, part.var_names, part.obs_names))
        for name, part in zip(("GEX", "ADT"), (rna, antibodies), strict=True)
    }
    for active in assays:
        found = read_cells(r.save_rds(r.seurat(assays, cells.obs, active), tmp_path / "a.rds"))
        assert (found.raw is not None) == (active == "ADT")
        assert same(found.raw.to_adata() if active == "ADT" else found, rna)


def test_an_assay_alone_and_one_whose_counts_were_emptied(cells, tmp_path):
    counts = r.dgc(cells.X, cells.var_names, cells.obs_names)
    empty = r.numbers([r.NA_INT], 10, dim=r.integers([1, 1]))  # matrix()
    for assay in (r.assay(counts), r.assay(empty, counts)):
        for made in (assay, r.seurat({"RNA": assay}, cells.obs)):
            assert same(read_cells(r.save_rds(made, tmp_path / "a.rds")), cells)


def test_cells_are_named_by_their_barcodes(cells, tmp_path, caplog):
    caplog.set_level(logging.INFO, "scperformer")
    unnamed = cells.copy()
    unnamed.obs["Barcode"] = list(cells.obs_names)

    def made(obs: pd.DataFrame) -> Path:
        item = r.experiment({"counts": r.dgc(cells.X)}, obs, cells.var, has_names=False)
        return r.save_rds(item, tmp_path / "a.rds")

    assert same(read_cells(made(unnamed.obs)), cells)
    assert said(caplog, "read_cells", "colnames(object) <- object$Barcode")
    with refusal("r-names", "colnames(object) <- make.unique(object$Barcode)"):
        read_cells(made(unnamed.obs.assign(Barcode="one")))
    with refusal("r-names", "colnames(object) <- paste0("):
        read_cells(made(cells.obs))


def test_a_sketch_says_that_cells_are_left_out(cells, tmp_path, caplog):
    caplog.set_level(logging.INFO, "scperformer")
    part = cells[::3]
    counts = [r.dgc(some.X, some.var_names, some.obs_names) for some in (cells, part)]
    assays = {"RNA": r.assay(counts[0]), "sketch": r.assay(counts[1])}
    assert same(
        read_cells(r.save_rds(r.seurat(assays, cells.obs, "sketch"), tmp_path / "a.rds")), part
    )
    assert said(caplog, "read_cells", 20, 30, "DefaultAssay(object) <- 'RNA'")


def test_a_folder_of_hdf5_array_names_the_lines_of_r(tmp_path):
    for folder, prefix in ((tmp_path / "a", ""), (tmp_path / "b", "x_")):
        folder.mkdir()
        (folder / f"{prefix}se.rds").write_bytes(gzip.compress(r.saved(r.null)))
        (folder / f"{prefix}assays.h5").touch()
        line = f"loadHDF5SummarizedExperiment('{folder}'{', prefix = ' + repr(prefix) if prefix else ''})"
        for path in (folder, *folder.iterdir()):
            with refusal("unknown-kind", line, "saveRDS(object, 'object.rds')"):
                read_cells(path)
        (folder / "mouse.rds").write_bytes(gzip.compress(r.saved(r.null)))
        assert require_readable(folder / "mouse.rds") == "rds"


def test_a_matrix_alone(cells, tmp_path):
    for matrix in (
        r.dgc(cells.X, cells.var_names, cells.obs_names),
        r.dgc(cells.X.T, cells.obs_names, cells.var_names),
    ):
        assert same(read_cells(r.save_rds(matrix, tmp_path / "a.rds")), cells)
    with refusal("r-names"):
        read_cells(r.save_rds(r.dgc(cells.X), tmp_path / "a.rds"))


def test_objects_in_other_forms(cells, tmp_path):
    """A range as the names of rows has them, numbers as texts, and a wrapped vector (ALTREP)."""

    counts = r.dgc(cells.X, cells.var_names, cells.obs_names)
    obs = {
        "rank": r.range_of(1, 30),
        "name": r.alternative(
            "deferred_string", r.pair(r.integers([r.NA_INT, *range(29)]), r.integers([0]))
        ),
        "wrapped": r.alternative(
            "wrap_real", r.listed([r.numbers(np.arange(30) / 2), r.integers([0, 0])])
        ),
    }
    obs["elsewhere"] = r.alternative("mmap_real", r.listed([r.texts(["values.bin"])]))
    numbers = r.numbers([1e5, 123456, 1 / 3, 1e-4, -2.5, np.inf, np.nan, 1e300, *[0] * 22])
    obs["number"] = r.alternative("deferred_string", r.pair(numbers, r.integers([0])))
    found = read_cells(
        r.save_rds(r.seurat({"RNA": r.assay(counts)}, cells.obs, **obs), tmp_path / "a.rds")
    )
    # of as.character
    as_r = ["1e+05", "123456", "0.333333333333333", "1e-04", "-2.5", "Inf", "NaN", "1e+300", "0"]
    assert list(found.obs["number"][:9]) == as_r
    assert "elsewhere" not in found.obs
    assert list(found.obs["rank"]) == list(range(1, 31))
    assert found.obs["name"].iloc[0] is None
    assert list(found.obs["name"][1:3]) == ["0", "1"]
    assert list(found.obs["wrapped"]) == list(np.arange(30) / 2)


FORMS = {
    "compact_realseq": r.numbers([3, 3, -1]),
    "deferred_string": r.pair(r.range_of(1, 3), r.integers([0])),
    "wrap_string": r.pair(r.texts(["a"]), r.integers([0, 0])),
    "wrap_list": r.listed([r.listed([r.range_of(1, 2)]), r.integers([0, 0])]),
    "mmap_real": r.listed([r.texts(["values.bin"]), r.integers([8, 14])]),
    "a form of another package": r.null,
}


def test_what_is_passed_over_is_parsed_as_what_is_read(cells, tmp_path):
    """Other forms and deep lists in the parts that no annotation needs, before and between those that it needs."""
    parts = [r.alternative(form, state) for form, state in FORMS.items()]
    slots = {"metadata": r.listed([*parts, r.nested(5000)]), "misc": parts[0]}
    counts = r.dgc(cells.X, cells.var_names, cells.obs_names)
    made = r.experiment({"counts": counts}, cells.obs, cells.var, **slots)
    assert same(read_cells(r.save_rds(made, tmp_path / "a.rds")), cells)


def test_what_is_not_read_beside_counts_is_left_out(cells, tmp_path, caplog):
    caplog.set_level(logging.INFO, "scperformer")
    names = cells.var_names, cells.obs_names
    lazy = r.s4("DelayedUnaryIsoOpStack", "DelayedArray", seed=r.dgc(cells.X, *names))
    made = r.experiment({"logcounts": lazy, "counts": r.dgc(cells.X, *names)}, cells.obs, cells.var)
    assert same(read_cells(r.save_rds(made, tmp_path / "a.rds")), cells)
    assert said(caplog, "read_cells", "assay(object, 'logcounts')")
    on_disk = r.s4("MatrixDir", "BPCells", dir=r.texts(["folder"]))
    assays = {
        "RNA": r.assay5(*names, {"counts": (on_disk, *names)}),
        "sketch": r.assay5(*names, {"counts": (r.dgc(cells.X), *names), "data": (on_disk, *names)}),
    }
    found = read_cells(r.save_rds(r.seurat(assays, cells.obs, "sketch"), tmp_path / "a.rds"))
    assert same(found, cells)
    assert found.raw is None
    assert said(caplog, "read_cells", "object[['sketch']]$data")


def refused_objects(cells: ad.AnnData) -> dict[str, tuple[r.Item, str, str]]:
    counts = r.dgc(cells.X, cells.var_names, cells.obs_names)
    on_disk = r.s4(
        "DelayedMatrix",
        "DelayedArray",
        seed=r.s4("HDF5ArraySeed", "HDF5Array", filepath=r.texts(["x.h5"])),
    )
    renamed = r.s4(
        "RenameDims", "BPCells", matrix=r.s4("MatrixDir", "BPCells", dir=r.texts(["folder"]))
    )
    layers = {"counts": (renamed, cells.var_names, cells.obs_names)}
    bpcells = r.assay5(cells.var_names, cells.obs_names, layers)
    return {
        "HDF5Array": (
            r.experiment({"counts": on_disk}, cells.obs, cells.var),
            "r-matrix",
            "as(assay(object, 'counts'), 'dgCMatrix')",
        ),
        "BPCells": (
            r.seurat({"RNA": bpcells}, cells.obs),
            "r-matrix",
            "object[['RNA']]$counts <- as(",
        ),
        "Seurat 2": (r.s4("seurat", "Seurat", raw=counts), "r-object", "UpdateSeuratObject"),
        "a list": (r.listed({"one": r.null, "two": counts}), "r-object", "object[['two']]"),
        "a list without names": (r.listed([r.null, counts]), "r-object", "saveRDS(object[[2]]"),
        "a data.frame": (
            r.frame(pd.DataFrame({"c1": [1.0]}, ["CD3D"])),
            "r-object",
            "as.matrix(object)",
        ),
        "a data.frame with genes": (
            r.frame(pd.DataFrame({"gene": ["CD3D"], "c1": [1.0]}, ["1"])),
            "r-object",
            "saveRDS(as.matrix(object[-1])",
        ),
        "ExpressionSet": (r.s4("ExpressionSet", "Biobase"), "r-object", "Biobase::exprs(object)"),
        "MultiAssayExperiment": (
            r.s4(
                "MultiAssayExperiment",
                "MultiAssayExperiment",
                colData=r.null,
                ExperimentList=r.s4(
                    "ExperimentList", "", listData=r.listed({"ADT": counts, "scRNAseq": counts})
                ),
            ),
            "r-object",
            "saveRDS(object[['scRNAseq']]",
        ),
        "lgCMatrix": (
            r.s4("lgCMatrix", "Matrix", Dim=r.integers([3, 3])),
            "r-matrix",
            "'CsparseMatrix'",
        ),
        "numbers": (r.numbers([1, 2]), "r-object", "plain values"),
        "a function": (r.function, "r-object", "plain values"),
        "an empty assay": (
            r.seurat({"RNA": r.assay(r.numbers([], 10, dim=r.integers([0, 0])))}, cells.obs),
            "r-empty",
            "RNA",
        ),
    }


@pytest.mark.parametrize("kind", refused_objects(ad.AnnData(sparse.csr_matrix((30, 60)))))
def test_other_objects_name_the_lines_of_r(kind, cells, tmp_path):
    made, code, text = refused_objects(cells)[kind]
    with refusal(code, "a.rds", text):
        read_cells(r.save_rds(made, tmp_path / "a.rds"))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (gzip.compress(b"RDX3\nX\n" + bytes(20)), "load('a.rds')"),
        (bytes.fromhex("0b0e0a0c") + bytes(20), "qs::qread('a.rds')"),
        (gzip.compress(b"A\n3\n262400\n"), "readRDS('a.rds')"),
    ],
    ids=["RData", "qs", "ascii"],  # gzip writes the time
)
def test_other_files_of_r_name_the_lines_of_r(content, text, tmp_path):
    (tmp_path / "a.rds").write_bytes(content)
    with refusal("unknown-kind", text, "saveRDS("):
        read_cells(tmp_path / "a.rds")


def deep(w: r.Writer) -> None:
    for _ in range(100_000):
        w.ints(19, 1)
    w.ints(254)


def many(w: r.Writer) -> None:
    w.ints(19, 2**24)
    w.parts.append(bytes(2**26))


def circle(w: r.Writer) -> None:
    """Write an environment that holds itself, as the assays of an object."""
    w.symbols["an environment"] = 1
    w.ints(4, 0, 253)
    w.pairs({"data": lambda w: w.ints(1 << 8 | 255)})
    w.ints(254, 254)


HOSTILE = {
    "a huge length": lambda w: w.ints(14, -1, 2**20, 0),
    "a negative length": lambda w: w.ints(14, -5),
    "a huge list": lambda w: w.ints(19, 2**31 - 1),
    "a huge text": lambda w: w.ints(16, 1, 9, 2**31 - 1),
    "a huge range": lambda w: [
        w.ints(238, 2),
        w.symbol("compact_intseq"),
        w.ints(254),
        r.numbers([1e15, 1, 1])(w),
    ],
    "a reference to nothing": lambda w: w.ints(7 << 8 | 255),
    "an unknown type": lambda w: w.ints(99),
    "nested lists": deep,
    "only NULL": lambda w: w.ints(254),
    "a matrix without parts": r.s4("dgCMatrix", "Matrix", Dim=r.integers([3, 3])),
    "an object of a circle": r.s4("X", "Y", assays=circle, colData=circle),
    "more genes than names": r.seurat(
        {"RNA": r.assay(r.dgc(np.ones((1, 3)), ["CD3D", "CD3E"], ["AAACCTGAGAAACCAT-1"]))},
        pd.DataFrame(index=["AAACCTGAGAAACCAT-1"]),
    ),
    "a cell without meta.data": r.seurat(
        {"RNA": r.assay(r.dgc(np.ones((1, 2)), ["CD3D", "CD3E"], ["AAACCTGAGAAACCAT-1"]))},
        pd.DataFrame(index=["AAACCTGAGAAACCAT-2"]),
    ),
    "rows beyond the matrix": r.s4(
        "dgCMatrix",
        "Matrix",
        i=r.integers([9]),
        p=r.integers([0, 1]),
        Dim=r.integers([2, 1]),
        x=r.numbers([1.0]),
        Dimnames=r.listed([r.texts(["CD3D", "CD3E"]), r.texts(["AAACCTGAGAAACCAT-1"])]),
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_refused_in_one_line(kind, tmp_path):
    with refusal("damaged-file", "a.rds") as refused:
        read_cells(r.save_rds(HOSTILE[kind], tmp_path / "a.rds"))
    assert "\n" not in str(refused.value)


def test_much_of_nothing_is_refused_in_little_time(tmp_path, monkeypatch):
    monkeypatch.setattr("scperformer.base.child.CPU_SECONDS", 1)
    with refusal("damaged-file", "hangs on it"):
        read_cells(r.save_rds(many, tmp_path / "a.rds"))


def test_a_bomb_of_zeros_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("scperformer.base.child.EXTRA_MEMORY", 2**24)
    with refusal("damaged-file", "far more memory"):
        read_cells(r.save_rds(r.numbers(np.zeros(2**25)), tmp_path / "a.rds"))


@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.99])
@pytest.mark.parametrize(
    "compress",
    [gzip.compress, bz2.compress, lzma.compress, bytes],
    ids=["gzip", "bz2", "xz", "none"],
)
def test_truncated_files(share, compress, cells, tmp_path):
    whole = compress(r.saved(seurat3(cells)))
    (tmp_path / "a.rds").write_bytes(whole[: int(share * len(whole))])
    with refusal("damaged-file", "a.rds is truncated"):
        read_cells(tmp_path / "a.rds")


def test_a_table_is_read_back(tmp_path):
    table = pd.DataFrame(
        {
            "text": ["a", None, "ä"],
            "factor": pd.Categorical(["y", None, "x"], ["y", "x"]),
            "number": [0.5, np.nan, 1e300],
            "whole": [1, -2, 2**30],
            "large": [1, -2, 2**40],
            "flag": [True, False, True],
            "maybe": pd.array([True, None, False], dtype="boolean"),
        },
        index=["c1", "c2", "ß"],
    )
    write_table(tmp_path / "a.rds", list(table.index), dict(table.items()))
    whole = gzip.decompress((tmp_path / "a.rds").read_bytes())
    assert whole.startswith(b"X\n\0\0\0\3")
    assert whole.endswith(b"\0\0\0\xfe")
    assert b"\x7f\xf0\0\0\0\0\x07\xa2" in whole  # NA, not NaN
    found = read_object(tmp_path / "a.rds")
    assert found.classes == ["data.frame"]
    assert found["row.names"].value == list(table.index)
    back, others = _table(found, list(table.index))
    assert others == []
    assert back["maybe"].dtype == "boolean"
    pd.testing.assert_frame_equal(back, table, check_dtype=False)


def test_a_table_of_labels(cells, tmp_path):
    """A data.frame with row names or a column of them, a DataFrame, and named values, as text."""
    labels = pd.Series(["a", None] * 15, cells.obs_names, dtype=object)
    more = pd.DataFrame(
        {"type": labels, "cluster": np.arange(30) / 2, "rank": np.arange(30), "flag": True}
    )
    levels = {"levels": r.texts(["a"]), "class": r.texts(["factor"])}
    codes = labels.isna().map({True: r.NA_INT, False: 1})
    unnamed = r.listed(
        {"cell": r.texts(labels.index), "type": r.texts(labels)},
        **{"class": r.texts(["data.frame"]), "row.names": r.integers([r.NA_INT, -30])},
    )
    made = {
        "data.frame": r.frame(more),
        "DataFrame": r.data_frame(more, more.index),
        "factor": r.integers(codes, names=r.texts(labels.index), **levels),
        "texts": r.texts(labels, names=r.texts(labels.index)),
        "flags": r.frame(labels.to_frame("type"), flag=r.numbers([r.NA_INT, *[1] * 29], 10)),
        "without row names": unnamed,
    }
    for name, item in made.items():
        found = read_r_texts(r.save_rds(item, tmp_path / "a.rds"), "type", "labels")
        assert list(found.index) == list(labels.index), name
        assert list(found["type"].fillna("?")) == ["a", "?"] * 15
        if name == "flags":
            assert found["flag"].tolist()[:2] == [None, "TRUE"]
        if "cluster" in found:
            assert found.iloc[3].tolist() == [None, "1.5", "3", "TRUE"]
    with refusal("r-object", "saveRDS(object[['type']]"):
        read_r_texts(r.save_rds(r.listed({"a": r.null}), tmp_path / "a.rds"), "type", "labels")


@pytest.mark.skipif(not R_DATA.is_dir(), reason="no objects of R here")
def test_an_object_of_seurat_5_and_an_experiment():
    found = read_cells(R_DATA / "seurat5.rds")
    same_cells = ad.read_h5ad(R_DATA.parent / "organs" / "mouse_gut_muscularis_catscradle.h5ad")
    assert list(found.obs_names) == list(same_cells.obs_names)
    np.testing.assert_array_equal(dense(found.X), dense(same_cells.X).astype(np.float32))
    assert read_cells(R_DATA / "sce.rds").shape == (786, 1384)
