"""Kill processes at every step of the final swap: ``killed_swaps.py FOLDER NAME [exchange|renames|interrupts] [MUTANT]``.

A child writes a matrix to NAME and is killed (SIGKILL) before the first operation of ``finish`` on a name or a file, the
next child before the second, and so on: the interpreter's audit events tell of each. After each death the old or the new
matrix must stand there whole, and the next run, with and without ``resume``, must end with the new one and nothing else.
With ``interrupts`` a KeyboardInterrupt is raised there instead, after which the sink is closed. Prints how many were
killed; ends with an AssertionError where something was lost.
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.large.files import create_matrix, formats, swap
from tilewright.large.files import work as work_module

OLD, NEW = np.full((5, 6), 1.0, np.float32), np.full((5, 6), 2.0, np.float32)
#: Audit events of operations on names and files, each raised before it is done.
STEPS = ("open", "os.", "shutil.", "fcntl.")
#: How a process ends that was interrupted.
INTERRUPTED = 130


def write(where: str, matrix: np.ndarray, *, resume: bool = False, armed: int = -1, after_a_kill: bool = False) -> None:
    """With ``armed`` the process dies before that step of the swap."""
    sink = create_matrix(where, matrix.shape, matrix.dtype, resume=resume, overwrite=True)
    assert not after_a_kill or look(where) in (before, whole["new"]), (
        "a killed swap is settled before anything is computed"
    )
    sink.write(slice(0, 5), slice(0, 6), matrix)
    sink.flush()
    if armed >= 0:
        arm(armed)
    try:
        sink.finish()
    except KeyboardInterrupt:
        sink.close()
        os._exit(INTERRUPTED)


def arm(step: int) -> None:
    left = [step]

    def count(event: str, _: Any) -> None:
        if event.startswith(STEPS):
            left[0] -= 1
            if left[0] == -1 and interrupts:
                raise KeyboardInterrupt
            if left[0] == -1:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def look(where: str) -> dict[str, bytes] | None:
    """All files and their contents; None where nothing is."""
    path = Path(where.partition(":")[0])
    if path.is_dir():
        return {str(each.relative_to(path)): each.read_bytes() for each in sorted(path.rglob("*")) if each.is_file()}
    return {"": path.read_bytes()} if path.exists() else None


def put_back(folder: Path, name: str, files: dict[str, bytes]) -> None:
    """What ``look`` saw."""
    for inside, content in files.items():
        path = folder / name.partition(":")[0] / inside
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def child(function: Callable[..., None], *arguments: Any, **more: Any) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            function(*arguments, **more)
            os._exit(0)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill_everywhere(folder: Path, name: str, *, resume: bool, is_atomic: bool) -> int:
    """Kill at one step after the other until none is left; returns their number."""
    where = str(folder / name)
    for step in range(1000):
        shutil.rmtree(folder)
        folder.mkdir()
        if before is not None:
            put_back(folder, name, before)
        died = child(write, where, NEW, armed=step)
        found = look(where)
        assert found == whole["new"] or (found == before) or (found is None and not is_atomic), (step, "torn or lost")
        assert died in (0, INTERRUPTED if interrupts else -signal.SIGKILL), (step, died)
        assert child(write, where, NEW, resume=resume, after_a_kill=True) == 0, step
        assert look(where) == whole["new"], (step, "not the new matrix")
        assert len(list(folder.iterdir())) == 1, (step, "something is left")
        if died == 0:
            return step
    raise AssertionError("it never ends")


# ---- swaps that must be found out ------------------------------------------------------------------------------------


def removing_first(work: Any) -> None:
    """The old matrix goes before the new one has its name."""
    if swap.inode_of(work.parent, work.target.name) is not None:
        shutil.rmtree(work.target) if work.target.is_dir() else work.target.unlink()
    os.rename("data", work.target.name, src_dir_fd=work.fd, dst_dir_fd=work.parent)


def in_place(work: Any) -> None:
    """The old file is emptied and written over, or a directory's files one by one."""
    if (work.path / "data").is_dir():
        shutil.copytree(work.entry_path("data"), work.target, dirs_exist_ok=True)
    else:
        work.target.touch()
        os.truncate(work.target, 0)
        shutil.copyfile(work.entry_path("data"), work.target)
    work.discard()


def unsettled(work: Any) -> None:
    """Two renames, and nothing that finishes them when they are torn apart."""
    if swap.inode_of(work.parent, work.target.name) is not None:
        os.rename(work.target.name, "old", src_dir_fd=work.parent, dst_dir_fd=work.fd)
    os.rename("data", work.target.name, src_dir_fd=work.fd, dst_dir_fd=work.parent)
    swap.discard(work.fd, "old")


MUTANTS = {"removing_first": removing_first, "in_place": in_place, "unsettled": unsettled}


def main(folder: str, name: str, how: str = "exchange", mutant: str = "") -> None:
    global before, interrupts
    out = Path(folder) / "out"
    out.mkdir()
    os.fsync = lambda file: None  # a killed process loses nothing that the system has, and disks are slow
    formats()  # imported once, for all children
    for suffix, library in ((".h5", "h5py"), (".zarr", "zarr")):
        if suffix in name:
            importlib.import_module(library)
    if how == "renames":
        swap._renameat2_of_libc = lambda: None  # type: ignore[assignment]
    interrupts = how == "interrupts"
    is_atomic = how != "renames" or not name.startswith("c.zarr")
    for kind, matrix in (("old", OLD), ("new", NEW)):
        assert child(write, f"{out}/{name}", matrix) == 0
        whole[kind] = look(f"{out}/{name}")
    if mutant:
        work_module.put_in_place = MUTANTS[mutant]
        if mutant == "unsettled":
            swap.settle_swap = lambda work: None
    before = whole["old"]
    kills = sum(kill_everywhere(out, name, resume=resume, is_atomic=is_atomic) for resume in (True, False))
    before = None
    print(kills + kill_everywhere(out, name, resume=True, is_atomic=is_atomic))


#: What the files hold when they are written without a kill, and what stands there before each.
whole: dict[str, dict[str, bytes] | None] = {"old": None, "new": None}
before: dict[str, bytes] | None = None
interrupts = False

if __name__ == "__main__":
    main(*sys.argv[1:])
