"""The folder of a server of `scperformer app`: its jobs and their files, until they are removed."""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scperformer.base.errors import DiskFull, as_disk_full
from scperformer.base.outputs import ANOTHER_OUTPUT, MARK, is_left_over, temporary_name

FOLDER_PREFIX = "scperformer-app-"  # of the folder of a server
FOLDER_MARK = "the files of a page"  # in the mark of this folder
JOB = "[0-9a-f-]{8,36}"  # the name of a job, and of its folder
SENT = "sample"  # the folder in it for the files that were sent
# of the files that a job makes,
ENDINGS = (".annotated.h5ad", ".calls.csv", ".report.html", ".clusters.tsv")
CURATED = (".curated.h5ad", ".curated.csv", ".curated.rds")  # with the names of clusters,
MODEL = ".model.zip"  # and with a model of them, beside its folder
GENES = "genes.h5ad"  # the expression of the cells on the map, by genes
OUR_FILES = re.compile(
    rf"{re.escape(MARK)}|{JOB}(/({SENT}(/.*)?|[^/]*({'|'.join(map(re.escape, (*ENDINGS, *CURATED, MODEL, GENES)))})"
    rf"|[^/]*\.model(\.run)?(/.*)?|\.scperformer-[^/]*(/.*)?))?",
    re.DOTALL,
)


@contextmanager
def on_page(folder: Path) -> Iterator[None]:
    """Say what the user of a page can do about a full disk, where `output` is no option; `folder` is on this disk."""
    try:
        yield
    except Exception as error:
        full = error if isinstance(error, DiskFull) else as_disk_full(error)
        if full is None:
            raise
        others = "remove results on the page, or start 'TMPDIR=FOLDER scperformer app' with a folder of a larger disk"
        found = f"{full.found.partition(' (')[0]} ({folder})"
        remedy = full.remedy.replace(ANOTHER_OUTPUT, others)
        raise DiskFull(
            "disk-full", found, "room for the files and their results", remedy
        ) from error


@contextmanager
def folder_of_jobs() -> Iterator[Path]:
    """Yield a folder that is removed at the end; those of servers that were killed are removed now.

    Without it, files of 100,000 cells would fill a disk after some runs.
    """
    with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        mark = {
            "made_by": "scperformer",
            "kind": FOLDER_MARK,
            "folder": folder.name,
            "process": temporary_name(),
        }
        (folder / MARK).write_text(json.dumps(mark), encoding="utf-8")
        for other in folder.parent.glob(f"{FOLDER_PREFIX}*"):
            if is_of_killed(other):
                shutil.rmtree(other, ignore_errors=True)
        yield folder


def is_of_killed(folder: Path) -> bool:
    """Return whether a folder is of a server that no longer runs, and holds nothing but what it has made."""
    try:
        mark = json.loads((folder / MARK).read_bytes())
        # a copy under another name is somebody else's
        names = ("scperformer", FOLDER_MARK, folder.name)
        is_left = (mark["made_by"], mark["kind"], mark["folder"]) == names and is_left_over(
            mark["process"]
        )
        inside = (
            [path.relative_to(folder).as_posix() for path in folder.rglob("*")] if is_left else []
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False
    return is_left and not folder.is_symlink() and all(map(OUR_FILES.fullmatch, inside))
