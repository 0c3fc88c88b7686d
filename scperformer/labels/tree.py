"""A tree over the labels of a model: a node's probability is the sum of its labels', and unsafe calls back off to it.

Shape letters: N cells, C labels, K nodes (labels and their parents).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
import pandas as pd

from scperformer.base.messages import shortened

MAX_LEVELS = 50  # the Cell Ontology has about 20
UNKNOWN_TERM = "unknown"  # the id of labels without an ontology term in the CELLxGENE schema
NO_CALL = "unknown"  # the call of a cell that is unknown, or whose label and parents are all below the confidence


@dataclass(frozen=True)
class LabelTree:
    """One or several trees over labels. A node is a label or a parent of nodes; a label can be a parent, too.

    The text of a ValueError says why the parents are not a tree over the labels.
    """

    labels: list[str]  # C
    parents: dict[str, str]  # the parent of each node that is not at the top
    terms: dict[str, str] = field(default_factory=dict)  # ontology ids of nodes that are not labels

    def __post_init__(self) -> None:
        for node in self.parents:
            path = [node]
            while path[-1] in self.parents:
                path.append(self.parents[path[-1]])
                if (start := path.index(path[-1])) < len(path) - 1:
                    raise ValueError(f"a cycle ({' > '.join(map(shortened, path[start:]))})")
                if len(path) > MAX_LEVELS:
                    raise ValueError(f"more than {MAX_LEVELS} levels")
        inner = set(self.parents.values())
        if unknown := [
            node for node in self.parents if node not in inner and node not in self.labels
        ]:
            raise ValueError(f"'{shortened(unknown[0])}', which is neither a label nor a parent")

    @cached_property
    def nodes(self) -> list[str]:
        """All nodes, each parent before its children."""
        unordered: dict[str, None] = {}  # in order of the labels
        for label in self.labels:
            unordered |= dict.fromkeys(self.path(label))
        children: dict[str | None, list[str]] = {}
        for node in unordered:
            children.setdefault(self.parents.get(node), []).append(node)
        order = []
        waiting = children.get(None, [])[::-1]
        while waiting:
            order.append(waiting.pop())
            waiting += children.get(order[-1], [])[::-1]
        return order

    def path(self, node: str) -> list[str]:
        """Return the nodes from the top down to a node."""
        path = [node]
        while path[-1] in self.parents:
            path.append(self.parents[path[-1]])
        return path[::-1]

    def ids(self, terms: Sequence[str]) -> list[str]:
        """Return the ontology id of each node, given the ids of the labels; `UNKNOWN_TERM` for a node without one."""
        ids = self.terms | dict(zip(self.labels, terms, strict=True))
        return [ids.get(node, UNKNOWN_TERM) for node in self.nodes]

    @property
    def outline(self) -> str:
        """The tree in one line, as in "lymphocyte (B, NK); Platelet"."""
        text = ""
        depth = 1
        for node in self.nodes:
            level = len(self.path(node))
            text += (
                " (" if level > depth else ")" * (depth - level) + ("; " if level == 1 else ", ")
            )
            text = text + node
            depth = level
        return f"{text}{')' * (depth - 1)}".removeprefix("; ")

    @cached_property
    def num_levels(self) -> int:
        """The number of nodes from the top to the deepest label."""
        return max(len(self.path(label)) for label in self.labels)

    def sums(self, proba: np.ndarray) -> np.ndarray:
        """Return the probability of each node, float32 N x K: the sum over its labels.

        The labels are added one by one, in the same order for all nodes. Thus rounding never makes a node more probable
        than its parent, and the sums of a cell do not depend on the other cells, as in a matrix product they would.
        """
        column_of = {node: column for column, node in enumerate(self.nodes)}
        sums = np.zeros((len(proba), len(column_of)))
        for label, values in zip(self.labels, proba.T, strict=True):
            sums[:, [column_of[node] for node in self.path(label)]] += values[:, None]
        return np.minimum(sums, 1).astype(np.float32)

    def call(
        self, proba: np.ndarray, best: np.ndarray, min_confidence: float, named: Sequence[str] = ()
    ) -> tuple[np.ndarray, np.ndarray]:
        """Call the label of each cell, or if it is unsafe, the deepest node whose probability reaches the confidence.

        Each row of `proba`, N x C, sums to 1; `best` is the index of the label of each cell, N. Of several nodes at the
        same depth, the most probable is called. `named` has the node by which each label is called, if not all are
        called by themselves. Returns the index of the called node in `nodes`, -1 if none reaches the confidence, and
        its probability (0 for none).
        """
        sums = self.sums(proba)
        cells = np.arange(len(proba))
        called = np.array([self.nodes.index(node) for node in named or self.labels])[best]
        low = sums[cells, called] < min_confidence
        depths = np.array([len(self.path(node)) for node in self.nodes])
        # A probability is at most 1, so half of it decides only between nodes of the same depth.
        ranks = np.where(sums[low] >= min_confidence, depths + sums[low].astype(np.float64) / 2, 0)
        called[low] = np.where(ranks.max(axis=1, initial=0) > 0, ranks.argmax(axis=1), -1)
        return called, np.where(called < 0, np.float32(0), sums[cells, called])


def tree_of_columns(levels: pd.DataFrame, labels: list[str]) -> LabelTree | None:
    """Return the tree of labels on several levels, the coarsest column first; missing values skip a level."""
    parents: dict[str, str] = {}
    for row in levels.drop_duplicates().itertuples(index=False):
        path = [str(value) for value in row if not pd.isna(value)]
        for parent, child in pairwise(path):
            if child != parent and parents.setdefault(child, parent) != parent:
                parts = (shortened(name) for name in (child, parents[child], parent))
                raise ValueError("two parents of '{}' ('{}' and '{}')".format(*parts))
    return LabelTree(labels, parents) if parents else None


def best_labels(proba: np.ndarray, families: np.ndarray | None) -> np.ndarray:
    """Return the index of the best label of each cell, N, from the probabilities of labels, N x C.

    With `families`, the number of the family of each label, C, it is the best label of the most probable family: the
    labels of a family share its probability, and should not lose to a single label for that.
    """
    if families is None:
        return proba.argmax(axis=1)
    sums = np.zeros((len(proba), int(families.max()) + 1))
    for family, values in zip(families, proba.T, strict=True):
        sums[:, family] += values
    return np.where(families == sums.argmax(axis=1)[:, None], proba, -1.0).argmax(axis=1)
