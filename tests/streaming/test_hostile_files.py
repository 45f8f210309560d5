"""Files that lie: tiny ones of enormous shapes, broken headers and metadata, whatever a library raises. Each is one line."""

from __future__ import annotations

import json
import os
import resource
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support.interrupted import within
from tilewright.errors import DTypeError, FileError, MemoryLimitError, ShapeError, TilewrightError, UsageError
from tilewright.lab.bench.operand_sets import read_operands
from tilewright.lab.verify.verify import Oracle
from tilewright.large.files import hdf5, open_matrix, zarr
from tilewright.large.files.array import ArraySource, copy_block
from tilewright.large.files.chunked import ChunkedSource
from tilewright.large.streaming.plan.cost import Rates
from tilewright.large.streaming.plan.cuts import Room
from tilewright.large.streaming.plan.grid import Grid
from tilewright.large.streaming.plan.stream import MOST_PLANNED, plan_stream
from tilewright.product.problem import Problem

h5py = pytest.importorskip("h5py", reason="h5py is not installed: pip install 'tilewright[files]'")
zarr_library = pytest.importorskip("zarr", reason="zarr is not installed: pip install 'tilewright[files]'")

RATES = Rates(flops=1e11, in_bytes=1e9, out_bytes=1e9)


@pytest.fixture(autouse=True)
def soon() -> Iterator[None]:
    """Whatever takes 20 s hangs: it raises in the middle of it."""
    with within(20):
        yield


def npy(
    path: Path, shape: object, *, descr: str = "'<f4'", order: str = "False", version: int = 1, data: bytes = b""
) -> Path:
    """A file whose header says that, whatever it is; ``shape`` is a text of Python."""
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode(
        "utf-8" if version == 3 else "latin1"
    )
    length = len(text).to_bytes(2 if version == 1 else 4, "little")
    path.write_bytes(b"\x93NUMPY" + bytes([version, 0]) + length + text + data)
    return path


# ---- shapes without elements -----------------------------------------------------------------------------------------

SIDES = {"a": 2**60, "b": 0, "c": 5}


@pytest.mark.slow_cases("bb-ba")
@pytest.mark.parametrize(
    ("left", "right"), [("bb", "ba"), ("ba", "ab"), ("bc", "cb"), ("cb", "bb"), ("ab", "bb"), ("bb", "bb")]
)
def test_a_product_without_elements_is_done_at_once(left: str, right: str, tmp_path: Path) -> None:
    a, b = ((SIDES[side[0]], SIDES[side[1]]) for side in (left, right))
    x, y = (npy(tmp_path / f"{name}.npy", shape) for name, shape in (("x", a), ("y", b)))
    tw.multiply(x, y, tmp_path / "c.npy", device="cpu")
    with (tmp_path / "c.npy").open("rb") as file:
        np.lib.format.read_magic(file)
        assert np.lib.format.read_array_header_1_0(file)[0] == (a[0], b[1])
    assert tw.multiply(np.empty(a, "f4"), np.empty(b, "f4"), device="cpu").shape == (a[0], b[1])


@pytest.mark.parametrize("order", ["True", "False"])
@pytest.mark.parametrize("shape", [(2**60, 0), (0, 2**60)])
def test_a_tiny_file_of_an_enormous_shape_is_read_at_once(shape: tuple[int, int], order: str, tmp_path: Path) -> None:
    source = open_matrix(npy(tmp_path / "a.npy", shape, order=order))
    assert source.shape == shape
    out = np.empty(shape, np.float32)
    source.read(slice(0, shape[0]), slice(0, shape[1]), out)
    source.fingerprint()
    source.close()
    array = ArraySource(out)
    array.fingerprint()
    array.read(slice(0, shape[0]), slice(0, shape[1]), np.empty(shape, np.float32))
    copy_block(np.empty(shape[::-1], np.int8).T, out)


@pytest.mark.slow_cases("bc")
@pytest.mark.parametrize(("left", "right"), [("ab", "bc"), ("cb", "ba"), ("ab", "ba")])
def test_a_result_that_no_disk_holds_is_refused_before_it_is_planned(left: str, right: str, tmp_path: Path) -> None:
    x, y = (
        npy(tmp_path / f"{name}.npy", (SIDES[side[0]], SIDES[side[1]])) for name, side in (("x", left), ("y", right))
    )
    for call in (tw.multiply, tw.plan_multiply):
        with pytest.raises(MemoryLimitError, match=r"takes [\d,]+ steps .* and a plan has at most 500,000: give more"):
            call(x, y, tmp_path / "c.npy", device="cpu", memory="4GiB")
    with pytest.raises(MemoryLimitError, match="more than an address can reach"):
        tw.multiply(x, y, device="cpu")


@pytest.mark.thorough
def test_the_least_that_is_named_leaves_few_enough_steps_to_plan() -> None:
    """In 64 MiB even the steps of such a plan do not fit, and of blocks a little larger there are too many."""
    a, b = np.empty((5, 0), np.float32), np.empty((0, 2**46), np.float32)
    with pytest.raises(MemoryLimitError, match="cannot be cut small enough") as refused:
        tw.plan_multiply(a, b, "c.npy", device="cpu", memory="64MiB")
    least = int(str(refused.value).partition(" (")[2].partition(" bytes)")[0].rpartition("(")[2])
    assert tw.plan_multiply(a, b, "c.npy", device="cpu", memory=least).grid.n == 2**46


@pytest.mark.slow
def test_a_plan_of_many_steps_is_still_made() -> None:
    room = Room(2 << 20)
    assert plan_stream(Problem(20_000, 20_000, 2_000, "float32"), room, RATES).cost.total_s > 0
    side = 16_384 * 64
    with pytest.raises(MemoryLimitError, match="give more memory"):
        plan_stream(Problem(side, side, side, "float32"), room, RATES)
    assert Grid(2**60, 0, 5, 64, 1, 5).tiles == (0, 0)
    assert MOST_PLANNED >= 100_000


def test_chunks_of_what_has_no_elements_are_not_counted() -> None:
    def fetch(rows: slice, columns: slice) -> np.ndarray:
        raise AssertionError("there is nothing to fetch")

    source = ChunkedSource((2**60, 0), np.dtype("f4"), (4, 4), fetch)
    source.read(slice(0, 2**60), slice(0, 0), np.empty((2**60, 0), np.float32))
    assert ChunkedSource((8, 8), np.dtype("f4"), (0, 0), fetch).grain == (1, 1)


def test_sparse_datasets_of_any_size_are_read_by_rectangles(tmp_path: Path) -> None:
    side = 2**40
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("chunked", (side, side), "f4", chunks=(16, 16), fillvalue=2)
        file.create_dataset("whole", (2**30, 2**30), "f4", fillvalue=2)
    zarr_library.create_array(tmp_path / "a.zarr", shape=(side, side), chunks=(16, 16), dtype="f4", fill_value=2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for where in ("a.h5:chunked", "a.h5:whole", "a.zarr"):
        source = open_matrix(str(tmp_path / where))
        end = source.shape[0]
        out = np.empty((100, 100), np.float32)
        source.read(slice(end - 100, end), slice(end - 100, end), out)
        assert (out == 2).all()
        assert source.workspace < 1 << 26
        with pytest.raises(MemoryLimitError):
            plan_stream(Problem(end, source.shape[1], end, "float32"), Room(1 << 30), RATES)
        source.close()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


# ---- .npy ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 3])
def test_headers_of_all_versions_are_read(version: int, tmp_path: Path) -> None:
    data = np.arange(12, dtype="<f4").tobytes()
    source = open_matrix(npy(tmp_path / "a.npy", (3, 4), version=version, data=data))
    out = np.empty((3, 4), np.float32)
    source.read(slice(0, 3), slice(0, 4), out)
    source.close()
    assert out.tolist() == np.arange(12.0).reshape(3, 4).tolist()


NPY: list[tuple[dict[str, Any], type[TilewrightError], str]] = [
    ({"shape": "(2**3, 4)"}, FileError, "damaged"),
    ({"shape": "3"}, FileError, "shape is not valid"),
    ({"shape": "('3', '4')"}, FileError, "shape is not valid"),
    ({"shape": "(3.0, 4.0)"}, FileError, "shape is not valid"),
    ({"shape": "((3,), (4,))"}, FileError, "shape is not valid"),
    ({"shape": "(True, 4)"}, ShapeError, "whole numbers from 0"),
    ({"shape": "(-3, 4)"}, ShapeError, "whole numbers from 0"),
    ({"shape": f"({2**70}, 0)"}, ShapeError, "whole numbers from 0"),
    ({"shape": "(3, 4, 5)"}, FileError, "truncated: shape"),
    ({"shape": "(3, 4)", "order": "1"}, FileError, "fortran_order is not a valid bool"),
    ({"shape": "(3, 4)", "descr": "'|O'"}, DTypeError, "must be"),
    ({"shape": "(3, 4)", "descr": "[('x', '<f4')]"}, DTypeError, "must be"),
    ({"shape": "(3, 4)", "descr": "'<f400'"}, FileError, "damaged"),
    ({"shape": "(3, 4)", "descr": "['<f4']"}, FileError, "damaged"),
    ({"shape": "(3, 4)", "descr": "[('ж', '<f4')]", "version": 3}, DTypeError, "several fields"),
    ({"shape": "(" * 4000 + ")" * 4000}, FileError, "damaged"),
    ({"shape": "-" * 9000 + "1"}, FileError, "damaged"),
    ({"shape": "1" + "+1" * 4000}, FileError, "damaged"),
    ({"shape": "9" * 9000}, FileError, "damaged"),
    ({"shape": " " * 100_000 + "(3, 4)", "version": 2}, FileError, "its header would have 1000"),
    ({"shape": "(3, 4)"}, FileError, "truncated: .* needs 1"),
]


@pytest.mark.parametrize("case", range(len(NPY)))
def test_a_header_that_lies_is_refused_in_one_line(case: int, tmp_path: Path) -> None:
    header, error, words = NPY[case]
    path = npy(tmp_path / "a.npy", **header)
    with pytest.raises(error, match=words) as caught:
        open_matrix(path)
    assert "a.npy" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("version", [2, 3])
def test_a_header_that_is_longer_than_the_file_takes_no_memory(version: int, tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY" + bytes([version, 0]) + b"\xff\xff\xff\x7f{'descr'")
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FileError, match="its header would have 2147483647 bytes"):
        open_matrix(tmp_path / "a.npy")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used < 100 << 10


# ---- .safetensors ----------------------------------------------------------------------------------------------------


def safetensors(path: Path, header: object, data: bytes = bytes(48), length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def tensor(**changed: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]} | changed


SAFETENSORS: list[tuple[object, type[TilewrightError], str]] = [
    (b"[" * 5000, FileError, "recursion"),
    (b'{"w":' * 5000, FileError, "recursion"),
    (b"[]", FileError, "not a JSON object"),
    (b"3", FileError, "not a JSON object"),
    (b"\xff\xfe{}", FileError, "decode"),
    (b'{"w": {}, "w": {}}', FileError, "'w' twice"),
    (b'{"w": {"dtype": "F32", "shape": [3, 4], "shape": [4, 3], "data_offsets": [0, 48]}}', FileError, "'shape' twice"),
    ({"w": 5}, FileError, "tensor 'w' must have"),
    ({"w": []}, FileError, "tensor 'w' must have"),
    *(({"w": tensor(dtype=each)}, FileError, "must have a dtype") for each in (["F32"], None, 3, {})),
    *(
        ({"w": tensor(shape=each)}, FileError, "must have a dtype, a shape")
        for each in (12, "34", ["3", "4"], [[3], [4]], [3.0, 4.0], [True, 4], [-3, -4], [2**64, 0], [float("inf"), 1])
    ),
    *(
        ({"w": tensor(data_offsets=each)}, FileError, "data_offsets")
        for each in (
            [0],
            [0, 24, 48],
            [48, 0],
            [-48, 0],
            [0, float("inf")],
            [0.0, 48.0],
            "048",
            [0, float("nan")],
            [0, 2**70],
        )
    ),
    ({"w": tensor(), "v": tensor(data_offsets=[40, 88])}, FileError, "belong to another one too"),
    ({"w": tensor(), "v": tensor(shape=[1, 1], data_offsets=[8, 12])}, FileError, "belong to another one too"),
    ({"w": tensor(), "v": tensor()}, FileError, "belong to another one too"),
    ({"w": tensor(data_offsets=[0, 44])}, FileError, "damaged: 44 bytes for shape"),
    ({"w": tensor(data_offsets=[1000, 1048])}, FileError, "truncated"),
    ({"w": tensor(shape=[2**40, 2**40])}, FileError, "damaged: 48 bytes"),
    ({"w": tensor(dtype="F8_E4M3")}, DTypeError, "dtype F8_E4M3: it must be"),
    ({"w": tensor(shape=[3, 2, 2])}, ShapeError, "3 dimensions"),
]


@pytest.mark.parametrize("case", range(len(SAFETENSORS)))
def test_a_header_of_tensors_that_lies_is_refused_in_one_line(case: int, tmp_path: Path) -> None:
    header, error, words = SAFETENSORS[case]
    path = safetensors(tmp_path / "a.safetensors", header)
    with pytest.raises(error, match=words) as caught:
        open_matrix(path, name="w")
    assert "a.safetensors" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("length", [0, 7, 10**6, 2**63, 2**64 - 1])
def test_a_header_of_another_length_is_refused(length: int, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"no \.safetensors file"):
        open_matrix(safetensors(tmp_path / "a.safetensors", {"w": tensor()}, length=length))


def test_tensors_without_elements_may_lie_anywhere(tmp_path: Path) -> None:
    header = {
        "w": tensor(),
        "empty": tensor(shape=[0, 4], data_offsets=[20, 20]),
        "last": tensor(shape=[4, 0], data_offsets=[48, 48]),
    }
    for name, shape in (("w", (3, 4)), ("empty", (0, 4)), ("last", (4, 0))):
        source = open_matrix(safetensors(tmp_path / "a.safetensors", header), name=name)
        assert source.shape == shape
        source.close()


# ---- HDF5 and zarr ---------------------------------------------------------------------------------------------------


class Broken:
    """A library that raises at one of its calls."""

    def __init__(self, error: Exception, **works: Any) -> None:
        self.__dict__.update(works)
        self.error = error

    def __getattr__(self, name: str) -> Any:
        def fails(*_: object, **__: object) -> None:
            raise self.error

        return fails


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("bad\nheap"),
        KeyError("x"),
        OSError("short"),
        ValueError(""),
        SystemError("c"),
        MemoryError(),
        TypeError("t"),
    ],
)
def test_whatever_the_library_raises_is_one_line(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.ones((3, 4))
    for name in ("_dataset", "_layout"):
        with monkeypatch.context() as patched:
            patched.setattr(hdf5, name, lambda *_: (_ for _ in ()).throw(error))
            with pytest.raises(FileError, match=r"a\.h5 is no HDF5 file, or a damaged one: \S") as caught:
                open_matrix(tmp_path / "a.h5")
            assert "\n" not in str(caught.value)
    zarr_library.create_array(tmp_path / "a.zarr", data=np.ones((3, 4)))
    monkeypatch.setattr(zarr, "_library", lambda _: Broken(error))
    with pytest.raises(FileError, match=r"a\.zarr is no zarr store, or a damaged one: \S"):
        open_matrix(tmp_path / "a.zarr")


def test_an_hdf5_file_that_fails_when_it_is_closed_was_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.ones((3, 4)), chunks=(2, 2))
    source = open_matrix(tmp_path / "a.h5")
    monkeypatch.setattr(h5py.File, "close", lambda _: (_ for _ in ()).throw(RuntimeError("cannot close")))
    source.close()


def test_chunks_that_cannot_be_decoded_are_named(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.random.default_rng(1).random((30, 40)), chunks=(7, 8), compression="gzip")
    raw = bytearray((tmp_path / "a.h5").read_bytes())
    raw[-3000:-1000] = bytes(2000)
    (tmp_path / "a.h5").write_bytes(raw)
    source = open_matrix(tmp_path / "a.h5")
    with pytest.raises(FileError, match=r"a\.h5 cannot be read at rows \d+:\d+, columns \d+:\d+: .*(filter|inflate)"):
        source.read(slice(0, 30), slice(0, 40), np.empty((30, 40)))
    source.close()


def changed_zarr(path: Path, **changed: Any) -> Path:
    zarr_library.create_array(path, data=np.ones((8, 8), "f4"), chunks=(4, 4), overwrite=True)
    metadata = path / "zarr.json"
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | changed))
    return path


def grid(*chunk: object) -> dict[str, Any]:
    return {"name": "regular", "configuration": {"chunk_shape": list(chunk)}}


ZARR: list[tuple[dict[str, Any], type[TilewrightError], str]] = [
    *(({"shape": each}, FileError, "no zarr store") for each in ([-8, 8], [8.5, 8], [[8], [8]], "88", None, 8)),
    ({"shape": [2**70, 8]}, ShapeError, "whole numbers"),
    ({"shape": [8, 8, 8], "chunk_grid": grid(4, 4, 4)}, ShapeError, "3 dimensions"),
    ({"chunk_grid": grid(-4, 4)}, FileError, "no zarr store"),
    ({"chunk_grid": {"name": "irregular"}}, FileError, "no zarr store"),
    ({"data_type": ["float32"]}, FileError, "no zarr store"),
    (
        {"data_type": {"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 1}}, "fill_value": 0},
        DTypeError,
        "must be",
    ),
    ({"codecs": []}, FileError, "no zarr store"),
    ({"codecs": [{"name": "nothing"}]}, FileError, "no zarr store"),
    ({"fill_value": {}}, FileError, "no zarr store"),
    ({"node_type": "tree"}, FileError, "no zarr store"),
    ({"zarr_format": 9}, FileError, "no zarr store"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", range(len(ZARR)))
def test_metadata_that_lie_are_refused_in_one_line(case: int, tmp_path: Path) -> None:
    changed, error, words = ZARR[case]
    with pytest.raises(error, match=words) as caught:
        open_matrix(changed_zarr(tmp_path / "a.zarr", **changed))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("chunk", [(0, 0), (0, 4), (2**40, 2**40)])
def test_chunks_of_impossible_sizes_end_in_one_line(chunk: tuple[int, int], tmp_path: Path) -> None:
    try:
        source = open_matrix(changed_zarr(tmp_path / "a.zarr", chunk_grid=grid(*chunk)))
    except FileError:
        return  # a later library checks it
    with pytest.raises(FileError, match="cannot be read at rows 0:8, columns 0:8"):
        source.read(slice(0, 8), slice(0, 8), np.empty((8, 8)))
    source.close()


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "", "\xff", "null", '{"node_type": ["array"]}'])
def test_what_is_no_metadata_is_refused(text: str, tmp_path: Path) -> None:
    path = changed_zarr(tmp_path / "a.zarr")
    (path / "zarr.json").write_text(text)
    with pytest.raises(FileError, match="no zarr store"):
        open_matrix(path)


def test_links_in_a_store_lead_nowhere(tmp_path: Path) -> None:
    group = zarr_library.create_group(tmp_path / "g.zarr").create_group("inner")
    group.create_array("x", data=np.full((3, 4), 7.0))
    for name in ("one", "two"):
        (tmp_path / "g.zarr/inner" / name).symlink_to("..")
    for where in ("g.zarr", "g.zarr:inner/x", "g.zarr:/inner/x/"):
        source = open_matrix(str(tmp_path / where))
        assert source.shape == (3, 4)
        source.close()
    with pytest.raises(UsageError, match="has no array 'inner/one/inner/x'; known: inner/x"):
        open_matrix(f"{tmp_path}/g.zarr:inner/one/inner/x")


def linked(path: str, name: str, file: str, inner: str) -> None:
    """A virtual dataset ``name``, whose data are the dataset ``inner`` of a file."""
    layout = h5py.VirtualLayout((4, 4), "f4")
    layout[:] = h5py.VirtualSource(file, inner, (4, 4))
    with h5py.File(path, "a") as opened:
        opened.create_virtual_dataset(name, layout)


@pytest.mark.parametrize(
    "links", [[("a", "x", ".", "x")], [("a", "x", ".", "y"), ("a", "y", "b.h5", "x"), ("b", "x", "a.h5", "x")]]
)
def test_a_virtual_dataset_that_is_a_part_of_itself_is_refused(
    links: list[tuple[str, str, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library follows it until the stack is full, and the process dies."""
    monkeypatch.chdir(tmp_path)
    for file, name, other, inner in links:
        linked(f"{file}.h5", name, other, inner)
    with pytest.raises(
        FileError, match=r"a\.h5:/x is a virtual dataset that is a part of itself: write its data anew$"
    ):
        open_matrix("a.h5:x")


def test_a_virtual_dataset_of_other_files_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with h5py.File("c.h5", "w") as file:
        file["z"] = np.full((4, 4), 7, "f4")
    linked("b.h5", "y", "c.h5", "z")
    linked("a.h5", "x", "b.h5", "y")
    source, out = open_matrix("a.h5"), np.empty((4, 4), np.float32)
    source.read(slice(0, 4), slice(0, 4), out)
    source.close()
    assert (out == 7).all()


@pytest.mark.parametrize("kind", ["virtual", "external"])
def test_data_in_a_pipe_are_not_waited_for(kind: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.h5")
    if kind == "virtual":
        linked(str(tmp_path / "a.h5"), "x", "pipe.h5", "x")
    else:
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.create_dataset("x", (4, 4), "f4", external=[(str(tmp_path / "pipe.h5"), 0, h5py.h5f.UNLIMITED)])
    with pytest.raises(FileError, match=r"a\.h5:/x lies in .*pipe\.h5, which is not a file"):
        open_matrix(tmp_path / "a.h5")


def test_groups_in_each_other_end(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("/".join(["g"] * 300 + ["x"]), data=np.ones((2, 2)))
    with pytest.raises(FileError, match=r"a\.h5 has groups in each other, more than 100"):
        open_matrix(tmp_path / "a.h5")


def strange(file: Any, kind: str) -> None:
    if kind in ("soft", "external"):
        links = {"soft": h5py.SoftLink("/x"), "external": h5py.ExternalLink("a.h5", "/x")}
        file["x"] = links[kind]
        return
    dtypes = {"compound": [("x", "f4")], "reference": h5py.ref_dtype, "text": h5py.string_dtype()}
    more = {"lengths": h5py.vlen_dtype("f4"), "arrays": np.dtype(("f4", (3,)))}
    file.create_dataset("x", (2, 2), (dtypes | more)[kind])


@pytest.mark.parametrize("kind", ["soft", "external", "compound", "reference", "text", "lengths", "arrays"])
def test_a_dataset_without_numbers_is_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        strange(file, kind)
    with pytest.raises(TilewrightError, match=r"holds no dataset|dimensions|must be") as refused:
        open_matrix(tmp_path / "a.h5")
    assert "\n" not in str(refused.value)


def test_names_with_ends_of_lines_are_listed_in_one_line(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a\nb"] = file["c\x1b[31m"] = np.ones((2, 2))
    for name in (None, "x"):
        with pytest.raises(UsageError) as refused:
            open_matrix(tmp_path / "a.h5", name=name)
        assert "a\\nb" in str(refused.value)
        assert "\n" not in str(refused.value)
        assert "\x1b" not in str(refused.value)
    open_matrix(tmp_path / "a.h5", name="a\nb").close()


@pytest.mark.parametrize("version", [2, 3])
def test_a_store_of_chunks_without_elements_is_damaged(version: int, tmp_path: Path) -> None:
    zarr_library.create_array(tmp_path / "a.zarr", data=np.ones((8, 8), "f4"), chunks=(4, 4), zarr_format=version)
    file = tmp_path / "a.zarr" / ("zarr.json" if version == 3 else ".zarray")
    stored = json.loads(file.read_text())
    file.write_text(json.dumps(stored | (grid(0, 4) if version == 3 else {"chunks": [0, 4]})))
    with pytest.raises(FileError, match=r"a\.zarr is no zarr store, or a damaged one"):
        open_matrix(tmp_path / "a.zarr")


def test_a_chunk_larger_than_the_memory_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (2**28, 2), "f8", chunks=(2**27, 2), fillvalue=1, compression="gzip")
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(MemoryLimitError):
        tw.multiply(tmp_path / "a.h5", np.ones((2, 2)), device="cpu", memory="1GiB")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used < 300 << 10


def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    for name in ("a.npy", "a.h5", "a.safetensors", "a.raw", "a.zarr"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(FileError, match="is not a "):
            open_matrix(tmp_path / name, **({"shape": (2, 2), "dtype": "f4"} if name == "a.raw" else {}))
    (tmp_path / "b.zarr").mkdir()
    os.mkfifo(tmp_path / "b.zarr/zarr.json")
    with pytest.raises(FileError, match=r"zarr\.json is not a file"):
        open_matrix(tmp_path / "b.zarr")


# ---- what a caller states --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [(2.5, 4), ("3", 4), (True, 4), (-1, 4), (2**64, 4), 12, "34", None, (3,), [[3], [4]], (3, None)]
)
def test_a_stated_shape_is_two_whole_numbers(shape: Any, tmp_path: Path) -> None:
    (tmp_path / "a.raw").write_bytes(bytes(48))
    with pytest.raises((ShapeError, UsageError)):
        open_matrix(tmp_path / "a.raw", shape=shape, dtype="f4")


@pytest.mark.parametrize(
    "dtype", ["f", "f4,f4", "(2,3)f4", "O", ",", "(" * 500, "nothing", "f400", "U8", [[]], 5, {"names": 3}]
)
def test_a_stated_dtype_is_one_that_can_be_read(dtype: Any, tmp_path: Path) -> None:
    (tmp_path / "a.raw").write_bytes(bytes(48))
    if dtype == "f":
        open_matrix(tmp_path / "a.raw", shape=(3, 4), dtype=dtype).close()
        return
    with pytest.raises(DTypeError, match="must be") as caught:
        open_matrix(tmp_path / "a.raw", shape=(3, 4), dtype=dtype)
    assert len(str(caught.value)) < 500


def test_a_null_byte_is_no_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="null byte"):
        open_matrix(str(tmp_path / "a\0.npy"))


def test_a_reader_with_a_bare_error_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard is what makes it one line: without it the library's error comes through."""
    import contextlib

    (tmp_path / "a.h5").write_bytes(b"nothing")
    monkeypatch.setattr(hdf5, "parser_errors", lambda *_: contextlib.nullcontext())
    with pytest.raises(OSError, match="signature") as caught:
        open_matrix(tmp_path / "a.h5")
    assert not isinstance(caught.value, TilewrightError)


def test_bench_takes_no_operands_of_enormous_sides(tmp_path: Path) -> None:
    x, y = (npy(tmp_path / f"{name}.npy", shape) for name, shape in (("x", (0, 2**60)), ("y", (2**60, 0))))
    with pytest.raises(UsageError, match=r"operands: A is .* a size is at most"):
        read_operands((x, y))
    assert Oracle(np.empty((0, 2**60), "f4"), np.empty((2**60, 0), "f4")).check(np.empty((0, 0), "f4")).ok
