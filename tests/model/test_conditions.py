"""Simulated conditions: shallower sequencing and gene panels."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from scperformer.attention.tokens import log2_bins, tokenize
from scperformer.cells.normalisation import normalise_counts, recover_counts
from scperformer.config.training import ConditionsConfig, TokensConfig
from scperformer.model import batches
from scperformer.model.batches import PANEL_CELLS, random_panel, simulate_conditions

NUM_GENES = 400
CONTINUOUS = TokensConfig()


@pytest.fixture(scope="module")
def counts() -> np.ndarray:
    rng = np.random.default_rng(0)
    made = rng.poisson(3.0, size=(4 * PANEL_CELLS, NUM_GENES)).astype(np.float32)
    made[:, 0] = 1  # every cell has a gene with one count
    return made


def seen_counts(counts: np.ndarray, conditions: ConditionsConfig, seed: int = 0, tokens=CONTINUOUS, top=0):
    """The counts that the encoder sees, and their batch; the first `top` genes are the most variable."""
    torch.manual_seed(seed)
    variability_G = torch.zeros(NUM_GENES)
    variability_G[:top] = 10.0
    informative_G = torch.arange(NUM_GENES)
    batch = tokenize(normalise_counts(csr_matrix(counts), 1e4), tokens)
    seen_batch = simulate_conditions(batch, conditions, tokens, variability_G, informative_G, 1e4)
    seen = np.zeros((len(counts), NUM_GENES + 1), dtype=np.float32)
    for row, (genes, x, keep) in enumerate(zip(seen_batch.genes_BL, seen_batch.x_BL, seen_batch.keep_BL, strict=True)):
        assert int(genes[keep][-1]) == NUM_GENES  # the special position is the last real token
        seen[row, genes[keep].numpy()] = x[keep].numpy()
    return recover_counts(csr_matrix(seen[:, :-1])).toarray(), seen_batch


def test_nothing_changes_without_conditions(counts):
    seen, _ = seen_counts(counts, ConditionsConfig())
    np.testing.assert_array_equal(seen, counts)


def test_a_share_of_the_cells_is_thinned(counts):
    many = np.tile(counts, (10, 1))
    seen, _ = seen_counts(many, ConditionsConfig(lowest_depth=0.1))
    shares = seen.sum(1) / many.sum(1)
    assert abs((shares < 1).mean() - 0.7) < 0.09  # 320 cells: three standard deviations
    thinned = np.log(shares[shares < 1]) / np.log(0.1)  # uniform from 0 to 1
    assert 0.4 < thinned.mean() < 0.6
    assert thinned.max() < 1.1


def test_cells_of_a_group_share_a_panel(counts, monkeypatch):
    monkeypatch.setattr(batches, "MIN_PANEL_GENES", 20)
    conditions = ConditionsConfig(panel_share=1.0)
    seen, _ = seen_counts(counts, conditions)
    panels = []
    for start in range(0, len(counts), PANEL_CELLS):
        group = slice(start, start + PANEL_CELLS)
        measured = (seen[group] > 0).any(0)
        expressed = counts[group] > 0
        np.testing.assert_array_equal(seen[group] > 0, expressed & measured)
        panels.append(measured)
    assert len({panel.tobytes() for panel in panels}) == len(panels)


def test_panels_prefer_variable_genes(counts, monkeypatch):
    monkeypatch.setattr(batches, "MIN_PANEL_GENES", 20)
    conditions = ConditionsConfig(panel_share=1.0)
    many = np.tile(counts, (20, 1))
    seen, _ = seen_counts(many, conditions, top=20)
    panels = [(seen[i : i + PANEL_CELLS] > 0).any(0) for i in range(0, len(many), PANEL_CELLS)]
    shares = np.array([(panel[:20].mean(), panel[20:].mean()) for panel in panels])
    assert shares[:, 0].mean() > shares[:, 1].mean() + 0.05


def test_designed_panels_mix_informative_and_random_genes():
    """A fifth of the panels; with 5,000 genes, no other panels have so many of the 300 most informative genes."""
    torch.manual_seed(0)
    variability_G, informative_G = torch.zeros(5000), torch.randperm(5000)
    panels = torch.stack([random_panel(variability_G, informative_G) for _ in range(1000)])
    sizes, listed = panels[:, :-1].sum(1), panels[:, informative_G[:300]].sum(1)
    is_designed = (sizes <= 1000) & (listed > 60)
    assert 0.16 < is_designed.float().mean() < 0.24  # .2; the standard error is .013
    assert sizes[is_designed].min() >= 300
    # Half to all genes of a panel are drawn from the top of the list, which is twice as long.
    by_rank = panels[is_designed][:, informative_G].float().mean(0)
    assert by_rank[:300].mean() > 0.4
    assert 0.01 < by_rank[2500:].mean() < 0.1


def test_values_are_normalised_over_the_remaining_counts(counts):
    conditions = ConditionsConfig(lowest_depth=0.2, panel_share=1.0)
    _, batch = seen_counts(counts, conditions)
    totals = torch.expm1(batch.x_BL.double()).sum(1)
    torch.testing.assert_close(totals, torch.full_like(totals, 1e4), rtol=1e-4, atol=0)


def test_bins_belong_to_the_new_values(counts):
    tokens = TokensConfig(name="bins", num_bins=40)
    _, batch = seen_counts(counts, ConditionsConfig(lowest_depth=0.2), tokens=tokens)
    np.testing.assert_array_equal(batch.values_BL.numpy(), log2_bins(batch.x_BL.numpy(), tokens))


def test_the_seed_determines_the_conditions(counts):
    conditions = ConditionsConfig(lowest_depth=0.2, panel_share=0.5)
    one, again, other = (seen_counts(counts, conditions, seed)[0] for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()
