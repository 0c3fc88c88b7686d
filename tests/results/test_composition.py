"""The composition of samples: counts, groups of samples, and tests, compared with pandas and scipy."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kruskal, mannwhitneyu

from scperformer.base.errors import InputError
from scperformer.results.read_annotations import Annotated
from scperformer.results import composition, report_tables as tables

LABELS = ["B", "T"]
SHARES = {"s1": 2, "s2": 3, "s3": 4, "s4": 6, "s5": 7, "s6": 8}  # B cells among the ten cells of each sample
CONDITIONS = dict(zip(SHARES, ["ctrl"] * 3 + ["stim"] * 3, strict=True))


def make_sample(name: str, num_b: int, **columns: object) -> Annotated:
    labels = ["B"] * num_b + ["T"] * (10 - num_b)
    obs = pd.DataFrame({"k_label": pd.Categorical(labels), "k_baseline_label": labels, "k_confidence": 0.9})
    obs = obs.assign(k_call=[*labels[:9], "unknown"], k_unknown=[False] * 9 + [True], **columns)
    obs["k_level1"] = "lymphocyte"
    facts = {"model": {"hash": "a" * 64, "name": "m", "labels": LABELS}}
    return Annotated(name=name, path=Path(name), key="k", obs=obs, umap=None, facts=facts)


@pytest.fixture
def samples() -> list[Annotated]:
    return [
        make_sample(name, num, condition=CONDITIONS[name], cell=np.arange(10), study="one")
        for name, num in SHARES.items()
    ]


def groups_of(samples: list[Annotated], wanted: tuple[str, ...] = ()) -> dict[str, list[str]]:
    of_cell = np.repeat([sample.name for sample in samples], 10)
    return composition.group_columns(samples, of_cell, list(SHARES), wanted)


def data_of(samples: list[Annotated]) -> dict:
    labels = tables.order_labels(samples)
    cells = tables.all_cells(samples, labels)
    of_cell = composition.sample_of_cells(samples, cells, None)
    return composition.composition_data(samples, cells, labels, of_cell, groups_of(samples))


def test_counts_by_call_label_and_level(samples):
    calls, labels, level = data_of(samples)["kinds"]
    assert calls["values"] == ["B", "T", "unknown"]
    assert calls["counts"] == [[num, 9 - num, 1] for num in SHARES.values()]
    assert labels["counts"] == [[num, 10 - num] for num in SHARES.values()]
    assert (level["name"], level["values"]) == ("Level 1", ["lymphocyte", "unknown"])
    assert len(set(calls["colours"])) == 3


def test_groups_are_in_natural_order(samples):
    data = data_of(samples)
    data["groups"] = {"donor": ["d10", "d9", "d1", "d1", "d9", "d10"]}
    (table,) = composition.group_tables(data)
    assert [title for title, _ in table.columns[1:4]] == ["Mean share, d1", "Mean share, d9", "Mean share, d10"]
    assert table.rows[0][1] == pytest.approx((SHARES["s3"] + SHARES["s4"]) / 20)


def test_similar_samples_are_neighbours(samples):
    order = data_of([samples[place] for place in (0, 3, 1, 4, 2, 5)])["order"]
    kinds = [list(SHARES)[(0, 3, 1, 4, 2, 5)[place]] for place in order]
    assert [CONDITIONS[name] for name in kinds] in (["ctrl"] * 3 + ["stim"] * 3, ["stim"] * 3 + ["ctrl"] * 3)


def test_columns_with_one_value_in_each_sample_group_the_samples(samples):
    assert groups_of(samples) == {"condition": list(CONDITIONS.values())}
    for sample in samples:
        sample.facts["sheet"] = np.array(["study"], dtype=object)
    assert groups_of(samples) == {}  # all samples are of one study
    assert groups_of(samples, ("condition",)) == {"condition": list(CONDITIONS.values())}
    with pytest.raises(InputError, match=r"group_by=cell, which has 10 values in sample s1"):
        groups_of(samples, ("cell",))
    with pytest.raises(InputError, match=r"group_by=conditions, which is no column.*did you mean 'condition'"):
        groups_of(samples, ("conditions",))


def test_groups_are_tested_by_their_samples(samples):
    [table] = composition.group_tables(data_of(samples))
    rows = {row[0]: row[1:] for row in table.rows}
    expected = mannwhitneyu([0.2, 0.3, 0.4], [0.6, 0.7, 0.8]).pvalue
    assert rows["B"] == pytest.approx([0.3, 0.7, expected, 3 * expected / 2])  # of three calls, two have this P value
    assert rows["unknown"][2:] == [1.0, 1.0]


def test_more_than_two_groups_are_tested_by_kruskal_and_wallis(samples):
    data = data_of(samples * 2)
    data["samples"] = [f"s{number}" for number in range(12)]
    counts = [[num, 10 - num] for num in (1, 2, 3, 4, 5, 6, 7, 8, 9, 3, 2, 1)]
    data["kinds"] = [{"name": "Call", "values": LABELS, "counts": counts}]
    data["groups"] = {"donor": ["a"] * 4 + ["b"] * 4 + ["c"] * 3 + ["d"]}
    [table] = composition.group_tables(data)
    shares = np.array([row[0] / 10 for row in counts])
    expected = kruskal(shares[:4], shares[4:8], shares[8:11]).pvalue  # one sample is no group
    assert table.rows[0][5] == pytest.approx(expected)


def test_groups_of_few_samples_have_no_test(samples):
    [table] = composition.group_tables(data_of(samples) | {"groups": {"donor": list("aabbcc")}})
    assert [title for title, _ in table.columns] == ["Call", *(f"Mean share, {donor}" for donor in "abc")]


def test_samples_can_be_a_column_of_one_file(samples):
    one = make_sample("file", 5, donor=["d1"] * 5 + ["d2"] * 5)
    cells = tables.all_cells([one], tables.order_labels([one]))
    assert composition.sample_of_cells([one], cells, "donor").tolist() == ["d1"] * 5 + ["d2"] * 5
    with pytest.raises(InputError, match=r"no column 'donors' in obs of file; .*did you mean 'donor'"):
        composition.sample_of_cells([one], cells, "donors")
