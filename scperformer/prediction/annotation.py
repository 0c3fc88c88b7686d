"""The annotation that is made of the calls of cells: columns, embedding, probabilities, and a record of the run."""

import json
import logging
import os
import platform
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy.special import softmax

from scperformer.base.messages import join_names
from scperformer.cells import Query
from scperformer.config import PredictConfig
from scperformer.fitting import Adapted
from scperformer.labels import UNKNOWN_TERM
from scperformer.model import FORMAT_VERSION, HeldOut
from scperformer.network import Model
from scperformer.prediction.calls import Calls
from scperformer.prediction.label_options import Rules, cluster_columns, tree_columns, with_constraints
from scperformer.trust import (
    MOST_UNKNOWN,
    calibration,
    foreign_text,
    held_out_coverage,
    label_sets,
    novelty_share,
    set_thresholds,
    unsure_text,
)

log = logging.getLogger(__name__)


@dataclass
class Annotation:
    """Additions to the cells of a file: obs columns, two obsm entries and one uns entry, all named with the prefix."""

    key: str  # the prefix
    obs: pd.DataFrame  # one row per cell, numbered
    read: Callable[[], Iterable[Calls]]  # gives the calls in the order of the cells; it is called several times
    labels: list[str]  # the columns of the probabilities
    record: dict[str, Any]

    def summary(self) -> dict[str, Any]:
        """Return the model, the condition, the cells of each label and the warnings, as values for JSON."""
        condition = {
            name: None if isinstance(value, float) and np.isnan(value) else value
            for name, value in self.record["condition"].items()
        }
        counts = self.obs[f"{self.key}_label"].value_counts()
        return {
            "model": {name: self.record["model"][name] for name in ("name", "hash", "tissue")},
            "condition": condition,
            "num_cells": len(self.obs),
            "num_unknown": self.record["num_unknown"],
            "labels": {str(label): int(num) for label, num in counts.items()},
            "warnings": list(self.record["warnings"]),
        }

    def write_into(self, adata: AnnData) -> None:
        """Add everything to an AnnData; a view becomes an AnnData of its own, in memory, with a warning."""
        if adata.is_view:
            text = (
                "the cells are a view: it becomes a copy with the annotation; the AnnData that it is of is not changed"
            )
            warnings.warn(text, stacklevel=2)
            # As anndata itself does when a view is written to, but not for files on disk.
            adata._init_as_actual(adata.to_memory() if adata.isbacked else adata.copy())
        for name in outdated(adata.obs, self.key, self.obs):
            del adata.obs[name]
        for name, column in self.obs.items():
            adata.obs[name] = column.array
        proba = np.concatenate([calls.proba for calls in self.read()])
        adata.obsm[f"X_{self.key}"] = np.concatenate([calls.embedding for calls in self.read()])
        adata.obsm[f"{self.key}_proba"] = pd.DataFrame(proba, index=adata.obs_names, columns=self.labels)
        adata.uns[self.key] = self.record


def obs_columns(calls: Calls, model: Model, cfg: PredictConfig, rules: Rules) -> pd.DataFrame:
    """Return the obs columns: label, confidence, margin, unknown, novelty, ontology term, label of the baseline, set.

    Confidence is the probability of the label, margin its lead over the second one. A cell is flagged unknown if its
    novelty is that of at most a share `false_alarms` of the held-out cells of the reference, if its confidence is below
    `min_confidence`, or if it expresses no gene of the model; its label stays. With a label tree, the confidence is the
    highest of the label and its parents, and `tree_columns` are there, too. The set of labels, the most probable one
    first, is there with `alpha`. A model without held-out calls gives no novelty (NaN) and no sets.
    """
    key = cfg.key_added
    labels = model.saved.labels
    held_out = model.saved.held_out
    best = calls.proba.argmax(axis=1)
    top_two = np.sort(calls.proba, axis=1)[:, -2:]
    safe = top_two[:, 1]
    terms = np.array(rules.terms)
    tree = {f"{key}_ontology_term_id": pd.Categorical(terms[best], categories=sorted(set(terms)))}
    if rules.tree is not None:
        tree = tree_columns(calls.proba, best, key, rules, cfg.min_confidence)
        safe = tree[f"{key}_call_confidence"]
    novelty = calls.scores if held_out is None else novelty_share(calls.scores, held_out.scores)
    columns = {
        f"{key}_label": pd.Categorical.from_codes(best, categories=labels),
        f"{key}_confidence": top_two[:, 1],
        f"{key}_margin": top_two[:, 1] - top_two[:, 0],
        f"{key}_unknown": (1 - novelty <= cfg.false_alarms) | (safe < cfg.min_confidence) | calls.empty,
        f"{key}_novelty": novelty.astype(np.float32),
        **tree,
        f"{key}_baseline_label": pd.Categorical.from_codes(calls.baseline, categories=labels),
    }
    if cfg.alpha is not None and held_out is not None:
        thresholds = set_thresholds(*_known_cells(held_out), cfg.alpha, cfg.conformal == "per_label")
        in_set = label_sets(calls.proba, calls.draws, thresholds)
        order = np.argsort(-calls.proba, axis=1, kind="stable")
        names = [join_names([label]) for label in labels]
        texts = ["|".join(names[i] for i in row if has[i]) for row, has in zip(order, in_set, strict=True)]
        columns |= {f"{key}_set": np.array(texts, dtype=object), f"{key}_set_size": in_set.sum(axis=1).astype(np.int32)}
    return pd.DataFrame(columns)


def _known_cells(held_out: HeldOut) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the probabilities, labels and draws of held-out cells; the draws are always the same."""
    proba = softmax(held_out.logits.astype(np.float64), axis=1)
    return proba, held_out.labels, np.random.default_rng(0).random(len(proba))


def trust_record(model: Model, cfg: PredictConfig, obs: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Return the evidence for confidences, flags and sets, from held-out cells of the reference; empty without them.

    `obs` has the columns of the cells; barcodes that cannot be cells are not among them.
    """
    held_out = model.saved.held_out
    if held_out is None:
        return {}
    num_cells = len(held_out.labels)
    found = calibration(held_out.logits, held_out.labels, model.saved.labels)
    for part in ("bins", "labels"):
        columns = found[part].items()
        found[part] = {name: np.array(values, dtype=object if name == "label" else None) for name, values in columns}
    record: dict[str, dict[str, Any]] = {
        "calibration": found,
        "novelty": {"false_alarms": cfg.false_alarms, "num_cells": num_cells},
        "fit": {
            "mean_confidence": float(obs[f"{cfg.key_added}_confidence"].mean()),
            "held_out_confidence": float(softmax(held_out.logits.astype(np.float64), axis=1).max(axis=1).mean()),
        },
    }
    if cfg.alpha is not None:
        coverage = held_out_coverage(*_known_cells(held_out), cfg.alpha, cfg.conformal == "per_label")
        record["sets"] = {
            "alpha": cfg.alpha,
            "conformal": cfg.conformal,
            "num_cells": num_cells,
            "held_out_coverage": coverage,
            "mean_size": float(obs[f"{cfg.key_added}_set_size"].mean()),
        }
    return record


def outdated(names: Iterable[Any], key: str, new: Iterable[Any]) -> list[str]:
    """Return the columns of options, such as levels and sets, that an earlier annotation has left."""
    kinds = (
        r"call|call_confidence|level\d+|set|set_size|cluster_label|cluster_disagrees|low_quality|doublet|doublet_score"
    )
    optional = re.compile(rf"{re.escape(key)}_({kinds})")
    return [name for name in map(str, names) if optional.fullmatch(name) and name not in new]


def without_slashes(labels: list[str]) -> list[str]:
    """Return labels with "|" for each "/", which h5ad files take for a folder; one more "|" if that name is taken."""
    names = list(labels)
    taken = {name for name in names if "/" not in name}
    for i, name in enumerate(names):
        if "/" in name:
            names[i] = name.replace("/", "|")
            while names[i] in taken:
                names[i] += "|"
            taken.add(names[i])
    return names


def make_annotation(
    adapted: Adapted,
    cfg: PredictConfig,
    read: Callable[[], Iterable[Calls]],
    *,
    rules: Rules,
    num_called: int,
    seconds: float,
) -> Annotation:
    """Make the annotation of the cells of a query, and log one line about it.

    Parameters
    ----------
    read
        Returns the calls of all blocks; it is called several times.
    num_called, seconds
        Cells that this run has called, and the time that it took; an earlier run has called the others.
    """
    key = cfg.key_added
    query = adapted.query
    model = adapted.model
    findings = query.plan.findings
    droplets = query.plan.findings.droplets
    read, constraints = with_constraints(read, rules, model.saved.labels, droplets)
    obs = pd.concat([obs_columns(calls, model, cfg, rules) for calls in read()], ignore_index=True)
    if f"{key}_set" in obs:
        obs[f"{key}_set"] = obs[f"{key}_set"].astype("category")  # of each block, until here, with other categories
    num_unknown = int(obs[f"{key}_unknown"].sum())
    if model.saved.held_out is None:
        text = "%s: the model keeps no held-out calls (%s): no novelty of cells%s, and unknown by min_confidence alone"
        why = "its kept cells are few or simulated" if adapted.record["adapted"] else "train it again to have them"
        log.info(text, query.path, why, "" if cfg.alpha is None else " and no sets of labels")
    notices = [] if droplets is None else [droplets.text]
    cells = obs if droplets is None else obs[droplets.is_cell]
    share = float(cells[f"{key}_unknown"].sum()) / len(cells)
    is_foreign = model.saved.held_out is not None and share > MOST_UNKNOWN
    if is_foreign:
        notices.append(foreign_text(share, len(model.saved.labels), model.saved.tissue, findings.text))
    record: dict[str, Any] = describe_run(query, model) | {
        "condition": adapted.record,
        "baseline": {"name": "logistic regression (L2, C=1)"},
        "config_json": json.dumps(asdict(cfg) | {"inputs": [Path(name).name for name in cfg.inputs]}),
        "num_unknown": num_unknown,
        "seconds": seconds,
    }
    record |= trust_record(model, cfg, cells)
    if "fit" in record and not is_foreign:
        notices += filter(None, [unsure_text(*record["fit"].values())])
    for notice in notices:
        log.warning("%s: %s", query.path, notice)
    record["warnings"] = np.array(notices, dtype=object)
    if constraints:
        record["constraints"] = constraints
    if rules.tree is not None:
        # As codes: as text, a million cells would take a quarter of a GB.
        calls = obs[f"{key}_call"].cat
        best = obs[f"{key}_label"].cat
        num_backed_off = int((calls.set_categories(best.categories).cat.codes != best.codes).sum())
        nodes = rules.tree.nodes
        term_of = rules.term_of
        record["tree"] = {
            "nodes": np.array(nodes, dtype=object),
            "parents": np.array([rules.tree.parents.get(node, "") for node in nodes], dtype=object),
            "ontology_term_ids": np.array([term_of.get(node, UNKNOWN_TERM) for node in nodes], dtype=object),
            "num_levels": rules.tree.num_levels,
            "num_backed_off": num_backed_off,
        }
        if cfg.min_confidence > 0:
            text = "%s: %d calls below min_confidence=%g back off to a parent in the label tree, or to unknown"
            log.info(text, query.path, num_backed_off, cfg.min_confidence)
    if rules.quality is not None:
        obs = pd.concat([obs, rules.quality.add_prefix(f"{key}_")], axis=1)
        record["quality"] = rules.quality_record
    if droplets is not None:
        obs[f"{key}_low_quality"] = obs.get(f"{key}_low_quality", ~droplets.is_cell)
        record["droplets"] = {"floor": droplets.floor, "unit": droplets.unit, "num_empty": droplets.num_empty}
    if cfg.clusters is not None:
        record["clusters"] = cluster_columns(obs, key, read, rules, cfg, droplets)
    earlier = f", {len(obs) - num_called} of them before" if num_called < len(obs) else ""
    text = "%s: %d cells annotated%s in %.1f s (%.0f cells/s), %d flagged unknown"
    log.info(text, query.path, len(obs), earlier, seconds, num_called / seconds, num_unknown)
    return Annotation(key, obs, read, without_slashes(model.saved.labels), record)


def _place(folder: Path) -> str:
    """Return the whole path of a folder, so that it is found from anywhere; `~` stands for the user's home folder."""
    path = Path(os.path.abspath(folder))
    home = Path(os.path.expanduser("~"))
    is_private = home.is_absolute() and home != Path("/") and path.is_relative_to(home)
    place = f"~/{path.relative_to(home)}" if is_private else str(path)
    return os.fsencode(place).decode(errors="replace")  # files hold text in UTF-8 alone


def describe_run(query: Query, model: Model) -> dict[str, dict[str, Any]]:
    """Return the record of a run on the cells of a query: the model, its input, the shared genes and the software."""
    saved = model.saved
    provenance = model.saved.provenance
    findings = query.plan.findings
    overlap = query.plan.overlap
    packages = {name: version(name) for name in ("scperformer", "torch", "scanpy", "anndata", "numpy")}
    return {
        "model": {
            "name": saved.name,
            "tissue": saved.tissue or "",
            "hash": saved.hash,
            "path": _place(model.path),
            "labels": np.array(saved.labels),
            "trained_on": provenance["reference"],
            "label_key": provenance["label_key"],
            "num_cells": provenance["num_cells"],
            "seed": provenance["seed"],
            "scales": saved.scales,
            "format_version": FORMAT_VERSION,
        },
        "input": {
            "file": Path(query.path).name,
            "sha256": query.sha256,
            "source": findings.source,
            "kind": findings.kind,
            "log_base": float("nan") if findings.log_base is None else float(findings.log_base),
            "total": float("nan") if findings.total is None else float(findings.total),
            "relative": findings.relative,
            "notes": np.array(findings.notes, dtype=object),
        },
        "genes": {
            "num_model": overlap.num_model,
            "num_file": overlap.num_file,
            "num_shared": overlap.num_shared,
            "share_of_model": overlap.share_of_model,
            "informative_share": overlap.informative_share,
            "notes": np.array(overlap.notes, dtype=object),
            "absent": np.array(overlap.absent, dtype=object),
            "dropped": np.array(overlap.dropped, dtype=object),
        },
        "versions": packages | {"python": platform.python_version()},
    }
