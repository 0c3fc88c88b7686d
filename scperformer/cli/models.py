"""The library of imported models (`models import`, `list`, `show`): a folder of model folders, found by their names.

A model may come from anywhere: it is checked as a whole before it is copied into the library (importing/folders.py).
"""

import logging
from pathlib import Path

from scperformer.base.errors import InputError, one_line
from scperformer.base.messages import did_you_mean
from scperformer.base.progress import say
from scperformer.config.steps import ModelsConfig
from scperformer.importing.folders import import_model
from scperformer.model.content import INFO
from scperformer.model.folder import CARD, read_model
from scperformer.model.library import PACKAGED_MODEL, library_folder

log = logging.getLogger(__name__)


def run_models(cfg: ModelsConfig) -> list[Path]:
    """List models, or show or import one; return the folders of these models."""
    library = Path(cfg.output) if cfg.output else library_folder()
    if cfg.action == "import":
        return [import_model(Path(path), library, cfg) for path in cfg.inputs]
    return _list_models(library, only=cfg.inputs[0] if cfg.action == "show" else None)


def _list_models(library: Path, only: str | None) -> list[Path]:
    """Print the packaged model and the imported models, each with its labels and genes; return their folders.

    `only` is a name or a model folder: print this model alone, with its model card.
    """
    imported = [folder for folder in sorted(library.iterdir()) if (folder / INFO).is_file()] if library.is_dir() else []
    folders = [PACKAGED_MODEL, *imported]
    if only is not None:
        folders = [folder for folder in folders if folder.name == only]
        if not folders and Path(only).is_dir():
            folders = [Path(only)]
        if not folders:
            remedy = did_you_mean(only, [PACKAGED_MODEL.name, *(folder.name for folder in imported)])
            raise InputError(f"no model '{only}'", "a model of 'scperformer models list'", f"{remedy}name another one")
    for folder in folders:
        try:
            text = read_model(folder).summary
        except InputError as error:
            text = f"cannot be used: {error}"
        packaged = " (packaged)" if folder == PACKAGED_MODEL else ""
        say(f"{one_line(folder.name)}{packaged}: {text}\n  {one_line(str(folder))}")
        if only is not None and (folder / CARD).is_file():
            card = (folder / CARD).read_text(encoding="utf-8", errors="replace")  # no checksum covers this file
            say("\n" + "\n".join(map(one_line, card.splitlines())))
    if not imported and only is None:
        log.info("no imported models in %s: 'scperformer models import PATH' adds one", library)
    return folders
