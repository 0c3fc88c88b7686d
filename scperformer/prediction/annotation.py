"""The annotation that is made of the calls of cells: columns, embedding, probabilities, and a record of the run."""

import json
import logging
import os
import platform
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData

from scperformer.cells import Droplets, Query
from scperformer.config import PredictConfig
from scperformer.fitting import Adapted
from scperformer.labels import in_order, is_optional, reweighted, shares_by_em
from scperformer.model import FORMAT_VERSION
from scperformer.network import Model
from scperformer.prediction.calls import Calls
from scperformer.prediction.columns import ColumnMaker, Columns, QualityColumns, Read, Record, column_makers
from scperformer.prediction.label_options import LabelOptions
from scperformer.trust import MOST_UNKNOWN, foreign_text, unsure_text

log = logging.getLogger(__name__)

MOST_EM_CELLS = 20_000  # cells, evenly spread, from which shares of labels are estimated


@dataclass
class Annotation:
    """Additions to the cells of a file: obs columns, two obsm entries and one uns entry, all named with the prefix."""

    key: str  # the prefix
    obs: pd.DataFrame  # one row per cell, numbered
    read: Read  # returns the calls of all blocks, in the order of the cells; it is called several times
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
            text = "the cells are a view, which becomes a copy with the annotation; its original AnnData is not changed"
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


def make_annotation(
    adapted: Adapted,
    cfg: PredictConfig,
    read: Read,
    *,
    options: LabelOptions,
    quality: QualityColumns | None,
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
    query = adapted.query
    saved = adapted.model.saved
    droplets = query.plan.findings.droplets
    read, constraints = constrained(read, options, saved.labels, droplets)
    num_cells = query.rows.shape[0]
    makers = column_makers(saved, options, quality, cfg, droplets, num_cells, query.path)
    obs = _columns_of_blocks(makers, read)
    record = describe_run(query, adapted.model) | {
        "condition": adapted.record,
        "baseline": {"name": "logistic regression (L2, C=1)"},
        "config_json": json.dumps(asdict(cfg) | {"inputs": [Path(name).name for name in cfg.inputs]}),
        "seconds": seconds,
    }
    if constraints:
        record["constraints"] = constraints
    for maker in makers:
        columns, entries = maker.of_file(read, obs)
        for name, values in columns.items():
            obs[name] = values
        record |= entries
    record["warnings"] = np.array(_warnings(adapted, cfg, obs, record), dtype=object)
    earlier = f", {num_cells - num_called} of them before" if num_called < num_cells else ""
    text = "%s: %d cells annotated%s in %.1f s (%.0f cells/s), %d flagged unknown"
    log.info(text, query.path, num_cells, earlier, seconds, num_called / seconds, record["num_unknown"])
    obs = obs[in_order(obs.columns)].add_prefix(f"{cfg.key_added}_")
    return Annotation(cfg.key_added, obs, read, without_slashes(saved.labels), record)


def _columns_of_blocks(makers: Iterable[ColumnMaker], read: Read) -> pd.DataFrame:
    """Return the columns that are made block by block."""
    blocks = []
    for calls in read():
        columns: Columns = {}
        for maker in makers:
            columns |= maker.of_block(calls, columns)
        blocks.append(pd.DataFrame(columns))
    return pd.concat(blocks, ignore_index=True)


def _warnings(adapted: Adapted, cfg: PredictConfig, obs: pd.DataFrame, record: Record) -> list[str]:
    """Return warnings about the file as a whole, and log them."""
    query = adapted.query
    saved = adapted.model.saved
    findings = query.plan.findings
    droplets = findings.droplets
    found = [] if droplets is None else [droplets.text]
    if saved.held_out is None:
        text = "%s: the model keeps no held-out calls (%s): no novelty of cells%s, and unknown by min_confidence alone"
        why = "its stored cells are few or simulated" if adapted.record["adapted"] else "train it again to have them"
        log.info(text, query.path, why, "" if cfg.alpha is None else " and no sets of labels")
    else:
        unknown = obs["unknown"] if droplets is None else obs["unknown"][droplets.is_cell]
        share = float(unknown.sum()) / len(unknown)
        if share > MOST_UNKNOWN:
            found.append(foreign_text(share, len(saved.labels), saved.tissue, findings.text))
        else:
            found += filter(None, [unsure_text(*record["fit"].values())])
    for text in found:
        log.warning("%s: %s", query.path, text)
    return found


def constrained(
    read: Read, options: LabelOptions, labels: list[str], droplets: Droplets | None = None
) -> tuple[Read, Record]:
    """Apply constraints to the probabilities of calls; return the calls as before, and a record of the constraints.

    Barcodes that cannot be cells have no part in estimated shares of labels.
    """
    allowed = options.allowed
    weights = allowed.astype(np.float64)
    record: Record = {}
    if not allowed.all():
        denied = [label for label, is_allowed in zip(labels, allowed, strict=True) if not is_allowed]
        log.info("labels that cannot occur: %s; confidences are for the choice among the others", ", ".join(denied))
        record["denied"] = np.array(denied, dtype=object)
    if options.prior is not None:
        before = options.prior * allowed
        before /= before.sum()
        proba = reweighted(_some_probabilities(read, droplets)[:, allowed], np.ones(allowed.sum()))
        shares = np.zeros(len(labels))
        shares[allowed] = shares_by_em(proba, before[allowed])
        weights[allowed] = shares[allowed] / before[allowed]
        shown = (f"{label} {new:.1%} ({old:.1%})" for label, new, old in zip(labels, shares, before, strict=True))
        text = "prior=em: each call depends on all cells of the file; their estimated shares (reference): %s"
        log.info(text, ", ".join(shown))
        record |= {"estimated_shares": shares, "reference_shares": before}
    if not record:
        return read, {}
    record["weights"] = weights  # of the labels' probabilities

    def read_reweighted() -> Iterator[Calls]:
        for calls in read():
            yield replace(calls, proba=reweighted(calls.proba, weights))

    return read_reweighted, record


def _some_probabilities(read: Read, droplets: Droplets | None) -> np.ndarray:
    """Return the probabilities of up to 20,000 cells from all of the file."""
    if droplets is None:
        step = -(-sum(len(calls.proba) for calls in read()) // MOST_EM_CELLS)
        return np.concatenate([calls.proba[::step] for calls in read()])
    starts = np.cumsum([0, *(len(calls.proba) for calls in read())])
    numbers = droplets.some(MOST_EM_CELLS)
    places = np.searchsorted(numbers, starts)
    parts = zip(read(), starts, places, places[1:], strict=False)
    return np.concatenate([calls.proba[numbers[begin:end] - start] for calls, start, begin, end in parts])


def outdated(names: Iterable[Any], key: str, new: Iterable[Any]) -> list[str]:
    """Return the columns of options, such as levels and sets, that an earlier annotation has left."""
    texts = [name for name in map(str, names) if name.startswith(f"{key}_") and name not in new]
    return [name for name in texts if is_optional(name.removeprefix(f"{key}_"))]


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
