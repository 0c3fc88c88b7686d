"""Analyses of the attention of a trained model: numbers compared with numpy, files, figures, refused input."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.image import imread
from scipy import sparse

from scperformer.adaptation.load import load_model
from scperformer.attention.registry import all_mechanisms
from scperformer.config.training import ModelConfig, TokensConfig
from scperformer.lab.analyze import (
    MEAN_OF_VALUES,
    HeadInputs,
    analyze_spectrum,
    approximation_errors,
    low_rank,
)
from scperformer.lab.encoder import Encoder
from scperformer.model.minibatches import Cells


def make_cells(unexpressed: str = "skip") -> Cells:
    rng = np.random.default_rng(0)
    x = sparse.random(6, 40, density=0.5, rng=rng, format="csr", dtype=np.float32)
    x.data = np.log1p(10 * x.data)
    x.sort_indices()
    return Cells(x, TokensConfig(unexpressed=unexpressed))


def make_encoder(
    cells: Cells, attention: str = "favor", depth: int = 2, norm: str = "pre", **options
) -> Encoder:
    torch.manual_seed(0)
    model = ModelConfig(dim=16, depth=depth, num_heads=2, head_dim=8, norm=norm)
    generator = torch.Generator().manual_seed(0)
    return Encoder(
        cells.x.shape[1], cells.tokens, model, {"name": attention, **options}, generator
    ).eval()


def random_inputs(
    num_tokens: int, head_dim: int = 8, num_heads: int = 2, scale: float = 1.0
) -> HeadInputs:
    generator = torch.Generator().manual_seed(num_tokens)
    q, k, v = (
        torch.randn(num_heads, num_tokens, head_dim, generator=generator) * scale for _ in range(3)
    )
    return HeadInputs(q, k, v, torch.arange(num_tokens))


@pytest.mark.parametrize(
    ("unexpressed", "norm"), [("full", "pre"), ("skip", "post"), ("memory", "pre")]
)
def test_inputs_are_those_of_the_models_own_forward_pass(unexpressed, norm, monkeypatch):
    """They are compared with the projections of the hidden states that enter each layer in `forward`."""
    cells = make_cells(unexpressed)
    encoder = make_encoder(cells, norm=norm, depth=3)
    batch = cells.batch([2])
    entered = []

    def recorder(finished):
        def record(h_BLD, *mixed):
            entered.append(h_BLD)
            return finished(h_BLD, *mixed)

        return record

    with torch.no_grad():
        inputs = list(encoder.attention_inputs(batch))
        for layer in encoder.stack:
            monkeypatch.setattr(layer, "finished", recorder(layer.finished))
        encoder(batch)
    # The stream of unexpressed genes (memory) has a token per gene and is not part of the inputs.
    hidden = [h_1LD for h_1LD in entered if h_1LD.shape[1] == batch.keep_BL.shape[1]]
    assert len(inputs) == len(hidden) == 3
    for layer, h_1LD, qkv in zip(encoder.stack, hidden, inputs, strict=True):
        x_1LD = layer.norm_attention(h_1LD) if norm == "pre" else h_1LD
        # L x (q, k, v) x H x E
        rows = (x_1LD @ layer.to_qkv.weight.T).detach().reshape(-1, 3, 2, 8)
        for place, tensor in enumerate(qkv):
            torch.testing.assert_close(
                tensor[0], rows[:, place].transpose(0, 1), atol=1e-5, rtol=1e-5
            )


def naive_curve(q, k) -> np.ndarray:
    """Cumulative singular values of one head's softmax map, in numpy, row by row."""
    rows = []
    for query in q.numpy().astype(np.float64):
        scores = np.exp([query @ key / math.sqrt(len(key)) for key in k.numpy().astype(np.float64)])
        rows.append(scores / scores.sum())
    values = np.linalg.svd(np.array(rows), compute_uv=False)
    return np.cumsum(values) / values.sum()


def test_spectrum_against_numpy():
    """Two layers, two heads, two cells; the curve of the shorter cell continues at 1."""
    layers = [
        [random_inputs(5, scale=scale), random_inputs(150, scale=scale)] for scale in (1.0, 2.0)
    ]
    files, numbers = analyze_spectrum(layers, None, None)
    assert numbers["tokens"] == [5, 150]
    curves, index = files["spectrum.csv"], files["index128.csv"]
    assert [index[name].tolist() for name in ("layer", "head")] == [[1, 1, 2, 2], [1, 2, 1, 2]]
    assert (index["num_cells_of_at_most_128_tokens"] == 1).all()
    for row, (layer, head) in enumerate(np.ndindex(2, 2)):
        short, long = (naive_curve(cell.q_HLE[head], cell.k_HLE[head]) for cell in layers[layer])
        own = curves[(curves["layer"] == layer + 1) & (curves["head"] == head + 1)]
        wanted = (np.concatenate([short, np.ones(145)]) + long) / 2
        np.testing.assert_allclose(own["cumulative"], wanted, atol=1e-7)  # q and k are float32
        np.testing.assert_array_equal(own["index"], np.arange(1, 151))
        assert index["cumulative"][row] == pytest.approx((1 + long[127]) / 2, abs=1e-7)
        assert index["sd"][row] == pytest.approx((1 - long[127]) / 2, abs=1e-7)


@pytest.fixture(scope="module")
def favor_errors() -> pd.DataFrame:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "scperformer.lab.analyze.all_mechanisms", lambda: {"favor": all_mechanisms()["favor"]}
        )
        cells = [random_inputs(60, scale=0.5), random_inputs(90, scale=0.5)]
        patch.setattr("scperformer.lab.analyze.SIZES", [16, 64, 256])
        patch.setattr("scperformer.lab.analyze.DRAWS_PER_MECHANISM", 10)
        return approximation_errors([cells, cells], 100, seed=0)


def test_the_last_row_is_the_mean_of_the_values(favor_errors):
    last = favor_errors.iloc[-1]
    assert (last["mechanism"], pd.isna(last["size"]), last["num_errors"]) == (
        MEAN_OF_VALUES,
        True,
        8,
    )
    errors = []
    for num_tokens in (60, 90):
        cell = random_inputs(num_tokens, scale=0.5)
        for q, k, v in zip(
            *(x.numpy().astype(np.float64) for x in (cell.q_HLE, cell.k_HLE, cell.v_HLE)),
            strict=True,
        ):
            weights = np.exp(q @ k.T / math.sqrt(8))
            exact = weights / weights.sum(axis=1, keepdims=True) @ v
            errors.append(np.linalg.norm(v.mean(axis=0) - exact) / np.linalg.norm(exact))
    assert last["mean"] == pytest.approx(np.mean(errors), rel=1e-5)
    assert last["sd"] == pytest.approx(np.std(errors), rel=1e-4)


def test_maps_of_low_rank_and_their_bounds(monkeypatch):
    """P_low against numpy; its bound always holds; the projection comes within its bound, and 1 / sqrt(k) of that."""
    monkeypatch.setattr("scperformer.lab.analyze.SIZES", [1, 8, 400, 800])
    cell = random_inputs(500, scale=1.5)
    p, v = cell.exact_map(), cell.v_HLE.double()
    exact = p @ v
    found = {(name, k): (out, bound) for name, k, out, bound in low_rank(p, v, seed=0)}
    for head in range(2):
        left, values, right = np.linalg.svd(p[head].numpy())
        for k in (1, 8, 400):
            out, bound = (x[head] for x in found["low rank (SVD)", k])
            np.testing.assert_allclose(
                out, left[:, :k] * values[:k] @ right[:k] @ v[head].numpy(), atol=1e-10
            )
            assert (out - exact[head]).norm() <= bound
            assert bound == pytest.approx(values[k] * v[head].norm().item())
        # of full rank
        torch.testing.assert_close(found["low rank (SVD)", 800][0][head], exact[head])
        assert found["low rank (SVD)", 800][1][head] == 0
        assert found["random projection", 8][1][head].isnan()  # no epsilon below 2/3
        product = p[head].norm() * v[head].norm()
        for k in (400, 800):
            out, bound = (x[head] for x in found["random projection", k])
            epsilon = bound / product
            assert k * (epsilon**2 - epsilon**3) == pytest.approx(5 * math.log(500), rel=1e-3)
            error = (out - exact[head]).norm()
            # E|x R^T R y - x y|^2 = (|x|^2 |y|^2 + (x y)^2) / k for each product: between 1 and 2 of the first term
            assert 0.7 * product / k**0.5 < error < 1.5 * product / k**0.5 < bound


@pytest.fixture
def sample(counts_adata, write) -> Path:
    return write(counts_adata)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def require_complete(folder: Path) -> None:
    """Check that the figure is not empty, and that docs/formats.md names all files, columns and entries."""
    for picture in folder.glob("*.png"):
        assert len(np.unique(imread(picture).reshape(-1, 4), axis=0)) > 20
    page = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
    section = page.partition("## Analysis folders")[2]
    # described for all folders
    written = [name for name in files(folder) if name != ".scperformer.json"]
    written += json.loads((folder / "analysis.json").read_text())
    for table in folder.glob("*.csv"):
        written += list(pd.read_csv(table))
    assert [name for name in written if f"`{name}`" not in section] == []


@pytest.mark.slow
@pytest.mark.parametrize("analysis", ["spectrum", "approximation"])
def test_the_folder_of_an_analysis(analysis, command, sample, tiny_model, tmp_path):
    folder = tmp_path / f"sample.{analysis}"
    tables = (
        ["approximation.csv"]
        if analysis == "approximation"
        else ["index128.csv", "spectrum.csv", "spectrum.png"]
    )
    words = ("analyze", analysis, sample, f"model_path={tiny_model}", "cells=2", "overwrite=true")
    found = []
    for seed in (0, 0, 1):  # the same seed gives the same bytes; overwrite replaces the folder
        ran = command(*words, f"seed={seed}")
        assert (ran.code, ran.out) == (0, ""), ran.err
        found.append([(folder / name).read_bytes() for name in tables])
    assert found[0] == found[1] != found[2]
    assert files(folder) == sorted([".scperformer.json", "analysis.json", *tables])
    assert set(files(tmp_path)) == {"sample.h5ad", folder.name}
    require_complete(folder)
    summary = json.loads((folder / "analysis.json").read_text())
    assert summary["model"]["hash"] == load_model(tiny_model).saved.hash
    assert len(set(summary["cells"])) == 2
    assert len(ran.err.splitlines()) < 20
    if analysis == "approximation":
        mechanisms = set(pd.read_csv(folder / tables[0])["mechanism"])
        linear = {
            name
            for name, kind in all_mechanisms().items()
            if kind.size_option and not kind.quadratic
        }
        assert mechanisms == {*linear, "low rank (SVD)", "random projection", MEAN_OF_VALUES}
        assert all(f"  {name} " in ran.err for name in mechanisms)


MISTAKES = {
    "a file in its place": (
        ["sample.h5ad"],
        "analysis=sample.h5ad; expected one of spectrum, approximation",
    ),
    "output is another folder": (
        ["spectrum", "sample.h5ad", "output=work", "overwrite=true"],
        ".scperformer.json",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(refused, sample, tiny_model, tmp_path, mistake):
    words, message = MISTAKES[mistake]
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "notes.txt").write_text("dear diary")
    assert message in refused("analyze", *words, f"model_path={tiny_model}")


def test_models_without_layers_between_tokens_are_refused(refused, sample):
    assert "pbmc3k" in refused("analyze", "spectrum", sample, "model_path=pbmc3k", "min_overlap=0")
