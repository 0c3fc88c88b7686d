"""Imported models (`models import`, `models list`): a folder of model folders, found by their names.

A model may come from anywhere, also in an archive: both are checked before anything is kept.
"""

import errno
import logging
import lzma
import re
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from scperformer.config import ModelsConfig
from scperformer.errors import InputError, one_line
from scperformer.model import (
    CARD,
    CELLS,
    GENES,
    HELD_OUT,
    INFO,
    PACKAGED,
    WEIGHTS,
    Bundle,
    damaged_model,
    library_folder,
    load_bundle,
    load_kept,
)
from scperformer.network.load import rebuild
from scperformer.outputs import new_folder, require_absent
from scperformer.progress import say

log = logging.getLogger(__name__)

FOLDER_NAME = re.compile(r"[^./\\][^/\\]{0,199}")
# Files for people, which a model folder may lack.
EXTRAS = (CARD, "learning_curve.png", "reliability.png", "metrics.csv")
MOST_EXTRA = 64 * 2**20  # bytes of each extra file
KINDS = "a model folder, or a .zip, .tar or .tar.gz of one"
MOST_BYTES = 512 * 2**20  # of all files of an archive, unpacked; the largest models have some 100 MB
MOST_FILES = 1000
MOST_HEADER = 2**20  # bytes of a header without a file, such as one with a long name; tarfile reads it as a whole
ERRORS = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, RuntimeError)


class _SmallHeader(tarfile.TarInfo):
    """The header of a tar entry; long ones are refused before tarfile reads them into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_SmallHeader":
        info = super().frombuf(buf, encoding, errors)
        if not info.isreg() and info.size > MOST_HEADER:
            raise ValueError(f"a header of {info.size:,} bytes")
        return info


def _require_small(entries: Iterable[tuple[str, int]]) -> None:
    """Look at the declared names and sizes of all files before any of them is unpacked."""
    total = 0
    for number, (name, size) in enumerate(entries, start=1):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"'{name}' lies outside of its folder")
        total += size
        if number > MOST_FILES or total > MOST_BYTES:
            raise ValueError(f"more than {MOST_FILES:,} files or {MOST_BYTES:,} bytes")


def unpack(path: Path, target: Path) -> Path:
    """Unpack an archive into the empty folder `target`, and return the one model folder in it.

    Refuse one that is damaged or too large, or has files outside of its folder, links that lead out of it or devices.
    """
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as zipped:
                _require_small((info.filename, info.file_size) for info in zipped.infolist())
                zipped.extractall(target)  # never writes more of a file than its declared size
        else:
            if not hasattr(tarfile, "data_filter"):
                raise ValueError("Python before 3.11.4 cannot unpack tar archives safely")
            with path.open("rb") as file:
                mode = "r:gz" if file.read(2) == b"\x1f\x8b" else "r:"
            with tarfile.open(path, mode, tarinfo=_SmallHeader) as tar:  # type: ignore[call-overload]
                _require_small((info.name, info.size) for info in tar)  # ends at the first header that is too large
                tar.extractall(target, filter="data")
        folders = [file.parent for file in target.rglob(INFO)]
        if len(folders) != 1:
            raise ValueError(f"{len(folders) or 'no'} {INFO} in it")
        return folders[0]
    except ERRORS as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        reason = str(error).splitlines()[0].rstrip(":") if str(error) else type(error).__name__
        remedy = "pack the folder again, or unpack it yourself and import the folder"
        found = f"{path} cannot be unpacked ({reason[:200]})"
        raise InputError(found, f"{KINDS} with plain files only", remedy) from error


def _described(bundle: Bundle) -> str:
    labels = f"{len(bundle.labels)} labels ({', '.join(bundle.labels)})" if bundle.labels else "encoder without labels"
    tissue = "" if bundle.tissue is None else f", tissue {bundle.tissue}"
    return one_line(f"{labels}, {len(bundle.genes)} genes{tissue}")


def import_model(path: Path, library: Path, *, overwrite: bool = False) -> Path:
    """Check a model folder, or an archive of one, and copy it into the library, whole or not at all."""
    if path.is_file():
        with tempfile.TemporaryDirectory(prefix="scperformer-") as temporary:
            return import_model(unpack(path, Path(temporary)), library, overwrite=overwrite)
    if not path.is_dir():
        raise InputError(f"no file or folder {path}", KINDS, "check the path")
    bundle = load_bundle(path)
    rebuild(bundle, path)
    load_kept(bundle, path)
    if not FOLDER_NAME.fullmatch(bundle.name):
        found = f"model '{path}' with the name '{bundle.name[:80]}'"
        raise InputError(found, "a name that a folder can have", "train it with another output=...")
    target = library / bundle.name
    require_absent(target, overwrite, marker=INFO)
    needed = [INFO, WEIGHTS, GENES, *([CELLS] if bundle.has_kept else []), *([HELD_OUT] if bundle.held_out else [])]
    with new_folder(target, overwrite, marker=INFO) as folder:
        for name in (*needed, *EXTRAS):
            file = path / name
            sound_extra = file.is_file() and not file.is_symlink() and file.stat().st_size <= MOST_EXTRA
            if name not in EXTRAS or sound_extra:
                shutil.copyfile(file, folder / name)
        if load_bundle(folder).hash != bundle.hash:  # the files may change between check and copy
            raise damaged_model(path, "it changed while it was copied")
    log.info("%s imported: %s; use it with model_path=%s", _described(bundle), target, bundle.name)
    return target


def run_models(cfg: ModelsConfig) -> list[Path]:
    """Import a model into the library and return its folder, or print all models and return their folders.

    They are the packaged model and the imported ones, each with its name, labels, number of genes, tissue and folder.
    """
    library = Path(cfg.output) if cfg.output else library_folder()
    if cfg.action != "list":
        return [import_model(Path(cfg.inputs[0]), library, overwrite=cfg.overwrite)]
    imported = [folder for folder in sorted(library.iterdir()) if (folder / INFO).is_file()] if library.is_dir() else []
    for folder in [PACKAGED, *imported]:
        try:
            text = _described(load_bundle(folder))
        except InputError as error:
            text = f"cannot be used: {error}"
        packaged = " (packaged)" if folder == PACKAGED else ""
        say(f"{one_line(folder.name)}{packaged}: {text}\n  {one_line(str(folder))}")
    if not imported:
        log.info("no imported models in %s: 'scperformer models import PATH' adds one", library)
    return [PACKAGED, *imported]
