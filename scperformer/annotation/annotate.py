"""The annotation of the cells of a query: columns of obs, the embedding, the probabilities, and a record of the run."""

import json
import logging
import math
import os
import platform
import shlex
import sys
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData

from scperformer.adaptation.adapted import Adapted
from scperformer.adaptation.predictions import Blocks
from scperformer.adaptation.record import (
    CHECK,
    NOTE,
    STOP,
    ConstraintsRecord,
    InputRecord,
    ModelRecord,
    Record,
    RemarksRecord,
    RepeatsRecord,
    RunRecord,
    TissueRecord,
    TreeRecord,
    texts,
    to_uns,
)
from scperformer.adaptation.which_tissue import tissue_text
from scperformer.annotation import columns
from scperformer.annotation.calls import Calls, find_calls
from scperformer.annotation.expectation import expected
from scperformer.annotation.fine_types import fine_types_record
from scperformer.annotation.label_options import LabelOptions
from scperformer.annotation.remarks import remarks_about
from scperformer.annotation.umap import MIN_CELLS, place_cells
from scperformer.base.messages import NO_COLUMNS, in_time, listed
from scperformer.cells.query import Query
from scperformer.labels.tree import NO_CALL
from scperformer.model.folder import FORMAT_VERSION
from scperformer.model.imported import own_probabilities
from scperformer.model.network import LinearModel
from scperformer.model.saved_model import SavedModel, both_have_a_part, branch_names

log = logging.getLogger(__name__)

MAX_TEXT = 1000  # characters
LEVELS = {NOTE: logging.INFO, CHECK: logging.WARNING, STOP: logging.WARNING}
PREFIXES = {NOTE: "", CHECK: "To check: ", STOP: "Warning: "}
NUM_FIRST_CALLS = 5  # in a text


@dataclass
class Annotation:
    """Additions to the cells of a query: obs columns, entries of obsm and one of uns, all named with the prefix."""

    key: str  # the prefix
    obs: pd.DataFrame  # one row per cell, numbered from 0
    # of each cell, for obsm: lead over the second label, label by the baseline, levels of a tree
    details: pd.DataFrame
    blocks: Blocks
    labels: list[str]  # the columns of the probabilities
    record: Record
    # each label has a probability of its own, the sigmoid of its score in the embedding
    has_own: bool = False
    umap: np.ndarray | None = None  # float32 N x 2

    def outdated(self, names: Iterable[Any]) -> list[str]:
        """Return the columns of an earlier annotation that this one does not replace, such as sets and clusters."""
        ours = {f"{self.key}_{name}" for name in columns.OBS_COLUMNS}
        return [name for name in map(str, names) if name in ours and name not in self.obs]

    def describe(self, sample: dict[str, str], existing: Iterable[str], path: str) -> None:
        """Add columns about the sample as a whole, from a sample sheet; a column that the file has stays as it is."""
        taken = {*existing, *self.obs}
        if left_out := [column for column in sample if column in taken]:
            log.warning(
                "skipping columns of the sample sheet that %s has already: %s",
                path,
                listed(left_out),
            )
        added = {
            column: pd.Categorical([value] * len(self.obs)) for column, value in sample.items()
        }
        self.obs = self.obs.assign(
            **{column: values for column, values in added.items() if column not in taken}
        )
        self.record = replace(self.record, sheet=texts(sample), sheet_values=texts(sample.values()))

    def add_umap(self, query: Query, seed: int = 0) -> None:
        """Add a UMAP of the embedding; with too few cells, log that there is none."""
        placed = place_cells(self.blocks, query.findings.is_cell, seed)
        if placed is None:
            log.warning("%s: no UMAP: it needs at least %d cells", query.path, MIN_CELLS)
            return
        self.umap, num_cells = placed
        self.record.umap = {"of": f"X_{self.key}", "num_cells": num_cells, "seed": seed}

    @property
    def text(self) -> str:
        """A paragraph for a notebook: what was found, whether it can be trusted, and which column to use."""
        record = self.record
        name = f"the model {record.model.name}" if record.tissue is None else "published profiles"
        of = f"{record.model.tissue}, " if record.model.tissue else ""
        shares = self.obs[f"{self.key}_call"].value_counts(normalize=True)
        first = [f"{share:.0%} {call}" for call, share in shares.items() if call != NO_CALL][
            :NUM_FIRST_CALLS
        ]
        text = f"{len(self.obs):,} cells were annotated by {name} ({of}{len(self.labels)} labels): {', '.join(first)}; "
        text += f"{record.num_unknown / len(self.obs):.1%} are unknown. "
        if record.tissue is not None:
            text += f"Tissue: {tissue_text(record.tissue)}. "
        for remark in record.remarks:
            text += f"{PREFIXES[remark.severity]}{remark.sentence}{'' if remark.sentence[-1] in '.?' else '.'} "
        return f"{text}The column to use is obs['{self.key}_call']."

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
        for name in (pattern.format(self.key) for pattern in columns.OBSM):
            adata.obsm.pop(name, None)
        proba = np.concatenate([block.proba for block in self.blocks()])
        names = adata.obs_names.rename(None)  # a label may have the name of the index
        adata.obsm[f"X_{self.key}"] = np.concatenate([block.embedding for block in self.blocks()])
        adata.obsm[f"{self.key}_proba"] = pd.DataFrame(proba, index=names, columns=self.labels)
        adata.obsm[f"{self.key}_details"] = self.details.set_index(names)
        if self.umap is not None:
            adata.obsm[columns.UMAP] = self.umap
        if self.has_own:
            own = own_probabilities(adata.obsm[f"X_{self.key}"])
            adata.obsm[f"{self.key}_own_proba"] = pd.DataFrame(
                own, index=names, columns=self.labels
            )
        adata.uns[self.key] = to_uns(self.record)


def annotation_of(
    adapted: Adapted,
    blocks: Blocks,
    options: LabelOptions,
    seconds: float,
    tissue: TissueRecord | None,
) -> Annotation:
    """Return the annotation of the cells of an adapted model, and log a line about it.

    `blocks` returns the predictions of all blocks, and is called several times; they took so many `seconds`. `tissue`
    is how the tissue was found, if it was.
    """
    calls = find_calls(adapted, blocks, options)
    query = adapted.query
    key = adapted.options.key_added
    saved = adapted.saved
    obs, details = label_columns(calls)
    parts: dict[str, Any] = {
        "tissue": tissue,
        "seconds": seconds,
        "num_unknown": int(calls.unknown.sum()),
    }
    quality, parts["quality"] = columns.quality_columns(query, calls.table, adapted.doublets)
    obs |= quality
    if adapted.options.alpha is not None and saved.held_out is not None:
        sets, parts["sets"] = columns.set_columns(
            calls.blocks, saved.labels, saved.held_out, adapted.options.alpha, calls.is_cell
        )
        obs |= sets
    if options.clusters is not None:
        how = calls.unknown, calls.is_new, calls.blocks, calls.options, query
        clusters, parts["clusters"] = columns.cluster_labels_columns(calls.table, *how)
        obs |= clusters
    record = Record(
        remarks=RemarksRecord.of([]),
        **facts_of(adapted),
        **parts,
        **facts_of_calls(calls),
        **expected(calls, tissue),
    )
    record = replace(record, remarks=RemarksRecord.of(remarks_about(calls, record)))
    for remark in record.remarks:
        log.log(LEVELS[remark.severity], "%s: %s", query.path, remark.sentence)
    speed = f"{in_time(seconds)} ({len(calls.table) / seconds:,.0f} cells/s)"
    text = "%s: %s cells annotated in %s, %s flagged unknown"
    log.info(text, query.path, f"{len(calls.table):,}", speed, f"{record.num_unknown:,}")
    obs_table = pd.DataFrame(
        {f"{key}_{name}": obs[name] for name in columns.OBS_COLUMNS if name in obs}
    )
    labels = without_slashes(saved.labels)
    return Annotation(
        key,
        obs_table,
        pd.DataFrame(details),
        calls.blocks,
        labels,
        record,
        adapted.model.has_independent_labels,
    )


def label_columns(calls: Calls) -> tuple[dict[str, columns.Column], dict[str, columns.Column]]:
    """Return the columns of obs and of the details with labels, confidence and novelty."""
    adapted = calls.adapted
    table = calls.table
    options = calls.options
    labels = adapted.saved.labels
    obs, levels = columns.named_columns(table, calls.unknown, labels, options.terms, options.tree)
    obs |= {"confidence": table["confidence"], "novelty": calls.novelty.astype(np.float32)}
    if calls.checked.column is not None:
        obs["looks_like"] = calls.checked.column
    if calls.markers is not None:
        obs["named_by"] = calls.markers.named_by
    details = {"margin": table["margin"]} | levels
    if isinstance(adapted.model.baseline, LinearModel):
        details["baseline_label"] = pd.Categorical.from_codes(table["baseline"], categories=labels)
    return obs, details


def facts_of_calls(calls: Calls) -> dict[str, Any]:
    """Return the entries of the record about labels that were excluded, called or changed, and about clusters."""
    adapted = calls.adapted
    options = calls.options
    labels = adapted.saved.labels
    facts: dict[str, Any] = {
        "check": calls.checked.record,
        "fine_types": fine_types_record(calls.fine_types),
    }
    facts["markers"] = calls.markers and calls.markers.record
    if (tree := options.tree) is not None:
        own = np.array([tree.nodes.index(label) for label in labels])[calls.table["best"]]
        facts["tree"] = TreeRecord(
            nodes=texts(tree.nodes),
            parents=texts(tree.parents.get(node, "") for node in tree.nodes),  # "": at the top
            ontology_term_ids=texts(tree.ids(options.terms)),
            num_levels=tree.num_levels,
            # cells with a parent of their label
            num_backed_off=int((calls.table["called"] != own).sum()),
        )
    if not options.allowed.all():
        denied = texts(
            label for label, allowed in zip(labels, options.allowed, strict=True) if not allowed
        )
        facts["constraints"] = ConstraintsRecord(
            denied=denied, weights=options.allowed.astype(np.float64)
        )
    # Under constraints, the label that the linear branch alone would give is not known.
    elif both_have_a_part(adapted.saved.scales):
        changed = calls.of_cells.loc[~calls.of_cells["empty"], "by_encoder"]
        facts["encoder"] = {"num_cells": len(changed), "num_decided": int(changed.sum())}
        kind = branch_names(adapted.saved.metrics.encoder)["encoder"]
        text = "%s: the %s changed %s of %s labels"
        log.info(text, calls.query.path, kind, f"{changed.sum():,}", f"{len(changed):,}")
    return facts


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


def facts_of(adapted: Adapted) -> dict[str, Any]:
    """Return the entries of the record about a run: the model, its input, the shared genes and the software."""
    query = adapted.query
    options = adapted.options
    command = (
        " ".join([Path(sys.argv[0]).name, *map(shlex.quote, sys.argv[1:])])
        if sys.argv[1:]
        else "in Python"
    )
    is_foreign, droplets = query.findings.is_foreign, query.findings.droplets
    num_foreign = 0 if is_foreign is None else int(is_foreign.sum())
    has_baseline = isinstance(adapted.model.baseline, LinearModel)
    made = adapted.saved.provenance
    return {
        "run": RunRecord(
            date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            host=platform.node(),
            command=_portable(command),
            precision=None if adapted.precision == options.precision else adapted.precision,
        ),
        "model": model_record(adapted.saved, adapted.model.path),
        "input": input_record(query),
        "genes": query.overlap,
        # Without true labels in the reference, no accuracy is known.
        "coverage": replace(adapted.record, expected_accuracy=math.nan)
        if made.called
        else adapted.record,
        "repeats": RepeatsRecord(
            num_seen=adapted.repeats.num_seen, num_cells=len(adapted.repeats.rows)
        ),
        "versions": software_versions(),
        "baseline": {"name": "logistic regression (L2, C=1)"} if has_baseline else None,
        "batches": adapted.compared.batches.record(query.batches),
        "droplets": None
        if droplets is None
        else {"floor": droplets.floor, "num_empty": droplets.num_empty},
        "other_species": {"num_cells": num_foreign} if num_foreign else None,
        "config_json": json.dumps(
            asdict(options)
            | {"threads": None, "inputs": [Path(name).name for name in options.inputs]}
        ),
    }


def model_record(saved: SavedModel, path: Path) -> ModelRecord:
    """Return the record of a model in a folder."""
    made = saved.provenance
    return ModelRecord(
        name=saved.name,
        tissue=made.tissue or "",
        hash=saved.hash,
        path=_portable(os.path.abspath(path)),
        labels=texts(saved.labels),
        trained_on=made.reference or "",
        trained_on_sha256=made.reference_sha256 or "",
        label_key=made.label_key or "",
        num_cells=made.num_cells,
        seed=made.seed,
        scales=saved.scales,
        format_version=FORMAT_VERSION,
        imported=made.imported,
        lacks=texts(saved.lacks) if saved.imported else None,
        studies=texts(study.name for study in saved.studies) if saved.studies else None,
        encoder=None if saved.metrics.encoder is None else asdict(saved.metrics.encoder),
        branch_scores=saved.branch_scores or None,
    )


def software_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that matter for an annotation."""
    packages = ("scperformer", "torch", "scanpy", "anndata", "numpy")
    return {name: version(name) for name in packages} | {"python": platform.python_version()}


def input_record(query: Query) -> InputRecord:
    """Return the record of a file, and of how its expression was read."""
    findings = query.findings
    return InputRecord(
        file=Path(query.path).name,
        sha256=query.cells.sha256,
        source=findings.source,
        kind=findings.kind,
        log_base=math.nan if findings.log_base is None else float(findings.log_base),
        total=math.nan if findings.total is None else float(findings.total),
        relative=findings.relative,
        from_smallest=findings.from_smallest,
        notes=texts(findings.notes),
        is_gene=findings.is_gene,
    )


def _portable(text: str) -> str:
    """Return a text as it is recorded: in UTF-8, with `~` for the user's home folder, and cut if it is very long."""
    home = os.path.expanduser("~").rstrip("/")
    text = text.replace(f"{home}/", "~/") if home else text
    text = os.fsencode(text).decode(errors="replace")
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} ..."
