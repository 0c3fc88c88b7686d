"""`scperformer models`: list models, or import one from somewhere else.

Imported models are in the library, a folder of model folders, found by their names. A model may come from anywhere: it
is checked as a whole before it is copied into the library.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from scperformer.base.errors import InputError, one_line
from scperformer.base.messages import did_you_mean
from scperformer.base.progress import say
from scperformer.config.options import Options, choice, fixed, require
from scperformer.importing.options import ImportOptions

log = logging.getLogger(__name__)

USAGE = "models list | show | import"
EXAMPLES = """\
  scperformer models list
  scperformer models show pbmc3k
  scperformer models import a_model.zip                  # checked; then model_path=NAME finds it
  scperformer models import Immune_All_Low.pkl           # also a model of CellTypist
  scperformer models import their_model output=shared    # for SCPERFORMER_MODELS=shared"""


@dataclass(kw_only=True)
class ModelsConfig(ImportOptions):
    """List models, describe one, or import one."""

    action: str = fixed(choice("list", "show", "import"))  # the first plain word

    def __post_init__(self) -> None:
        Options.__post_init__(self)  # without the checks of FileOptions: the number of inputs depends on the action
        wanted = {"list": "none", "show": "a name", "import": "a model folder, archive or file"}[self.action]
        several = self.action == "import" and self.name is None and len(self.inputs) > 1
        if len(self.inputs) != (self.action != "list") and not several:
            found = f"{len(self.inputs)} words after 'models {self.action}'"
            raise InputError(found, wanted, "'scperformer models --help' shows examples")
        has_both = (self.reference is None) == (self.label_key is None)
        require(has_both, "label_key", self.label_key, "reference=FILE and label_key=COLUMN together")


def run(cfg: ModelsConfig) -> list[Path]:
    """List models, or show or import one; return the folders of these models."""
    from scperformer.importing.folders import import_model
    from scperformer.model.folder import library_folder

    library = Path(cfg.output) if cfg.output else library_folder()
    if cfg.action == "import":
        return [import_model(Path(path), library, cfg) for path in cfg.inputs]
    return _list_models(library, only=cfg.inputs[0] if cfg.action == "show" else None)


def _list_models(library: Path, only: str | None) -> list[Path]:
    """Print the packaged model and the imported models, each with its labels and genes; return their folders.

    `only` is a name or a model folder: print this model alone, with its model card.
    """
    from scperformer.model.folder import CARD, PACKAGED_MODEL, imported_models, read_model

    imported = imported_models(library)
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
