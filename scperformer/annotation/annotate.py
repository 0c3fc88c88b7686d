"""The annotation of the cells of a query: columns of obs, the embedding, the probabilities, and a record of the run."""

import json
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
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData

from scperformer.annotation import columns
from scperformer.annotation.adapted import Adapted
from scperformer.annotation.clusters_to_check import Exchange, check_clusters, compare_clusters, exchanged
from scperformer.annotation.expectation import profiles_text, shallow_text
from scperformer.annotation.fine_types import find_families, fine_types_record, with_families
from scperformer.annotation.label_options import LabelOptions
from scperformer.annotation.predictions import Blocks, Predictions
from scperformer.annotation.record import (
    ConstraintsRecord,
    FineTypesRecord,
    InputRecord,
    ModelRecord,
    Record,
    RepeatsRecord,
    RunRecord,
    TissueRecord,
    TreeRecord,
    texts,
    to_uns,
)
from scperformer.annotation.umap import MIN_CELLS, place_cells
from scperformer.annotation.which_tissue import tissue_text
from scperformer.base.messages import NO_COLUMNS, in_time, listed
from scperformer.cells.query import Query
from scperformer.config.options import AUTO
from scperformer.labels.constraints import reweighted
from scperformer.labels.tree import NO_CALL, LabelTree
from scperformer.model.folder import FORMAT_VERSION
from scperformer.model.imported import own_probabilities
from scperformer.model.saved_model import SavedModel, both_have_a_part, branch_names
from scperformer.trust.shift import OTHER, Shift, expected_text, tempered

log = logging.getLogger(__name__)

MAX_TEXT = 1000  # characters
NUM_FIRST_CALLS = 5  # in a text


@dataclass
class Annotation:
    """Additions to the cells of a query: obs columns, entries of obsm and one of uns, all named with the prefix."""

    key: str  # the prefix
    obs: pd.DataFrame  # one row per cell, numbered from 0
    details: pd.DataFrame  # of each cell, for obsm: lead over the second label, label by the baseline, levels of a tree
    blocks: Blocks
    labels: list[str]  # the columns of the probabilities
    record: Record
    has_own: bool = False  # each label has a probability of its own, the sigmoid of its score in the embedding
    umap: np.ndarray | None = None  # float32 N x 2

    def outdated(self, names: Iterable[Any]) -> list[str]:
        """Return the columns of an earlier annotation that this one does not replace, such as sets and clusters."""
        ours = {f"{self.key}_{name}" for name in columns.OBS_COLUMNS}
        return [name for name in map(str, names) if name in ours and name not in self.obs]

    def describe(self, sample: dict[str, str], existing: Iterable[str], path: str) -> None:
        """Add columns about the sample as a whole, from a sample sheet; a column that the file has stays as it is."""
        taken = {*existing, *self.obs}
        if left_out := [column for column in sample if column in taken]:
            log.warning("skipping columns of the sample sheet that %s has already: %s", path, listed(left_out))
        added = {column: pd.Categorical([value] * len(self.obs)) for column, value in sample.items()}
        self.obs = self.obs.assign(**{column: values for column, values in added.items() if column not in taken})
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
        first = [f"{share:.0%} {call}" for call, share in shares.items() if call != NO_CALL][:NUM_FIRST_CALLS]
        text = f"{len(self.obs):,} cells were annotated by {name} ({of}{len(self.labels)} labels): {', '.join(first)}; "
        text += f"{record.num_unknown / len(self.obs):.1%} are unknown. "
        if record.tissue is not None and record.profiles is not None:
            text += f"Tissue: {tissue_text(record.tissue)}. "
            if not math.isnan(record.profiles.expected_lowest):
                text += f"{profiles_text(*record.expected_accuracy)}. "
        text += self._shift_text()
        if record.check is not None:
            text += "".join(f"{sentence}. " for sentence in record.check.exchanges)
            text += "".join(f"To check: {sentence}. " for sentence in record.check.sentences)
        if record.fine_types is not None:
            text += "".join(f"{sentence}. " for sentence in record.fine_types.sentences)
        for warning in record.warnings:
            text += f"Warning: {warning}{'' if warning[-1] in '.?' else '.'} "
        return f"{text}The column to use is obs['{self.key}_call']."

    def _shift_text(self) -> str:
        """Return the sentence about the distribution shift, unless a warning has its numbers; "" without it."""
        shift = self.record.shift
        if shift is None:
            return ""
        numbers = Shift(shift.relative_novelty, shift.batch_effect, shift.num_cells).numbers
        if any(numbers in warning for warning in self.record.warnings):
            return ""
        expected = expected_text(shift.expected_lowest, shift.expected_highest, shift.kind)
        sentence = expected if shift.kind in expected else f"these cells are {shift.kind}: {expected}"
        return f"{sentence[0].upper()}{sentence[1:]}. "

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
            adata.obsm[f"{self.key}_own_proba"] = pd.DataFrame(own, index=names, columns=self.labels)
        adata.uns[self.key] = to_uns(self.record)


def annotation_of(
    adapted: Adapted, blocks: Blocks, options: LabelOptions, seconds: float, tissue: TissueRecord | None
) -> Annotation:
    """Return the annotation of the cells of an adapted model, and log a line about it.

    `blocks` returns the predictions of all blocks, and is called several times; they took so many `seconds`. `tissue`
    is how the tissue was found, if it was.
    """
    query = adapted.query
    saved = adapted.saved
    key = adapted.options.key_added
    alpha = adapted.options.alpha
    constraints = None
    if denied := [label for label, allowed in zip(saved.labels, options.allowed, strict=True) if not allowed]:
        log.info("excluded labels: %s; probabilities are renormalised over the remaining labels", listed(denied))
        constraints = ConstraintsRecord(denied=texts(denied), weights=options.allowed.astype(np.float64))
    calibrated: Blocks = partial(_calibrated, blocks, adapted.temperature, constraints)
    options = options.with_kinds(adapted.is_named_by_kind)
    table = _table_of(adapted, calibrated, options)
    compared = compare_clusters(adapted, table, options.allowed)
    if not isinstance(compared, str) and compared.exchanges:
        calibrated = partial(_calibrated, blocks, adapted.temperature, constraints, compared.exchanges)
        table = _table_of(adapted, calibrated, options)
    calibrated, table, fine_types = _with_fine_types(adapted, calibrated, table, options)
    novelty = adapted.novelty(table["scores"].to_numpy())
    flags = options.is_type, adapted.options.unknown_fpr, options.min_confidence
    of_kind = adapted.is_named_by_kind[table["best"]]  # a kind was judged as a whole
    unknown = columns.unknown_cells(table, np.where(of_kind, 0.0, novelty), *flags)
    checked = check_clusters(adapted, blocks, table, unknown, compared)
    # Novel cells that, taken together, resemble the type of their label keep it.
    novel = columns.unknown_cells(table, np.where(of_kind | checked.returned, 0.0, novelty), *flags)
    is_new = checked.is_listed & (adapted.options.relabel == AUTO)
    unknown = novel | is_new
    is_cell = query.findings.is_cell
    obs, details = columns.named_columns(table, unknown, saved.labels, options.terms, options.tree)
    obs |= {"confidence": table["confidence"], "novelty": novelty.astype(np.float32)}
    details = {"margin": table["margin"]} | details
    if checked.column is not None:
        obs["looks_like"] = checked.column
    if adapted.model.baseline is not None:
        details["baseline_label"] = pd.Categorical.from_codes(table["baseline"], categories=saved.labels)
    found, quality = columns.quality_columns(query, table, adapted.doublets)
    obs |= found
    record = described_run(adapted)
    if alpha is not None and saved.held_out is not None:
        found, record.sets = columns.set_columns(calibrated, saved.labels, saved.held_out, alpha, is_cell)
        obs |= found
    if options.clusters is not None:
        found, record.clusters = columns.cluster_labels_columns(table, unknown, is_new, calibrated, options, query)
        obs |= found
    record.seconds, record.num_unknown, record.quality = seconds, int(unknown.sum()), quality
    record.check, record.constraints, record.fine_types = checked.record, constraints, fine_types
    if options.tree is not None:
        record.tree = tree_record(options.tree, options.terms, table, saved.labels)
    # Under constraints, the label that the linear branch alone would give is not known.
    if both_have_a_part(saved.scales) and constraints is None:
        record.encoder = _encoder_record(adapted, table.loc[is_cell & ~table["empty"], "by_encoder"])
    record.tissue = tissue
    warning = adapted.expect(record, table[is_cell], float(novel[is_cell].mean()))
    record.warnings = texts(_warnings(adapted, warning, table["best"][~unknown].to_numpy(), options))
    for text in record.warnings:
        log.warning("%s: %s", query.path, text)
    speed = f"{in_time(seconds)} ({len(table) / seconds:,.0f} cells/s)"
    text = "%s: %s cells annotated in %s, %s flagged unknown"
    log.info(text, query.path, f"{len(table):,}", speed, f"{record.num_unknown:,}")
    obs_table = pd.DataFrame({f"{key}_{name}": obs[name] for name in columns.OBS_COLUMNS if name in obs})
    labels = without_slashes(saved.labels)
    return Annotation(key, obs_table, pd.DataFrame(details), calibrated, labels, record, saved.has_independent_labels)


def _calibrated(
    blocks: Blocks, temperature: float, constraints: ConstraintsRecord | None, exchanges: Sequence[Exchange] = ()
) -> Iterator[Predictions]:
    """Yield predictions with calibrated probabilities, which allowed labels share, and some cells exchange."""
    start = 0
    for block in blocks():
        rows = slice(start, start + len(block.proba))
        start = rows.stop
        proba = tempered(block.proba, temperature)
        if constraints is not None:
            proba = reweighted(proba, constraints.weights)
        yield replace(block, proba=exchanged(proba, rows, exchanges) if exchanges else proba)


def _table_of(adapted: Adapted, blocks: Blocks, options: LabelOptions) -> pd.DataFrame:
    """Return the predictions of all cells in one table; empty droplets and cells of another species are unknown."""
    tree, least = options.tree, options.min_confidence
    table = columns.gather_predictions(blocks, tree, least, adapted.saved.families, options.named)
    return table.assign(empty=table["empty"] | ~adapted.query.findings.is_cell)


def _with_fine_types(
    adapted: Adapted, blocks: Blocks, table: pd.DataFrame, options: LabelOptions
) -> tuple[Blocks, pd.DataFrame, FineTypesRecord | None]:
    """Return predictions in which the labels of families share their probability by the file as a whole.

    Also return their table, and the record.
    """
    families = find_families(adapted, blocks, table)
    if families:
        blocks = partial(with_families, blocks, families)
        table = _table_of(adapted, blocks, options)
    return blocks, table, fine_types_record(families, adapted.query.path)


def _encoder_record(adapted: Adapted, by_encoder: pd.Series) -> dict[str, int]:
    """Return the number of cells whose label the encoder changed, and log it."""
    kind = branch_names(adapted.saved.metrics.encoder)["encoder"]
    text = "%s: the %s changed %s of %s labels"
    log.info(text, adapted.query.path, kind, f"{by_encoder.sum():,}", f"{len(by_encoder):,}")
    return {"num_cells": len(by_encoder), "num_decided": int(by_encoder.sum())}


def tree_record(tree: LabelTree, terms: list[str], table: pd.DataFrame, labels: list[str]) -> TreeRecord:
    """Return the record of a label tree, with the number of cells that got a parent of their label."""
    own = np.array([tree.nodes.index(label) for label in labels])[table["best"]]
    return TreeRecord(
        nodes=texts(tree.nodes),
        parents=texts(tree.parents.get(node, "") for node in tree.nodes),  # "": at the top
        ontology_term_ids=texts(tree.ids(terms)),
        num_levels=tree.num_levels,
        num_backed_off=int((table["called"] != own).sum()),
    )


def _warnings(adapted: Adapted, expected: str, best: np.ndarray, options: LabelOptions) -> list[str]:
    """Return the warnings about a file; `best` are the labels of its known cells."""
    query, saved = adapted.query, adapted.saved
    droplets, is_foreign = query.findings.droplets, query.findings.is_foreign
    of_batches = "" if adapted.batches is None else adapted.batches.warning
    num_foreign = 0 if is_foreign is None else int(is_foreign.sum())
    foreign = f"{num_foreign:,} cells of another species, or of several, are unknown" if num_foreign else ""
    few_genes = ""
    if min_genes := saved.config.min_genes:  # of the tool of an imported model
        few_genes = columns.few_genes_warning(query, min_genes, saved.imported.get("tool", "its tool"))
    depends_on_file = (adapted.record.adapted and adapted.record.depth_share < 1) or query.share < 1
    depends_on_file |= adapted.shift is not None and adapted.shift.kind == OTHER
    one_type = ""
    if depends_on_file and adapted.record.of is None:
        tree = options.tree if saved.families is None else None
        one_type = columns.one_type_warning(best, tree or LabelTree(saved.labels, {}))
    depth_share = adapted.record.depth_share if adapted.record.adapted else math.nan
    parts = [
        adapted.repeats.warning(query.cells),
        shallow_text(saved, depth_share, options.tree, options.min_confidence),
        "" if droplets is None else droplets.text,
        few_genes,
        "; ".join(filter(None, (expected, of_batches, foreign))),
        one_type,
    ]
    return [text for text in parts if text]


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


def described_run(adapted: Adapted) -> Record:
    """Return the record of a run: when and how it was made, the model, its input, the shared genes and the software."""
    query = adapted.query
    options = adapted.options
    command = " ".join([Path(sys.argv[0]).name, *map(shlex.quote, sys.argv[1:])]) if sys.argv[1:] else "in Python"
    is_foreign, droplets = query.findings.is_foreign, query.findings.droplets
    num_foreign = 0 if is_foreign is None else int(is_foreign.sum())
    return Record(
        run=RunRecord(
            date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            host=platform.node(),
            command=_portable(command),
            precision=adapted.precision,
        ),
        model=model_record(adapted.saved, adapted.model.path),
        input=input_record(query),
        genes=query.overlap,
        coverage=adapted.record,
        repeats=RepeatsRecord(num_seen=adapted.repeats.num_seen, num_cells=len(adapted.repeats.rows)),
        versions=software_versions(),
        baseline=None if adapted.model.baseline is None else {"name": "logistic regression (L2, C=1)"},
        batches=None if adapted.batches is None else adapted.batches.record(),
        droplets=None if droplets is None else {"floor": droplets.floor, "num_empty": droplets.num_empty},
        other_species={"num_cells": num_foreign} if num_foreign else None,
        num_unknown=0,
        warnings=texts([]),
        config_json=json.dumps(asdict(options) | {"inputs": [Path(name).name for name in options.inputs]}),
    )


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
