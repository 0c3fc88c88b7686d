"""Import a model: check it as a whole, and write it into the folder of models, whole or not at all."""

import logging
import re
import shutil
import tempfile
from pathlib import Path

from scperformer.base.errors import InputError, one_line
from scperformer.base.outputs import new_folder, require_absent
from scperformer.config.steps import ModelsConfig
from scperformer.importing.labelled import with_labelled_cells
from scperformer.importing.name_files import read_names
from scperformer.importing.origin import foreign_model
from scperformer.importing.reading import read_in_child
from scperformer.importing.recognise import FORMATS, Format, recognise
from scperformer.model.archive import ARCHIVES, copy_from_archive
from scperformer.model.folder import (
    MODEL,
    damaged_model,
    files_of_model,
    load_reference_cells,
    parts_of,
    read_model,
    write_model,
)
from scperformer.model.library import library_folder
from scperformer.model.load import rebuild
from scperformer.model.saved_model import SavedModel

log = logging.getLogger(__name__)

FOLDER_NAME = re.compile(r"[^./\\][^/\\]{0,199}")  # not hidden, no path; file systems allow 255 bytes
MAX_SHOWN_LABELS = 20  # of a model; its card has all
MODELS = f"{ARCHIVES}; or {', '.join(known.name for known in FORMATS)}"


def described(saved: SavedModel) -> str:
    """Return the labels, the number of genes and the tissue of a model on one line."""
    shown = [*saved.labels[:MAX_SHOWN_LABELS], *(["..."] if len(saved.labels) > MAX_SHOWN_LABELS else [])]
    labels = f"{len(saved.labels)} labels ({', '.join(shown)})" if saved.labels else "encoder without labels"
    tissue = "" if saved.tissue is None else f", tissue {saved.tissue}"
    lacks = f"; from {saved.imported['tool']}" if saved.imported else ""
    lacks += f", without {', '.join(saved.lacks)}" if saved.lacks else ""
    return one_line(f"{labels}, {len(saved.genes)} genes{tissue}{lacks}")


def import_model(path: Path, library: Path, cfg: ModelsConfig | None = None) -> Path:
    """Check a model folder, an archive of one, or a model of another tool; write it into the library.

    Parameters
    ----------
    cfg
        Options of `models import`; None: their defaults.

    Returns
    -------
    Its folder in the library.

    Raises
    ------
    InputError
        It is damaged, has a name that no folder can have, or is in the library and `overwrite` is not set.
    """
    cfg = cfg or ModelsConfig(action="import", inputs=[str(path)])
    if not path.exists():
        raise InputError(f"no file or folder {path}", MODELS, "check the path")
    foreign = recognise(path)
    if foreign is not None:
        return _import_foreign(path, foreign, library, cfg)
    if cfg.reference is not None:
        found = f"reference={cfg.reference} beside a model of scperformer"
        raise InputError(found, "a model of another tool, which has no labelled cells", "leave reference out")
    if path.is_file():
        with tempfile.TemporaryDirectory(prefix="scperformer-") as temporary:
            folder = Path(temporary) / path.name  # the name is in the text of errors
            folder.mkdir()
            copy_from_archive(path, folder, MODELS)
            return _import_folder(folder, library, cfg)
    return _import_folder(path, library, cfg)


def _import_folder(path: Path, library: Path, cfg: ModelsConfig) -> Path:
    """Copy a folder of our own into the library, as it is: its hash stays."""
    saved = read_model(path)
    # Both refuse damaged content, which otherwise only the first annotated file would meet.
    for part, place in parts_of(saved, path):
        rebuild(part, place)
        load_reference_cells(part, place)
    target = _target(cfg.name or saved.name, path, library, cfg)
    with new_folder(target, MODEL, cfg.overwrite) as folder:
        for file in files_of_model(saved, path):
            (folder / file).parent.mkdir(exist_ok=True)
            shutil.copyfile(path / file, folder / file)
        if read_model(folder).hash != saved.hash:  # the files may change between check and copy
            raise damaged_model(path, "it changed while it was copied")
    if target.name != saved.name:
        log.info("its author calls the model '%s'", saved.name)
    _log_imported(saved, target)
    return target


def _import_foreign(path: Path, foreign: Format, library: Path, cfg: ModelsConfig) -> Path:
    """Write a model of another tool as a model folder into the library."""
    names = {what: read_names(file, what) for what in ("genes", "labels") if (file := getattr(cfg, what)) is not None}
    files = path.rglob("*") if path.is_dir() else [path]
    size = sum(file.stat().st_size for file in files if file.is_file())
    try:
        described = read_in_child(lambda: foreign.read(path, cfg, names), size)
        saved = foreign_model(Path(described.pop("path", path)), cfg, **described)
        if cfg.reference is not None and cfg.label_key is not None:
            _target(saved.name, path, library, cfg)  # refused before the cells are read
            saved = with_labelled_cells(saved, cfg.reference, cfg.label_key)
    except InputError:
        raise
    except ValueError as error:
        found = f"{path} with {error}"
        remedy = "download or copy it again, or export it again with the tool that made it"
        raise InputError(found, foreign.name, remedy) from error
    target = _target(saved.name, path, library, cfg)
    rebuild(saved, path)
    write_model(saved, target, overwrite=cfg.overwrite)
    _log_imported(saved, target)
    return target


def _target(name: str, path: Path, library: Path, cfg: ModelsConfig) -> Path:
    """Return the folder of a model in the library; refuse names that no folder can have, and one that exists."""
    if not FOLDER_NAME.fullmatch(name):
        raise InputError(f"model '{path}' with the name '{name[:80]}'", "a name that a folder can have", "add name=...")
    require_absent(library / name, cfg.overwrite, MODEL)
    return library / name


def _log_imported(saved: SavedModel, target: Path) -> None:
    log.info("imported: %s, with %s; use it with model_path=%s", target, described(saved), target.name)


def run_import(cfg: ModelsConfig) -> list[Path]:
    """Import the models that the options name, one after the other; return their folders in the library."""
    library = Path(cfg.output) if cfg.output else library_folder()
    return [import_model(Path(path), library, cfg) for path in cfg.inputs]
