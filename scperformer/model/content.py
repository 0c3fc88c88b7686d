"""The content of a bundle.json, read and written: it may come from anywhere."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any

from scperformer.base.messages import name_problem
from scperformer.base.records import from_plain
from scperformer.labels.tree import LabelTree
from scperformer.model.bundle import Bundle, Metrics, NetworkConfig, Provenance
from scperformer.model.saved_model import BRANCHES

INFO = "bundle.json"
ORIGIN = ("tool", "file", "sha256", "tested")  # what an imported model records about its origin
# Entries that models with labels need, and encoders without.
WITH_LABELS = {"metrics": ("scales",), "provenance": ("reference", "label_key")}
ENCODER = {"config": ("tokens", "model", "attention"), "provenance": ("corpus",)}


def to_json(part: Bundle | NetworkConfig | Metrics | Provenance) -> dict[str, Any]:
    """Return a model without its arrays, or a part of it, as in bundle.json."""
    if isinstance(part, Bundle):
        part = Bundle(**{entry.name: getattr(part, entry.name) for entry in fields(Bundle)})
    # A model of counts states that these are not normalised.
    return asdict(
        part, dict_factory=lambda items: {name: x for name, x in items if x is not None or name == "target_sum"}
    )


def from_json(info: Any) -> Bundle:
    """Read a model without its arrays; the text of a ValueError says what is missing, of another type, or no name."""
    bundle: Bundle = from_plain(Bundle, info, f"'{INFO}'")
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


def read_tree(info: Mapping[str, Any]) -> LabelTree | None:
    """Return the label tree, or None without one; the text of a ValueError says how it is damaged."""
    if "tree" not in info:
        return None
    try:
        parents, terms = (dict(info["tree"][name]) for name in ("parents", "terms"))
        texts = [text for group in (parents, terms) for pair in group.items() for text in pair]
        if problem := next(filter(None, map(name_problem, texts)), None):
            raise ValueError(f"a node that {problem}")
        return LabelTree(info["labels"], parents, terms)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"'{INFO}' with a label tree with {error}") from error
