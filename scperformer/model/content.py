"""The content of a bundle.json, read and written: it may come from anywhere."""

from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Any

from scperformer.base.records import from_plain
from scperformer.labels.tree import LabelTree
from scperformer.model.bundle import Bundle, BundleFile, Metrics, NetworkConfig, Provenance
from scperformer.model.saved_model import BRANCHES

INFO = "bundle.json"
ORIGIN = ("tool", "file", "sha256", "tested")  # what an imported model records about its origin
# Entries that models with labels need, and encoders without.
WITH_LABELS = {"metrics": ("scales",), "provenance": ("reference", "label_key")}
ENCODER = {"config": ("tokens", "model", "attention"), "provenance": ("corpus",)}


def model_of(bundle: Bundle) -> dict[str, Any]:
    """Return the fields of `Bundle` alone."""
    return {entry.name: getattr(bundle, entry.name) for entry in fields(Bundle)}


def to_json(part: Bundle | NetworkConfig | Metrics | Provenance) -> dict[str, Any]:
    """Return a model without its arrays, or a part of it, as in bundle.json."""
    if isinstance(part, Bundle):
        part = Bundle(**model_of(part))
    # A model of counts states that these are not normalised.
    return asdict(
        part,
        dict_factory=lambda items: {
            name: x for name, x in items if x is not None or name == "target_sum"
        },
    )


def from_json(info: Any) -> BundleFile:
    """Read the content of a bundle.json; the text of a ValueError says what is missing, of another type, or no name."""
    bundle = from_plain(BundleFile, info, f"'{INFO}'")
    if problem := next(_problems(bundle), None):
        raise ValueError(f"'{INFO}' {problem}")
    return bundle


def _problems(bundle: Bundle) -> Iterator[str]:
    """Yield the problems of a bundle.json in words, beyond the types of its entries."""
    config, scales, origin = bundle.config, bundle.metrics.scales or {}, bundle.provenance.imported
    for group, names in (WITH_LABELS if bundle.labels else ENCODER).items():
        if missing := [name for name in names if getattr(getattr(bundle, group), name) is None]:
            yield f"without {', '.join(missing)} in {group}"
    if origin is not None and not {*ORIGIN} <= origin.keys():
        yield f"with an origin that is not described by {', '.join(ORIGIN)}"
    if len(set(bundle.labels)) < len(bundle.labels):
        yield "with a label twice"
    if len(bundle.ontology_term_ids) != len(bundle.labels):
        yield f"with {len(bundle.ontology_term_ids)} ontology terms for {len(bundle.labels)} labels"
    if not (config.network is not None if config.target_sum is None else config.target_sum > 0):
        yield "with a target_sum that is not a number above 0"
    if not set(scales) <= set(BRANCHES):
        yield "with numbers of other branches"


def read_tree(bundle: BundleFile) -> LabelTree | None:
    """Return the label tree, or None without one; the text of a ValueError says how it is damaged."""
    try:
        return None if bundle.tree is None else LabelTree(bundle.labels, **bundle.tree)
    except (TypeError, ValueError) as error:
        raise ValueError(f"'{INFO}' with a label tree with {error}") from error
