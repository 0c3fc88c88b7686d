"""Where models are: in the package, in the folder of imported models, or where the user says."""

import logging
import os
from pathlib import Path

from scperformer.base.errors import InputError
from scperformer.model.content import INFO
from scperformer.model.saved_model import SavedModel

log = logging.getLogger(__name__)

PACKAGED_MODEL = Path(__file__).parent / "packaged" / "pbmc3k"


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


def imported_models(library: Path) -> list[Path]:
    """Return the model folders in a folder of imported models, sorted."""
    return sorted(path for path in library.iterdir() if (path / INFO).is_file()) if library.is_dir() else []


def resolve_model(model_path: str | None) -> tuple[Path, str]:
    """Return the model folder and why it was chosen: `model_path`, else $SCPERFORMER_MODEL, else the packaged model.

    A plain name means the imported model of that name, or the packaged one, unless a model folder of that name is here.
    A folder here may also be what the model was imported from.
    """
    from_environment = os.environ.get("SCPERFORMER_MODEL")
    if not model_path and not from_environment:
        return PACKAGED_MODEL, "packaged"
    path = Path(model_path or from_environment or "")
    why = "given" if model_path else "from $SCPERFORMER_MODEL"
    imported = library_folder() / path
    if not (path / INFO).is_file() and path.name == str(path) and (imported / INFO).is_file():
        log.info("model '%s' is the imported one: %s", path, imported)
        return imported, "imported"
    if not path.exists() and str(path) == PACKAGED_MODEL.name:
        return PACKAGED_MODEL, "packaged"
    return path, why
