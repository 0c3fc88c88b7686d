"""The place of the expression and the kind of its values, in all kinds of files."""

import math

import anndata as ad
import numpy as np
import pytest
import scanpy
from scipy import sparse
from support.normalised import by_scanpy
from support.opened import detected, opened
from support.refusal import refusal

from scperformer.base.errors import InputError
from scperformer.cells import values
from scperformer.cells.detect import gene_table
from scperformer.cells.normalisation import normalise
from scperformer.io.rows import Rows


def judge(source, x):
    return values.judge(source, x, np.ones(x.shape[1], dtype=bool))


def per_cell(counts, total):
    """Counts scaled to a total per cell, dense float64: the plain formula."""
    dense = np.asarray(counts.todense(), dtype=np.float64)
    return dense / dense.sum(1, keepdims=True) * total


def logged(counts, total=1e4, base=math.e, num_genes=None, decimals=None):
    """log1p of normalised counts; genes dropped after normalising; values rounded."""
    values = np.log1p(per_cell(counts, total)) / math.log(base)
    values = values[:, :num_genes] if decimals is None else values[:, :num_genes].round(decimals)
    return sparse.csr_matrix(values, dtype=np.float32)


def summary(findings):
    return findings.source, findings.kind, findings.total, findings.log_base


# one matrix


@pytest.mark.parametrize(
    "make",
    [lambda x: x, lambda x: sparse.csr_array(x.tocsc()), lambda x: x.toarray().astype(np.uint16)],
    ids=["csr", "array", "uint16"],
)
def test_counts_in_any_storage(counts_adata, make):
    findings = detected(ad.AnnData(make(counts_adata.X)))
    assert summary(findings) == ("X", "counts", None, None)
    assert (findings.num_cells, findings.num_genes, findings.notes) == (120, 200, [])


@pytest.mark.parametrize(("base", "total"), [(math.e, 1e4), (2.0, 1e6), (10.0, 2345.0)])
def test_base_and_total_are_recognised_by_constant_sums(counts_adata, base, total):
    candidate = judge("X", logged(counts_adata.X, total, base))
    assert (candidate.kind, candidate.log.base, candidate.log.confirmed) == ("log1p", base, True)
    assert candidate.log.total == pytest.approx(total, rel=1e-6)  # float32 values


@pytest.mark.parametrize("base", [math.e, 2.0, 10.0], ids=["e", "2", "10"])
@pytest.mark.parametrize("decimals", [None, 3], ids=["full", "rounded"])
def test_the_base_is_recognised_by_multiples_if_genes_were_dropped(counts_adata, base, decimals):
    candidate = judge("X", logged(counts_adata.X, 1e4, base, num_genes=60, decimals=decimals))
    assert (candidate.kind, candidate.log) == ("log1p", values.Logarithm(base))


@pytest.mark.parametrize("make", ["rounded, above the usual total", "never normalised"])
def test_without_a_total_each_cells_smallest_value_is_one_count(counts_adata, make):
    counts = counts_adata.X[:, :60]
    x = np.log1p(counts.toarray()) / math.log(2) if make == "never normalised" else None
    adata = ad.AnnData(logged(counts_adata.X, 1e6, num_genes=60, decimals=4) if x is None else x)
    findings = detected(adata)
    assert (findings.kind, findings.total, findings.relative) == ("log1p", None, True)
    assert any("the sum of the genes in the file is used" in note for note in findings.notes)
    found = normalise(adata.X, findings, 1e4).toarray()
    np.testing.assert_allclose(
        np.expm1(found), per_cell(counts, 1e4), rtol=0.02 if x is None else 1e-5
    )


@pytest.mark.parametrize(
    "others", [lambda counts: counts, lambda counts: counts * 9.37], ids=["counts", "corrected"]
)
@pytest.mark.parametrize("total", [1e4, 777.0], ids=["10,000", "777"])
def test_a_mix_of_logarithms_and_other_values_is_refused(counts_adata, others, total):
    x = others(counts_adata.X.toarray())
    x[::3] = logged(counts_adata.X, total).toarray()[::3]
    adata = ad.AnnData(x, obs=counts_adata.obs)
    with refusal("no-expression"):
        detected(adata)
    adata.layers["counts"] = counts_adata.X
    findings = detected(adata)
    assert (findings.source, findings.kind) == ("layers/counts", "counts")
    assert any("X is not used: a mix" in note for note in findings.notes)


def test_logarithms_too_large_for_the_usual_total_are_refused():
    x = np.log1p(1000 * np.random.default_rng(3).gamma(0.5, 2.0, (50, 80)))
    with refusal("doubtful-values"):
        detected(ad.AnnData(x))
    assert detected(ad.AnnData(x), input_base="e", input_total=1000000.0).total == 1e6


@pytest.mark.parametrize(
    ("total", "num_genes"), [(1e6, None), (100.0, 60)], ids=["TPM", "a part of percent"]
)
def test_values_without_logarithm_are_linear(counts_adata, total, num_genes):
    assert (
        judge("X", sparse.csr_matrix(per_cell(counts_adata.X, total)[:, :num_genes])).kind
        == "linear"
    )


def test_invalid_values_are_counted_in_all_cells():
    x = np.ones((3000, 7), dtype=np.float32)
    x[1, 1], x[2999, 6], x[1500, 3] = np.nan, np.inf, np.nan  # also between the sampled cells
    assert judge("X", x).text == "3 NaN or infinite values"
    assert judge("X", sparse.csr_matrix(x)).text == "3 NaN or infinite values"
    x = np.ones((3000, 7))
    x[1, 0] = -0.5
    assert (
        judge("X", sparse.csc_matrix(x)).text == "negative values down to -0.5: scaled or centred"
    )


@pytest.mark.parametrize("value", [1e16, 1.7e308])
def test_values_too_large_for_expression_are_refused(value):
    x = np.ones((20, 7))
    x[3, 3] = value
    candidate = judge("X", x)
    assert (candidate.kind, candidate.text[:13]) == ("unusable", "values up to ")


# values whose zero is not 0, or whose base is another


def shifted(counts, name):
    """Dense logarithms with a constant before or after them, as edgeR, limma and others write them."""
    dense = counts.toarray().astype(np.float64)
    sums = dense.sum(1, keepdims=True)
    prior = 2 * sums / sums.mean()
    return {
        "log2(cpm + 4)": np.log2(per_cell(counts, 1e6) + 4),
        "log2(1 + cp10k) + 1": np.log2(1 + per_cell(counts, 1e4)) + 1,
        "ln(cpm + .5)": np.log(per_cell(counts, 1e6) + 0.5),  # negative
        "edgeR": np.log2((dense + prior) / (sums + 2 * prior) * 1e6),
        "voom": np.log2((dense + 0.5) / (sums + 1) * 1e6),  # each cell has another zero
        "transformGamPoi": np.log(dense / sums * sums.mean() + 5) / 0.05**0.5,
        "counts + 1": dense + 1,
        "base 1.7": np.log1p(per_cell(counts, 1e4)) / math.log(1.7),
        "divided by the largest": np.log1p(per_cell(counts, 1e4)) / 7.3,
    }[name].astype(np.float32)


SHIFTED = [
    "log2(cpm + 4)",
    "log2(1 + cp10k) + 1",
    "ln(cpm + .5)",
    "edgeR",
    "voom",
    "transformGamPoi",
    "counts + 1",
]


@pytest.mark.parametrize("name", [*SHIFTED, "base 1.7", "divided by the largest"])
@pytest.mark.parametrize("genes", [slice(None), slice(0, 5000)], ids=["all", "some"])
def test_zero_and_base_are_recovered(few_pbmc, name, genes):
    adata = ad.AnnData(shifted(few_pbmc.X, name)[:, genes])
    findings = detected(adata)
    assert findings.from_smallest == (name in SHIFTED)
    x = opened(adata).rows
    wanted = per_cell(few_pbmc.X[:, genes], 1e4)
    found = np.expm1(normalise(x.block(0, 60), findings, 1e4).toarray())
    # the total may not be known, if genes are missing
    found /= found.sum(axis=1, keepdims=True) / 1e4
    np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-3)
    assert x.some(np.arange(7)).nnz == (wanted[:7] > 0).sum()


def test_unknown_values_without_a_zero_are_refused(few_pbmc):
    counts = few_pbmc.X.toarray() / np.asarray(few_pbmc.X.sum(1)) * 2400
    vst = np.log2((1.5 + 0.6 * counts + 2 * np.sqrt(0.3 * counts * (1.5 + 0.3 * counts))) / 1.2)
    rlog = (
        8 + 0.3 * np.log2(counts + 0.5) + np.random.default_rng(0).normal(0, 0.5, counts.shape[1])
    )
    for x in (vst, rlog, np.log2(counts + 1) ** 1.3 + 2):
        with refusal("doubtful-values"):
            detected(ad.AnnData(x))


@pytest.mark.parametrize("base", [2.0, 10.0])
def test_the_base_of_logarithms_of_tpm_without_some_genes(few_pbmc, base):
    lengths = np.random.default_rng(0).lognormal(0, 1, few_pbmc.n_vars)
    tpm = per_cell(sparse.csr_matrix(few_pbmc.X @ sparse.diags(lengths)), 1e6)[:, 1000:]
    findings = detected(ad.AnnData((np.log1p(tpm) / math.log(base)).astype(np.float32)))
    assert (findings.log_base, findings.total, findings.relative) == (base, None, True)


SMOOTHED = {
    "imputed": lambda shares: np.log1p(1e4 * (shares + 0.05 * shares.mean(0)) / 1.05),
    "denoised": lambda shares: (
        2e3 * (0.5 * shares[np.arange(-1, len(shares) - 1)] + 0.5 * shares.mean(0))
    ),
    "corrected": lambda shares: np.maximum(
        0, np.log1p(1e4 * shares) + np.outer(np.arange(60) % 2 - 0.5, BATCH)
    ),
}
BATCH = np.random.default_rng(0).normal(0, 0.1, 13_714)


@pytest.mark.parametrize("name", SMOOTHED)
def test_no_accuracy_is_known_for_smoothed_values(few_pbmc, name):
    x = SMOOTHED[name](per_cell(few_pbmc.X, 1.0)).astype(np.float32)
    assert detected(ad.AnnData(x)).doubt


@pytest.mark.parametrize("name", ["counts", "ln(1 + cp10k)", "TPM"])
def test_panels_and_deep_cells_are_not_smoothed(name):
    """Of 200 genes a cell expresses 90 %, of 13,000 genes 40 %."""
    rng = np.random.default_rng(0)
    for means in (rng.lognormal(1.5, 1, 200), rng.lognormal(-1, 2, 13_000)):
        counts = rng.poisson(means * rng.lognormal(0, 0.5, (40, len(means)))).astype(float)
        lengths = rng.lognormal(0, 1, len(means)) if len(means) > 1000 else 1.0
        made = {
            "counts": counts,
            "ln(1 + cp10k)": np.log1p(per_cell(sparse.csr_matrix(counts), 1e4)),
        }
        made["TPM"] = per_cell(sparse.csr_matrix(counts * lengths), 1e6)
        assert not detected(ad.AnnData(made[name].astype(np.float32))).doubt


# choosing


def test_counts_are_preferred_in_any_place(counts_adata):
    normal = counts_adata.copy()
    normal.X = logged(counts_adata.X)
    in_layer, in_raw = normal.copy(), normal.copy()
    in_layer.layers["counts"] = counts_adata.X
    in_raw.raw = counts_adata
    both = in_raw.copy()
    both.layers["counts"] = counts_adata.X
    assert detected(normal).source == "X"
    assert detected(in_layer).source == "layers/counts"
    assert detected(in_raw).source == "raw"
    assert detected(both).source == "layers/counts"
    assert detected(both[:, :100].copy()).source == "raw"  # more genes


def test_all_genes_are_preferred_to_counts_of_variable_ones(pbmc3k):
    """As scanpy's tutorial leaves a file: counts of 2,000 genes in a layer, logarithms of all genes in raw."""
    adata = pbmc3k[:200].copy()
    adata.layers["counts"] = adata.X.copy()
    by_scanpy(adata)
    adata.raw = adata
    scanpy.pp.highly_variable_genes(adata, n_top_genes=2000)
    adata = adata[:, adata.var["highly_variable"]].copy()
    findings = detected(adata)
    assert (findings.source, findings.why) == ("raw", "all genes are preferred to counts of some")
    text = "layers/counts is not used: counts of 2,000 genes alone (source=layers/counts uses them)"
    assert text in findings.notes
    assert detected(adata, "layers/counts").kind == "counts"  # the user says otherwise
    assert detected(adata, input_kind="counts").source == "layers/counts"
    # filtered, but not chosen
    few = pbmc3k[:200, np.asarray((pbmc3k.X > 0).sum(axis=0)).ravel() >= 30].copy()
    few.layers["counts"] = few.X.copy()
    few.raw = by_scanpy(pbmc3k[:200].copy())
    assert detected(few).source in ("X", "layers/counts")


@pytest.mark.parametrize("base", [math.e, 2.0], ids=["e", "2"])
@pytest.mark.parametrize("round_off", [np.rint, np.floor, np.ceil], ids=lambda each: each.__name__)
def test_logarithms_made_whole_are_refused(pbmc3k, round_off, base):
    adata = by_scanpy(pbmc3k[:200].copy(), base=base)
    with refusal("doubtful-values"):
        detected(undone_zeros(adata, round_off))
    assert detected(adata, input_kind="counts").kind == "counts"  # the user says otherwise


@pytest.mark.parametrize("share", [0.3, 0.05, 0.01])
def test_few_counts_are_counts(pbmc3k, share):
    rng = np.random.default_rng(0)
    adata = undone_zeros(
        pbmc3k[:200].copy(), lambda counts: rng.binomial(counts.astype(int), share).astype(float)
    )
    assert detected(adata).kind == "counts"


def test_a_layer_of_whole_numbers_does_not_beat_recognised_values(counts_adata):
    adata = ad.AnnData(
        logged(counts_adata.X), layers={"mask": counts_adata.X > 0, "unspliced": counts_adata.X}
    )
    assert detected(adata).source == "X"
    assert detected(adata, "layers/unspliced").kind == "counts"
    adata.X = adata.X.toarray() - 1
    assert detected(adata).source == "layers/mask"
    assert "no count is above 1: were the values made binary?" in detected(adata).notes


def test_the_error_describes_the_values_of_each_place(counts_adata):
    adata = ad.AnnData(counts_adata.X.toarray() - 3)
    adata.layers["nan"] = np.full(adata.shape, np.nan)
    adata.layers["zero"] = np.zeros(adata.shape)
    with refusal("no-expression") as error:
        detected(adata, path="bad.h5ad")
    reasons = "X: negative values down to -3: scaled or centred; layers/nan: 24000 NaN or infinite values; "
    assert str(error.value).startswith(
        f"no usable expression in bad.h5ad ({reasons}layers/zero: nothing but zeros)"
    )
    with refusal("no-expression"):
        detected(ad.AnnData(obs=adata.obs, var=adata.var))
    with refusal("no-expression", "in R:", "DefaultAssay(object) <- 'RNA'") as error:
        detected(adata, path="bad.rds")
    assert "layers['counts']" not in str(error.value)


def test_the_given_source_is_used_unless_its_values_are_invalid(counts_adata):
    adata = ad.AnnData(
        logged(counts_adata.X),
        layers={"counts": counts_adata.X, "scaled": counts_adata.X.toarray() - 1},
    )
    assert detected(adata, "X").source == "X"
    with refusal("no-expression"):
        detected(adata, "layers/scaled")
    with refusal("no-source"):
        detected(adata, "layers/count", path="s.h5ad")
    with refusal("no-source"):
        detected(adata, "raw")


def test_a_given_input_kind_is_used_with_a_note(counts_adata):
    adata = ad.AnnData(logged(counts_adata.X), layers={"counts": counts_adata.X})
    assert detected(adata, input_kind="log1p").source == "X"
    findings = detected(adata, "X", "linear")
    assert summary(findings) == ("X", "linear", None, None)
    assert "used as linear as requested, though X looks like log1p" in findings.notes[-1]
    with refusal("too-large-logs"):
        detected(counts_adata, "X", "log1p", path="c.h5ad")


def test_a_given_input_base_is_used(counts_adata):
    adata = ad.AnnData(logged(counts_adata.X, 1e4, 2.0, num_genes=60, decimals=1))
    with refusal("doubtful-values"):  # as natural logarithms
        detected(adata)
    found = detected(adata, input_base="2", input_total=10000.0)
    assert (found.log_base, found.total) == (2.0, 1e4)
    assert "used as log1p to base 2 as requested" in found.notes
    with pytest.warns(UserWarning, match="input_base is not used: X holds counts"):
        detected(counts_adata, input_base="2")


def undone_zeros(adata, function):
    """Apply a function to the stored values; zeros stay."""
    adata.X = sparse.csr_matrix(adata.X, dtype=np.float64)
    adata.X.data = function(adata.X.data)
    return adata


def tpm(adata):
    lengths = np.random.default_rng(0).lognormal(0, 1, adata.n_vars)
    adata.X = sparse.csr_matrix(adata.X @ sparse.diags(lengths), dtype=np.float32)
    return by_scanpy(adata, 1e6)


def by_length(adata):
    lengths = np.sqrt(np.asarray(adata.X.multiply(adata.X).sum(axis=1)).ravel())
    adata.X = sparse.csr_matrix(sparse.diags(1 / lengths) @ adata.X)
    return adata


NOT_AS_THEY_LOOK = {
    "logged twice": (lambda a: undone_zeros(by_scanpy(a), np.log1p), "log1p was applied twice"),
    "square roots of counts": (lambda a: undone_zeros(a, np.sqrt), "square roots"),
    "arcsinh of counts": (lambda a: undone_zeros(a, np.arcsinh), "arcsinh"),
    "normalised and logged twice": (
        lambda a: by_scanpy(by_scanpy(a)),
        "logarithms that were normalised",
    ),
    "scaled without centring": (
        lambda a: scanpy.pp.scale(by_scanpy(a), zero_center=False, copy=True),
        "scaled without centring",
    ),
    "one length": (lambda a: by_length(by_scanpy(a)), "square roots"),
}


@pytest.mark.parametrize("case", NOT_AS_THEY_LOOK)
def test_values_that_are_not_what_they_look_like_are_refused(few_pbmc, case):
    make, match = NOT_AS_THEY_LOOK[case]
    adata = make(few_pbmc)
    with pytest.raises(InputError, match=match) as error:
        detected(adata)
    assert not error.value.fixes
    assert detected(adata, input_kind="linear").kind == "linear"


SOUND = {
    "ln(1 + cp10k)": by_scanpy,
    "log2(1 + CPM)": lambda a: by_scanpy(a, 1e6, 2),
    "TPM": lambda a: undone_zeros(tpm(a), np.expm1),
    "counts without ambient RNA": lambda a: undone_zeros(
        a, lambda x: x * np.linspace(0.7, 1, len(x))
    ),
    "some genes": lambda a: by_scanpy(a)[:, ::7].copy(),
    "a panel": lambda a: tpm(a[:, np.argsort(-a.X.toarray().var(axis=0))[:60]].copy()),
}


@pytest.mark.parametrize("case", SOUND)
def test_ordinary_values_are_not_doubted(few_pbmc, case):
    findings = detected(SOUND[case](few_pbmc))
    assert findings.kind == ("linear" if case in ("TPM", "counts without ambient RNA") else "log1p")


def test_opened_cells_have_the_matrix_and_the_names(counts_adata, pbmc):
    cells = opened(pbmc)
    assert np.shares_memory(cells.rows.matrix.data, pbmc.raw.X.data)
    assert cells.gene_names == list(pbmc.raw.var_names)
    counts_adata.var_names = ["SAME", "SAME ", *counts_adata.var_names[2:]]
    assert opened(counts_adata).gene_names[:2] == ["SAME", "SAME"]
    counts_adata.var_names = ["", "NaN", *counts_adata.var_names[2:]]
    with refusal("unnamed-genes"):
        _ = opened(counts_adata, path="d.h5ad").rows


@pytest.mark.parametrize("form", ['"{}"', "'{}'", "b'{}'"])
def test_quotes_around_names_of_genes_are_left_out(few_pbmc, form):
    names = list(few_pbmc.var_names)
    few_pbmc.var_names = [form.format(name) for name in names]
    findings = detected(few_pbmc)
    assert list(gene_table(few_pbmc, findings).index) == names
    assert any("quotes" in note for note in findings.notes)


def test_booleans_above_the_smallest_of_their_cell():
    values = np.array([[True, True], [False, True]])
    block = Rows(values, from_smallest=True).block(0, 2)
    np.testing.assert_array_equal(block.toarray(), [[0, 0], [0, 1]])
    with refusal("no-expression", "zeros"):
        detected(ad.AnnData(np.ones((1, 1), dtype=bool)))
