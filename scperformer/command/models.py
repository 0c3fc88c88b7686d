"""The library of imported models (`models import`, `pull` and so on): a folder of model folders, found by their names.

A model, or an archive of one, may come from anywhere: it is checked as a whole before it is copied into the library.
"""

import json
import logging
import re
import shutil
import tempfile
import zipfile
from pathlib import Path

from scperformer.base.errors import InputError, one_line
from scperformer.base.inputs import sha256
from scperformer.base.messages import did_you_mean, in_bytes
from scperformer.base.outputs import new_file, new_folder, require_absent
from scperformer.base.progress import say
from scperformer.config import ModelsConfig
from scperformer.model import (
    ARCHIVES,
    CARD,
    CELLS_FILE,
    EXTRAS,
    GENES,
    HELD_OUT,
    INFO,
    MAX_REGISTRY_BYTES,
    MODEL,
    PACKAGED_MODEL,
    WEIGHTS,
    SavedModel,
    copy_from_archive,
    damaged_model,
    fetch,
    fetch_checked,
    is_remote,
    library_folder,
    load_reference_cells,
    read_model,
    read_registry,
    registry_place,
    resolve_model,
)
from scperformer.network import rebuild

log = logging.getLogger(__name__)

FOLDER_NAME = re.compile(r"[^./\\][^/\\]{0,199}")  # not hidden, no path; file systems allow 255 bytes
MAX_EXTRA_BYTES = 64 * 2**20  # larger files that a model does not need are left out


def _described(saved: SavedModel) -> str:
    """Return the labels, the number of genes and the tissue of a model on one line."""
    labels = f"{len(saved.labels)} labels ({', '.join(saved.labels)})" if saved.labels else "encoder without labels"
    tissue = "" if saved.tissue is None else f", tissue {saved.tissue}"
    return one_line(f"{labels}, {len(saved.genes)} genes{tissue}")


def _files_of(saved: SavedModel, folder: Path) -> list[str]:
    """Return the names of the files of a model: all that it needs, and those of `EXTRAS` that can be copied safely."""
    needed = [
        INFO,
        WEIGHTS,
        GENES,
        *([CELLS_FILE] if saved.has_reference_cells else []),
        *([HELD_OUT] if saved.held_out else []),
    ]
    extras = [folder / name for name in EXTRAS]
    safe = [
        file.name
        for file in extras
        # A link could lead to any file of the user.
        if file.is_file() and not file.is_symlink() and file.stat().st_size <= MAX_EXTRA_BYTES
    ]
    return needed + safe


def import_model(path: Path, library: Path, *, overwrite: bool = False, name: str | None = None) -> Path:
    """Check a model folder, or an archive of one, and copy it into the library, whole or not at all.

    Returns its folder in the library.

    Raises
    ------
    InputError
        It is damaged, has a name that no folder can have, or is in the library and `overwrite` is not set; or its name
        is not `name`, the name in a registry.
    """
    if path.is_file():
        with tempfile.TemporaryDirectory(prefix="scperformer-") as temporary:
            folder = Path(temporary) / path.name  # the name is in the text of errors
            folder.mkdir()
            copy_from_archive(path, folder)
            return import_model(folder, library, overwrite=overwrite, name=name)
    if not path.is_dir():
        raise InputError(f"no file or folder {path}", ARCHIVES, "check the path")
    saved = read_model(path)
    # Both refuse damaged content, which otherwise only the first annotated file would meet.
    rebuild(saved, path)
    load_reference_cells(saved, path)
    if not FOLDER_NAME.fullmatch(saved.name):
        found = f"model '{path}' with the name '{saved.name[:80]}'"
        raise InputError(found, "a name that a folder can have", "train it with another output=...")
    if name not in (None, saved.name):
        raise InputError(f"a model named '{saved.name}'", f"'{name}', as in the registry", "tell its author")
    target = library / saved.name
    require_absent(target, overwrite, MODEL)
    with new_folder(target, MODEL, overwrite) as folder:
        for file in _files_of(saved, path):
            shutil.copyfile(path / file, folder / file)
        if read_model(folder).hash != saved.hash:  # the files may change between check and copy
            raise damaged_model(path, "it changed while it was copied")
    log.info("%s imported: %s; use it with model_path=%s", _described(saved), target, saved.name)
    return target


def export_model(name: str, output: Path, *, overwrite: bool = False) -> Path:
    """Pack a model folder, or the imported or packaged model of a name, into a .zip; print its entry for a registry."""
    if output.suffix != ".zip":
        raise InputError(f"{output}", "a name in .zip", "rename it")
    folder, _ = resolve_model(name)
    if not folder.exists() and name == PACKAGED_MODEL.name:
        folder = PACKAGED_MODEL
    saved = read_model(folder)
    load_reference_cells(saved, folder)
    with (
        new_file(output, overwrite) as temporary,
        # Files of a reproducible build may be dated 1970; they are stored as 1980, the first year of the format.
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as zipped,
    ):
        for file in _files_of(saved, folder):
            zipped.write(folder / file, f"{saved.name}/{file}")
    entry = {
        "name": saved.name,
        "tissue": saved.tissue or "",
        "labels": saved.labels,
        "genes": len(saved.genes),
        "url": "https://...",  # for the user to fill in
        "size": output.stat().st_size,
        "sha256": sha256(output),
    }
    log.info("written: %s; its entry for a registry (docs/models.md):", output)
    say(json.dumps(entry, ensure_ascii=False))
    return output


def pull_model(name: str, place: str, library: Path, *, overwrite: bool = False) -> Path:
    """Download a model of a registry, compare it with the size and checksum there, and import it into the library.

    Parameters
    ----------
    place
        The path or address of the registry.

    Raises
    ------
    InputError
        The model is not in the registry, or without an address; it is in the library and `overwrite` is not set; or it
        is damaged or not as the registry says.
    """
    with tempfile.TemporaryDirectory(prefix="scperformer-") as temporary:
        file = Path(temporary) / "file"  # first the registry, then the archive of the model
        text = None
        if is_remote(place):
            fetch(place, file, MAX_REGISTRY_BYTES)
            text = file.read_text(encoding="utf-8", errors="replace")
        entries = read_registry(place, text)
        if name not in entries:
            near = did_you_mean(name, entries)
            known = ", ".join(entries) or "no model"
            raise InputError(f"model '{name}' and the registry {place}", f"one of {known}", f"{near}name another one")
        entry = entries[name]
        if not entry.url:
            remedy = (
                f"leave model_path out: predict takes {name}" if name == PACKAGED_MODEL.name else "name another one"
            )
            raise InputError(f"model '{name}' without an address in {place}", "a model that can be pulled", remedy)
        require_absent(library / name, overwrite, MODEL)  # refused before the download
        log.info("downloads %s (%s)", entry.url, in_bytes(entry.size))
        fetch_checked(entry, file, place)
        return import_model(file, library, overwrite=overwrite, name=name)


def run_models(cfg: ModelsConfig) -> list[Path]:
    """List models, or show, import, export or pull one; return the folders of these models, or the exported archive."""
    library = Path(cfg.output) if cfg.output else library_folder()
    place = registry_place(cfg.registry)
    if cfg.action == "import":
        return [import_model(Path(cfg.inputs[0]), library, overwrite=cfg.overwrite)]
    if cfg.action == "export":
        return [export_model(cfg.inputs[0], Path(cfg.inputs[1]), overwrite=cfg.overwrite)]
    if cfg.action == "pull":
        return [pull_model(cfg.inputs[0], place, library, overwrite=cfg.overwrite)]
    return _list_models(library, place, only=cfg.inputs[0] if cfg.action == "show" else None)


def _list_models(library: Path, place: str, only: str | None) -> list[Path]:
    """Print the packaged model, the imported models, and those that can be pulled, each with its labels and genes.

    Only `pull` reads a registry on another machine.

    Parameters
    ----------
    place
        The path or address of the registry.
    only
        A name or a model folder: print this model alone, with its model card.

    Returns
    -------
    The folders of the printed models that are on this machine.
    """
    imported = [folder for folder in sorted(library.iterdir()) if (folder / INFO).is_file()] if library.is_dir() else []
    known = {} if is_remote(place) else {name: entry for name, entry in read_registry(place).items() if entry.url}
    folders = [PACKAGED_MODEL, *imported]
    if only is not None:
        folders = [folder for folder in folders if folder.name == only]
        if not folders and Path(only).is_dir():
            folders = [Path(only)]
        if not folders and only not in known:
            remedy = did_you_mean(only, [PACKAGED_MODEL.name, *(folder.name for folder in imported), *known])
            raise InputError(f"no model '{only}'", "a model of 'scperformer models list'", f"{remedy}name another one")
        known = {} if folders else {only: known[only]}
    for folder in folders:
        try:
            text = _described(read_model(folder))
        except InputError as error:
            text = f"cannot be used: {error}"
        packaged = " (packaged)" if folder == PACKAGED_MODEL else ""
        say(f"{one_line(folder.name)}{packaged}: {text}\n  {one_line(str(folder))}")
        if only is not None and (folder / CARD).is_file():
            card = (folder / CARD).read_text(encoding="utf-8", errors="replace")  # no checksum covers this file
            say("\n" + "\n".join(map(one_line, card.splitlines())))
    for name, entry in known.items():
        if name not in {folder.name for folder in imported}:
            say(f"{one_line(name)} (not pulled): {one_line(entry.text)}\n  scperformer models pull {one_line(name)}")
    if is_remote(place):
        log.info("the registry %s is read by 'scperformer models pull' alone", place)
    if not imported and only is None:
        log.info("no imported models in %s: 'scperformer models import PATH' adds one", library)
    return folders
