"""The annotation of the cells of a file: columns of obs, the embedding, the probabilities, and a record of the run."""

import logging
import math
import os
import platform
import shlex
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData

from scperformer.annotation.adapt import Adapted
from scperformer.annotation.clusters_to_check import check_clusters
from scperformer.annotation.columns import (
    MANY_UNKNOWN,
    OBS_COLUMNS,
    OBSM,
    cluster_columns,
    cluster_texts,
    evidence,
    few_genes_warning,
    find_clusters,
    gather_predictions,
    name_columns,
    one_type_warning,
    quality_columns,
    set_columns,
    unknown_cells,
)
from scperformer.annotation.label_options import LabelOptions
from scperformer.annotation.predictions import Predictions, Read
from scperformer.annotation.which_tissue import SPECIFIC, close_tissues, tissue_text
from scperformer.base.messages import NO_COLUMNS, in_time, listed
from scperformer.cells.query import Query
from scperformer.io.h5ad import BackedH5ad
from scperformer.labels.constraints import reweighted
from scperformer.labels.tree import NO_CALL, LabelTree
from scperformer.model.folder import FORMAT_VERSION
from scperformer.model.imported import own_probabilities
from scperformer.model.load import Model
from scperformer.model.saved_model import SavedModel, both_have_a_part, branch_names
from scperformer.trust.novelty import novelty_share
from scperformer.trust.shift import OTHER, Shift, expected_text, file_text, file_warning, tempered

log = logging.getLogger(__name__)

MAX_TEXT = 1000  # characters
NUM_FIRST_CALLS = 5  # in a text
# The accuracy by profiles may be so much below the confidence of labels, more if another tissue fits, too, and so much
# above that of families (benchmarks/NOTES.md).
BELOW = 0.1
BELOW_IF_OTHERS_FIT = 0.2
ABOVE = 0.07


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
        if left_out := [column for column in sample if column in taken]:
            log.warning("skipping columns of the sample sheet that %s has already: %s", path, listed(left_out))
        texts = {column: pd.Categorical([value] * len(self.obs)) for column, value in sample.items()}
        self.obs = self.obs.assign(**{column: text for column, text in texts.items() if column not in taken})
        self.record["sheet"] = np.array(list(sample), dtype=object)
        self.record["sheet_values"] = np.array(list(sample.values()), dtype=object)

    @property
    def text(self) -> str:
        """A paragraph for a notebook: what was found, whether it can be trusted, and which column to use."""
        model = self.record["model"]
        tissue = self.record.get("tissue")
        name = f"the model {model['name']}" if tissue is None else "published profiles"
        of = f"{model['tissue']}, " if model["tissue"] else ""
        shares = self.obs[f"{self.key}_call"].value_counts(normalize=True)
        first = [f"{share:.0%} {call}" for call, share in shares.items() if call != NO_CALL][:NUM_FIRST_CALLS]
        text = f"{len(self.obs):,} cells were annotated by {name} ({of}{len(self.labels)} labels): {', '.join(first)}; "
        text += f"{self.record['num_unknown'] / len(self.obs):.1%} are unknown. "
        if tissue is not None:
            text += f"Tissue: {tissue_text(tissue)}. "
            profiles = self.record["profiles"]
            if not math.isnan(profiles["expected_lowest"]):
                text += f"{profiles_text(profiles['expected_lowest'], profiles['expected_highest'])}. "
        if shift := self.record.get("shift"):
            numbers = Shift(shift["relative_novelty"], shift["batch_effect"], shift["num_cells"]).numbers
            if not any(numbers in warning for warning in self.record["warnings"]):
                kind = shift["kind"]
                expected = expected_text(shift["expected_lowest"], shift["expected_highest"], kind)
                sentence = expected if kind in expected else f"these cells are {kind}: {expected}"
                text += f"{sentence[0].upper()}{sentence[1:]}. "
        for cluster in cluster_texts(self.record["check"]):
            text += f"To check: {cluster}. "
        for warning in self.record["warnings"]:
            text += f"Warning: {warning}{'' if warning[-1] in '.?' else '.'} "
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
    key: str,
    read_raw: Read,
    seconds: float,
    tissue: dict[str, Any] | None = None,
) -> Annotation:
    """Make the annotation of the cells of an open file, and log a line about it.

    Parameters
    ----------
    key
        Prefix of its entries.
    read_raw
        Returns the calls of all blocks; it is called several times.
    seconds
        Time that the calls took.
    tissue
        How the tissue was found, if it was.
    """
    query = adapted.query
    model = adapted.model
    labels = model.saved.labels
    path = query.path
    droplets = query.plan.findings.droplets
    # Joined probabilities have a temperature of their own, and their scores are divided by the factors of the studies.
    shift = None if adapted.members else adapted.shift
    weights = options.allowed.astype(np.float64)  # factors of the probabilities of the labels
    constraints: dict[str, Any] = {}
    if not options.allowed.all():
        denied = [label for label, allowed in zip(labels, options.allowed, strict=True) if not allowed]
        log.info("excluded labels: %s; probabilities are renormalised over the remaining labels", listed(denied))
        constraints = {"denied": np.array(denied, dtype=object), "weights": weights}

    def read() -> Iterator[Predictions]:
        for calls in read_raw():
            proba = calls.proba if shift is None else tempered(calls.proba, shift.temperature)
            yield replace(calls, proba=reweighted(proba, weights) if constraints else proba)

    calls = gather_predictions(read, options.tree, options.min_confidence, options.families)
    is_cell = query.plan.findings.is_cell
    num_foreign = 0
    if query.plan.findings.is_foreign is not None:
        calls["empty"] |= query.plan.findings.is_foreign  # they are unknown
        num_foreign = int(query.plan.findings.is_foreign.sum())
    novelty = _novelty(adapted, calls["scores"].to_numpy())
    unknown = unknown_cells(calls, novelty, options.is_type, options.unknown_fpr, options.min_confidence)
    checked = check_clusters(adapted, calls, unknown, is_cell)
    usual = np.where(checked.returned, 0.0, novelty)  # these cells are novel, but not for their type
    unknown = unknown_cells(calls, usual, options.is_type, options.unknown_fpr, options.min_confidence)
    obs, levels = name_columns(calls, unknown, labels, options.terms, options.tree)
    obs |= {"confidence": calls["confidence"], "novelty": novelty.astype(np.float32)}
    details = {"margin": calls["margin"]} | levels
    record: dict[str, Any] = describe_run(query, model)
    record |= {"coverage": adapted.record, "seconds": seconds, "num_unknown": int(unknown.sum())}
    record |= {"check": checked.record} | ({"constraints": constraints} if constraints else {})
    if checked.column is not None:
        obs["check"] = checked.column
    if adapted.precision is not None:
        record["run"]["precision"] = adapted.precision
    if model.baseline is not None:
        details["baseline_label"] = pd.Categorical.from_codes(calls["baseline"], categories=labels)
        record["baseline"] = {"name": "logistic regression (L2, C=1)"}
    columns, record["quality"] = quality_columns(cells, query, calls, adapted.doublets)
    obs |= columns
    if options.alpha is not None and model.saved.held_out is not None:
        columns, record["sets"] = set_columns(read, labels, model.saved.held_out, options.alpha, is_cell)
        obs |= columns
    if options.clusters is not None:
        columns, record["clusters"] = _cluster_labels(calls, is_cell & ~unknown, is_cell, read, labels, options, path)
        obs |= columns
    if options.tree is not None:
        record["tree"] = _tree_record(options.tree, options, calls, labels)
    # Under constraints, the label that the linear branch alone would give is not known.
    if both_have_a_part(model.saved.scales) and not constraints:
        record["encoder"] = _encoder_record(model.saved, calls.loc[is_cell & ~calls["empty"], "by_encoder"], path)
    trust, warning = _trust(adapted, options.unknown_fpr, calls[is_cell], float(unknown[is_cell].mean()), tissue or {})
    record |= trust | {"repeats": {"num_seen": adapted.repeats.num_seen, "num_cells": len(adapted.repeats.rows)}}
    if tissue:
        record["tissue"] = tissue
    if adapted.batches is not None:
        record["batches"] = adapted.batches.record()
        warning = "; ".join(text for text in (warning, adapted.batches.warning) if text)
    if droplets is not None:
        record["droplets"] = {"floor": droplets.floor, "num_empty": droplets.num_empty}
    if num_foreign:
        record["other_species"] = {"num_cells": num_foreign}
        text = f"{num_foreign:,} cells of another species, or of several, are unknown"
        warning = "; ".join(each for each in (warning, text) if each)
    called = calls["best"][~unknown].to_numpy()
    warned = [adapted.repeats.warning(cells), "" if droplets is None else droplets.text, *_model_warnings(adapted)]
    warned += [warning, _type_warning(adapted, called, options.tree if options.families is None else None)]
    record["warnings"] = np.array([text for text in warned if text], dtype=object)
    for text in record["warnings"]:
        log.warning("%s: %s", path, text)
    speed = f"{in_time(seconds)} ({len(calls) / seconds:,.0f} cells/s)"
    text = "%s: %s cells annotated in %s, %s flagged unknown"
    log.info(text, path, f"{len(calls):,}", speed, f"{record['num_unknown']:,}")
    table = pd.DataFrame({f"{key}_{name}": obs[name] for name in OBS_COLUMNS if name in obs})
    has_own = model.saved.has_independent_labels
    return Annotation(key, table, pd.DataFrame(details), read, without_slashes(labels), record, has_own)


def _novelty(adapted: Adapted, scores: np.ndarray) -> np.ndarray:
    """Return the share of known cells that are less novel, float64 N, from the scores of cells; NaN if not known."""
    held_out = adapted.model.saved.held_out
    if adapted.resemblance is not None:
        return adapted.resemblance.novelty(scores)
    if held_out is None:
        return scores
    factor = 1.0 if adapted.members else adapted.novelty_factor(slice(None))
    return novelty_share(scores / factor, held_out.scores)


def _encoder_record(saved: SavedModel, by_encoder: pd.Series, path: str) -> dict[str, int]:
    """Return the number of cells whose label the encoder changed, and log it."""
    kind = branch_names(saved.metrics.get("encoder", {}))["encoder"]
    log.info("%s: the %s changed %s of %s labels", path, kind, f"{by_encoder.sum():,}", f"{len(by_encoder):,}")
    return {"num_cells": len(by_encoder), "num_decided": int(by_encoder.sum())}


def _cluster_labels(
    calls: pd.DataFrame,
    is_called: np.ndarray,
    is_cell: np.ndarray,
    read: Read,
    labels: Sequence[str],
    options: LabelOptions,
    path: str,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns and the record of clusters, which `is_called` cells label by majority."""
    how = f"obs['{options.clusters}']"
    clusters = options.cluster_of_cell
    if clusters is None:
        clusters = find_clusters(read, options.graph, is_cell, options.resolution)
        place = "the embedding" if options.graph is None else "the neighbour graph of the file"
        how = f"Leiden on {place}, resolution {options.resolution:g}"
    columns, num_disagree = cluster_columns(calls, labels, clusters, is_called)
    record = {"key": options.clusters, "how": how, "num_clusters": int(clusters.codes.max()) + 1}
    text = "%s: clusters=%s: %d clusters (%s); %d cells (%.1f %%) differ from the label of their cluster"
    share = 100 * num_disagree / len(calls)
    log.info(text, path, options.clusters, record["num_clusters"], how, num_disagree, share)
    return columns, record | {"num_disagree": num_disagree}


def _tree_record(tree: LabelTree, options: LabelOptions, calls: pd.DataFrame, labels: Sequence[str]) -> dict[str, Any]:
    """Return the record of a label tree, with the number of cells that got a parent of their label."""
    own = np.array([tree.nodes.index(label) for label in labels])[calls["best"]]
    return {
        "nodes": np.array(tree.nodes, dtype=object),
        "parents": np.array([tree.parents.get(node, "") for node in tree.nodes], dtype=object),  # "": at the top
        "ontology_term_ids": np.array(tree.ids(options.terms), dtype=object),
        "num_levels": tree.num_levels,
        "num_backed_off": int((calls["called"] != own).sum()),
    }


def _model_warnings(adapted: Adapted) -> list[str]:
    """Return the warning about cells with fewer genes than the tool of an imported model accepts."""
    saved = adapted.model.saved
    if "min_genes" not in saved.config:
        return []
    return [few_genes_warning(adapted.query, saved.config["min_genes"], saved.imported.get("tool", "its tool"))]


def _type_warning(adapted: Adapted, called: np.ndarray, tree: LabelTree | None) -> str:
    """Return the warning about a file of one cell type, if depth or batch effect were estimated on it."""
    depends_on_file = adapted.record["adapted"] and adapted.record["depth_share"] < 1
    depends_on_file |= adapted.query.share < 1
    depends_on_file |= adapted.shift is not None and adapted.shift.kind == OTHER
    tree = tree or LabelTree(adapted.model.saved.labels, {})
    return one_type_warning(called, tree) if depends_on_file and "of" not in adapted.record else ""


def _trust(
    adapted: Adapted, unknown_fpr: float, calls: pd.DataFrame, unknown_share: float, tissue: dict[str, Any]
) -> tuple[dict[str, Any], str]:
    """Return the record of what to expect of the calls of a sample, and a warning ("" if there is none)."""
    path = adapted.query.path
    saved = adapted.model.saved
    shift = adapted.shift
    record: dict[str, Any] = {}
    warning = ""
    if adapted.resemblance is not None:
        return _trust_in_profiles(adapted, unknown_fpr, calls, unknown_share, tissue)
    if saved.held_out is None:
        why = "its kept cells are few or simulated"
        if not adapted.record["adapted"]:
            why = f"{saved.how_to_complete} to have them"
        text = "%s: the model has no out-of-fold predictions (%s): no novelty, no sets of labels"
        log.info(f"{text}; unknown depends on min_confidence alone", path, why)
    else:
        mean_confidence = float(calls["confidence"].mean())
        record = evidence(saved, unknown_fpr, mean_confidence)
        warning = file_warning(
            None if shift is None else shift.kind,
            unknown_share,
            len(saved.labels),
            saved.tissue,
            adapted.query.plan.findings.text,
            confidence=mean_confidence,
            held_out=record["fit"]["held_out_confidence"],
        )
    if shift is None:
        return record, warning
    lowest = highest = math.nan
    if warning:
        warning = file_text(shift, warning)
    else:
        if shift.kind == OTHER:
            lowest, highest = shift.expected_accuracy(float(calls.loc[~calls["empty"], "confidence"].mean()))
        else:
            lowest = highest = float(adapted.record["expected_accuracy"])
            if not math.isnan(lowest):
                known = [lowest, *saved.batch_accuracies]
                lowest, highest = min(known), max(known)
        log.info("%s: %s", path, shift.text)
        log.info("%s: %s", path, expected_text(lowest, highest, shift.kind))
    record["shift"] = shift.record() | {"expected_lowest": lowest, "expected_highest": highest}
    if adapted.gene_factors is not None:
        record["shift"]["gene_factors"] = adapted.gene_factors
    return record, warning


def _trust_in_profiles(
    adapted: Adapted, unknown_fpr: float, calls: pd.DataFrame, unknown_share: float, tissue: dict[str, Any]
) -> tuple[dict[str, Any], str]:
    """Return the record of what to expect of the calls by profiles of a tissue, and a warning."""
    calls = calls[~calls["empty"]]
    saved = adapted.model.saved
    resemblance = float(calls["scores"].median()) if len(calls) else math.nan
    # The label is one of a family of similar types: the family is right more often than the label.
    fits_another = tissue.get("instead") or (tissue.get("how") == SPECIFIC and close_tissues(tissue))
    below = BELOW_IF_OTHERS_FIT if fits_another else BELOW
    lowest = max(0.0, float(calls["call_confidence"].mean()) - below)
    highest = min(1.0, float(calls["family"].mean()) + ABOVE)
    if saved.others:  # the tissue is not determined
        lowest = highest = math.nan
    warned = [instead] if (instead := str(tissue.get("instead", ""))) else []
    nearest = pd.Series(np.array(saved.labels)[calls["best"]]).value_counts(normalize=True)
    others = nearest[nearest.index.isin(saved.others)]
    if others.sum() >= MANY_UNKNOWN:
        kinds = listed(f"{share:.0%} {name}" for name, share in others.head(3).items())
        warned.append(f"{others.sum():.0%} of the cells are not named, as they do not occur in every tissue: {kinds}")
    if unknown_share - others.sum() >= MANY_UNKNOWN:
        text = f"{unknown_share - others.sum():.0%} of the cells resemble no type of {saved.name}"
        warned.append(f"{text}: malignant cells, or types that it lacks")
    expected = profiles_text(lowest, highest)
    log.info("%s: resemblance to the profiles %.2f. %s", adapted.query.path, resemblance, expected)
    assert adapted.resemblance is not None
    record: dict[str, Any] = {"resemblance": resemblance, "expected_lowest": lowest, "expected_highest": highest}
    record |= {"centre": adapted.resemblance.centre, "shares": adapted.resemblance.shares}  # for explain
    if adapted.gene_factors is not None:
        record["gene_factors"] = adapted.gene_factors
    return {"profiles": record, "novelty": {"unknown_fpr": unknown_fpr}}, "; ".join(warned)


def profiles_text(lowest: float, highest: float) -> str:
    """Return the accuracy to expect of calls by profiles."""
    expected = "No expected accuracy" if math.isnan(lowest) else f"Expected accuracy {lowest:.2f} to {highest:.2f}"
    return f"{expected}; this reference has no cells"


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
    packages = {name: version(name) for name in ("scperformer", "torch", "scanpy", "anndata", "numpy")}
    command = " ".join([Path(sys.argv[0]).name, *map(shlex.quote, sys.argv[1:])]) if sys.argv[1:] else "in Python"
    described: dict[str, Any] = {
        "name": saved.name,
        "tissue": saved.tissue or "",
        "hash": saved.hash,
        "path": _portable(os.path.abspath(model.path)),
        "labels": np.array(saved.labels),
        "trained_on": provenance["reference"],
        "trained_on_sha256": provenance.get("reference_sha256", ""),
        **{name: provenance[name] for name in ("label_key", "num_cells", "seed")},
        "scales": saved.scales,
        "format_version": FORMAT_VERSION,
    }
    if saved.imported:
        described |= {"imported": dict(saved.imported), "lacks": np.array(saved.lacks, dtype=object)}
    if saved.studies:
        described["studies"] = np.array([study.name for study in saved.studies], dtype=object)
    if "encoder" in saved.metrics:
        described["encoder"] = saved.metrics["encoder"]
    if saved.branch_scores:
        described["branch_scores"] = saved.branch_scores
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return {
        "run": {"date": date, "host": platform.node(), "command": _portable(command)},
        "model": described,
        "input": {
            "file": Path(query.path).name,
            "sha256": query.sha256,
            "source": findings.source,
            "kind": findings.kind,
            "log_base": math.nan if findings.log_base is None else float(findings.log_base),
            "total": math.nan if findings.total is None else float(findings.total),
            "relative": findings.relative,
            "notes": np.array(findings.notes, dtype=object),
            **({} if findings.is_gene is None else {"is_gene": findings.is_gene}),
        },
        "genes": {
            name: np.array(value, dtype=object) if isinstance(value, list) else value
            for name, value in asdict(query.plan.overlap).items()
        },
        "versions": packages | {"python": platform.python_version()},
    }


def _portable(text: str) -> str:
    """Return a text as it is recorded: in UTF-8, with `~` for the user's home folder, and cut if it is very long."""
    home = os.path.expanduser("~").rstrip("/")
    text = text.replace(f"{home}/", "~/") if home else text
    text = os.fsencode(text).decode(errors="replace")
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} ..."
