"""Imported models: a folder of model folders, found by their names; `models import` and `models list`."""

import logging
import re
import shutil
import tempfile
from pathlib import Path

import torch

from scperformer.config import ModelConfig, ModelsConfig, TokensConfig
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
from scperformer.network.encoder import Encoder
from scperformer.network.load import load_encoder, load_model
from scperformer.outputs import new_folder, require_absent

log = logging.getLogger(__name__)

FOLDER_NAME = re.compile(r"[^./\\][^/\\]{0,199}")
EXTRAS = (CARD, "learning_curve.png", "metrics.csv")  # for people, where they are there
MOST_EXTRA = 64 * 2**20  # bytes of each of them


def run_models(cfg: ModelsConfig) -> list[Path]:
    """Import a model into the folder of models, or print those that are there.

    Returns
    -------
    The model folder that was written, or those that were listed.
    """
    library = Path(cfg.output) if cfg.output else library_folder()
    if cfg.action == "list":
        return list_models(library)
    return [import_model(Path(cfg.inputs[0]), library, overwrite=cfg.overwrite)]


def import_model(path: Path, library: Path, *, overwrite: bool = False) -> Path:
    """Check a model folder, or an archive of one, and copy it into the folder of models, whole or not at all.

    Raises
    ------
    InputError
        It is no sound model, its name is none of a folder, or a model of this name is there.
    """
    if path.is_dir():
        return _copy(path, library, overwrite)
    if not path.is_file():
        expected = "a model folder, or a .zip, .tar or .tar.gz of one"
        raise InputError(f"no file or folder {path}", expected, "check the path")
    with tempfile.TemporaryDirectory(prefix="scperformer-") as temporary:
        return _copy(unpack(path, INFO, Path(temporary)), library, overwrite)


def _copy(folder: Path, library: Path, overwrite: bool) -> Path:
    bundle = checked_model(folder)
    if not FOLDER_NAME.fullmatch(bundle.name):
        found = f"model '{folder}' with the name '{bundle.name[:80]}'"
        raise InputError(found, "a name that a folder can have", "train it with another output=...")
    target = library / bundle.name
    require_absent(target, overwrite, marker=INFO)
    with new_folder(target, overwrite, marker=INFO) as temporary:
        for name in (INFO, WEIGHTS, GENES, *EXTRAS):
            file = folder / name
            needed = name not in EXTRAS
            if needed or (file.is_file() and not file.is_symlink() and file.stat().st_size <= MOST_EXTRA):
                shutil.copyfile(file, temporary / name)
        if load_bundle(temporary).hash != bundle.hash:  # what was checked is what was copied
            raise damaged_model(folder, "it was changed meanwhile")
    log.info("%s imported: %s; use it with model_path=%s", _described(bundle), target, bundle.name)
    return target


def checked_model(folder: Path) -> Bundle:
    """A model of which everything has been looked at, and whose network can be built.

    Raises
    ------
    InputError
        Says what is wrong.
    """
    bundle = load_bundle(folder)
    if bundle.kind == ANNOTATOR:
        load_model(folder)
        return bundle
    config = bundle.config
    try:
        tokens, model = TokensConfig(**config["tokens"]), ModelConfig(**config["model"])
        generator = torch.Generator().manual_seed(0)
        encoder = Encoder(len(bundle.genes), tokens, model, config["attention"], generator)
        load_encoder(encoder, bundle, bundle.genes, str(folder))
    except (InputError, KeyError, TypeError, RuntimeError) as error:
        raise damaged_model(folder, "its configuration and its weights do not fit") from error
    return bundle


def list_models(library: Path) -> list[Path]:
    """Print name, labels, genes and place of the packaged model and of those that have been imported."""
    imported = [folder for folder in sorted(library.iterdir()) if (folder / INFO).is_file()] if library.is_dir() else []
    folders = [*([PACKAGED] if PACKAGED.is_dir() else []), *imported]
    for folder in folders:
        try:
            text = _described(load_bundle(folder))
        except InputError as error:
            text = f"cannot be used: {error}"
        print(
            f"{one_line(folder.name)}{' (packaged)' if folder == PACKAGED else ''}: {text}\n  {one_line(str(folder))}"
        )
    if not imported:
        log.info("no imported models in %s: 'scperformer models import PATH' puts one there", library)
    return folders


def _described(bundle: Bundle) -> str:
    if bundle.kind != ANNOTATOR:
        return f"encoder without labels, {len(bundle.genes)} genes"
    return f"{len(bundle.labels)} labels ({', '.join(bundle.labels)}), {len(bundle.genes)} genes"
