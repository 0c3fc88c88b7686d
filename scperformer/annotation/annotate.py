"""The annotation of the cells of a file: columns of obs, the embedding, the probabilities, and a record of the run."""

from __future__ import annotations

import json
import logging
import os
import platform
import shlex
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from anndata import AnnData

from scperformer.annotation.columns import (
    DETAILS,
    OBS_COLUMNS,
    OBSM,
    BaselineColumns,
    CallColumns,
    ClusterColumns,
    Columns,
    DropletColumns,
    FewGenes,
    MajorityColumns,
    OneType,
    OwnColumns,
    QualityColumns,
    SetColumns,
    TermColumns,
    TreeColumns,
)
from scperformer.annotation.constrain import constrained
from scperformer.annotation.label_options import LabelOptions
from scperformer.base.messages import NO_COLUMNS, in_time, listed
from scperformer.cells.query import Query
from scperformer.io.h5ad import BackedH5ad
from scperformer.labels.ontology_columns import NO_CALL
from scperformer.labels.tree import LabelTree
from scperformer.model.folder import FORMAT_VERSION
from scperformer.model.imported import own_probabilities
from scperformer.model.load import Model
from scperformer.model.saved_model import both_have_a_part
from scperformer.model.shift import OTHER, Shift, expected_text, tempered
from scperformer.training.adapt import Adapted
from scperformer.training.calls import Calls, Read

if TYPE_CHECKING:
    from scperformer.cli.predict import PredictConfig

log = logging.getLogger(__name__)

MAX_COMMAND = 1000  # characters
NUM_FIRST_CALLS = 5  # in a text


@dataclass
class Annotation:
    """Additions to the cells of a file: obs columns, entries of obsm and one of uns, all named with the prefix."""

    key: str  # the prefix
    obs: pd.DataFrame  # one row per cell, numbered from 0
    details: pd.DataFrame  # of each cell, for obsm: lead over the second label, label by the baseline, levels of a tree
    read: Read
    labels: list[str]  # the columns of the probabilities
    record: dict[str, Any]
    has_own: bool = False  # each label has a probability of its own, the sigmoid of its score in the embedding

    def outdated(self, names: Iterable[Any]) -> list[str]:
        """Return the columns of an earlier annotation that this one does not replace, such as sets and clusters."""
        ours = {f"{self.key}_{name}" for name in OBS_COLUMNS}
        return [name for name in map(str, names) if name in ours and name not in self.obs]

    def describe(self, sample: dict[str, str], existing: Iterable[Any], path: str) -> None:
        """Add columns about the sample as a whole, from a sample sheet; a column that the file has stays as it is."""
        taken = {*map(str, existing), *self.obs}
        kept = {column: value for column, value in sample.items() if column not in taken}
        if left_out := [column for column in sample if column in taken]:
            log.warning("%s has the columns %s: those of the sample sheet are left out", path, listed(left_out))
        texts = {column: pd.Categorical([value] * len(self.obs)) for column, value in kept.items()}
        self.obs = self.obs.assign(**texts)
        if sample:
            self.record["sheet"] = np.array(list(sample), dtype=object)
            self.record["sheet_values"] = np.array(list(sample.values()), dtype=object)

    @property
    def text(self) -> str:
        """A paragraph for a notebook: what was found, whether it can be trusted, and which column to use."""
        model = self.record["model"]
        tissue = f"{model['tissue']}, " if model["tissue"] else ""
        shares = self.obs[f"{self.key}_call"].value_counts(normalize=True)
        first = [f"{share:.0%} {call}" for call, share in shares.items() if call != NO_CALL][:NUM_FIRST_CALLS]
        text = (
            f"{len(self.obs):,} cells were annotated by the model {model['name']} ({tissue}{len(self.labels)} labels)"
        )
        text += f": {', '.join(first)}; {self.record['num_unknown'] / len(self.obs):.1%} are unknown. "
        if (shift := self.record.get("shift")) is not None and not self._warns_of(shift):
            ends = shift["expected_lowest"], shift["expected_highest"]
            kind = shift["kind"]
            expected = expected_text(*ends, kind)
            sentence = expected if kind in expected else f"these cells are {kind}: {expected}"
            text += f"{sentence[0].upper()}{sentence[1:]}. "
        text += "".join(
            f"Warning: {warning}{'' if warning[-1] in '.?' else '.'} " for warning in self.record["warnings"]
        )
        return f"{text}The column to use is obs['{self.key}_call']."

    def _warns_of(self, shift: dict[str, Any]) -> bool:
        """Whether a warning states already how far the cells are from the reference."""
        numbers = Shift(shift["novelty_ratio"], shift["gene_effects"], shift["num_cells"]).numbers
        return any(numbers in warning for warning in self.record["warnings"])

    def write_into(self, adata: AnnData) -> None:
        """Add everything to an AnnData; a view becomes an AnnData of its own, in memory, with a warning."""
        if adata.is_view:
            text = "the cells are a view: it becomes an annotated copy; the AnnData that it was taken from is unchanged"
            warnings.warn(text, stacklevel=2)
            # As anndata itself does when a view is written to, but not for files on disk.
            adata._init_as_actual(adata.to_memory() if adata.isbacked else adata.copy())
        for name in self.outdated(adata.obs):
            del adata.obs[name]
        for name, column in self.obs.items():
            adata.obs[name] = column.array
        for name in (pattern.format(self.key) for pattern in OBSM):
            adata.obsm.pop(name, None)
        proba = np.concatenate([calls.proba for calls in self.read()])
        names = adata.obs_names.rename(None)  # a label may have the name of the index
        adata.obsm[f"X_{self.key}"] = np.concatenate([calls.embedding for calls in self.read()])
        adata.obsm[f"{self.key}_proba"] = pd.DataFrame(proba, index=names, columns=self.labels)
        adata.obsm[f"{self.key}_details"] = self.details.set_index(names)
        if self.has_own:
            own = own_probabilities(adata.obsm[f"X_{self.key}"])
            adata.obsm[f"{self.key}_own_proba"] = pd.DataFrame(own, index=names, columns=self.labels)
        adata.uns[self.key] = self.record


def make_annotation(
    cells: AnnData | BackedH5ad,
    adapted: Adapted,
    options: LabelOptions,
    cfg: PredictConfig,
    *,
    read: Read,
    num_called: int,
    seconds: float,
) -> Annotation:
    """Make the annotation of the cells of an open file, and log a line about it.

    Parameters
    ----------
    read
        Returns the calls of all blocks; it is called several times.
    num_called, seconds
        Cells that this run has called, and the time that it took; an earlier run has called the others.
    """
    query = adapted.query
    saved = adapted.model.saved
    if adapted.shift is not None and not adapted.members:  # joined probabilities have a temperature of their own
        read = _with_temperature(read, adapted.shift.temperature)
    read, constraints = constrained(read, options, saved.labels, query.plan.findings.droplets)
    record: dict[str, Any] = describe_run(query, adapted.model) | {
        "condition": adapted.record,
        "config_json": json.dumps(asdict(cfg) | {"inputs": [Path(name).name for name in cfg.inputs]}),
        "seconds": seconds,
    }
    if constraints:
        record["constraints"] = constraints
    record["repeats"] = {"num_seen": adapted.repeats.num_seen, "num_cells": len(adapted.repeats.rows)}
    notices = list(filter(None, [adapted.repeats.warning(cells)]))
    obs = pd.DataFrame(index=pd.RangeIndex(query.rows.shape[0]))
    for group in _column_groups(cells, adapted, options, cfg, is_constrained=bool(constraints)):
        made = group.make(read, obs)
        obs = obs.assign(**made.columns)
        record |= made.record
        notices += made.warnings
    for notice in notices:
        log.warning("%s: %s", query.path, notice)
    if adapted.gene_factors is not None:
        record["shift"]["gene_factors"] = adapted.gene_factors
    record["warnings"] = np.array(notices, dtype=object)
    details = obs[[name for name in DETAILS if name in obs]]
    obs = obs[[name for name in OBS_COLUMNS if name in obs]].add_prefix(f"{cfg.key_added}_")
    earlier = f", {len(obs) - num_called:,} of them before" if num_called < len(obs) else ""
    speed = f"{in_time(seconds)} ({num_called / seconds:,.0f} cells/s)"
    unknown = f"{record['num_unknown']:,} flagged unknown"
    log.info("%s: %s cells annotated%s in %s, %s", query.path, f"{len(obs):,}", earlier, speed, unknown)
    has_own = adapted.model.saved.has_independent_labels
    return Annotation(cfg.key_added, obs, details, read, without_slashes(saved.labels), record, has_own)


def _with_temperature(read: Read, temperature: float) -> Read:
    """Return how to read the calls with tempered probabilities."""

    def read_tempered() -> Iterator[Calls]:
        for calls in read():
            yield replace(calls, proba=tempered(calls.proba, temperature))

    return read_tempered


def _column_groups(
    cells: AnnData | BackedH5ad, adapted: Adapted, options: LabelOptions, cfg: PredictConfig, *, is_constrained: bool
) -> list[Columns]:
    """Return the groups of columns of an annotation, each after the groups whose columns it needs."""
    query = adapted.query
    saved = adapted.model.saved
    labels = saved.labels
    droplets = query.plan.findings.droplets
    groups: list[Columns] = []
    if cfg.quality:
        groups.append(QualityColumns(cells, query))
    if droplets is not None:
        groups.append(DropletColumns(droplets))
    if "min_genes" in saved.config:
        groups.append(FewGenes(query, saved.config["min_genes"], saved.imported.get("tool", "its tool")))
    if options.tree is not None:
        groups.append(TreeColumns(options.tree, options.terms, cfg.min_confidence, query.path))
    # Under constraints, the label that the linear branch alone would give is not known.
    counts_encoder = both_have_a_part(saved.scales) and not is_constrained
    expected = adapted.record["expected_accuracy"]
    if adapted.model.saved.has_independent_labels:
        groups.append(OwnColumns(labels, cfg.mode == "prob_match", cfg.p_thres))
    # Scores for several studies are already divided by the factors of these.
    factor = 1.0 if adapted.shift is None or adapted.members else adapted.shift.factor
    of_calls = (cfg.min_confidence, cfg.false_alarms, counts_encoder, adapted.shift, factor, expected)
    groups.append(CallColumns(saved, query, *of_calls))
    depends_on_file = adapted.record["adapted"] and adapted.record["depth_share"] < 1
    depends_on_file |= adapted.shift is not None and adapted.shift.kind == OTHER
    if depends_on_file and "of" not in adapted.record:
        groups.append(OneType(options.tree or LabelTree(labels, {})))
    if options.tree is None:
        groups.append(TermColumns(options.terms))
    if adapted.model.baseline is not None:
        groups.append(BaselineColumns(labels))
    if saved.held_out is None:
        text = "%s: the model keeps no held-out calls (%s): no novelty%s, and unknown depends on min_confidence alone"
        why = f"{saved.how_to_complete} to have them"
        if adapted.record["adapted"]:
            why = "its kept cells are few or simulated"
        log.info(text, query.path, why, "" if cfg.alpha is None else ", no sets of labels")
    elif cfg.alpha is not None:
        groups.append(SetColumns(labels, saved.held_out, cfg.alpha, droplets))
    if cfg.clusters is not None:
        groups.append(ClusterColumns(cfg.clusters, options.clusters, options.graph, droplets))
    if cfg.majority_voting:
        groups.append(MajorityColumns(options.clusters, options.graph, cfg.min_prop, droplets))
    return groups


def without_slashes(labels: list[str]) -> list[str]:
    """Replace each "/", which separates folders in h5ad files, by "|"; more "|" follow if that name is taken.

    They follow the name of the index, `_index`, too, and names of folders, `.` and `..`.
    """
    names = list(labels)
    taken = {name for name in names if "/" not in name}
    for i, name in enumerate(names):
        if "/" in name or name in NO_COLUMNS:
            names[i] = name.replace("/", "|")
            while names[i] in taken:
                names[i] += "|"
            taken.add(names[i])
    return names


def describe_run(query: Query, model: Model) -> dict[str, dict[str, Any]]:
    """Return the record of a run: when and how it was made, the model, its input, the shared genes and the software."""
    saved = model.saved
    provenance = saved.provenance
    findings = query.plan.findings
    overlap = query.plan.overlap
    packages = {name: version(name) for name in ("scperformer", "torch", "scanpy", "anndata", "numpy")}
    command = " ".join([Path(sys.argv[0]).name, *map(shlex.quote, sys.argv[1:])]) if sys.argv[1:] else "in Python"
    origin: dict[str, Any] = {}
    if saved.imported:
        origin = {"imported": dict(saved.imported), "lacks": np.array(saved.lacks, dtype=object)}
    return {
        "run": {
            "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "host": platform.node(),
            "command": shortened_command(command),
        },
        "model": {
            "name": saved.name,
            "tissue": saved.tissue or "",
            "hash": saved.hash,
            "path": _portable_path(model.path),
            "labels": np.array(saved.labels),
            "trained_on": provenance["reference"],
            "trained_on_sha256": provenance.get("reference_sha256", ""),
            "label_key": provenance["label_key"],
            "num_cells": provenance["num_cells"],
            "seed": provenance["seed"],
            "scales": saved.scales,
            "format_version": FORMAT_VERSION,
            **origin,
            **({"studies": np.array([study.name for study in saved.studies], dtype=object)} if saved.studies else {}),
            **({"encoder": saved.metrics["encoder"]} if "encoder" in saved.metrics else {}),
            **({"branch_scores": saved.branch_scores} if saved.branch_scores else {}),
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


def shortened_command(command: str) -> str:
    """Return a command as it is recorded: with `~` for the user's home folder, and cut if it names very many files."""
    home = os.path.expanduser("~")
    text = command.replace(home, "~") if home not in ("", "/", "~") else command
    text = os.fsencode(text).decode(errors="replace")
    return text if len(text) <= MAX_COMMAND else f"{text[:MAX_COMMAND]} ..."


def _portable_path(folder: Path) -> str:
    """Return the absolute path of a folder, with `~` for the user's home folder, whose name it would tell."""
    path = Path(os.path.abspath(folder))
    home = Path(os.path.expanduser("~"))
    is_private = home.is_absolute() and home != Path("/") and path.is_relative_to(home)
    place = f"~/{path.relative_to(home)}" if is_private else str(path)
    return os.fsencode(place).decode(errors="replace")  # files hold text in UTF-8 alone
