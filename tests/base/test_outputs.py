"""Files and folders appear complete or not at all."""

import errno
import fcntl
import os
import signal
import subprocess
import sys

import pytest
from support import forked
from support.refusal import refusal

from scperformer.base import outputs
from scperformer.base.errors import DiskFull
from scperformer.base.outputs import (
    MARK,
    FolderKind,
    claimed,
    new_file,
    new_folder,
    remove_folder,
    require_absent,
    why_not_ours,
)

MADE = FolderKind("a thing", more=("later-*",))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_file_appears_when_complete(tmp_path):
    target = tmp_path / "made" / "on the way" / "out.txt"
    with new_file(target) as temporary:
        temporary.write_text("whole")
        assert not target.exists()
        assert temporary.parent == target.parent
        assert temporary.suffix == ".txt"
    assert target.read_text() == "whole"
    assert names(target.parent) == ["out.txt"]


def test_a_disk_that_is_full_when_syncing_leaves_nothing_and_the_error_names_the_output(
    tmp_path, monkeypatch
):
    """Network disks may report this only when a file is synced."""

    def fsync(file):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)

    for new in NEW.values():
        with (
            pytest.raises(DiskFull, match=rf"the disk is full \({tmp_path}/a"),
            new(tmp_path / "a") as temporary,
        ):
            write(temporary, "whole")
    assert names(tmp_path) == []


NEW = {"file": new_file, "folder": lambda path, overwrite=False: new_folder(path, MADE, overwrite)}


def write(path, text: str) -> None:
    """Write a file, or the file x in a folder."""
    (path / "x" if path.is_dir() else path).write_text(text)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("kind", NEW)
def test_a_failure_leaves_nothing_new_and_keeps_what_exists(kind, error, tmp_path):
    target = tmp_path / "out"

    def make(overwrite, text, fail):
        with NEW[kind](target, overwrite) as temporary:
            write(temporary, text)
            if fail:
                raise error

    with pytest.raises(error):
        make(False, "half", True)
    assert names(tmp_path) == []
    make(False, "before", False)
    with pytest.raises(error):
        make(True, "half", True)
    assert (target / "x" if kind == "folder" else target).read_text() == "before"
    assert names(tmp_path) == ["out"]


def test_existing_file_needs_overwrite(tmp_path):
    target = tmp_path / "out.txt"
    target.write_text("before")
    with refusal("output-exists"), new_file(target):
        raise AssertionError("no work may be done")
    with new_file(target, overwrite=True) as temporary:
        temporary.write_text("after")
    assert target.read_text() == "after"


def test_paths_where_no_file_can_be_written_are_refused(tmp_path):
    (tmp_path / "file").touch()
    with refusal("not-a-file"), new_file(tmp_path, overwrite=True):
        pass
    with refusal("not-a-folder"), new_file(tmp_path / "file" / "out.txt"):
        pass
    with refusal("not-a-file"), new_file(os.devnull, overwrite=True):
        pass


def test_folder_appears_when_complete(tmp_path):
    target = tmp_path / "model"
    target.mkdir()  # empty: counts as absent
    with new_folder(target, MADE) as temporary:
        (temporary / "a").write_text("1")
        assert names(target) == []
    assert names(target) == [MARK, "a"]
    assert names(tmp_path) == ["model"]


def test_folder_is_replaced_as_a_whole(tmp_path):
    target = tmp_path / "model"
    with new_folder(target, MADE) as temporary:
        (temporary / "old").touch()
        (temporary / "inside").mkdir()
        (temporary / "inside" / "old").touch()
    with refusal("output-exists"), new_folder(target, MADE):
        pass
    with new_folder(target, MADE, overwrite=True) as temporary:
        (temporary / "new").touch()
        assert names(target) == [MARK, "inside", "old"]
    assert names(target) == [MARK, "new"]
    assert names(tmp_path) == ["model"]


FOREIGN = ("notes.txt", "inside/notes.txt", ".hidden", "later", "first.json")


@pytest.mark.parametrize("name", FOREIGN)
def test_a_users_file_in_a_folder_of_ours_is_never_removed(tmp_path, name):
    target = tmp_path / "model"
    with new_folder(target, MADE) as temporary:
        (temporary / "ours").touch()
        (temporary / "inside").mkdir()
    (target / "later-1").touch()
    assert why_not_ours(target, MADE) is None
    (target / name).write_text("theirs")
    why = f"holds {name}, which scperformer has not made"
    assert why_not_ours(target, MADE) == why
    with refusal("not-replaced", why):
        require_absent(target, True, MADE)
    with refusal("not-replaced", why), new_folder(target, MADE, overwrite=True):
        pass
    with refusal("not-removed", why):
        remove_folder(target, MADE)
    assert (target / name).read_text() == "theirs"
    (target / name).unlink()
    remove_folder(target, MADE)
    assert not target.exists()
    remove_folder(target, MADE)  # nothing is there


def test_folders_that_are_not_ours_are_never_replaced(tmp_path, monkeypatch):
    theirs = tmp_path / "thesis"
    theirs.mkdir()
    (theirs / "chapter1").touch()
    with refusal("not-replaced", MARK):
        require_absent(theirs, True, MADE)
    with refusal("not-replaced"), new_folder(theirs, MADE, overwrite=True):
        pass
    monkeypatch.chdir(theirs)
    for target in (".", tmp_path):
        with refusal("not-replaced"), new_folder(target, MADE, overwrite=True):
            pass
    assert names(theirs) == ["chapter1"]


@pytest.mark.parametrize("error", [OSError("disk is gone"), KeyboardInterrupt()], ids=repr)
def test_the_old_folder_is_restored_if_the_new_one_cannot_be_renamed(error, tmp_path, monkeypatch):
    target = tmp_path / "model"
    with new_folder(target, MADE) as temporary:
        (temporary / "before").touch()
    calls, replace = [], os.replace

    def fail_second(source, destination):
        calls.append(destination)
        if calls.count(target) == 1 and destination == target:
            raise error
        replace(source, destination)

    monkeypatch.setattr(os, "replace", fail_second)
    with pytest.raises(type(error)), new_folder(target, MADE, overwrite=True):
        pass
    assert names(target) == [MARK, "before"]
    assert names(tmp_path) == ["model"]


def test_only_temporary_files_of_dead_processes_are_removed(tmp_path):
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True
    )
    gone = outputs._temporary_prefix() + dead.stdout.strip()
    alive = outputs._temporary_prefix() + str(os.getpid())
    kept = [
        f"{alive}-a.h5ad",
        ".scperformer-elsewhere_1-1-a.h5ad",
        ".scperformer-old-a",
        ".scperformer-notes",
    ]
    for name in (f"{gone}-a.h5ad", *kept):
        (tmp_path / name).write_text("half")
    (tmp_path / f"{gone}-b").mkdir()
    (tmp_path / f"{gone}-b" / "part").write_text("half")
    with new_file(tmp_path / "out.txt") as temporary:
        temporary.write_text("whole")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted([*kept, "out.txt"])


HOLDER = """
import os, sys, time
from pathlib import Path
from scperformer.base.outputs import claimed
with claimed(Path(sys.argv[1])):
    if os.fork() == 0:  # a worker outlives its parent for a while
        os.close(1)
        time.sleep(5)
        os._exit(0)
    print("claimed", flush=True)
    time.sleep(60)
"""


def test_an_output_is_claimed_until_its_process_ends_also_by_kill_9(tmp_path):
    path = tmp_path / "new" / "m.run"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "claimed\n"
        with refusal("output-claimed", holder.pid):
            claimed(path).__enter__()
        holder.send_signal(signal.SIGKILL)
    for _ in range(2):
        with claimed(path):
            assert names(path.parent) == [".scperformer-claim-m.run"]
        assert names(path.parent) == []


def test_a_disk_without_locks_has_no_claims(tmp_path, monkeypatch):
    def lockf(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", lockf)
    with claimed(tmp_path / "m.run"), claimed(tmp_path / "m.run"):
        pass
    assert names(tmp_path) == []


@pytest.mark.slow
def test_kill_9_while_cells_in_memory_are_written(tmp_path, counts_adata, tiny_model):
    """A table is read into memory, and its annotated cells are written at once."""
    counts_adata.to_df().to_csv(tmp_path / "cells.csv")
    die = "import os, signal, h5py\nclose = h5py.File.close\n"
    die += "h5py.File.close = lambda self: (close(self), os.kill(os.getpid(), signal.SIGKILL))"
    words = ["scperformer", "predict", "cells.csv", "orientation=cells_by_genes", "output=out.h5ad"]
    words.append(f"model_path={tiny_model}")
    killed = forked.run(*words, cwd=tmp_path, before=die)
    assert killed.returncode == -9
    assert not (tmp_path / "out.h5ad").exists()
    assert len(list(tmp_path.glob(".scperformer-*"))) == 1
    done = forked.run(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["cells.csv", "out.h5ad"]
