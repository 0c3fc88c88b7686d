from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix, vstack
from sklearn.linear_model import LogisticRegression
from support.linear_fits import labelled_cells, predict_logits
from support.logs import said

from scperformer.base.metrics import negative_log_likelihood, score
from scperformer.cells.normalisation import normalise_counts
from scperformer.cli.train import TrainConfig
from scperformer.config.training import HeadConfig, ModelConfig, TokensConfig, TrainerConfig
from scperformer.fits import evidence
from scperformer.fits.evidence import FitPlan, calibrated_branches, effects_of_batches, fill_network
from scperformer.fits.folds import evidence_folds
from scperformer.fits.linear import LinearOptions
from scperformer.fits.logistic import Solver, fit_logistic
from scperformer.fits.scales import branch_scales, scales_if_significant, score_alone
from scperformer.model.inference import branch_logits, predict_cells
from scperformer.model.minibatches import Cells
from scperformer.model.network import CellTypeModel
from scperformer.trust.batch_effect import batch_effect, correct_batch_effect

RECIPE = LinearOptions((0.5, 2.0), 0.1, "balanced", "signal")
MODEL = ModelConfig(positions="coexpression", dropout=0.5)
POOLED = replace(MODEL, depth=0)
FEW = 60  # steps, where no accuracy has to be high
HEAD = HeadConfig(name="weighted", hidden=[64, 64], dropout=0.3)
SIGNALS = {"linear": 1.5, "encoder": 0.7}


def made_cells(num_cells: int, seed: int) -> tuple[csr_matrix, np.ndarray]:
    return labelled_cells(num_cells, 300, 0.5, 0.9, 30, seed)


def network_like(fitted) -> CellTypeModel:
    model = replace(MODEL, depth=len(fitted.encoder.performer.reader.stack))
    return CellTypeModel(
        300, 3, tokens=TokensConfig(), model=model, attention={"name": "favor"}, head=HEAD
    )


def options(model: ModelConfig = MODEL, seed: int = 0, max_steps: int = 600) -> TrainConfig:
    trainer = TrainerConfig(batch_size=128, max_steps=max_steps)
    return TrainConfig(
        inputs=[""], label_key="", model=model, head=HEAD, seed=seed, trainer=trainer
    )


@pytest.fixture(scope="module", params=["performer", "pooled"])
def fitted(request):
    x, labels = made_cells(360, seed=0)
    cfg = options(MODEL if request.param == "performer" else POOLED, max_steps=200)
    return calibrated_branches(x, labels, FitPlan(cfg, RECIPE), evidence_folds(labels, seed=0))


def test_the_evidence_is_the_accuracy_on_new_cells(fitted):
    x, labels = made_cells(3000, seed=1)
    logits = fitted.scales["linear"] * predict_logits(fitted.linear, x, RECIPE)
    logits = logits + fitted.scales["encoder"] * fitted.encoder.logits(
        fitted.encoder.performer.sums_of(x)
    )
    found = score(labels, logits.argmax(1))["accuracy"]
    assert 0.6 < found < 0.99  # else any evidence would do
    # 360 cells show an accuracy of .9 to .016 (one standard deviation); a fit to 4 of 5 cells is a little worse.
    assert abs(fitted.evidence.accuracy - found) < 0.06


@pytest.mark.parametrize("most_exact", [7000, 100])  # cells; more are fitted by components
def test_fits_side_by_side_are_as_one_after_the_other(monkeypatch, most_exact: int):
    x, labels = made_cells(240, seed=0)
    monkeypatch.setattr("scperformer.fits.linear.MAX_DUAL", most_exact)

    def arrays(threads: int) -> list[bytes]:
        monkeypatch.setattr(evidence, "usable_cores", lambda: threads)
        found = calibrated_branches(
            x, labels, FitPlan(options(max_steps=20), RECIPE), evidence_folds(labels, seed=0)
        )
        readout = found.encoder.readout.state_dict().values()
        novelty = (found.held_out.scores, *vars(found.held_out.novelty_model).values())
        models = (
            part for model in (found.linear, found.baseline) for part in (model.weight, model.bias)
        )
        return [
            np.asarray(each).tobytes()
            for each in (*models, *readout, *found.logits.values(), *novelty)
        ]

    assert arrays(1) == arrays(2) == arrays(3)


@pytest.mark.parametrize(("signal", "expected"), [(4.0, 1.0), (0.0, 0.1)])
def test_many_cells_lower_the_penalty_where_that_lowers_the_loss(signal, expected, caplog):
    """A penalty hides a feature of small values behind another one, which separates the labels less."""
    caplog.set_level("INFO", "scperformer")
    rng = np.random.default_rng(0)
    labels = np.arange(600) % 2
    noise = rng.normal(size=(600, 2))
    large, small = 10 * (labels - 0.5 + noise[:, 0]), 0.1 * (signal * labels + noise[:, 1])
    features = np.stack([large, small], axis=1).astype(np.float32)

    def fit(c: float, class_weights: str, rows: np.ndarray):
        return fit_logistic(features[rows], labels[rows], c / 10, class_weights, Solver(1e-6))

    design = SimpleNamespace(features=features, labels=labels, fit=fit)
    folds = evidence_folds(labels, seed=0)
    found = evidence._with_penalty_of_many(design, folds, RECIPE, threads=2)
    assert found == replace(RECIPE, c=expected)
    assert bool(said(caplog, "_with_penalty_of_many")) == (expected == 1.0)
    held_out = folds.rows[folds.fold_of_row == 0]
    losses = []
    for c in (0.1, 1.0):
        twin = LogisticRegression(C=c / 10, tol=1e-6).fit(
            *(array[folds.others(0, labels)] for array in (features, labels))
        )
        scores = twin.decision_function(features[held_out]) * (2 * labels[held_out] - 1)
        losses.append(
            min(np.log1p(np.exp(-scale * scores)).mean() for scale in 2 ** np.arange(-3, 9.0))
        )
    assert (losses[1] < 0.9 * losses[0]) == (expected == 1.0)


def test_an_error_in_a_fold_ends_the_fits(monkeypatch):
    x, labels = made_cells(60, seed=0)
    plan = FitPlan(options(replace(POOLED, encoder=False)), RECIPE)
    monkeypatch.setattr(evidence, "usable_cores", lambda: 3)
    monkeypatch.setattr("scperformer.fits.folds.Folds.others", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        calibrated_branches(x, labels, plan, evidence_folds(labels, seed=0))


@pytest.mark.parametrize("num_cells", [45, 90])
def test_labels_without_meaning_have_no_evidence(num_cells):
    """Weights of genes that had seen the held-out labels would predict them."""
    rng = np.random.default_rng(0)
    x = normalise_counts(csr_matrix(rng.poisson(0.5, (num_cells, 3000)).astype(np.float32)), 1e4)
    labels = rng.permutation(np.arange(num_cells) % 3)
    plan = FitPlan(options(replace(POOLED, encoder=False)), RECIPE, tests_baseline=False)
    accuracy = calibrated_branches(
        x, labels, plan, evidence_folds(labels, seed=0)
    ).evidence.accuracy
    assert accuracy < 1 / 3 + 3 * np.sqrt(2 / 9 / num_cells)  # chance, and three standard errors


def test_each_branch_alone_has_the_loss_of_its_own_best_scale():
    """Compared with a scan over scales; accuracy and F1 do not depend on the scale."""
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 3
    logits = {
        name: np.eye(3)[labels] * signal + rng.normal(size=(400, 3))
        for name, signal in SIGNALS.items()
    }
    for name, branch in logits.items():
        found = score_alone(logits, name, labels)
        losses = [
            negative_log_likelihood(scale * branch, labels) for scale in np.linspace(0.1, 5, 500)
        ]
        assert found["loss"] == pytest.approx(min(losses), rel=1e-3)
        assert min(losses) < negative_log_likelihood(branch, labels) - 0.003  # the scale matters
        assert found["accuracy"] == (branch.argmax(1) == labels).mean()
    one = {"linear": logits["linear"], "encoder": np.zeros((400, 3))}
    assert score_alone(one, "linear", labels) == score_alone(logits, "linear", labels)


def test_the_network_computes_the_fitted_branches(fitted):
    x, _ = made_cells(40, seed=2)
    network = network_like(fitted)
    fill_network(network, fitted, fitted.scales)
    linear, encoder = branch_logits(network, Cells(x, TokensConfig()), 16)
    expected = fitted.scales["linear"] * predict_logits(fitted.linear, x, RECIPE)
    np.testing.assert_allclose(linear, expected, rtol=1e-3, atol=1e-3)
    expected = fitted.scales["encoder"] * fitted.encoder.logits(fitted.encoder.performer.sums_of(x))
    np.testing.assert_allclose(encoder, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("case", ["both", "encoder", "odd width"])
def test_sums_over_genes_are_what_the_tokens_give(case):
    """Random weights; 600 cells are several pieces, and the first expresses nothing but has a stored 0."""
    x, _ = made_cells(600, seed=3)
    stored = csr_matrix((np.zeros(1, dtype=np.float32), [7], [0, 1]), shape=(1, 300))
    x = vstack([stored, x], "csr").astype(np.float32)
    model = replace(MODEL, linear=case != "encoder", dim=33 if case == "odd width" else 32)
    torch.manual_seed(0)
    network = CellTypeModel(
        300, 3, tokens=TokensConfig(), model=model, attention={"name": "favor"}, head=HEAD
    ).eval()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    assert network.only_sums
    cells = Cells(x, TokensConfig())
    with torch.no_grad():
        logits, embedding = network(cells.batch(np.arange(601)))
    proba, vectors, by_encoder = predict_cells(network, cells, 64)
    # A logit of size 5 is a sum of about 600 products in float32.
    np.testing.assert_allclose(proba, logits.softmax(-1), atol=1e-5)
    np.testing.assert_allclose(vectors, embedding, rtol=1e-4, atol=1e-4)
    assert len(np.unique(proba, axis=0)) == 601
    some = predict_cells(network, Cells(x[100:103], TokensConfig()), 64)
    np.testing.assert_array_equal(some.proba, proba[100:103])
    linear, encoder = branch_logits(network, cells, 64)
    differ = linear.argmax(1) != (linear + encoder).argmax(1)
    if case in ("both", "odd width"):
        np.testing.assert_array_equal(by_encoder, differ)
        assert 20 < by_encoder.sum() < 580
    else:
        assert not by_encoder.any()


def test_calls_of_a_batch_come_from_fits_without_it():
    """Each cell has a twin in its batch, and labels are random: folds of single cells find the twins."""
    x, labels = made_cells(240, seed=0)
    labels = np.random.default_rng(0).permutation(labels)
    twice = vstack([x, x], "csr")
    batches = np.tile(np.arange(240) % 4, 2)
    labels = np.tile(labels, 2)
    plan = FitPlan(options(max_steps=FEW), RECIPE)
    by_cell = calibrated_branches(twice, labels, plan, evidence_folds(labels, seed=0))
    by_batch = calibrated_branches(
        twice, labels, plan, evidence_folds(labels, seed=0, batches=batches)
    )
    assert by_cell.evidence.accuracy > 0.7
    assert by_batch.evidence.accuracy < 0.5
    for name, scores in by_batch.evidence.branches.items():
        assert scores["accuracy"] < 0.5, name
    accuracy = by_batch.evidence.batches.accuracy
    assert np.mean(accuracy) == pytest.approx(by_batch.evidence.accuracy, abs=0.01)
    assert len(set(accuracy)) > 1


def test_batches_are_compared_with_the_others(monkeypatch):
    """The largest effect is that of a plain loop; of many batches and cells, some are compared."""
    x, labels = made_cells(600, seed=0)
    batches = np.repeat(np.arange(30), 20)
    batches[:300] = np.arange(300) % 2  # two large batches, no others up to 14, and small ones
    factors = np.where(np.arange(300) < 40, 3.0, 1.0)
    x = vstack([correct_batch_effect(x[batches == 0], factors), x[batches != 0]], "csr")
    order = np.concatenate([np.flatnonzero(batches == 0), np.flatnonzero(batches != 0)])
    labels, batches = labels[order], batches[order]
    labels[batches == 29] = 3  # a label of this batch alone
    effects = []
    for batch in (0, 1, *range(15, 29)):
        rest = np.flatnonzero(batches != batch)
        others = np.unique(labels[rest], return_inverse=True)[1]
        effects.append(batch_effect(x[batches == batch], x[rest], others))
    found = effects_of_batches(x, labels, batches, 0)
    assert found == pytest.approx(max(effects), rel=1e-6)
    sizes = []

    def count(cells: csr_matrix, others: csr_matrix, labels: np.ndarray) -> float:
        sizes.append((cells.shape[0], others.shape[0]))
        return batch_effect(cells, others, labels)

    monkeypatch.setattr(evidence, "batch_effect", count)
    monkeypatch.setattr(evidence, "MAX_COMPARED_BATCHES", 4)
    monkeypatch.setattr(evidence, "MAX_STATISTICS_CELLS", 400)
    assert effects_of_batches(x, labels, batches, 0) == pytest.approx(found, rel=0.2)
    assert [size for size, _ in sizes] == [150, 150, 20, 20]
    assert max(num for _, num in sizes) <= 400


@pytest.fixture
def held_out():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 400)
    truth = np.eye(4)[labels]
    return truth * 2 + rng.normal(size=(400, 4)), truth * 1 + rng.normal(size=(400, 4)), labels


def test_scales_are_the_best_of_a_grid(held_out):
    linear, encoder, labels = held_out
    found = branch_scales(linear, encoder, labels)
    grid = np.arange(0, 4, 0.05)
    losses = [
        [negative_log_likelihood(a * linear + b * encoder, labels) for b in grid] for a in grid
    ]
    best = np.unravel_index(np.argmin(losses), (len(grid), len(grid)))
    # The prior is as heavy as one of 400 cells: it moves the optimum by less than a step or two of the grid.
    np.testing.assert_allclose(found, grid[list(best)], atol=0.1)


def test_an_encoder_that_may_help_by_chance_is_left_out(held_out, monkeypatch):
    linear, _, labels = held_out
    weak = np.eye(4)[labels] * 0.1 + np.random.default_rng(1).normal(size=linear.shape)
    linear, weak, labels = linear[:60], weak[:60], labels[:60]
    alone = [branch_scales(linear, np.zeros_like(linear), labels)[0], 0.0]
    share = branch_scales(linear, weak, labels)[1]
    assert share > 0.02
    *scales, gain = scales_if_significant(linear, weak, labels, min_errors=2.0)
    assert scales == alone
    assert 0 < gain["mean"] < 2 * gain["standard_error"]
    monkeypatch.setattr("scperformer.fits.scales.MIN_GAIN", gain["mean"] * 0.99)
    assert scales_if_significant(linear, weak, labels, min_errors=0.0)[1] == share
    monkeypatch.setattr("scperformer.fits.scales.MIN_GAIN", gain["mean"] * 1.01)
    assert [*scales_if_significant(linear, weak, labels, min_errors=0.0)[:2]] == alone
