"""Import a model: recognise it, read it, check it as a whole, and write it into the folder of models, or not at all."""

import errno
import logging
import lzma
import platform
import re
import shutil
import tempfile
import zipfile
import zlib
from collections import Counter
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from types import ModuleType

import numpy as np

from scperformer.base.errors import InputError
from scperformer.base.messages import name_problem, shortened
from scperformer.base.outputs import new_folder, require_absent
from scperformer.config.steps import ImportOptions
from scperformer.importing import celltypist, scbert, scvi_tools
from scperformer.importing.foreign import ForeignModel
from scperformer.importing.labelled import with_labelled_cells
from scperformer.io.gene_names import guess_species
from scperformer.io.pickles import (
    NUMPY,
    Made,
    array_of,
    looks_like_pickle,
    read_in_child,
    read_pickle,
    state_of,
)
from scperformer.io.read import read_cells
from scperformer.labels.ontology import PACKAGED_TERMS, find_terms
from scperformer.labels.tree import UNKNOWN_TERM
from scperformer.model import folder as model_folder
from scperformer.model.bundle import Metrics, Provenance
from scperformer.model.content import INFO
from scperformer.model.folder import KNOWN, MODEL, STUDY, read_model
from scperformer.model.load import rebuild
from scperformer.model.saved_model import SavedModel

log = logging.getLogger(__name__)

# Each has a NAME, says by `is_it` whether a file or folder may be its model, and reads it in a child process: `read`
# returns a `ForeignModel`. A file of torch is scBERT's if it is not of scvi-tools, and old ones begin as pickles do.
FOREIGN_FORMATS = (scvi_tools, scbert, celltypist)
ARCHIVES = "a model folder, or a .zip of one"
MODELS = f"{ARCHIVES}; or {', '.join(known.NAME for known in FOREIGN_FORMATS)}"
# not hidden, no path; file systems allow 255 bytes
FOLDER_NAME = re.compile(r"[^./\\][^/\\]{0,199}")
# of all files of an archive, unpacked; the largest models have some 100 MB
MAX_UNPACKED_BYTES = 512 * 2**20
MAX_FILES = 1000
ARCHIVE_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    ValueError,
    RuntimeError,
)
NAMES_FILE = (
    "a text file with one name in each line, a pickled array or list of names, or an h5ad file"
)
ENCODER = "sklearn.preprocessing."  # of a fitted LabelEncoder


def copy_from_archive(path: Path, target: Path) -> None:
    """Copy the known files of the one model folder in an archive into the empty folder `target`; leave others out.

    Archives may come from anywhere: their names are never used as paths. A file is written only under one of the names
    in `KNOWN`, in the folder of the model or in the subfolder of one of its studies.
    """
    try:
        with zipfile.ZipFile(path) as zipped:
            listed = [file for file in zipped.infolist() if file.filename and not file.is_dir()]
            files = {PurePosixPath(file.filename): file for file in listed}
            if (
                len(files) > MAX_FILES
                or sum(file.file_size for file in files.values()) > MAX_UNPACKED_BYTES
            ):
                raise ValueError(f"more than {MAX_FILES:,} files or {MAX_UNPACKED_BYTES:,} bytes")
            models = [name.parent for name in files if name.name == INFO]
            roots = [
                folder
                for folder in models
                if not (STUDY.fullmatch(folder.name) and folder.parent in models)
            ]
            if len(roots) != 1:
                raise ValueError(f"{len(roots) or 'no'} {INFO} in it")
            for path_in_zip, file in files.items():
                is_inside = path_in_zip.is_relative_to(roots[0])
                part = str(path_in_zip.parent.relative_to(roots[0])) if is_inside else ""
                if path_in_zip.name in KNOWN and (part == "." or STUDY.fullmatch(part)):
                    (target / part).mkdir(exist_ok=True)
                    with (
                        zipped.open(file) as source,
                        (target / part / path_in_zip.name).open("xb") as copy,
                    ):
                        shutil.copyfileobj(source, copy)
    except ARCHIVE_ERRORS as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        reason = str(error).splitlines()[0].rstrip(":") if str(error) else type(error).__name__
        remedy = "pack the folder again, or unpack it yourself and import the folder"
        raise InputError(
            "bad-archive", f"{path} cannot be unpacked ({reason[:200]})", MODELS, remedy
        ) from error


def read_names(path: str, what: str) -> list[str]:
    """Return the names in the file of the option `what`, in their order; nothing in it is executed."""
    file = Path(path)
    if not file.is_file():
        raise InputError("no-file", f"no file {what}={path}", NAMES_FILE, "check the path")

    def pickled() -> list[str]:
        content = read_pickle(file, (*NUMPY, ENCODER, "pandas."))
        if isinstance(content, Made) and content.maker.startswith(ENCODER):
            content = state_of(content, "label encoder").get("classes_")
        return list(array_of(content, "names").ravel())

    try:
        if file.suffix == ".h5ad":
            names = list(read_cells(file, "auto").var_names)
        elif looks_like_pickle(file):
            names = read_in_child(pickled, file.stat().st_size)
        else:
            names = [
                line.strip()
                for line in file.read_text(encoding="utf-8-sig").splitlines()
                if line.strip()
            ]
    except ValueError as error:
        found = "content that is not text" if isinstance(error, UnicodeDecodeError) else error
        raise InputError(
            "names-file", f"{what}={path} with {found}", NAMES_FILE, "name a different file"
        ) from error
    if not names:
        raise InputError(
            "names-file", f"{what}={path} without names", NAMES_FILE, "name a different file"
        )
    return [str(name) for name in names]


def import_into_library(path: Path, library: Path, cfg: ImportOptions | None = None) -> Path:
    """Check a model folder, an archive of one, or a model of another tool; return its new folder in the library.

    It is refused if it is damaged, has a name that no folder can have, or is there and `overwrite` is not set.
    """
    cfg = cfg or ImportOptions(inputs=[str(path)])
    if not path.exists():
        raise InputError("no-file", f"no file or folder {path}", MODELS, "check the path")
    foreign = next((tool for tool in FOREIGN_FORMATS if tool.is_it(path)), None)
    if foreign is not None:
        saved, target = _import_foreign(path, foreign, library, cfg)
    elif cfg.reference is not None:
        found = f"reference={cfg.reference} beside a model of scperformer"
        expected = "a model of another tool, which has no labelled cells"
        raise InputError("reference-not-needed", found, expected, "leave reference out")
    else:
        with tempfile.TemporaryDirectory(prefix="scperformer-") as temporary:
            folder = path
            if path.is_file():
                folder = Path(temporary) / path.name  # the name is in the text of errors
                folder.mkdir()
                copy_from_archive(path, folder)
            saved, target = _import_folder(folder, library, cfg)
    log.info("imported: %s, with %s; use it with model_path=%s", target, saved.summary, target.name)
    return target


def _import_folder(path: Path, library: Path, cfg: ImportOptions) -> tuple[SavedModel, Path]:
    """Copy a folder of our own into the library, as it is: its hash stays."""
    saved = read_model(path)
    # Both refuse damaged content, which otherwise only the first annotated file would meet.
    for part, folder in model_folder.parts_of(saved, path):
        rebuild(part, folder)
        model_folder.load_reference_cells(part, folder)
    target = _target(cfg.name or saved.name, path, library, cfg)
    with new_folder(target, MODEL, cfg.overwrite) as folder:
        for file in model_folder.files_of_model(saved, path):
            (folder / file).parent.mkdir(exist_ok=True)
            shutil.copyfile(path / file, folder / file)
        if read_model(folder).hash != saved.hash:  # the files may change between check and copy
            raise model_folder.damaged_model(path, "it changed while it was copied")
    return saved, target


def _import_foreign(
    path: Path, foreign: ModuleType, library: Path, cfg: ImportOptions
) -> tuple[SavedModel, Path]:
    names = {
        what: read_names(file, what)
        for what in ("genes", "labels")
        if (file := getattr(cfg, what)) is not None
    }
    files = path.rglob("*") if path.is_dir() else [path]
    size = sum(file.stat().st_size for file in files if file.is_file())
    try:
        saved = _saved_model(path, cfg, read_in_child(lambda: foreign.read(path, cfg, names), size))
        target = _target(saved.name, path, library, cfg)  # refused before labelled cells are read
        if cfg.reference is not None and cfg.label_key is not None:
            saved = with_labelled_cells(saved, cfg.reference, cfg.label_key)
    except InputError:
        raise
    except ValueError as error:
        remedy = "download or copy it again, or export it again with the tool that made it"
        raise InputError("foreign-model", f"{path} with {error}", foreign.NAME, remedy) from error
    rebuild(saved, path)
    model_folder.write_model(saved, target, overwrite=cfg.overwrite)
    return saved, target


def _target(name: str, path: Path, library: Path, cfg: ImportOptions) -> Path:
    """Return the folder of a model in the library; refuse names that no folder can have, and one that exists."""
    if not FOLDER_NAME.fullmatch(name):
        found = f"model '{path}' with the name '{name[:80]}'"
        raise InputError("model-name", found, "a name that a folder can have", "add name=...")
    require_absent(library / name, cfg.overwrite, MODEL)
    return library / name


def _saved_model(path: Path, cfg: ImportOptions, foreign: ForeignModel) -> SavedModel:
    """Return a model of another tool as a model of ours; refuse names that ours cannot have."""
    genes, labels, origin = foreign["genes"], foreign["labels"], foreign["origin"]
    for what, names in (
        ("gene", genes),
        ("label", labels),
        ("origin", filter(None, origin.values())),
    ):
        if why := next(filter(None, map(name_problem, names)), None):
            raise ValueError(f"a {what} that {why}")
    for what, names in (("gene", genes), ("label", labels)):
        if repeated := next((name for name, num in Counter(names).items() if num > 1), None):
            raise ValueError(f"the {what} '{shortened(repeated)}' twice")
    if len(labels) == 1:
        raise ValueError("a single label")
    terms, ontology = find_terms(labels, [UNKNOWN_TERM] * len(labels), PACKAGED_TERMS)
    facts = {name: value for name, value in origin.items() if value}
    provenance = Provenance(
        reference=f"a model of {facts['tool']}",
        label_key="",
        num_cells=0,
        seed=0,
        species=cfg.species or guess_species(genes),
        imported=facts,
        versions={"scperformer": version("scperformer"), "python": platform.python_version()},
        corpus=None if labels else [],
        notes=foreign.get("notes") or None,
        tissue=cfg.tissue or None,
        ontology=None if ontology is None else ontology.version,
        licence=cfg.licence or facts.get("licence"),
    )
    means = foreign.get("gene_means")
    return SavedModel(
        name=cfg.name or foreign.get("name", path.name.removesuffix(path.suffix)),
        genes=genes,
        gene_means=np.ones(len(genes), dtype=np.float32)
        if means is None
        else means.astype(np.float32),
        labels=labels,
        ontology_term_ids=terms,
        config=foreign["config"],
        metrics=Metrics(scales={}),
        provenance=provenance,
        weights={f"model.{name}": array for name, array in foreign["weights"].items()},
    )
