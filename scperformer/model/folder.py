"""A trained model as plain data, without torch, and the folder that holds it.

    model.safetensors   weights of the network (model.*) and of logistic regression (baseline.*)
    bundle.json         format version, labels, configuration, metrics, provenance, checksums of the other files
    genes.tsv           the model's genes in order, with their mean expression in the reference
    cells.npz           cells of the reference, if the model keeps any (see kept.py)
    held_out.npz        calls of cells of the reference by fits without them (see held_out.py)
    MODEL_CARD.md       what a person should know before using it; no program reads it

Reading it executes nothing. A folder may come from anywhere with checksums that fit: its content is checked for types,
names, ranges and finite numbers. `load_model` compares its weights with the network that its configuration describes.
"""

import hashlib
import json
import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from scperformer.base.errors import InputError
from scperformer.base.messages import did_you_mean, escape_pipes, name_problem
from scperformer.base.outputs import FolderKind, new_folder
from scperformer.files import neighbours, sha256
from scperformer.labels import UNKNOWN_TERM, LabelTree
from scperformer.model.held_out import HELD_OUT, HeldOut, read_held_out
from scperformer.model.older_formats import current_weight, with_current_names
from scperformer.model.reference_cells import CELLS_FILE, ReferenceCells, read_reference_cells
from scperformer.model.registry import is_remote, read_registry, registry_place

log = logging.getLogger(__name__)

ANNOTATOR, ENCODER = "annotator", "encoder"  # kinds of model: with labels, or an encoder alone
BRANCHES = {"linear": "linear branch", "encoder": "encoder"}
SILENT = 0.01  # an encoder with a smaller scale decides no label
FORMAT_VERSION, READABLE = 6, (3, 4, 5, 6)  # models of format 3 keep no cells, those of format 4 no held-out calls
WEIGHTS = "model.safetensors"
GENES = "genes.tsv"
INFO = "bundle.json"
CARD = "MODEL_CARD.md"
MOST_BYTES = {INFO: 64 * 2**20, GENES: 256 * 2**20}  # files that are read as a whole; real ones are below 2 MB
PROVEN = (WEIGHTS, GENES, CELLS_FILE, HELD_OUT)  # files whose checksums bundle.json has; a model may lack the last two
# Files for people, which a model folder may lack.
EXTRAS = (CARD, "learning_curve.png", "reliability.png", "metrics.csv")
KNOWN = (INFO, WEIGHTS, GENES, CELLS_FILE, HELD_OUT, *EXTRAS)
MODEL = FolderKind("a model", unmarked=KNOWN)
PACKAGED_MODEL = Path(__file__).parent / "packaged" / "pbmc3k"
MOST_NAMED = 100  # characters of a name in a message
CONTENT = {"name": str, "labels": list, "ontology_term_ids": list, "config": dict, "metrics": dict, "provenance": dict}
PROVENANCE = {"reference": str, "label_key": str, "num_cells": int, "seed": int}  # predictions record these
NEEDED: dict[str, dict[str, tuple[str, ...]]] = {  # entries of the groups, for each kind of model
    ANNOTATOR: {"config": ("target_sum",), "metrics": ("scales",), "provenance": tuple(PROVENANCE)},
    ENCODER: {"config": ("target_sum", "tokens", "model", "attention"), "provenance": ("corpus", "seed")},
}


@dataclass(kw_only=True)
class SavedModel:
    """A trained model as plain data: G genes, C labels."""

    name: str
    genes: list[str]  # in order
    gene_means: np.ndarray  # float32 G: mean ln(1 + cp10k) over the reference
    labels: list[str]  # in the order of the logits
    ontology_term_ids: list[str]  # a Cell Ontology id or "unknown" for each label
    config: dict[str, Any]  # groups tokens, model, attention, head and the number target_sum: all to build the network
    metrics: dict[str, Any]
    provenance: dict[str, Any]
    weights: dict[str, np.ndarray] = field(repr=False)  # model.*: the network's state; baseline.weight, baseline.bias
    hash: str = ""  # SHA-256 of bundle.json, which holds the checksums of the other files; "" before saving
    kind: str = ANNOTATOR  # or ENCODER, from `pretrain`: without labels, head and logistic regression
    reference_cells: ReferenceCells | None = field(
        default=None, repr=False
    )  # written with the model; `load_reference_cells` reads them again
    has_reference_cells: bool = False  # the folder that it was read from has kept cells
    tree: LabelTree | None = None  # over the labels; models of earlier versions have none
    held_out: HeldOut | None = field(default=None, repr=False)  # None: a model of format 4 or before, or no evidence

    @property
    def tissue(self) -> str | None:
        """The tissue of the reference as its author named it, or None."""
        return self.provenance.get("tissue")

    @property
    def is_annotator(self) -> bool:
        """Whether it can annotate: an encoder without labels cannot."""
        return self.kind == ANNOTATOR

    @property
    def scales(self) -> dict[str, float]:
        """The factor of each branch (`linear`, `encoder`) in the logits; a branch that is off is left out."""
        return {name: float(scale) for name, scale in self.metrics["scales"].items()}

    @property
    def importance(self) -> np.ndarray:
        """The importance of each gene for the labels, float64 G: its mean times the spread of its weights over labels.

        The weights are those of logistic regression; an encoder has none, and the means stand alone.
        """
        means = np.asarray(self.gene_means, dtype=np.float64)
        weight = self.weights.get("baseline.weight")
        return means if weight is None else means * np.asarray(weight, dtype=np.float64).std(axis=1)


def encoder_is_silent(scales: Mapping[str, float]) -> bool:
    """Whether a model has both branches and its labels come from the linear branch alone."""
    return len(scales) == len(BRANCHES) and scales["encoder"] < SILENT


def sum_of_branches(scales: Mapping[str, float]) -> str:
    """Describe the logits, as in "1.20 x linear branch + 0.35 x encoder"."""
    return " + ".join(f"{scale:.2f} x {BRANCHES[name]}" for name, scale in scales.items())


def _annotator_card(saved: SavedModel) -> str:
    made = saved.provenance
    metrics = saved.metrics
    counts = made["cells_per_label"]
    has_terms = any(term != UNKNOWN_TERM for term in saved.ontology_term_ids)
    terms = [f" {escape_pipes(term)} |" if has_terms else "" for term in saved.ontology_term_ids]
    rows = zip(saved.labels, terms, strict=True)
    labels = "\n".join(f"| {escape_pipes(label)} | {counts[label]} |{term}" for label, term in rows)
    tree = "" if saved.tree is None else f"- Label tree of {saved.tree.num_levels} levels: {saved.tree.outline}.\n"
    checksum = f" (SHA-256 `{made['reference_sha256']}`)" if made["reference_sha256"] else ""
    alone = " The labels come from the linear branch alone." if encoder_is_silent(saved.scales) else ""
    tissue = "" if saved.tissue is None else f"- Tissue: {saved.tissue}.\n"
    notes = "".join(f"- {note}\n" for note in made.get("notes", []))
    scores = ""
    if adapted := made.get("adapted_from"):
        num_genes = adapted["num_genes"]
        scores += f"- Adapted from `{adapted['name']}`, with {num_genes} genes, to a file's genes and depth.\n"
    if fold := metrics.get("out_of_fold"):
        parts = (
            f"{BRANCHES[name]} alone {part['accuracy']:.3f}, {part['macro_f1']:.3f}"
            for name, part in fold["branches"].items()
        )
        scores += f"- Expected on cells like these: accuracy {fold['accuracy']:.3f}, macro-F1 {fold['macro_f1']:.3f}\n"
        scores += f"  ({'; '.join(parts)}). In 5 folds, each of {fold['num_cells']} cells of the\n"
        scores += "  reference was called by a fit without it; these calls also gave the factors below.\n"
    if ours := metrics.get("model"):
        baseline = metrics["baseline"]
        chose = "" if fold else " They also chose the epoch, so the scores are optimistic."
        scores += f"- Scores on {metrics['num_val_cells']} validation cells of the reference.{chose}\n"
        scores += (
            f"  Accuracy {ours['accuracy']:.3f}, macro-F1 {ours['macro_f1']:.3f}; logistic regression trained on the\n"
        )
        scores += f"  same cells: accuracy {baseline['accuracy']:.3f}, macro-F1 {baseline['macro_f1']:.3f}.\n"
    return f"""\
# {saved.name}

A cell-type model of scperformer {made["versions"]["scperformer"]}. It distinguishes the {len(saved.labels)} labels
below and no others: a cell of any other type still gets one of them, and may be flagged as unknown.

| label | cells in the reference |{" Cell Ontology |" if has_terms else ""}
|---|---|{"---|" if has_terms else ""}
{labels}

- Trained on `{made["reference"]}`{checksum}, labels in `{made["label_key"]}`,
  {made["num_cells"]} cells, {len(saved.genes)} genes.
{tree}{tissue}- Input: {made["input"]}.
{notes}{scores}\
- Logits are {sum_of_branches(saved.scales)}.{alone} The factors make probabilities of the confidences, for cells like
  those of the reference.
- Made by `{made["command"]}` with seed {made["seed"]}; all options are in bundle.json.
{_conditions(metrics)}{_calibration(metrics)}{_novelty(metrics)}"""


def _conditions(metrics: Mapping[str, Any]) -> str:
    """Return the table of the accuracy under usual conditions, if `conditions_table` has found it."""
    if "conditions" not in metrics:
        return ""
    rows = "".join(
        f"| {row['condition']} | {row['num_genes']:,} | {row['accuracy']:.3f} | {row['macro_f1']:.3f} |\n"
        for row in metrics["conditions"]
    )
    return f"""
Expected on cells like those of the reference, if a file has fewer genes or a lower depth (fewer counts per cell), to
which the model is then adapted:

| condition | genes | accuracy | macro-F1 |
|---|---|---|---|
{rows}"""


def _calibration(metrics: Mapping[str, Any]) -> str:
    """Return how well the confidence fits the accuracy, as trust/confidence.py has found it on held-out cells."""
    if "calibration" not in metrics:
        return ""
    found = metrics["calibration"]
    columns = (found["labels"][name] for name in ("label", "num_cells", "confidence", "accuracy", "error"))
    rows = "".join(
        f"| {escape_pipes(label)} | {num_cells:,} | {confidence:.3f} | {accuracy:.3f} | {error:.3f} |\n"
        for label, num_cells, confidence, accuracy, error in zip(*columns, strict=True)
    )
    return f"""
Confidence and accuracy of {found["num_cells"]:,} held-out cells of the reference differ by {found["error"]:.3f}
(expected calibration error). By the label of the call, without labels of few calls:

| label | calls | mean confidence | accuracy | calibration error |
|---|---|---|---|---|
{rows}"""


def _novelty(metrics: Mapping[str, Any]) -> str:
    """Return how well the cells of each label are found to be unknown by a model without it, if that was measured."""
    if "novelty" not in metrics:
        return ""
    rows = "".join(f"| {escape_pipes(row['label'])} | {row['area']:.3f} |\n" for row in metrics["novelty"])
    return f"""
If a label is left out of the reference, are its cells told from the others by their novelty? 1: all of them, 0.5: by
chance (area under the ROC curve):

| label left out | area |
|---|---|
{rows}"""


def _encoder_card(saved: SavedModel) -> str:
    made = saved.provenance
    metrics = saved.metrics
    share = f"{saved.config['masking']['share']:.0%}"
    files = ((escape_pipes(file["name"]), file["num_cells"], escape_pipes(file["input"])) for file in made["corpus"])
    corpus = "\n".join(f"| {name} | {num_cells} | {used} |" for name, num_cells, used in files)
    start = f"\n- It started from `{made['init']['name']}` (`{made['init']['hash'][:12]}`)." if "init" in made else ""
    usual = "the usual values of gene and cell"
    more = "it has learned more than"
    nothing = "**it has learned nothing beyond"
    verdict = f"{more} {usual}" if metrics["loss"] < metrics["naive_loss"] else f"{nothing} {usual}**"
    return f"""\
# {saved.name}

An encoder of scperformer {made["versions"]["scperformer"]} without labels: it cannot annotate. It is the start of
models that can: `scperformer train reference.h5ad label_key=cell_type init={saved.name}`.

| file | cells | input |
|---|---|---|
{corpus}

- Pretrained on {made["num_cells"]} cells, {len(saved.genes)} genes, to predict the expression of {share} of the genes
  that a cell expresses from the others.
- On masked values of {metrics["num_val_cells"]} validation cells, which also chose the epoch: loss
  {metrics["loss"]:.4f}, of a naive guess {metrics["naive_loss"]:.4f} (lower is better: {verdict}).{start}
- Made by `{made["command"]}` with seed {made["seed"]}; all options are in bundle.json.
"""


def model_card(saved: SavedModel, pictures: Mapping[str, Any] | None = None) -> str:
    """Return the model card as Markdown; it shows the PNG files among `pictures`."""
    text = _annotator_card(saved) if saved.is_annotator else _encoder_card(saved)
    shown = {name: Path(name).stem.replace("_", " ") for name in pictures or {} if name.endswith(".png")}
    return text + "".join(f"\n![{caption}]({name})\n" for name, caption in shown.items())


def write_model(
    saved: SavedModel, path: str | Path, *, overwrite: bool = False, more: Mapping[str, bytes] | None = None
) -> None:
    """Write a model folder, whole or not at all; `more` are other files for people, the card shows the pictures."""
    from safetensors.numpy import save

    with new_folder(path, MODEL, overwrite) as folder:
        # Not safetensors' save_file: only their owner could read its files, but models are shared.
        weights = {name: np.ascontiguousarray(array) for name, array in saved.weights.items()}
        (folder / WEIGHTS).write_bytes(save(weights))
        rows = [f"{gene}\t{mean:.6g}" for gene, mean in zip(saved.genes, saved.gene_means, strict=True)]
        (folder / GENES).write_text("\n".join(["gene\tmean", *rows]) + "\n", encoding="utf-8")
        info = {"format_version": FORMAT_VERSION, "kind": saved.kind}
        info |= {name: getattr(saved, name) for name in CONTENT}
        if saved.tree is not None:
            info["tree"] = {"parents": saved.tree.parents, "terms": saved.tree.terms}
        if saved.reference_cells is not None:
            (folder / CELLS_FILE).write_bytes(saved.reference_cells.to_bytes())
        if saved.held_out is not None:
            (folder / HELD_OUT).write_bytes(saved.held_out.to_bytes())
        info["files"] = {name: sha256(folder / name) for name in PROVEN if (folder / name).is_file()}
        (folder / INFO).write_text(json.dumps(info, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        for name, content in (more or {}).items():
            (folder / name).write_bytes(content)
        (folder / CARD).write_text(model_card(saved, more), encoding="utf-8")


def damaged_model(folder: Path, found: str) -> InputError:
    """Return the error for a model folder whose content is not as it was written."""
    return InputError(f"damaged model '{folder}': {found}", "the folder as it was written", "copy it or train it again")


def _require_sound_info(info: Mapping[str, Any]) -> None:
    """Refuse the content of a bundle.json with missing entries, wrong types or names that cannot be names."""
    for name, kind in {**CONTENT, "files": dict}.items():
        if not isinstance(info.get(name), kind):
            raise ValueError(f"'{INFO}' without {name}")
    if info.get("kind", ANNOTATOR) not in NEEDED:
        raise ValueError(f"'{INFO}' of an unknown kind")
    for group, names in NEEDED[info.get("kind", ANNOTATOR)].items():
        if missing := [name for name in names if name not in info[group]]:
            raise ValueError(f"'{INFO}' without {', '.join(missing)} in {group}")

    labels = info["labels"]
    terms = info["ontology_term_ids"]
    made = info["provenance"]
    tissue, release = ([made[name]] if name in made else [] for name in ("tissue", "ontology"))
    texts = {"the name": [info["name"]], "a label": labels, "an ontology term": terms, "a tissue": tissue}
    texts["a release of the ontology"] = release
    for what, names in texts.items():
        if why := next(filter(None, map(name_problem, names)), None):
            raise ValueError(f"'{INFO}' with {what} that {why}")

    def is_finite(value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

    total = info["config"]["target_sum"]
    scales = info["metrics"].get("scales", {})
    fold = info["metrics"].get("out_of_fold", {})
    expected = info["provenance"].get("expected_accuracy")
    groups = [info["config"].get(group, {}) for group in ("tokens", "model", "attention", "head")]
    sound = {
        "a label twice": len(set(labels)) == len(labels),
        f"{len(terms)} ontology terms for {len(labels)} labels": len(terms) == len(labels),
        "a target_sum that is not a number above 0": is_finite(total) and total > 0,
        "options that are not a group of options": all(isinstance(group, dict) for group in groups),
        "an expected accuracy that is not a number": isinstance(fold, dict)
        and (not fold or is_finite(fold.get("accuracy")))
        and (expected is None or is_finite(expected)),
        "kept cells that are not described": isinstance(info["provenance"].get("kept_cells", {}), dict),
        "scales that are not numbers, or of other branches": isinstance(scales, dict)
        and set(scales) <= set(BRANCHES)
        and all(map(is_finite, scales.values())),
    }
    for found in (text for text, is_sound in sound.items() if not is_sound):
        raise ValueError(f"'{INFO}' with {found}")
    _tree_of(info)
    for name, expected in PROVENANCE.items():
        value = info["provenance"].get(name, expected())
        if not isinstance(value, expected) or isinstance(value, bool):
            raise ValueError(f"'{INFO}' with a {name} that is not of type {expected.__name__}")
        if isinstance(value, int) and not 0 <= value < 2**63:
            raise ValueError(f"'{INFO}' with a {name} out of range")


def _tree_of(info: Mapping[str, Any]) -> LabelTree | None:
    """Return the label tree in the content of a bundle.json, or None; a ValueError says how it is damaged."""
    if "tree" not in info:
        return None
    tree: dict[str, Any] = info["tree"] if isinstance(info["tree"], dict) else {}
    parents = tree.get("parents")
    terms = tree.get("terms")
    if not isinstance(parents, dict) or not isinstance(terms, dict):
        raise ValueError(f"'{INFO}' with a label tree without parents and terms")
    for name in (text for group in (parents, terms) for pair in group.items() for text in pair):
        if why := name_problem(name):
            raise ValueError(f"'{INFO}' with a node of the label tree that {why}")
    try:
        return LabelTree(info["labels"], parents, terms)
    except ValueError as error:
        raise ValueError(f"'{INFO}' with a label tree with {error}") from error


def _is_own_file(folder: Path, name: str) -> bool:
    """Whether a file lies in the folder itself; a link may not lead out of it. Refuses a file that is too large."""
    file = folder / name
    if not file.is_file() or not file.resolve().is_relative_to(folder.resolve()):
        return False
    if (size := file.stat().st_size) > MOST_BYTES.get(name, size):
        raise ValueError(f"'{name}' of {size:,} bytes")
    return True


def _read_model(folder: Path) -> SavedModel:
    """Read a folder with a bundle.json; the text of a ValueError says how it is damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        text = (folder / INFO).read_text(encoding="utf-8")
        info = json.loads(text)
        version = info["format_version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"'{INFO}' unreadable") from error
    if version not in READABLE or isinstance(version, bool):
        older = isinstance(version, int) and version < FORMAT_VERSION
        update = "update scperformer (pip install --upgrade scperformer)"
        remedy = "train the model again with this version" if older else update
        raise InputError(f"model format {version} in '{folder}'", f"format {FORMAT_VERSION}", remedy)
    if version < FORMAT_VERSION:
        info = with_current_names(info)
    _require_sound_info(info)
    for name in (WEIGHTS, GENES):
        if name not in info["files"]:
            raise ValueError(f"'{INFO}' without the checksum of {name}")
    for name, checksum in info["files"].items():
        if name not in PROVEN or not _is_own_file(folder, name) or sha256(folder / name) != checksum:
            raise ValueError(f"'{name[:MOST_NAMED]}' missing or changed since it was written")
    try:
        weights = load_file(folder / WEIGHTS)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:  # of types NumPy does not have
        raise ValueError(f"'{WEIGHTS}' unreadable") from error
    if version < FORMAT_VERSION:
        weights = {current_weight(name): array for name, array in weights.items()}
    try:
        # Only line feeds end a row and only the last tab ends a name: gene names may hold other separators.
        lines = (folder / GENES).read_bytes().decode("utf-8").removesuffix("\n").split("\n")
        rows = [line.rsplit("\t", 1) for line in lines[1:]]
        genes = [name for name, _ in rows]
        means = np.array([float(mean) for _, mean in rows], dtype=np.float32)
    except ValueError as error:
        raise ValueError(f"'{GENES}' unreadable") from error
    if len(set(genes)) < len(genes):
        raise ValueError("a gene twice")
    for name, array in {"the means of genes": means, **weights}.items():
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            raise ValueError(f"NaN or infinite numbers in {name[:MOST_NAMED]}")
    num_labels = len(info["labels"])
    for name, shape in {"baseline.weight": (len(genes), num_labels), "baseline.bias": (num_labels,)}.items():
        if name in weights and weights[name].shape != shape:
            raise ValueError(f"{name} does not fit {len(genes)} genes and {num_labels} labels")
        if name in weights and weights[name].dtype.kind != "f":
            raise ValueError(f"{name} of type {weights[name].dtype}")
    checksum = hashlib.sha256(text.encode()).hexdigest()
    kind = info.get("kind", ANNOTATOR)
    named = {name: info[name] for name in CONTENT}
    held_out = read_held_out(folder, len(genes), num_labels) if HELD_OUT in info["files"] else None
    more: dict[str, Any] = {
        "has_reference_cells": CELLS_FILE in info["files"],
        "held_out": held_out,
        "tree": _tree_of(info),
        "hash": checksum,
    }
    return SavedModel(**named, genes=genes, gene_means=means, weights=weights, kind=kind, **more)


def load_reference_cells(saved: SavedModel, path: str | Path) -> ReferenceCells | None:
    """Read the cells that a model keeps, or return None; refuse damaged ones."""
    if not saved.has_reference_cells:
        return saved.reference_cells
    try:
        return read_reference_cells(Path(path), len(saved.genes), len(saved.labels))
    except ValueError as error:
        raise damaged_model(Path(path), str(error)) from error


def read_model(path: str | Path) -> SavedModel:
    """Read a model folder, verify its checksums and check its content; refuse it if it is damaged or incomplete."""
    folder = Path(path)
    try:
        if folder.is_dir() and _is_own_file(folder, INFO):
            return _read_model(folder)
    except InputError:
        raise
    except ValueError as error:
        raise damaged_model(folder, str(error)) from error
    found = f"no {INFO} at" if folder.is_dir() else "a file at" if folder.is_file() else "no folder at"
    other = " or to a name of 'scperformer models list', or leave it out for the packaged model"
    remedy = "; 'scperformer models import' unpacks archives" if folder.is_file() else other
    library = neighbours(library_folder() / "any") if folder.name == str(path) else []
    near = did_you_mean(folder.name, [*library, *neighbours(folder)]) if found.startswith("no folder") else ""
    remedy = f"{near}set model_path to the output folder of 'scperformer train'{remedy}"
    raise InputError(f"{found} '{folder}'", f"a model folder with {INFO}, {WEIGHTS} and {GENES}", remedy)


def require_annotator(saved: SavedModel, path: str | Path) -> None:
    """Refuse a model that cannot annotate: an encoder without labels."""
    if not saved.is_annotator:
        remedy = f"train a model that starts from it: scperformer train REFERENCE label_key=COLUMN init={path}"
        raise InputError(f"an encoder without labels at '{path}'", "a model with labels", remedy)


def library_folder() -> Path:
    """Return the folder of imported models: $SCPERFORMER_MODELS, else a folder among the user's data."""
    if given := os.environ.get("SCPERFORMER_MODELS"):
        return Path(given)
    data = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (data if data.is_absolute() else Path.home() / ".local" / "share") / "scperformer" / "models"


def resolve_model(model_path: str | None) -> tuple[Path, str]:
    """Return the model folder and why it was chosen: `model_path`, else $SCPERFORMER_MODEL, else the packaged model.

    A plain name means the imported model of that name, unless a file or folder of that name exists here.
    """
    from_environment = os.environ.get("SCPERFORMER_MODEL")
    if not model_path and not from_environment:
        return PACKAGED_MODEL, "packaged"
    path = Path(model_path or from_environment or "")
    why = "given" if model_path else "from $SCPERFORMER_MODEL"
    imported = library_folder() / path
    if not path.exists() and path.name == str(path):
        if imported.is_dir():
            log.info("model '%s' is the imported one: %s", path, imported)
            return imported, "imported"
        place = registry_place(None)
        entry = None if is_remote(place) else read_registry(place).get(path.name)
        if entry is not None and entry.url:
            found = f"model '{path}' is in the registry {place}, but not on this machine"
            raise InputError(found, "a model that was pulled", f"'scperformer models pull {path}' downloads it")
    return path, why
