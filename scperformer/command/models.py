"""The library of imported models (`models import`, `pull` and so on): a folder of model folders, found by their names.

A model may come from anywhere: it is checked as a whole before it is copied into the library (importing/folders.py).
"""

import json
import logging
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from scperformer.base.errors import InputError, one_line
from scperformer.base.inputs import sha256
from scperformer.base.messages import did_you_mean, in_bytes
from scperformer.base.outputs import new_file, require_absent
from scperformer.base.progress import say
from scperformer.config import ModelsConfig
from scperformer.genes import guess_species
from scperformer.importing import described, import_model, run_import
from scperformer.model import (
    CARD,
    INFO,
    MAX_REGISTRY_BYTES,
    MODEL,
    PACKAGED_MODEL,
    SavedModel,
    fetch,
    fetch_checked,
    files_of_model,
    is_remote,
    library_folder,
    load_reference_cells,
    parts_of,
    read_model,
    read_registry,
    registry_place,
    resolve_model,
    write_copy,
)

log = logging.getLogger(__name__)


def export_model(cfg: ModelsConfig) -> Path:
    """Pack a model folder, or the imported or packaged model of a name, into a .zip; print its entry for a registry.

    The options `name`, `species`, `tissue` and `licence` are also written into the model in the archive, which then has
    another hash; without them it is the same model.
    """
    output = Path(cfg.inputs[1])
    if output.suffix != ".zip":
        raise InputError(f"{output}", "a name in .zip", "rename it")
    require_absent(output, cfg.overwrite)
    folder, why = resolve_model(cfg.inputs[0])
    saved = read_model(folder)
    for part, place in parts_of(saved, folder):
        load_reference_cells(part, place)
    name = cfg.name or (folder.name if why == "imported" else saved.name)
    given = {"species": cfg.species, "tissue": cfg.tissue, "licence": cfg.licence}
    facts = {fact: value for fact, value in given.items() if value is not None}
    with _as_published(saved, folder, name, facts) as (published, place):
        with (
            new_file(output, cfg.overwrite) as temporary,
            # Files of a reproducible build may be dated 1970; they are stored as 1980, the first year of the format.
            zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as zipped,
        ):
            for file in files_of_model(published, place):
                zipped.write(place / file, f"{name}/{file}")
        entry = {
            "name": name,
            "tissue": published.tissue or "",
            "species": published.provenance.get("species") or guess_species(published.genes),
            "labels": published.labels,
            "genes": len(published.genes),
            "licence": published.provenance.get("licence", ""),
            "url": cfg.url or "https://...",
            "size": output.stat().st_size,
            "sha256": sha256(output),
        }
    missing = [f"{what}=..." for what in ("tissue", "species", "licence") if entry[what] in ("", "unknown")]
    if name == "model":  # as the workflow calls its folder
        missing.insert(0, "name=...")
    if missing:
        log.info("the entry does not state everything: add %s", ", ".join(missing))
    log.info("written: %s; its entry for a registry (docs/models.md):", output)
    say(json.dumps(entry, ensure_ascii=False))
    return output


@contextmanager
def _as_published(
    saved: SavedModel, folder: Path, name: str, facts: dict[str, str]
) -> Iterator[tuple[SavedModel, Path]]:
    """Give a model its name and the facts about it; yield it with its folder, which is a copy if anything changes."""
    new = {fact: value for fact, value in facts.items() if saved.provenance.get(fact) != value}
    if name == saved.name and not new:
        yield saved, folder
        return
    with tempfile.TemporaryDirectory(prefix="scperformer-") as temporary:
        place = Path(temporary) / name
        write_copy(replace(saved, name=name, provenance=saved.provenance | new), folder, place)
        yield read_model(place), place


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
        options = ModelsConfig(action="import", inputs=[str(file)], name=name, overwrite=overwrite)
        return import_model(file, library, options)


def run_models(cfg: ModelsConfig) -> list[Path]:
    """List models, or show, import, export or pull one; return the folders of these models, or the exported archive."""
    library = Path(cfg.output) if cfg.output else library_folder()
    place = registry_place(cfg.registry)
    if cfg.action == "import":
        return run_import(cfg)
    if cfg.action == "export":
        return [export_model(cfg)]
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
            text = described(read_model(folder))
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
