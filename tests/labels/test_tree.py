"""The label tree: its checks, sums of probabilities, and calls that back off; compared with naive implementations."""

import numpy as np
import pandas as pd
import pytest

from scperformer.labels.tree import LabelTree, tree_of_columns

LABELS = ["B", "CD4", "CD8", "Mono", "T", "DC"]
PARENTS = {
    "CD4": "T",
    "CD8": "T",
    "T": "lymphocyte",
    "B": "lymphocyte",
    "Mono": "myeloid",
    "DC": "myeloid",
}


@pytest.fixture
def tree():
    return LabelTree(LABELS, PARENTS)


@pytest.fixture
def proba():
    """5,000 cells with high to low confidences, and exact zeros."""
    rng = np.random.default_rng(0)
    proba = np.concatenate([rng.dirichlet(np.full(6, spread), 2500) for spread in (3, 0.3)]).astype(
        np.float32
    )
    proba[:50] = np.eye(6, dtype=np.float32)[rng.integers(0, 6, 50)]
    return proba


def naive_sum(node, row):
    """The probability of a node by recursion."""
    own = float(row[LABELS.index(node)]) if node in LABELS else 0.0
    return own + sum(naive_sum(child, row) for child, parent in PARENTS.items() if parent == node)


def naive_call(row, least):
    """The label if it is safe, else the deepest node that is; of several, the most probable."""
    label = LABELS[int(row.argmax())]
    if np.float32(naive_sum(label, row)) >= np.float32(least):
        return label
    depth = {"lymphocyte": 0, "myeloid": 0, "B": 1, "T": 1, "Mono": 1, "DC": 1, "CD4": 2, "CD8": 2}
    safe = [node for node in depth if np.float32(naive_sum(node, row)) >= np.float32(least)]
    return max(safe, key=lambda node: (depth[node], naive_sum(node, row)), default=None)


def test_labels_that_are_named_by_a_parent(tree, proba):
    named = ["B", "T", "T", "Mono", "T", "DC"]
    best = proba.argmax(axis=1)
    called, confidence = tree.call(proba, best, 0.5, named)
    usual, _ = tree.call(proba, best, 0.5)
    t_cell = tree.nodes.index("T")
    sums = tree.sums(proba)
    is_t = np.isin(best, [1, 2]) & (sums[:, t_cell] >= 0.5)
    assert (called[is_t] == t_cell).all()
    np.testing.assert_array_equal(confidence[is_t], sums[is_t, t_cell])
    np.testing.assert_array_equal(called[best == 3], usual[best == 3])


def test_nodes_levels_and_outline(tree):
    assert tree.nodes == ["lymphocyte", "B", "T", "CD4", "CD8", "myeloid", "Mono", "DC"]
    assert tree.num_levels == 3
    assert tree.path("CD8") == ["lymphocyte", "T", "CD8"]
    assert tree.outline == "lymphocyte (B, T (CD4, CD8)); myeloid (Mono, DC)"


def test_sums_equal_a_recursion_and_never_exceed_those_of_the_parent(tree, proba):
    sums = tree.sums(proba)
    expected = [[naive_sum(node, row) for node in tree.nodes] for row in proba[:200]]
    np.testing.assert_allclose(sums[:200], expected, atol=1e-6)
    for node, parent in PARENTS.items():
        assert (sums[:, tree.nodes.index(node)] <= sums[:, tree.nodes.index(parent)]).all()
    assert sums.max() <= 1
    np.testing.assert_array_equal(sums[:, tree.nodes.index("DC")], proba[:, 5])
    # independent of the other cells
    np.testing.assert_array_equal(tree.sums(proba[7:9]), sums[7:9])


@pytest.mark.parametrize("least", [0.0, 0.6, 1.0])
def test_calls_equal_those_of_a_naive_implementation(tree, proba, least):
    called, confidence = tree.call(proba, proba.argmax(axis=1), least)
    calls = [None if node < 0 else tree.nodes[node] for node in called]
    assert calls[:500] + calls[-500:] == [
        naive_call(row, least) for row in (*proba[:500], *proba[-500:])
    ]
    assert ((confidence >= np.float32(least)) == (called >= 0)).all()
    if least == 0:
        assert calls == [LABELS[best] for best in proba.argmax(axis=1)]
    else:
        assert len(set(calls)) > 6


@pytest.mark.parametrize(
    ("pairs", "match"),
    [
        ([("B", "x"), ("x", "y"), ("y", "x")], r"a cycle \(x > y > x\)"),
        ([("B", "B")], r"a cycle \(B > B\)"),
        ([("B", "x"), ("basophil", "x")], "'basophil', which is neither a label nor a parent"),
        ([(f"n{i}", f"n{i + 1}") for i in range(60)] + [("B", "n0")], "more than 50 levels"),
    ],
)
def test_parents_that_are_not_a_tree_are_refused(pairs, match):
    with pytest.raises(ValueError, match=match):
        LabelTree(LABELS, dict(pairs))


def test_columns_from_coarse_to_fine_make_a_tree():
    levels = pd.DataFrame(
        {
            "lineage": ["lymphoid", "lymphoid", "lymphoid", None, "myeloid"],
            "type": ["B", "T", "T", "Platelet", "Mono"],
            "label": ["naive B", "CD4", "CD8", "Platelet", "Mono"],
        }
    )
    tree = tree_of_columns(levels, ["naive B", "CD4", "CD8", "Platelet", "Mono"])
    assert tree.parents == {
        "naive B": "B",
        "CD4": "T",
        "CD8": "T",
        "B": "lymphoid",
        "T": "lymphoid",
        "Mono": "myeloid",
    }
    assert tree_of_columns(levels[["label"]], LABELS) is None
    levels.loc[1, "lineage"] = "x"
    with pytest.raises(ValueError, match=r"two parents of 'T' \('x' and 'lymphoid'\)"):
        tree_of_columns(levels, LABELS)
