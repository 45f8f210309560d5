"""What stands under an output's name is replaced only where that is said; nothing is written through links."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support.command_line import Answer, is_one_line
from tilewright.errors import FileError, ResumeError, UsageError
from tilewright.large.files import Sink, create_matrix, open_matrix, output, swap, whole_matrix, work
from tilewright.large.files.array import ArraySource
from tilewright.large.streaming.run.journal import Journal

h5py = pytest.importorskip("h5py", reason="h5py is not installed: pip install 'tilewright[files]'")
zarr = pytest.importorskip("zarr", reason="zarr is not installed: pip install 'tilewright[files]'")

SHAPE = (3, 4)
ONES, TWOS = np.ones(SHAPE, np.float32), np.full(SHAPE, 2, np.float32)
#: The first line of a work directory's about.txt, by which it is recognised.
MAGIC = "Tilewright work directory 1\n"
NAMES = ["c.npy", "c.raw", "c.safetensors", "c.h5", "c.zarr", "c.h5:deep/c", "c.zarr:deep/c", "c.safetensors:layer.0"]


def begun(where: Any, matrix: np.ndarray = ONES, **asked: Any) -> Sink:
    sink = create_matrix(where, matrix.shape, matrix.dtype, **asked)
    sink.write(slice(0, matrix.shape[0]), slice(0, matrix.shape[1]), matrix)
    return sink


def write(where: Any, matrix: np.ndarray = ONES, **asked: Any) -> None:
    begun(where, matrix, **asked).finish()


def contents(folder: Path) -> dict[str, Any]:
    """Everything below a directory: bytes of files, where links lead, and kinds of what else there is."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        found[name] = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else path.is_dir()
    return found


# ---- what is replaced, and what is not -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_same_result_again_replaces_it_only_where_that_is_said(name: str, tmp_path: Path) -> None:
    write(f"{tmp_path}/{name}")
    before = contents(tmp_path)
    for resume in (False, True):
        with pytest.raises(
            FileError, match=r"c\.\w+ exists: choose another name, or replace it with --overwrite \(in Py"
        ):
            create_matrix(f"{tmp_path}/{name}", SHAPE, "f4", resume=resume)
    assert contents(tmp_path) == before
    write(f"{tmp_path}/{name}", TWOS, overwrite=True)
    assert contents(tmp_path) != before
    assert contents(tmp_path).keys() == before.keys(), "nothing else is left"


def two_arrays(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, ONES)
        np.save(file, ONES)


def safetensors(path: Path, metadata: Any = None, tail: bytes = b"", names: tuple[str, ...] = ("matrix",)) -> None:
    write(path)
    raw = path.read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    tensor, data = json.loads(raw[8:begin])["matrix"], raw[begin:]
    first, end = tensor["data_offsets"]
    tensors = {
        name: tensor | {"data_offsets": [first + x * len(data), end + x * len(data)]} for x, name in enumerate(names)
    }
    header = json.dumps({"__metadata__": metadata or {}} | tensors).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + len(names) * data + tail)


def hdf5(path: Path, change: Callable[[Any, Any], object], **how: Any) -> None:
    with h5py.File(path, "w", **how) as file:
        change(file, file.create_dataset("matrix", data=ONES))


def hdf5_without_matrix(path: Path, change: Callable[[Any], object]) -> None:
    with h5py.File(path, "w") as file:
        change(file)


def array(path: Path, change: Callable[[Any, Path], object] = lambda made, path: None, **how: Any) -> None:
    change(zarr.create_array(path, data=ONES, **how), path)


def group(path: Path, change: Callable[[Any, Path], object] = lambda made, path: None) -> None:
    change(zarr.create_group(path), path)


def consolidated(made: Any, path: Path) -> None:
    made.create_array("a", data=ONES)
    made.create_array("b", data=ONES)
    zarr.consolidate_metadata(path)


def linked_chunk(made: Any, path: Path) -> None:
    (path / "c" / "0" / "0").rename(path.parent / "elsewhere")
    (path / "c" / "0" / "0").symlink_to(path.parent / "elsewhere")


def metadata(path: Path, text: str) -> None:
    path.mkdir()
    (path / "zarr.json").write_text(text)


#: A name, what stands there, and what of it the refusal names.
LOST: list[tuple[str, Callable[[Path], object], str]] = [
    ("c.npy", lambda p: np.save(p, np.ones(3)), "1 dimensions"),
    ("c.npy", lambda p: np.save(p, np.zeros((2, 2), "M8[s]")), "dtype datetime64"),
    ("c.npy", lambda p: p.write_text("a novel"), "no .npy file"),
    ("c.npy", two_arrays, "has 352 bytes, where its matrix"),
    ("c.raw", lambda p: p.write_bytes(bytes(49)), "49 bytes, not the 48"),
    ("c.bin", lambda p: p.write_bytes(bytes(47)), "47 bytes, not the 48"),
    ("c.safetensors", lambda p: p.write_text("a novel"), "no .safetensors file"),
    ("c.safetensors", lambda p: safetensors(p, names=("x",)), "the tensor 'x'"),
    ("c.safetensors", lambda p: safetensors(p, names=("matrix", "x", "y")), "2 tensors: 'x', 'y'"),
    ("c.safetensors", lambda p: safetensors(p, {"format": "pt"}), "the metadata entry 'format'"),
    ("c.safetensors", lambda p: safetensors(p, tail=b"notes"), "where its matrix"),
    ("c.h5", lambda p: p.write_text("a novel"), "no HDF5 file"),
    ("c.h5", lambda p: hdf5(p, lambda f, d: f.create_dataset("x", data=ONES)), "the object 'x' in '/'"),
    ("c.h5", lambda p: hdf5(p, lambda f, d: f.attrs.update(by="me")), "the attribute 'by' of '/'"),
    ("c.h5", lambda p: hdf5(p, lambda f, d: d.attrs.update(a=1, b=2, c=3)), "3 attributes: 'a', 'b', … of '/matrix'"),
    ("c.h5", lambda p: hdf5(p, lambda f, d: f.create_group("g")), "the object 'g'"),
    ("c.h5", lambda p: hdf5(p, lambda f, d: f.update({"alias": d})), "the object 'alias'"),
    ("c.h5", lambda p: hdf5(p, lambda f, d: f.update({"s": h5py.SoftLink("/matrix")})), "the object 's'"),
    ("c.h5", lambda p: hdf5(p, lambda f, d: f.update({"t": np.dtype("i4")})), "the object 't'"),
    ("c.h5", lambda p: hdf5(p, lambda f, d: None, userblock_size=512), "a block of 512 bytes"),
    ("c.h5", lambda p: hdf5_without_matrix(p, lambda f: f.attrs.update(by="me")), "the attribute 'by'"),
    ("c.h5", lambda p: hdf5_without_matrix(p, lambda f: f.create_group("matrix")), "the object '/matrix'"),
    ("c.h5", lambda p: hdf5_without_matrix(p, lambda f: f.update(matrix=h5py.SoftLink("/x"))), "the link 'matrix'"),
    (
        "c.h5",
        lambda p: hdf5_without_matrix(p, lambda f: f.update(matrix=h5py.ExternalLink("o.h5", "/x"))),
        "the link 'matrix'",
    ),
    ("c.h5", lambda p: hdf5_without_matrix(p, lambda f: f.update(matrix=np.dtype("i4"))), "the object '/matrix'"),
    ("c.h5", lambda p: hdf5_without_matrix(p, lambda f: f.update(matrix=np.ones(3))), "not a plain matrix"),
    ("c.h5", lambda p: hdf5_without_matrix(p, lambda f: f.update(matrix=[["text"]])), "not a plain matrix"),
    ("c.h5:deep/c", lambda p: hdf5_without_matrix(p, lambda f: f.update(deep=ONES)), "the object '/deep'"),
    ("c.h5:deep/c", lambda p: hdf5_without_matrix(p, lambda f: f.create_group("deep")), "the group '/deep'"),
    ("c.h5:x", lambda p: write(f"{p}:deep/c"), "the object 'deep'"),
    ("c.zarr", group, "is a group"),
    ("c.zarr", lambda p: group(p, consolidated), "a group that holds 2 objects: 'a', 'b'"),
    ("c.zarr", lambda p: group(p, lambda g, _: g.attrs.update(kind="array")), "is a group"),
    ("c.zarr", lambda p: array(p, lambda a, _: a.attrs.update(kind="array")), "the attribute 'kind'"),
    ("c.zarr", lambda p: array(p, lambda a, _: a.attrs.update(by="me"), zarr_format=2), "the attribute 'by'"),
    ("c.zarr", lambda p: array(p, dimension_names=("x", "y")), "dimensions ['x', 'y']"),
    ("c.zarr", lambda p: array(p, lambda a, p: (p / "NOTES.txt").write_text("")), "'NOTES.txt', which is not part"),
    ("c.zarr", lambda p: array(p, lambda a, p: (p / "c" / "NOTES.txt").write_text("")), "'c/NOTES.txt'"),
    ("c.zarr", lambda p: array(p, lambda a, p: (p / "c" / "0" / "7").write_text("")), "'c/0/7', which is not part"),
    ("c.zarr", lambda p: array(p, lambda a, p: (p / "mine").mkdir()), "'mine/'"),
    ("c.zarr", lambda p: array(p, lambda a, p: array(p / "inner")), "'inner/c/0/0'"),
    ("c.zarr", lambda p: array(p, linked_chunk), "'c/0/0', which is not part"),
    ("c.zarr", lambda p: zarr.create_array(p, data=np.ones((2, 2, 2))), "shape (2, 2, 2)"),
    ("c.zarr", lambda p: p.mkdir() or (p / "photo.jpg").touch(), "no zarr.json"),
    ("c.zarr", lambda p: metadata(p, "[" * 100_000), "damaged zarr.json"),
    ("c.zarr", lambda p: metadata(p, '{"node_type": "array"}'), "cannot be understood"),
    ("c.zarr", lambda p: write(f"{p}:deep/c"), "a group that holds the object 'deep'"),
    ("c.zarr:deep/d", lambda p: write(f"{p}:deep/c"), "the object 'c'"),
]


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
@pytest.mark.parametrize("case", range(len(LOST)))
def test_what_would_be_lost_is_named_and_only_overwritten_when_asked(case: int, tmp_path: Path) -> None:
    name, make, words = LOST[case]
    make(tmp_path / name.partition(":")[0])
    before = contents(tmp_path)
    with pytest.raises(FileError) as refused:
        create_matrix(f"{tmp_path}/{name}", SHAPE, "float32")
    assert words in str(refused.value)
    assert "would be lost: choose another name, or replace it with --overwrite" in str(refused.value)
    assert "\n" not in str(refused.value)
    with pytest.raises(FileError, match="would be lost"):
        tw.plan_multiply(ONES, np.ones((4, 4), np.float32), f"{tmp_path}/{name}", device="cpu")
    assert contents(tmp_path) == before
    write(f"{tmp_path}/{name}", overwrite=True)
    with pytest.raises(FileError, match="exists: choose"):
        write(f"{tmp_path}/{name}")
    assert not list(tmp_path.glob("*.tilewright"))


@pytest.fixture(params=["exchange", "renames"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "renames":
        monkeypatch.setattr(swap, "_renameat2_of_libc", lambda: None)
    return request.param


MATRICES: list[tuple[str, Callable[[Path], object]]] = [
    ("c.npy", lambda p: np.save(p, np.asfortranarray(np.ones((9, 2), np.int8)))),
    ("c.raw", lambda p: p.write_bytes(bytes(48))),
    ("c.safetensors", safetensors),
    ("c.h5", lambda p: hdf5_without_matrix(p, lambda f: f.create_dataset("matrix", data=ONES, chunks=(2, 2)))),
    ("c.zarr", array),
    ("c.zarr", lambda p: array(p, zarr_format=2)),
    ("c.zarr", lambda p: array(p, chunk_key_encoding={"name": "v2", "separator": "."}, chunks=(2, 2))),
    ("c.zarr", lambda p: array(p, chunk_key_encoding={"name": "default", "separator": "."}, chunks=(2, 2))),
    ("c.zarr", lambda p: array(p, chunks=(1, 1), shards=(2, 2))),
    ("c.zarr", lambda p: zarr.create_array(p, shape=(0, 5), dtype="f8")),
]


@pytest.mark.parametrize("case", range(len(MATRICES)))
def test_one_matrix_however_it_is_stored_is_only_replaced_when_asked(case: int, tmp_path: Path) -> None:
    name, make = MATRICES[case]
    make(tmp_path / name)
    before = contents(tmp_path)
    with pytest.raises(FileError, match="exists: choose another name, or replace it with --overwrite"):
        write(tmp_path / name)
    assert contents(tmp_path) == before
    write(tmp_path / name, overwrite=True)
    write(tmp_path / name, TWOS, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["c.npy", "c.raw", "c.safetensors", "c.h5", "c.zarr"])
def test_what_is_empty_is_replaced(name: str, how: str, tmp_path: Path) -> None:
    """As a program leaves it that reserves a name: nothing is lost."""
    (tmp_path / name).mkdir() if name == "c.zarr" else (tmp_path / name).touch()
    write(tmp_path / name, TWOS)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with contextlib.closing(open_matrix(tmp_path / name, shape=SHAPE, dtype="f4")) as source:
        assert np.array_equal(whole_matrix(source), TWOS)


def test_what_is_no_file_is_not_even_overwritten(tmp_path: Path) -> None:
    (tmp_path / "c.npy").mkdir()
    (tmp_path / "c.zarr").touch()
    os.mkfifo(tmp_path / "c.raw")
    for name, kind in (("c.npy", "file"), ("c.zarr", "directory"), ("c.raw", "file")):
        with pytest.raises(FileError, match=f"exists and is not a {kind}: choose another name$"):
            create_matrix(tmp_path / name, SHAPE, "f4", overwrite=True)
    assert len(list(tmp_path.iterdir())) == 3


def test_links_that_lead_nowhere_or_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "loop.npy").symlink_to("loop.npy")
    (tmp_path / "folder").symlink_to("folder")
    (tmp_path / "new.npy").symlink_to("real.npy")
    for name, words in (
        ("loop.npy", "leads back to itself"),
        ("folder/c.npy", "Too many levels"),
        ("a\0.npy", "null byte"),
    ):
        with pytest.raises((FileError, UsageError), match=words):
            create_matrix(tmp_path / name, SHAPE, "f4")
    write(tmp_path / "new.npy")
    assert (tmp_path / "new.npy").is_symlink()
    assert (np.load(tmp_path / "real.npy") == 1).all()


def test_what_cannot_be_replaced_is_known_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "c.npy")
    write(tmp_path / "c.zarr")
    tmp_path.chmod(0o1777)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 123_456)
        with pytest.raises(FileError, match="belongs to another user"):
            create_matrix(tmp_path / "c.npy", SHAPE, "f4", overwrite=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        with pytest.raises(FileError, match="without permission to write"):
            create_matrix(tmp_path / "c.zarr", SHAPE, "f4")
    with monkeypatch.context() as patch:
        patch.setattr(output, "_is_mount_point", lambda path: path.name == "c.npy")
        with pytest.raises(FileError, match="is a mount point"):
            create_matrix(tmp_path / "c.npy", SHAPE, "f4")
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.skipif(not Path("/proc/self/mountinfo").exists(), reason="mounts are listed in /proc, which is not here")
def test_mount_points_are_told_by_the_system(tmp_path: Path) -> None:
    assert output._is_mount_point(Path("/proc"))
    assert not output._is_mount_point(tmp_path)


# ---- the work directory ----------------------------------------------------------------------------------------------


def test_files_of_a_user_with_names_that_were_ours_are_not_touched(tmp_path: Path) -> None:
    """As a link to a file and to a directory they were written through, and as files emptied."""
    (tmp_path / "important.txt").write_text("important")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "x").write_text("precious")
    (tmp_path / "c.npy.partial").symlink_to("important.txt")
    (tmp_path / "c.npy.journal").write_text("a diary")
    (tmp_path / "c.zarr.partial").symlink_to("precious")
    (tmp_path / "c.zarr.replaced").mkdir()
    (tmp_path / "c.zarr.replaced" / "x").touch()
    write(tmp_path / "c.zarr")
    before = contents(tmp_path)
    tw.multiply(ONES, np.ones((4, 4), np.float32), tmp_path / "c.npy", device="cpu")
    write(tmp_path / "c.zarr", overwrite=True)
    assert before.items() <= contents(tmp_path).items()
    assert (np.load(tmp_path / "c.npy") == 4).all()


def in_ours(name: str, make: Callable[[Path, Path], object]) -> Callable[[Path, Path], object]:
    def plant(directory: Path, folder: Path) -> None:
        directory.mkdir()
        (directory / "about.txt").write_text(MAGIC)
        make(directory / name, folder)

    return plant


FOREIGN: dict[str, Callable[[Path, Path], object]] = {
    "a file": lambda p, _: p.write_text("mine"),
    "a link to a directory": lambda p, folder: p.symlink_to(folder / "precious"),
    "a link to nothing": lambda p, _: p.symlink_to("nothing"),
    "a full directory": lambda p, _: p.mkdir() or (p / "notes.txt").write_text("mine"),
    "data of another": lambda p, _: p.mkdir() or (p / "data").write_text("mine"),
    "about of another": lambda p, _: p.mkdir() or (p / "about.txt").write_text("mine"),
    "about of a later version": lambda p, _: p.mkdir() or (p / "about.txt").write_text(MAGIC.replace("1", "2")),
    "about as a link": lambda p, folder: p.mkdir() or (p / "about.txt").symlink_to(folder / "important.txt"),
    "notes beside": in_ours("notes.txt", lambda p, _: p.write_text("mine")),
    **{
        f"{name} as {what}": in_ours(name, make)
        for name in ("data", "journal")
        for what, make in {
            "a link": lambda p, folder: p.symlink_to(folder / "important.txt"),
            "a hard link": lambda p, folder: os.link(folder / "important.txt", p),
            "a link to a directory": lambda p, folder: p.symlink_to(folder / "precious"),
            "a pipe": lambda p, _: os.mkfifo(p),
        }.items()
    },
}


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("what", FOREIGN)
@pytest.mark.parametrize("name", ["c.npy", "c.zarr"])
def test_a_work_directory_that_is_not_ours_is_refused(name: str, what: str, resume: bool, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "x").write_text("precious")
    (tmp_path / "important.txt").write_text("important")
    FOREIGN[what](tmp_path / f"{name}.tilewright", tmp_path)
    before = contents(tmp_path)
    with pytest.raises(
        FileError, match=rf"{name}\.tilewright is not a work directory of Tilewright, because .*: move it"
    ):
        create_matrix(tmp_path / name, SHAPE, "f4", resume=resume)
    for call in (tw.multiply, tw.plan_multiply):
        with pytest.raises(FileError, match=r"\.tilewright is not a work directory"):
            call(ONES, np.ones((4, 4), np.float32), tmp_path / name, device="cpu", resume=resume)
    assert contents(tmp_path) == before


def test_links_in_an_unfinished_directory_are_not_written_through(tmp_path: Path) -> None:
    begun(tmp_path / "c.zarr").close()
    data = tmp_path / "c.zarr.tilewright" / "data"
    (data / "c" / "0" / "0").rename(tmp_path / "elsewhere")
    (data / "c" / "0" / "0").symlink_to(tmp_path / "elsewhere")
    before = contents(tmp_path)
    with pytest.raises(FileError, match="0 in the unfinished matrix is a link"):
        create_matrix(tmp_path / "c.zarr", SHAPE, "f4", resume=True)
    assert contents(tmp_path) == before
    write(tmp_path / "c.zarr")  # the link goes, and not what it leads to
    assert (tmp_path / "elsewhere").read_bytes() == before["elsewhere"]


@pytest.mark.parametrize("torn", [None, "", "Tilewri"])
def test_a_work_directory_that_a_crash_has_torn_is_ours(torn: str | None, tmp_path: Path) -> None:
    (tmp_path / "c.npy.tilewright").mkdir()
    if torn is not None:
        (tmp_path / "c.npy.tilewright" / "about.txt").write_text(torn)
    write(tmp_path / "c.npy")
    assert [path.name for path in tmp_path.iterdir()] == ["c.npy"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_a_work_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    begun(tmp_path / "c.npy").close()
    os.chown(tmp_path / "c.npy.tilewright", 12345, 12345)
    with pytest.raises(FileError, match="belongs to the user 12345"):
        create_matrix(tmp_path / "c.npy", SHAPE, "f4", resume=True)
    os.chown(tmp_path, 12345, 12345)  # who could have put anything there anyway
    create_matrix(tmp_path / "c.npy", SHAPE, "f4", resume=True).close()


@pytest.mark.parametrize(
    "name", ["x" * 251 + ".npy", "é" * 125 + "a.npy", "行" * 83 + ".raw", "\x1b[31m\n.npy", "\udcff.npy"]
)
def test_names_of_any_length_and_letters(name: str, tmp_path: Path) -> None:
    for other in (name, "y" + name[1:]):  # each has a work directory of its own
        begun(tmp_path / other).close()
    assert len(list(tmp_path.iterdir())) == 2
    for other in (name, "y" + name[1:]):
        write(tmp_path / other, resume=True)
    assert len(list(tmp_path.iterdir())) == 2
    assert (tmp_path / name).is_file()


def test_the_library_of_zarr_writes_where_the_directory_went(tmp_path: Path) -> None:
    """A work directory that was moved away, with a link in its place, is still the one that is written."""
    (tmp_path / "victim" / "data").mkdir(parents=True)
    sink = create_matrix(tmp_path / "c.zarr", SHAPE, "f4")
    (tmp_path / "c.zarr.tilewright").rename(tmp_path / "moved")
    (tmp_path / "c.zarr.tilewright").symlink_to("victim")
    sink.write(slice(0, 3), slice(0, 4), ONES)
    sink.flush()
    assert not list((tmp_path / "victim" / "data").iterdir())
    assert (tmp_path / "moved" / "data" / "c" / "0" / "0").exists()
    sink.close()


@pytest.mark.slow
def test_another_process_that_writes_the_same_result_is_seen(tmp_path: Path) -> None:
    """Also by another name of the file."""
    (tmp_path / "link.npy").symlink_to("c.npy")
    first = begun(tmp_path / "c.npy")
    code = "import sys; from tilewright.large.files import create_matrix; create_matrix(sys.argv[1], (3, 4), 'f4')"
    for name in ("c.npy", "link.npy"):
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path / name)], capture_output=True, text=True)
        assert "FileError" in done.stderr
        assert "c.npy.tilewright is being written by another process" in done.stderr
    first.finish()
    assert (np.load(tmp_path / "c.npy") == 1).all()


def test_a_journal_of_another_file_is_not_kept(tmp_path: Path) -> None:
    """A matrix that is begun anew may have the inode of which an old journal speaks."""
    begun(tmp_path / "c.npy").close()
    (tmp_path / "c.npy.tilewright" / "journal").write_text("old")
    begun(tmp_path / "c.npy").close()
    assert not (tmp_path / "c.npy.tilewright" / "journal").exists()


# ---- the swap --------------------------------------------------------------------------------------------------------


def user_writes(path: Path, name: str) -> None:
    if name == "c.zarr":
        array(path)
    elif name == "c.npy":
        np.save(path, ONES)
    else:
        hdf5(path, lambda file, dataset: None)


@pytest.mark.parametrize("name", ["c.npy", "c.zarr", "c.h5"])
def test_a_target_that_was_written_meanwhile_is_not_lost(name: str, how: str, tmp_path: Path) -> None:
    sink = begun(tmp_path / name, TWOS)
    user_writes(tmp_path / name, name)
    before = contents(tmp_path)
    with pytest.raises(
        FileError, match=rf"exists: the finished result stays in .*{name}\.tilewright; move {name} away and resume, or"
    ):
        sink.finish()
    sink.close()
    assert contents(tmp_path) == before
    with pytest.raises(FileError, match="choose another name"):
        create_matrix(tmp_path / name, SHAPE, "f4", resume=True)
    (tmp_path / name).rename(tmp_path / "saved")
    sink = create_matrix(tmp_path / name, SHAPE, "f4", resume=True)
    assert sink.resumed
    sink.finish()
    assert {path.name for path in tmp_path.iterdir()} == {name, "saved"}


@pytest.mark.parametrize("name", ["c.npy", "c.zarr", "c.h5"])
def test_an_empty_target_that_is_written_in_the_last_moment_is_put_back(
    name: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the last check: what was moved aside is checked once more."""
    (tmp_path / name).mkdir() if name == "c.zarr" else (tmp_path / name).touch()
    sink = begun(tmp_path / name, TWOS)
    sync = swap._sync

    def late(opened: work.WorkDirectory) -> None:
        if not (tmp_path / "changed").exists():
            (tmp_path / "changed").touch()
            user_writes(tmp_path / name, name)
        sync(opened)

    monkeypatch.setattr(swap, "_sync", late)  # first called after the check and before the target is moved
    with pytest.raises(FileError, match="the finished result stays in"):
        sink.finish()
    sink.close()
    found = contents(tmp_path / f"{name}.tilewright")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, f"{name}.tilewright", "changed"])
    assert "about.txt" in found
    assert "data" in found
    with contextlib.closing(open_matrix(tmp_path / name)) as source:
        assert np.array_equal(whole_matrix(source), ONES)
    with pytest.raises(FileError, match="exists: choose"):
        create_matrix(tmp_path / name, SHAPE, "f4")
    write(tmp_path / name, TWOS, resume=True, overwrite=True)


@pytest.mark.parametrize("name", ["c.npy", "c.zarr"])
def test_a_file_that_appears_in_the_last_moment_is_seen(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(self: output.Output, kept_in: Path | None = None) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "photo.jpg").touch()

    sink = begun(tmp_path / name)
    monkeypatch.setattr(output.Output, "check", late)  # which finds nothing there, and then something is
    with pytest.raises(FileError, match="the finished result stays in"):
        sink.finish()
    sink.close()
    assert [path.name for path in (tmp_path / name).iterdir()] == ["photo.jpg"]
    assert (tmp_path / f"{name}.tilewright" / "data").exists()


#: What ``finish`` does in which order, after the data and their directories are on the disk: a power failure at any point
#: finds the old or the new matrix whole. A rename of one file over another needs no removal.
ORDERS = {
    ("c.npy", "exchange"): ["rename", *(names := ["sync .", "sync WORK"]), "exchange", *names, "discard"],
    ("c.zarr", "exchange"): ["rename", *names, "exchange", *names, "discard"],
    ("c.npy", "renames"): ["rename", *names, "rename", *names],
    ("c.zarr", "renames"): ["rename", *names, "rename", *names, "rename", *names, "discard"],
}


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("name", ["c.npy", "c.zarr"])
def test_all_is_on_the_disk_before_the_old_one_goes(
    name: str, resume: bool, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what an earlier process wrote without a flush."""
    told: list[str] = []
    sync, discard, rename, exchange = os.fsync, swap.discard, swap._rename, swap._renameat2

    def synced(file: int) -> None:
        path = Path(f"/proc/self/fd/{file}").readlink().relative_to(tmp_path)
        told.append(f"sync {path}".replace(f"{name}.tilewright", "WORK"))
        sync(file)

    def exchanged(*what: Any) -> bool:
        done = exchange(*what)
        told.extend(["exchange"] * done)
        return done

    def discarded(directory: int, what: str) -> None:
        told.extend(["discard"] * (swap.inode_of(directory, what) is not None))
        discard(directory, what)

    write(tmp_path / name)
    sink = begun(tmp_path / name, TWOS, overwrite=True)
    if resume:
        sink.close()
        sink = create_matrix(tmp_path / name, SHAPE, "f4", resume=True, overwrite=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", synced)
        patch.setattr(swap, "_rename", lambda *what: told.append("rename") or rename(*what))
        patch.setattr(swap, "_renameat2", exchanged)
        patch.setattr(swap, "discard", discarded)
        sink.finish()
    end = told.index("discard") + 1 if "discard" in told else len(told)
    data, swapped = told[: told.index("rename")], told[told.index("rename") : end]
    assert "sync WORK/data" in data
    assert name != "c.zarr" or {"sync WORK/data/c/0/0", "sync WORK/data/c/0", "sync WORK/data/zarr.json"} <= set(data)
    assert swapped == ORDERS[name, how]


def test_a_work_directory_that_is_removed_meanwhile_is_said(tmp_path: Path) -> None:
    write(tmp_path / "c.npy")
    sink = begun(tmp_path / "c.npy", TWOS, overwrite=True)
    (tmp_path / "c.npy.tilewright" / "data").unlink()
    with pytest.raises(FileError, match=r"data was removed while .*: multiply again"):
        sink.finish()
    sink.close()
    assert (np.load(tmp_path / "c.npy") == 1).all()


@pytest.mark.parametrize("third", [False, True])
def test_what_came_out_of_a_killed_swap_is_judged_again(third: bool, tmp_path: Path) -> None:
    """Killed between the exchange and the check of what came out: by then it can be a directory."""
    begun(tmp_path / "c.npy", TWOS).close()
    data = tmp_path / "c.npy.tilewright" / "data"
    (tmp_path / "c.npy").mkdir()
    (tmp_path / "c.npy" / "photo.jpg").touch()
    name = f"swap.{data.stat().st_ino}"
    (tmp_path / "c.npy").rename(data.with_name(name))
    data.rename(tmp_path / "c.npy")
    if third:  # written by someone else since
        (tmp_path / "c.npy").rename(tmp_path / "moved.npy")
        np.save(tmp_path / "c.npy", ONES)
    with pytest.raises(FileError, match="is the earlier .* has changed since" if third else "exists and is not a file"):
        create_matrix(tmp_path / "c.npy", SHAPE, "f4", resume=True, overwrite=True)
    assert ((data.with_name(name) if third else tmp_path / "c.npy") / "photo.jpg").exists()
    assert third or data.exists()


def test_what_a_killed_swap_has_replaced_needs_no_new_permission(tmp_path: Path) -> None:
    """It was to be overwritten, and the new matrix is in its place."""
    begun(tmp_path / "c.npy", TWOS).close()
    data = tmp_path / "c.npy.tilewright" / "data"
    np.save(tmp_path / "c.npy", ONES)
    (tmp_path / "c.npy").rename(data.with_name(f"swap.{data.stat().st_ino}"))
    data.rename(tmp_path / "c.npy")
    work.WorkDirectory(output.Output(tmp_path / "c.npy", None, SHAPE, np.dtype("f4"), False, lambda *_: None)).close()
    assert [path.name for path in tmp_path.iterdir()] == ["c.npy"]
    assert np.array_equal(np.load(tmp_path / "c.npy"), TWOS)


def test_two_unfinished_results_in_one_work_directory_are_both_kept(tmp_path: Path) -> None:
    """The message names the two, and moving one of them away lets the product begin."""
    begun(tmp_path / "c.npy", TWOS).close()
    data = tmp_path / "c.npy.tilewright" / "data"
    copy = data.with_name("trash.1")
    shutil.copyfile(data, copy)
    copy.rename(other := data.with_name(f"swap.{copy.stat().st_ino}"))
    before = contents(tmp_path)
    with pytest.raises(FileError, match=rf"holds both data and {other.name} after .*c\.npy: move one of the two away"):
        create_matrix(tmp_path / "c.npy", SHAPE, "f4", resume=True, overwrite=True)
    assert contents(tmp_path) == before
    other.rename(tmp_path / "another")
    create_matrix(tmp_path / "c.npy", SHAPE, "f4", resume=True, overwrite=True).close()


def test_a_result_that_was_moved_aside_and_another_in_its_place_are_both_kept(tmp_path: Path) -> None:
    """Killed between two renames, after which something else took the name."""
    begun(tmp_path / "c.zarr", TWOS).close()
    data = tmp_path / "c.zarr.tilewright" / "data"
    data.rename(data.with_name(f"swap.{data.stat().st_ino}"))
    array(data.with_name("old"))
    array(tmp_path / "c.zarr")
    before = contents(tmp_path)
    with pytest.raises(FileError, match=r"tilewright/old is the earlier .*c\.zarr, kept from"):
        create_matrix(tmp_path / "c.zarr", SHAPE, "f4", overwrite=True)
    assert contents(tmp_path) == before
    (tmp_path / "c.zarr").rename(tmp_path / "another")
    sink = create_matrix(tmp_path / "c.zarr", SHAPE, "f4", resume=True, overwrite=True)
    assert sink.resumed
    assert (tmp_path / "c.zarr" / "zarr.json").exists(), "what was moved aside has its name again"
    sink.finish()
    assert len(list(tmp_path.iterdir())) == 2


def test_an_unremovable_rest_is_in_the_way_of_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    write(tmp_path / "c.zarr")
    with monkeypatch.context() as patch:
        patch.setattr(swap.shutil, "rmtree", refused)
        write(tmp_path / "c.zarr", TWOS, overwrite=True)
        write(tmp_path / "c.zarr", ONES, overwrite=True)
    assert len(list((tmp_path / "c.zarr.tilewright").iterdir())) == 3
    write(tmp_path / "c.zarr", TWOS, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["c.zarr"]


# ---- the product -----------------------------------------------------------------------------------------------------


@pytest.fixture
def typed(cli, tmp_path: Path):
    """Runs ``tilewright multiply a.npy b.npy`` on the CPU."""
    np.save(tmp_path / "a.npy", ONES)
    np.save(tmp_path / "b.npy", np.ones((4, 4), np.float32))

    def call(*arguments: str) -> Answer:
        return cli("multiply", "a.npy", "b.npy", *arguments, "--device", "cpu")

    return call


def test_refused_outputs_are_one_line(typed, tmp_path: Path) -> None:
    (tmp_path / "loop.npy").symlink_to("loop.npy")
    (tmp_path / "loop.json").symlink_to("loop.json")
    array(tmp_path / "c.zarr", lambda made, path: (path / "NOTES.txt").write_text("precious"))
    (tmp_path / "d.npy.tilewright").symlink_to("c.zarr")
    before = contents(tmp_path)
    for arguments, words in (
        (("-o", "loop.npy"), ("loop.npy is a link that leads back to itself",)),
        (("-o", "c.zarr"), ("c.zarr holds 'NOTES.txt'", "--overwrite")),
        (("-o", "c.zarr", "--dry-run"), ("c.zarr holds 'NOTES.txt'", "--overwrite")),
        (("-o", "d.npy"), ("d.npy.tilewright is not a work directory",)),
        (("-o", "e.npy", "--json", "loop.json"), ("loop.json", "leads back to itself")),
    ):
        for resume in ((), ("--resume",)):
            answer = typed(*arguments, *resume)
            assert answer.code == 2
            if resume and arguments[1] == "c.zarr":  # is it the product of an earlier run?
                words = ("c.zarr is there and complete, but what it was made from is not known", "--overwrite")
            assert is_one_line(answer, *words), answer.err
    assert contents(tmp_path) == before
    assert typed("-o", "c.zarr", "--overwrite").code == 0
    assert not (tmp_path / "c.zarr" / "NOTES.txt").exists()


def test_an_output_that_is_refused_while_it_is_begun_leaves_nothing(typed, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tilewright.large.files.work.free_bytes", lambda directory: 10)
        answer = typed("-o", "c.npy")
    assert answer.code == 2
    assert is_one_line(answer, "does not fit its disk")
    assert not list(tmp_path.glob("c.npy*"))


def test_an_output_that_is_refused_in_the_end_can_be_resumed(typed, tmp_path: Path) -> None:
    add = Journal.add

    def change(journal: Journal, tile: Any) -> None:
        add(journal, tile)
        array(tmp_path / "c.zarr", lambda made, path: (path / "NOTES.txt").write_text("precious"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "add", change)
        answer = typed("-o", "c.zarr")
    assert answer.code == 2
    said, error = answer.err.splitlines()
    assert said == "stopped: 1 of 1 tiles are finished and kept; --resume continues"
    assert "c.zarr holds 'NOTES.txt'" in error
    assert "the finished result stays in" in error
    (tmp_path / "c.zarr").rename(tmp_path / "saved")
    assert typed("-o", "c.zarr", "--resume").code == 0
    assert (np.asarray(zarr.open_array(tmp_path / "c.zarr", mode="r")[:]) == 4).all()
    assert (tmp_path / "saved" / "NOTES.txt").read_text() == "precious"
    assert not list(tmp_path.glob("*.tilewright"))


def test_overwrite_is_passed_on(tmp_path: Path) -> None:
    np.save(tmp_path / "c.npy", np.ones((2, 2, 2)))
    b = np.ones((4, 4), np.float32)
    with pytest.raises(FileError, match="--overwrite"):
        tw.multiply(ONES, b, tmp_path / "c.npy", device="cpu")
    tw.plan_multiply(ONES, b, tmp_path / "c.npy", device="cpu", overwrite=True)
    assert np.load(tmp_path / "c.npy").ndim == 3
    tw.multiply(ONES, b, tmp_path / "c.npy", device="cpu", overwrite=True)
    assert (np.load(tmp_path / "c.npy") == 4).all()


# ---- an operand as the output ----------------------------------------------------------------------------------------

A = np.random.default_rng(1).uniform(-1, 1, (40, 40)).astype(np.float32)


@pytest.fixture
def operands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A in every format, and by other names."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(NAMES):
        write(f"{number}{name.removeprefix('c')}", A)
    (tmp_path / "link.npy").symlink_to("0.npy")
    os.link("0.npy", "hard.npy")
    (tmp_path / "stores").symlink_to(".")
    return tmp_path


@pytest.mark.parametrize(
    ("operand", "out"),
    [
        *[("0.npy", out) for out in ("0.npy", "./0.npy", "stores/0.npy", "link.npy", "hard.npy", "4.zarr/../0.npy")],
        *[("link.npy", "0.npy"), ("0.npy", "file://{folder}/0.npy"), ("1.raw", "1.raw"), ("hard.npy", "link.npy")],
        *[("2.safetensors", "2.safetensors"), ("2.safetensors", "2.safetensors:other"), ("3.h5", "3.h5")],
        *[("3.h5:matrix", "3.h5:/other/c"), ("4.zarr", "4.zarr"), ("4.zarr", "stores/4.zarr"), ("4.zarr", "4.zarr:x")],
        *[("5.h5:deep/c", "5.h5"), ("6.zarr:deep/c", "6.zarr:deep/d"), ("6.zarr:deep/c", "6.zarr")],
    ],
)
@pytest.mark.parametrize("resume", [False, True])
def test_an_output_that_is_an_operand_must_be_asked_for(operand: str, out: str, resume: bool, operands: Path) -> None:
    before, out = contents(operands), out.replace("{folder}", str(operands))
    with contextlib.closing(open_matrix(operand, shape=(40, 40), dtype="f4")) as a:
        for call in (tw.multiply, tw.plan_multiply):
            for first, second in ((a, a), (A, a), (a, A)):
                with pytest.raises((FileError, ResumeError), match="overwrite=True"):
                    call(first, second, out, device="cpu", resume=resume)
        assert contents(operands) == before
        tw.multiply(a, A, out, device="cpu", resume=resume, overwrite=True)
    with contextlib.closing(open_matrix(out, shape=(40, 40), dtype="f4")) as c:
        assert np.allclose(whole_matrix(c), A @ A, atol=1e-5)
    assert not list(operands.glob("*.tilewright"))


def test_a_second_run_of_a_command_replaces_nothing(typed, tmp_path: Path) -> None:
    assert typed("-o", "c.npy").code == 0
    before = contents(tmp_path)
    for out in ("c.npy", "./c.npy", "a.npy", "b.npy"):
        answer = typed("-o", out)
        assert (answer.code, is_one_line(answer, f"{out.lstrip('./')} exists: ", "--overwrite")) == (2, True)
    assert typed("-o", "c.npy", "--resume").code == 0, "it is the product of these operands"
    assert contents(tmp_path) == before
    assert typed("-o", "c.npy", "--overwrite").code == 0
    assert typed("-o", "b.npy", "--overwrite").code == 0
    assert (np.load("b.npy") == 4).all()


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_array_in_the_memory_or_the_file_of_an_operand_is_always_refused(overwrite: bool, operands: Path) -> None:
    mapped = np.load("0.npy", mmap_mode="r+")
    before = contents(operands)
    shared = A.copy()
    with contextlib.closing(open_matrix("0.npy")) as source:
        cases: list[tuple[Any, Any]] = [
            *((mapped, operand) for operand in ("0.npy", "link.npy", Path("hard.npy"), source, mapped)),
            *((np.asarray(mapped), operand) for operand in ("0.npy", source, mapped[:, ::-1], mapped.T)),
            *((shared, operand) for operand in (shared, shared.T, memoryview(shared), ArraySource(shared))),
        ]
        for out, operand in cases:
            for a, b in ((operand, A), (A, operand)):
                with pytest.raises(UsageError, match=r"out shares memory with [ab], which is read until the end"):
                    tw.multiply(a, b, out, device="cpu", overwrite=overwrite)
    assert contents(operands) == before
    assert np.array_equal(shared, A)
    tw.multiply(A, "2.safetensors", mapped, device="cpu")  # another file may be mapped
    assert np.allclose(np.load("0.npy"), A @ A, atol=1e-5)


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_output_inside_the_store_of_an_operand_is_always_refused(overwrite: bool, operands: Path) -> None:
    before = contents(operands)
    for operand, out in (
        ("4.zarr", "4.zarr/c.npy"),
        ("4.zarr", "stores/4.zarr/c.zarr"),
        ("4.zarr", "4.zarr/c/0/c.zarr:x"),
        ("6.zarr:deep/c", "6.zarr/c.zarr"),
        ("6.zarr", "6.zarr/deep/c.zarr"),
    ):
        for a, b in ((operand, A), (A, operand)):
            for call in (tw.multiply, tw.plan_multiply):
                with pytest.raises(
                    UsageError, match=r"out: .* is inside .*\.zarr, the store of [ab]: give a path outside"
                ):
                    call(a, b, out, device="cpu", overwrite=overwrite)
    assert contents(operands) == before


def test_a_store_around_an_operand_is_replaced_in_the_end_and_not_verified(operands: Path) -> None:
    (operands / "c.zarr").mkdir()
    write("c.zarr/a.npy", A)
    with pytest.raises(FileError, match="--overwrite"):
        tw.multiply("c.zarr/a.npy", A, "c.zarr", device="cpu")
    with pytest.raises(UsageError, match="out replaces that file"):
        tw.multiply("c.zarr/a.npy", A, "c.zarr", device="cpu", overwrite=True, verify=True)
    with pytest.raises(UsageError, match="out replaces that file"):
        tw.multiply("5.h5:deep/c", A, "5.h5:product", device="cpu", overwrite=True, verify=True)
    tw.multiply("c.zarr/a.npy", A, "c.zarr", device="cpu", overwrite=True)
    with contextlib.closing(open_matrix("c.zarr")) as c:
        assert np.allclose(whole_matrix(c), A @ A, atol=1e-5)
