"""What is worth saying about annotated cells, in one place: the log, notebooks and the report print these remarks."""

import math
from collections.abc import Iterator

import numpy as np

from scperformer.adaptation.record import CHECK, NOTE, STOP, Record, Remark, TissueRecord
from scperformer.adaptation.which_tissue import close_tissues
from scperformer.annotation.calls import Calls
from scperformer.annotation.columns import few_cells_of_genes, lost_cells, one_type
from scperformer.base.messages import listed, shortened
from scperformer.cells.reference_labels import CALLED, LISTED
from scperformer.labels.tree import LabelTree
from scperformer.model.arrays import HeldOut
from scperformer.model.network import LinearModel
from scperformer.trust.resemblance import MANY_UNKNOWN
from scperformer.trust.shift import (
    ADVICE,
    FAR,
    FEW,
    LIKE,
    MAX_UNKNOWN,
    NEARLY_ALL,
    OTHER,
    expected_text,
    is_unsure,
)

# There is a remark beyond each of these limits. They are judgements, not limits of the method.
LOW_OVERLAP = 0.7
LOW_AGREEMENT = 0.6
LOW_EXPECTED = 0.8
NUM_LOST = 3  # labels that lose cells to unknown, which are named
NUM_NOT_NAMED = 3  # types of cells that are not named
NOT_NAMED = 0.05  # of all cells, of such a type
MANY_DISAGREE = 0.1  # of the cells of a label, by their markers
SHALLOW = 0.25  # of the depth of the reference, below which labels of types say too much
SAFE = 0.9  # confidence that is proposed for shallow cells


def remarks_about(calls: Calls, record: Record) -> list[Remark]:
    """Return the remarks about the calls of a sample, given all else that is recorded."""
    about_labels = _about_profiles if record.tissue is not None else _about_reference
    return [
        *_about_cells(calls, record),
        *_about_calls(calls, record),
        *about_labels(calls, record),
    ]


def _about_cells(calls: Calls, record: Record) -> Iterator[Remark]:
    """Yield remarks about the cells and genes of a file, and what the model makes of them."""
    coverage = record.coverage
    query = calls.query
    saved = calls.adapted.saved
    is_of_list = (
        record.markers is not None and record.model.trained_on_sha256 == record.input.sha256
    )
    if record.repeats.num_cells and not is_of_list:
        text = (
            "Some cells are cells of the reference, and their confidence and accuracy are too high"
        )
        yield Remark("repeats", CHECK, text, calls.adapted.repeats.text(query.cells))
    if coverage.expected_accuracy < LOW_EXPECTED:
        text = "Low accuracy on reference cells that were reduced to the genes and the depth of the sample"
        yield Remark("low-accuracy", CHECK, text, f"{coverage.expected_accuracy:.0%}")
    overlap = record.genes.informative_share
    if overlap < LOW_OVERLAP and not coverage.adapted:
        text = "Many informative genes of the model are missing and count as not expressed; present"
        yield Remark("missing-genes", CHECK, text, f"{overlap:.0%}")
    is_shallow = (
        coverage.adapted and coverage.depth_share < SHALLOW and calls.options.min_confidence < SAFE
    )
    if is_shallow and saved.held_out is not None and calls.options.tree is not None:
        text = "Labels of shallow cells are often wrong; "
        text += f"min_confidence={SAFE:g} calls families where types are unclear"
        value = shallow_cells(saved.held_out, calls.options.tree, coverage.depth_share)
        yield Remark("shallow", CHECK, text, value)
    if (droplets := query.findings.droplets) is not None:
        yield Remark(
            "droplets", CHECK, "Unfiltered matrix: most barcodes are empty droplets", droplets.text
        )
    if query.findings.doubt:
        yield Remark("values", CHECK, query.findings.doubt)
    if record.other_species is not None:
        text = "Cells of another species, or of several, are unknown"
        yield Remark("other-species", CHECK, text, f"{record.other_species['num_cells']:,} cells")
    if saved.lacks:
        text = (
            f"The model was imported from {saved.imported['tool']} without {', '.join(saved.lacks)}"
        )
        remedy = f"a cell of another type gets one of its labels all the same; {calls.adapted.model.how_to_complete}"
        yield Remark("lacks", CHECK, f"{text}: {remedy}")
    if saved.config.min_genes and (value := few_cells_of_genes(query, saved.config.min_genes)):
        tool = saved.imported.get("tool", "its tool")
        text = f"Cells express fewer than {saved.config.min_genes} genes of the model: {tool} drops such cells"
        yield Remark("few-genes", CHECK, f"{text}, and their labels are less certain", value)


def _about_calls(calls: Calls, record: Record) -> Iterator[Remark]:
    """Yield remarks about clusters, and labels with many unknown cells."""
    check = record.check
    if check is not None:
        how = "are unknown, as they look" if check.are_unknown else "look"
        for row in check.clusters.itertuples():
            value = f"{row.num_cells:,} cells; too much {row.too_high}"
            value += f"; too little {row.too_low}" if row.too_low else ""
            text = f"Cells labelled {row.label} {how} like {row.looks_like} ({row.term})"
            yield Remark("cluster", CHECK, text, value)
        for old, new, num in check.exchanges:
            text = f"Cells labelled {old} are labelled {new}, which they, or their cluster, resemble more"
            yield Remark("exchange", CHECK, text, f"{num:,} cells")
    if record.fine_types is not None:
        for pair in record.fine_types.pairs.itertuples():
            text = f"{pair.first} and {pair.second} are told apart at the gap between their cells"
            text = text[0].upper() + text[1:]
            value = f"{pair.num_cells:,} cells; {pair.num_changed:,} labels changed; "
            value += f"log ratio at the gap {pair.cut:.2f}"
            yield Remark("fine-types", NOTE, text, value)
    if calls.markers is not None:
        yield Remark("marker-list", CHECK, LISTED.capitalize())
    if calls.markers is not None and (num := int(calls.markers.has_none.sum())):
        yield Remark(
            "no-markers",
            CHECK,
            "Cells of clusters without the markers of any type are unknown",
            f"{num:,} cells",
        )
    if record.markers is not None:
        for label, share in zip(record.markers.called, record.markers.share, strict=True):
            if share > MANY_DISAGREE:
                yield Remark(
                    "markers",
                    CHECK,
                    f"Cells labelled {label} have markers of another type",
                    f"{share:.0%}",
                )
    cells = calls.is_cell
    labels = np.array(calls.adapted.saved.labels, dtype=object)[calls.of_cells["best"]]
    lost = lost_cells(labels, (calls.unknown & ~calls.checked.is_listed)[cells])
    lost = {label: nums for label, nums in lost.items() if label not in calls.adapted.saved.others}
    kind = calls.adapted.compared.shift.kind
    if lost and kind != FAR and calls.novel_share <= MAX_UNKNOWN:
        parts = [f"{num:,} of {size:,} {label}" for label, (num, size) in lost.items()]
        value = ", ".join(parts[:NUM_LOST]) + (
            f" and {len(parts) - NUM_LOST} more" if parts[NUM_LOST:] else ""
        )
        yield Remark("lost-labels", CHECK, "More than a fifth of a label is unknown", value)


def _about_reference(calls: Calls, record: Record) -> Iterator[Remark]:
    """Yield remarks about the calls of a model that has cells of its reference."""
    adapted = calls.adapted
    shift = calls.adapted.compared.shift
    saved = adapted.saved
    unknown = calls.novel_share
    if far := adapted.compared.batches.far(calls.query.batches):
        yield Remark("far-batches", STOP, f"Batches of {FAR}, whose labels are not to be used", far)
    is_far = unknown > MAX_UNKNOWN or shift.kind == FAR
    if is_far:
        text = (
            f"Most cells look like none of the {len(saved.labels)} labels. Is it the right tissue?"
        )
        if record.model.tissue:
            text += f" The model was trained on {shortened(record.model.tissue)}."
        if unknown >= NEARLY_ALL:
            text += f" Or were the values read wrongly (as {calls.query.findings.text})?"
        yield Remark("wrong-tissue", STOP, f"{text} Unknown", f"{unknown:.0%}")
    elif record.fit is not None and shift.kind != OTHER and is_unsure(*record.fit.values()):
        text = "The mean confidence is far below the out-of-fold confidence of the reference"
        yield Remark("unsure", CHECK, text, "{:.2f}, not {:.2f}".format(*record.fit.values()))
    if record.shift is not None:
        text = {LIKE: f"Cells {LIKE}", FEW: "The distribution shift is not known"}.get(
            shift.kind, f"Cells of {shift.kind}"
        )
        known = expected_text(*record.expected_accuracy, shift.kind)
        if saved.provenance.called:
            known = CALLED if record.markers is None else LISTED
        severity = {LIKE: NOTE, FAR: STOP}.get(shift.kind, CHECK)
        yield Remark(
            "shift", severity, f"{text}{ADVICE.get(shift.kind, '')}", f"{known}; {shift.numbers}"
        )
    if isinstance(adapted.model.baseline, LinearModel) and not is_far:
        agreement = float((calls.of_cells["best"] == calls.of_cells["baseline"]).mean())
        if agreement < LOW_AGREEMENT:
            text = "Logistic regression gives many cells another label; agreement"
            yield Remark("disagreement", CHECK, text, f"{agreement:.0%}")
    yield from _about_subset(calls, record)


def _about_subset(calls: Calls, record: Record) -> Iterator[Remark]:
    """Yield a remark if nearly all cells are of one type, and the depth or the shift of the file matters."""
    adapted = calls.adapted
    coverage = record.coverage
    depends_on_file = (coverage.adapted and coverage.depth_share < 1) or calls.query.share < 1
    depends_on_file |= adapted.compared.shift.kind == OTHER
    if depends_on_file and coverage.of is None:
        tree = calls.options.tree if adapted.saved.families is None else None
        best = calls.table["best"][~calls.unknown].to_numpy()
        if value := one_type(best, tree or LabelTree(adapted.saved.labels, {})):
            text = "Depth and batch effect are estimated on cells of nearly one type alone"
            yield Remark(
                "one-type",
                CHECK,
                f"{text}; for a subset of a sample, set full_sample=WHOLE_SAMPLE",
                value,
            )


def _about_profiles(calls: Calls, record: Record) -> Iterator[Remark]:
    """Yield remarks about calls by the profiles of a tissue."""
    saved = calls.adapted.saved
    tissue = record.tissue
    lowest, highest = record.expected_accuracy
    if isinstance(tissue, TissueRecord):
        if tissue.instead:
            yield Remark("other-tissue", STOP, f"{tissue.instead[0].upper()}{tissue.instead[1:]}")
        if close := close_tissues(tissue):
            yield Remark(
                "close-tissues", CHECK, "Another tissue fits, too; compare with tissue=NAME", close
            )
    named = calls.adapted.is_named_by_kind
    num_of_label = np.bincount(
        calls.of_cells["best"][~calls.of_cells["empty"]], minlength=len(saved.labels)
    )
    is_other = np.array([label in saved.others for label in saved.labels]) & ~named
    shares = np.where(is_other, num_of_label, 0) / max(1, num_of_label.sum())
    most = np.argsort(-shares, kind="stable")[:NUM_NOT_NAMED]
    not_named = [
        f"{shares[number]:.0%} {saved.labels[number]}"
        for number in most
        if shares[number] >= NOT_NAMED
    ]
    if not_named:
        text = "Unknown cells are most like types that are named only in their tissue; of all cells"
        yield Remark("not-named", CHECK, text, listed(not_named))
    if calls.novel_share - shares.sum() >= MANY_UNKNOWN:
        text = (
            f"Many cells resemble no type of {saved.name}: malignant cells, or types that it lacks"
        )
        yield Remark("no-type", CHECK, text, f"{calls.novel_share - shares.sum():.0%}")
    resemblance = math.nan if record.profiles is None else record.profiles.resemblance
    value = f"resemblance to the profiles {resemblance:.2f}; this reference has no cells"
    if math.isnan(lowest):
        yield Remark("expected", CHECK, "No expected accuracy", value)
    else:
        severity = CHECK if lowest < LOW_EXPECTED else NOTE
        yield Remark(
            "expected", severity, "Expected accuracy", f"{lowest:.2f} to {highest:.2f}; {value}"
        )
    yield from _about_subset(calls, record)


def shallow_cells(held_out: HeldOut, tree: LabelTree, depth_share: float) -> str:
    """Return what out-of-fold cells say about cells of the same depth.

    The labels of shallow cells are often wrong, and novelty does not tell which, but families of types are right.
    """
    proba = held_out.probabilities
    labels = held_out.labels
    best = proba.argmax(axis=1)
    called = tree.call(proba, best, SAFE)[0]
    # "": none
    above = np.array(
        [[node in tree.path(label) for node in [*tree.nodes, ""]] for label in tree.labels]
    )
    is_known = called >= 0
    right, safe = (best == labels).mean(), above[labels, called][is_known].mean()
    text = f"{depth_share:.0%} of the depth of the reference; of out-of-fold cells, {right:.0%} of the labels are right"
    return f"{text}, and {safe:.0%} of such calls"
