"""Imported models: a folder of model folders, found by their names (`models import`, `models list`)."""

import logging
import re
import shutil
import tempfile
from pathlib import Path

from scperformer.config import ModelsConfig
from scperformer.errors import InputError, one_line
from scperformer.model import (
    ANNOTATOR,
    CARD,
    GENES,
    INFO,
    PACKAGED,
    WEIGHTS,
    Bundle,
    damaged_model,
    library_folder,
    load_bundle,
    unpack,
)
from scperformer.network.load import rebuild
from scperformer.outputs import new_folder, require_absent

log = logging.getLogger(__name__)

FOLDER_NAME = re.compile(r"[^./\\][^/\\]{0,199}")
EXTRAS = (CARD, "learning_curve.png", "metrics.csv")  # files for people, which a model folder may lack
MOST_EXTRA = 64 * 2**20  # bytes of each extra file


def import_model(path: Path, library: Path, *, overwrite: bool = False) -> Path:
    """Check a model folder, or an archive of one, and copy it into the library, whole or not at all.

    Raises
    ------
    InputError
        The model is not sound, its name cannot name a folder, or the library has a model of this name.
    """
    if path.is_dir():
        return _copy(path, library, overwrite)
    if not path.is_file():
        expected = "a model folder, or a .zip, .tar or .tar.gz of one"
        raise InputError(f"no file or folder {path}", expected, "check the path")
    with tempfile.TemporaryDirectory(prefix="scperformer-") as temporary:
        return _copy(unpack(path, INFO, Path(temporary)), library, overwrite)


def _copy(folder: Path, library: Path, overwrite: bool) -> Path:
    bundle = load_bundle(folder)
    rebuild(bundle, folder)
    if not FOLDER_NAME.fullmatch(bundle.name):
        found = f"model '{folder}' with the name '{bundle.name[:80]}'"
        raise InputError(found, "a name that a folder can have", "train it with another output=...")
    target = library / bundle.name
    require_absent(target, overwrite, marker=INFO)
    with new_folder(target, overwrite, marker=INFO) as temporary:
        for name in (INFO, WEIGHTS, GENES, *EXTRAS):
            file = folder / name
            sound_extra = file.is_file() and not file.is_symlink() and file.stat().st_size <= MOST_EXTRA
            if name not in EXTRAS or sound_extra:
                shutil.copyfile(file, temporary / name)
        if load_bundle(temporary).hash != bundle.hash:  # the folder may change between check and copy
            raise damaged_model(folder, "it changed while it was copied")
    log.info("%s imported: %s; use it with model_path=%s", _described(bundle), target, bundle.name)
    return target


def list_models(library: Path) -> list[Path]:
    """Print name, labels, genes and folder of the packaged model and of the imported ones."""
    imported = [folder for folder in sorted(library.iterdir()) if (folder / INFO).is_file()] if library.is_dir() else []
    folders = [PACKAGED, *imported] if PACKAGED.is_dir() else imported
    for folder in folders:
        try:
            text = _described(load_bundle(folder))
        except InputError as error:
            text = f"cannot be used: {error}"
        packaged = " (packaged)" if folder == PACKAGED else ""
        print(f"{one_line(folder.name)}{packaged}: {text}\n  {one_line(str(folder))}")
    if not imported:
        log.info("no imported models in %s: 'scperformer models import PATH' adds one", library)
    return folders


def _described(bundle: Bundle) -> str:
    if bundle.kind != ANNOTATOR:
        return f"encoder without labels, {len(bundle.genes)} genes"
    return f"{len(bundle.labels)} labels ({', '.join(bundle.labels)}), {len(bundle.genes)} genes"


def run_models(cfg: ModelsConfig) -> list[Path]:
    """Import a model into the library, or list its models; return the folder written, or those listed."""
    library = Path(cfg.output) if cfg.output else library_folder()
    if cfg.action == "list":
        return list_models(library)
    return [import_model(Path(cfg.inputs[0]), library, overwrite=cfg.overwrite)]
