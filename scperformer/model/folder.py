"""One self-contained trained model: a folder of weights, genes, labels, configuration and provenance.

    model.safetensors   weights of the network (model.*) and of logistic regression (baseline.*)
    bundle.json         format version, labels, configuration, metrics, provenance, checksums of the other files
    genes.tsv           the model's genes in order, with their mean expression in the reference
    MODEL_CARD.md       the same for people

Nothing in it executes when it is opened. This module reads and writes without torch.
"""

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from scperformer.errors import InputError
from scperformer.files import sha256
from scperformer.model.card import encoder_card
from scperformer.model.folder_checks import MOST_NAMED, require_sound_info, require_sound_weights
from scperformer.outputs import new_folder

log = logging.getLogger(__name__)

FORMAT_VERSION = 3
WEIGHTS, GENES, INFO, CARD = "model.safetensors", "genes.tsv", "bundle.json", "MODEL_CARD.md"
CONTENT = {  # of bundle.json, beside format_version
    "name": str,
    "labels": list,
    "ontology_term_ids": list,
    "config": dict,
    "metrics": dict,
    "provenance": dict,
    "files": dict,
}
ORIGIN = ("reference", "label_key", "num_cells", "seed")  # what predictions record of the provenance
ANNOTATOR, ENCODER = "annotator", "encoder"  # kinds of model: with labels, or an encoder alone
# What bundle.json must hold beside CONTENT, for each kind.
NEEDED: dict[str, dict[str, tuple[str, ...]]] = {
    ANNOTATOR: {"provenance": ORIGIN, "config": ("target_sum",), "metrics": ("scales",)},
    ENCODER: {
        "provenance": ("corpus", "seed"),
        "config": ("target_sum", "tokens", "model", "attention"),
        "metrics": (),
    },
}
MOST_BYTES = {INFO: 64 * 2**20, GENES: 256 * 2**20}  # of files that are read as a whole; real ones are below 2 MB
BRANCHES = {"wide": "linear branch", "deep": "encoder"}
SILENT = 0.01  # an encoder with a smaller scale decides no label
PACKAGED = Path(__file__).parent / "packaged" / "pbmc68k_reduced"


@dataclass(kw_only=True)
class Bundle:
    """A trained model as plain data.

    Attributes
    ----------
    genes, gene_means
        Names of the G genes in order and their mean ln(1 + cp10k) over the reference.
    labels, ontology_term_ids
        C label names in the order of the logits, and a Cell Ontology id or "unknown" for each.
    config
        Groups `tokens`, `model`, `attention`, `head` and the number `target_sum`: all that rebuilding needs.
    weights
        Arrays by name: `model.*` (the network's state) and `baseline.weight`, `baseline.bias`.
    hash
        SHA-256 of bundle.json, which holds the checksums of the other files; "" before saving.
    kind
        `annotator`, or `encoder` for what `pretrain` makes: without labels, head and logistic regression.
    """

    name: str
    genes: list[str]
    gene_means: np.ndarray
    labels: list[str]
    ontology_term_ids: list[str]
    config: dict[str, Any]
    metrics: dict[str, Any]
    provenance: dict[str, Any]
    weights: dict[str, np.ndarray] = field(repr=False)
    hash: str = ""
    kind: str = ANNOTATOR

    @property
    def scales(self) -> dict[str, float]:
        """By how much each branch (`wide`, `deep`) counts in the logits; a branch that is off is left out."""
        return {name: float(scale) for name, scale in self.metrics["scales"].items()}

    @property
    def importance(self) -> np.ndarray:
        """How much the labels depend on each gene, float64 G: its mean times how its weights differ by label.

        The weights are those of logistic regression; an encoder has none, and the means stand alone.
        """
        means = np.asarray(self.gene_means, dtype=np.float64)
        weight = self.weights.get("baseline.weight")
        return means if weight is None else means * np.asarray(weight, dtype=np.float64).std(axis=1)


def save_bundle(
    bundle: Bundle, path: str | Path, *, overwrite: bool = False, more: Mapping[str, bytes] | None = None
) -> None:
    """Write the folder, whole or not at all.

    Parameters
    ----------
    more
        Other files for people, by name; the model card shows the pictures among them.

    Raises
    ------
    InputError
        The folder exists and `overwrite` is off.
    """
    from safetensors.numpy import save

    with new_folder(path, overwrite, marker=INFO) as folder:
        # Not save_file: what it writes is readable by its owner alone, and models are there to be shared.
        weights = {name: np.ascontiguousarray(array) for name, array in bundle.weights.items()}
        (folder / WEIGHTS).write_bytes(save(weights))
        rows = [f"{gene}\t{mean:.6g}" for gene, mean in zip(bundle.genes, bundle.gene_means, strict=True)]
        (folder / GENES).write_text("\n".join(["gene\tmean", *rows]) + "\n", encoding="utf-8")
        info = {
            "format_version": FORMAT_VERSION,
            "kind": bundle.kind,
            "name": bundle.name,
            "labels": bundle.labels,
            "ontology_term_ids": bundle.ontology_term_ids,
            "config": bundle.config,
            "metrics": bundle.metrics,
            "provenance": bundle.provenance,
            "files": {name: sha256(folder / name) for name in (WEIGHTS, GENES)},
        }
        (folder / INFO).write_text(json.dumps(info, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        for name, content in (more or {}).items():
            (folder / name).write_bytes(content)
        card = model_card(bundle) if bundle.kind == ANNOTATOR else encoder_card(bundle.name, bundle.genes, info)
        (folder / CARD).write_text(card + pictures(more or {}), encoding="utf-8")


def load_bundle(path: str | Path) -> Bundle:
    """Read a model folder and verify its checksums.

    Raises
    ------
    InputError
        No such folder, a file of it is missing or damaged, or its format is not this program's.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    folder = Path(path)
    text, info = _read_info(folder)
    for name, checksum in info["files"].items():
        # Only the two names we write are looked at, whatever else the file lists.
        if name not in (WEIGHTS, GENES) or not _is_own_file(folder, name) or sha256(folder / name) != checksum:
            raise damaged_model(folder, f"'{name[:MOST_NAMED]}' missing or changed since it was written")
    try:
        weights = load_file(folder / WEIGHTS)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise damaged_model(folder, f"'{WEIGHTS}' unreadable") from error
    genes, gene_means = _read_genes(folder)
    try:
        require_sound_weights(info, genes, gene_means, weights)
    except ValueError as error:
        raise damaged_model(folder, str(error)) from error
    return Bundle(
        name=info["name"],
        genes=genes,
        gene_means=gene_means,
        labels=info["labels"],
        ontology_term_ids=info["ontology_term_ids"],
        config=info["config"],
        metrics=info["metrics"],
        provenance=info["provenance"],
        weights=weights,
        hash=hashlib.sha256(text.encode()).hexdigest(),
        kind=info.get("kind", ANNOTATOR),
    )


def require_annotator(bundle: Bundle, path: str | Path) -> None:
    """Refuse a model that cannot annotate.

    Raises
    ------
    InputError
        It is an encoder without labels.
    """
    if bundle.kind != ANNOTATOR:
        raise InputError(
            f"an encoder without labels at '{path}'",
            "a model that tells labels apart",
            f"train one that starts from it: scperformer train REFERENCE label_key=COLUMN init={path}",
        )


def _is_own_file(folder: Path, name: str) -> bool:
    """Whether a file lies in the folder itself; a link may not lead out of it. Refuses one too large to be read."""
    file = folder / name
    if not file.is_file() or not file.resolve().is_relative_to(folder.resolve()):
        return False
    if (size := file.stat().st_size) > MOST_BYTES.get(name, size):
        raise damaged_model(folder, f"'{name}' of {size:,} bytes")
    return True


def _read_info(folder: Path) -> tuple[str, dict[str, Any]]:
    if not folder.is_dir() or not _is_own_file(folder, INFO):
        expected = f"a model folder with {INFO}, {WEIGHTS} and {GENES}"
        if folder.is_file():
            remedy = (
                "give model_path the output folder of 'scperformer train'; 'scperformer models import' unpacks archives"
            )
            raise InputError(f"a file at '{folder}'", expected, remedy)
        found = "no bundle.json" if folder.is_dir() else "no folder"
        raise InputError(
            f"{found} at '{folder}'",
            expected,
            "give model_path the output folder of 'scperformer train' or a name of 'scperformer models list', "
            "or leave it out for the packaged model",
        )
    try:
        text = (folder / INFO).read_text(encoding="utf-8")
        info = json.loads(text)
        version = info["format_version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise damaged_model(folder, f"'{INFO}' unreadable") from error
    if version != FORMAT_VERSION:
        older = isinstance(version, int) and version < FORMAT_VERSION
        update = "update scperformer (pip install --upgrade scperformer)"
        raise InputError(
            f"model format {version} in '{folder}'",
            f"format {FORMAT_VERSION}",
            "train the model again with this version" if older else update,
        )
    for name, kind in CONTENT.items():
        if not isinstance(info.get(name), kind):
            raise damaged_model(folder, f"'{INFO}' without {name}")
    kind = info.get("kind", ANNOTATOR)
    if kind not in NEEDED:
        raise damaged_model(folder, f"'{INFO}' of an unknown kind")
    for group, wanted in {"files": (WEIGHTS, GENES), **NEEDED[kind]}.items():
        if missing := [name for name in wanted if name not in info[group]]:
            raise damaged_model(folder, f"'{INFO}' without {group} of {', '.join(missing)}")
    try:
        require_sound_info(info)
    except ValueError as error:
        raise damaged_model(folder, f"'{INFO}' with {error}") from error
    return text, info


def _read_genes(folder: Path) -> tuple[list[str], np.ndarray]:
    try:
        # Only line feeds end a row, and the last tab a name: names are user data and may hold other separators.
        lines = (folder / GENES).read_bytes().decode("utf-8").removesuffix("\n").split("\n")
        rows = [line.rsplit("\t", 1) for line in lines[1:]]
        return [name for name, _ in rows], np.array([float(mean) for _, mean in rows], dtype=np.float32)
    except ValueError as error:
        raise damaged_model(folder, f"'{GENES}' unreadable") from error


def damaged_model(folder: Path, what: str) -> InputError:
    """The error for a model folder whose content is not as it was written."""
    return InputError(f"damaged model '{folder}': {what}", "the folder as it was written", "copy it or train it again")


def library_folder() -> Path:
    """Where `models import` puts models: $SCPERFORMER_MODELS, else the user's folder of data."""
    if given := os.environ.get("SCPERFORMER_MODELS"):
        return Path(given)
    data = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (data if data.is_absolute() else Path.home() / ".local" / "share") / "scperformer" / "models"


def resolve_model(model_path: str | None) -> tuple[Path, str]:
    """The model folder to use and why: `model_path`, else $SCPERFORMER_MODEL, else the packaged model.

    A name where no file or folder is means the imported model of that name, if there is one.
    """
    if not model_path and not os.environ.get("SCPERFORMER_MODEL"):
        return PACKAGED, "packaged"
    path, why = (
        (Path(model_path), "given")
        if model_path
        else (Path(os.environ["SCPERFORMER_MODEL"]), "from $SCPERFORMER_MODEL")
    )
    imported = library_folder() / path
    if not path.exists() and path.name == str(path) and imported.is_dir():
        log.info("model '%s' is the imported one: %s", path, imported)
        return imported, "imported"
    return path, why


def encoder_is_silent(scales: Mapping[str, float]) -> bool:
    """Whether a model has both branches and its labels come from the linear one alone."""
    return len(scales) == len(BRANCHES) and scales["deep"] < SILENT


def sum_of_branches(scales: Mapping[str, float]) -> str:
    """What the logits are, such as "1.20 x linear branch + 0.35 x encoder"."""
    return " + ".join(f"{scale:.2f} x {BRANCHES[name]}" for name, scale in scales.items())


def pictures(files: Mapping[str, bytes]) -> str:
    """The end of a model card: a picture for each PNG among these files."""
    texts = {name: Path(name).stem.replace("_", " ") for name in files if name.endswith(".png")}
    return "".join(f"\n![{text}]({name})\n" for name, text in texts.items())


def model_card(bundle: Bundle) -> str:
    """What a person should know about a model before using it, as Markdown."""
    made, metrics = bundle.provenance, bundle.metrics
    counts = made["cells_per_label"]
    labels = "\n".join(f"| {label} | {counts[label]} |" for label in bundle.labels)
    ours, rival = metrics["model"], metrics["baseline"]
    checksum = f" (SHA-256 `{made['reference_sha256']}`)" if made["reference_sha256"] else ""
    alone = " The labels come from the linear branch alone." if encoder_is_silent(bundle.scales) else ""
    notes = "".join(f"- {note}\n" for note in made.get("notes", []))
    return f"""\
# {bundle.name}

A cell-type model of scperformer {made["versions"]["scperformer"]}. It tells apart the {len(bundle.labels)} labels
below and no others: a cell of any other type still gets one of them.

| label | cells in the reference |
|---|---|
{labels}

- Trained on `{made["reference"]}`{checksum}, labels in `{made["label_key"]}`,
  {made["num_cells"]} cells, {len(bundle.genes)} genes.
- Input: {made["input"]}.
{notes}\
- On {metrics["num_val_cells"]} held-out cells of the reference, which also chose the epoch and so flatter the model:
  accuracy {ours["accuracy"]:.3f}, macro-F1 {ours["macro_f1"]:.3f}; logistic regression trained on the same cells:
  accuracy {rival["accuracy"]:.3f}, macro-F1 {rival["macro_f1"]:.3f}.
- Logits are {sum_of_branches(bundle.scales)}, as is most likely on those cells.{alone}
- Confidences are probabilities scaled on the same held-out cells: they hold for cells like those of the reference.
- Made by `{made["command"]}` with seed {made["seed"]}; all options are in {INFO}.
"""
