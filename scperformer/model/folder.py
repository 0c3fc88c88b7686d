"""The folder that holds a model (docs/formats.md): where it is, written and read without torch.

Reading it executes nothing. A folder may come from anywhere with checksums that fit: its content is checked for types,
names, ranges and finite numbers. `load_model` compares its weights with the network of its configuration.
"""

import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from scperformer.base.errors import InputError, require_path
from scperformer.base.inputs import names_beside, sha256
from scperformer.base.messages import did_you_mean
from scperformer.base.outputs import FolderKind, new_folder
from scperformer.model.arrays import (
    CELLS_FILE,
    HELD_OUT,
    ReferenceCells,
    read_held_out,
    read_reference_cells,
)
from scperformer.model.bundle import BundleFile
from scperformer.model.card import model_card
from scperformer.model.content import INFO, from_json, model_of, read_tree, to_json
from scperformer.model.saved_model import SavedModel, Study
from scperformer.model.tissues import collection

log = logging.getLogger(__name__)

PACKAGED_MODEL = Path(__file__).parent / "packaged" / "pbmc3k"
FORMAT_VERSION = 8
WEIGHTS = "model.safetensors"
GENES = "genes.tsv"
CARD = "MODEL_CARD.md"
# files that are read as a whole; real ones are below 2 MB
MAX_FILE_BYTES = {INFO: 64 * 2**20, GENES: 256 * 2**20}
# files whose checksums bundle.json has; a model may lack the last two
PROVEN = (WEIGHTS, GENES, CELLS_FILE, HELD_OUT)
EXTRAS = (CARD, "reliability.png", "metrics.csv")  # files for people, which may be missing
KNOWN = (INFO, WEIGHTS, GENES, CELLS_FILE, HELD_OUT, *EXTRAS)
MAX_EXTRA_BYTES = 64 * 2**20  # larger files for people are left out of copies
MODEL = FolderKind("a model")
MAX_NAME_SHOWN = 100  # characters of a name in a message
STUDY = re.compile(r"study[1-9]\d?")  # a subfolder with the model of a study


def require_annotator(saved: SavedModel, path: str | Path) -> None:
    """Refuse a model that cannot annotate: an encoder without labels."""
    if not saved.labels:
        found = f"an encoder without labels at '{path}'"
        remedy = f"train a model that starts from it: scperformer train REFERENCE label_key=COLUMN init={path}"
        raise InputError("encoder-without-labels", found, "a model with labels", remedy)


def library_folder() -> Path:
    """Return the folder of imported models: $SCPERFORMER_MODELS, else a folder among the user's data."""
    if given := os.environ.get("SCPERFORMER_MODELS"):
        return Path(given)
    data = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (
        (data if data.is_absolute() else Path.home() / ".local" / "share")
        / "scperformer"
        / "models"
    )


def imported_models(library: Path) -> list[Path]:
    """Return the model folders in a folder of imported models, sorted."""
    return (
        sorted(path for path in library.iterdir() if (path / INFO).is_file())
        if library.is_dir()
        else []
    )


def names_model(model_path: str | None, tissue: str | None) -> bool:
    """Return whether a user names a model, by `model_path` or $SCPERFORMER_MODEL; a tissue replaces the latter."""
    return bool(model_path or (tissue is None and os.environ.get("SCPERFORMER_MODEL")))


def resolve_model(model_path: str | None) -> tuple[Path, str]:
    """Return the model folder and why it was chosen: `model_path`, else $SCPERFORMER_MODEL, else the packaged model.

    A plain name means the imported model of that name, or the packaged one, unless a model folder of that name is here.
    A folder here may also be what the model was imported from.
    """
    from_environment = os.environ.get("SCPERFORMER_MODEL")
    if not model_path and not from_environment:
        return PACKAGED_MODEL, "packaged"
    path = Path(model_path or from_environment or "")
    require_path(path)
    why = "given" if model_path else "from $SCPERFORMER_MODEL"
    imported = library_folder() / path
    if not (path / INFO).is_file() and path.name == str(path) and (imported / INFO).is_file():
        log.info("model '%s' is the imported one: %s", path, imported)
        return imported, "imported"
    if not path.exists() and str(path) == PACKAGED_MODEL.name:
        return PACKAGED_MODEL, "packaged"
    if not path.exists() and (tissue := collection().named(str(path))):
        found = f"the tissue '{path}' in place of a model"
        remedy = f"for this tissue, set tissue={tissue.replace(' ', '_')} instead"
        raise InputError("tissue-as-model", found, "a model folder or the name of a model", remedy)
    return path, why


def write_model(
    saved: SavedModel,
    path: str | Path,
    *,
    overwrite: bool = False,
    more: Mapping[str, bytes] | None = None,
) -> None:
    """Write a model folder, whole or not at all; `more` are other files for people, the card shows the pictures."""
    from safetensors.numpy import save

    def write_into(folder: Path, saved: SavedModel, more: Mapping[str, bytes]) -> None:
        # Not safetensors' save_file: only their owner could read its files, but models are shared.
        content = {
            WEIGHTS: save(
                {name: np.ascontiguousarray(array) for name, array in saved.weights.items()}
            )
        }
        rows = [
            f"{gene}\t{mean:.6g}" for gene, mean in zip(saved.genes, saved.gene_means, strict=True)
        ]
        content[GENES] = ("\n".join(["gene\tmean", *rows]) + "\n").encode()
        if saved.reference_cells is not None:
            content[CELLS_FILE] = saved.reference_cells.to_bytes()
        if saved.held_out is not None:
            content[HELD_OUT] = saved.held_out.to_bytes()
        for name, data in (content | dict(more)).items():
            (folder / name).write_bytes(data)
        proven = list(content)
        info = {"format_version": FORMAT_VERSION} | to_json(saved)
        if saved.tree is not None:
            info["tree"] = {"parents": saved.tree.parents, "terms": saved.tree.terms}
        if saved.studies:
            info["studies"] = []
        for number, study in enumerate(saved.studies, start=1):
            part = folder / f"study{number}"
            part.mkdir()
            write_into(part, study.saved, {})
            meaning = [np.flatnonzero(row).tolist() for row in study.meaning]
            info["studies"].append({"name": study.name, "meaning": meaning})
            proven.append(f"{part.name}/{INFO}")
        info["files"] = {name: sha256(folder / name) for name in proven}
        (folder / INFO).write_text(
            json.dumps(info, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        (folder / CARD).write_text(model_card(saved, more), encoding="utf-8")

    with new_folder(path, MODEL, overwrite) as folder:
        write_into(folder, saved, more or {})


def parts_of(saved: SavedModel, folder: Path) -> list[tuple[SavedModel, Path]]:
    """Return the models with weights in a model folder, and their folders: the model itself, or one for each study."""
    studies = [
        (study.saved, folder / f"study{number}")
        for number, study in enumerate(saved.studies, start=1)
    ]
    return studies or [(saved, folder)]


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
    place = (
        f"no {INFO} at" if folder.is_dir() else "a file at" if folder.is_file() else "no folder at"
    )
    other = " or to a name of 'scperformer models list', or leave it out for the packaged model"
    is_file = folder.is_file() or folder.suffix in (".pkl", ".zip", ".tar")
    imports = f"; 'scperformer models import {folder}', in Python import_model('{folder}'), "
    imports += "makes one of a file or archive"
    remedy = imports if is_file else other
    library = names_beside(library_folder() / "any") if folder.name == str(path) else []
    near = (
        did_you_mean(folder.name, [*library, *names_beside(folder)])
        if place.startswith("no folder")
        else ""
    )
    remedy = f"{near}set model_path to the output folder of 'scperformer train'{remedy}"
    raise InputError(
        "no-model",
        f"{place} '{folder}'",
        f"a model folder with {INFO}, {WEIGHTS} and {GENES}",
        remedy,
    )


def load_reference_cells(saved: SavedModel, path: str | Path) -> ReferenceCells | None:
    """Read the reference cells that a model stores, or return None; refuse damaged ones."""
    if not saved.has_reference_cells:
        return saved.reference_cells
    try:
        batches = saved.provenance.batches
        sizes = len(saved.genes), len(saved.labels), 0 if batches is None else len(batches.names)
        return read_reference_cells(Path(path), *sizes, some=bool(saved.imported))
    except ValueError as error:
        raise damaged_model(Path(path), str(error)) from error


def files_of_model(saved: SavedModel, folder: Path) -> list[str]:
    """Return the names of the files of a model: all that it needs, and `EXTRAS` unless they are links or too large."""
    files = [INFO, WEIGHTS, GENES]
    files += [CELLS_FILE] if saved.has_reference_cells else []
    files += [HELD_OUT] if saved.held_out else []
    for part, place in parts_of(saved, folder) if saved.studies else ():
        files += [f"{place.name}/{name}" for name in files_of_model(part, place)]
    extras = [folder / name for name in EXTRAS if (folder / name).is_file()]
    # A link could lead to any file of the user.
    return files + [
        file.name
        for file in extras
        if not file.is_symlink() and file.stat().st_size <= MAX_EXTRA_BYTES
    ]


def damaged_model(folder: Path, problem: str) -> InputError:
    """Return the error for a model folder whose content is not as it was written."""
    remedy = "copy it again or train it again"
    return InputError(
        "damaged-model",
        f"damaged model '{folder}': {problem}",
        "the folder as it was written",
        remedy,
    )


def _read_model(folder: Path) -> SavedModel:
    """Read a folder with a bundle.json; the text of a ValueError says how it is damaged."""
    try:
        text = (folder / INFO).read_text(encoding="utf-8")
        info = json.loads(text)
        version = info["format_version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"'{INFO}' unreadable") from error
    if version != FORMAT_VERSION:
        is_older = isinstance(version, int) and version < FORMAT_VERSION
        update = "update scperformer (pip install --upgrade scperformer)"
        remedy = "train the model again with this version" if is_older else update
        raise InputError(
            "model-format",
            f"model format {version} in '{folder}'",
            f"format {FORMAT_VERSION}",
            remedy,
        )
    bundle = from_json(info)
    for name in (WEIGHTS, GENES):
        if name not in bundle.files:
            raise ValueError(f"'{INFO}' without the checksum of {name}")
    for name, checksum in bundle.files.items():
        study, _, file = name.partition("/")
        is_known = name in PROVEN or (file == INFO and STUDY.fullmatch(study))
        if not is_known or not _is_own_file(folder, name) or sha256(folder / name) != checksum:
            raise ValueError(f"'{name[:MAX_NAME_SHOWN]}' missing or changed since it was written")
    weights, genes, means = _read_arrays(folder, len(bundle.labels))
    saved = SavedModel(
        **model_of(bundle),
        genes=genes,
        gene_means=means,
        weights=weights,
        has_reference_cells=CELLS_FILE in bundle.files,
        studies=_read_studies(folder, bundle),
        tree=read_tree(bundle),
        hash=hashlib.sha256(text.encode()).hexdigest(),
    )
    # `train` writes them; models of other tools, tissues and encoders have none, nor have several studies together.
    is_trained = bool(saved.labels) and not (
        saved.studies or saved.imported or saved.provenance.profiles
    )
    if is_trained and (missing := {"baseline.weight", "baseline.bias"} - weights.keys()):
        raise ValueError(f"no weights '{min(missing)}'")
    if HELD_OUT in bundle.files:  # each of several studies has a novelty model of its own
        kinds = {"has_novelty_model": not saved.studies, "some": bool(saved.imported)}
        saved.held_out = read_held_out(folder, len(genes), len(saved.labels), **kinds)
    return saved


def _read_studies(folder: Path, bundle: BundleFile) -> list[Study]:
    """Read the models of the studies of a folder; the text of a ValueError says how they are damaged."""
    if len(bundle.studies) == 1:
        raise ValueError(f"'{INFO}' with studies that are not 2 or more")
    studies = []
    for number, entry in enumerate(bundle.studies, start=1):
        part = folder / f"study{number}"
        if f"{part.name}/{INFO}" not in bundle.files:
            raise ValueError(f"'{INFO}' without the checksum of {part.name}")
        saved = _read_model(part)
        if saved.studies or not saved.labels:
            raise ValueError(f"'{part.name}' that is not a model of one study")
        meaning = np.zeros((len(saved.labels), len(bundle.labels)), dtype=bool)
        if len(entry.meaning) != len(meaning):
            raise ValueError(f"'{INFO}' without the meaning of each label of {part.name}")
        for row, places in zip(meaning, entry.meaning, strict=True):
            if not places or max(places) >= len(row):
                raise ValueError(f"'{INFO}' with labels of studies that stand for no label")
            row[places] = True
        studies.append(Study(entry.name, saved, meaning))
    return studies


def _is_own_file(folder: Path, name: str) -> bool:
    """Whether a file lies in the folder itself; a link may not lead out of it. Refuses a file that is too large."""
    file = folder / name
    if not file.is_file() or not file.resolve().is_relative_to(folder.resolve()):
        return False
    if (size := file.stat().st_size) > MAX_FILE_BYTES.get(name, size):
        raise ValueError(f"'{name}' of {size:,} bytes")
    return True


def _read_arrays(
    folder: Path, num_labels: int
) -> tuple[dict[str, np.ndarray], list[str], np.ndarray]:
    """Return the weights, the genes in their order and their means, float32; a ValueError says how they are damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        weights = load_file(folder / WEIGHTS)
    except (
        SafetensorError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
    ) as error:  # or types that NumPy lacks
        raise ValueError(f"'{WEIGHTS}' unreadable") from error
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
            raise ValueError(f"NaN or infinite numbers in {name[:MAX_NAME_SHOWN]}")
    for name, shape in {
        "baseline.weight": (len(genes), num_labels),
        "baseline.bias": (num_labels,),
    }.items():
        if name in weights and (weights[name].shape != shape or weights[name].dtype.kind != "f"):
            raise ValueError(f"{name} does not fit {len(genes)} genes and {num_labels} labels")
    return weights, genes, means
