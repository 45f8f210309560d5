"""Damaged and hostile inputs for every reader: valid seeds, seeded mutations of them, and what a reader may do with one.

An input is a few files by name. A reader may take it, or refuse it with one of our own errors, in one line; any other
exception, a wait or much memory is a defect. ``test_hostile.py`` tries some hundred, ``benchmarks/fuzz_readers.py`` many.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import multiply, plan_multiply
from tilewright.errors import TilewrightError
from tilewright.large.files import open_matrix

Files = dict[str, bytes]

#: Values that no field should have.
VALUES: list[Any] = [
    *(None, True, [], {}, "", "x" * 5000, "\x1b[31m\u2028\u202e</script>'\"", "\ud800"),
    *(0, -1, 1, 2**31, 2**60, 2**63, 2**64, 10**300, 0.5, -2.5, 1e-320, 1e308, float("nan"), float("inf")),
    *([2**60, 0], [0, 2**60], [[3], [4]], ["3", "4"], [3.0, 4.0], [True, 4], [-3, 4], {"a": {"b": [None]}}),
]
#: Texts that take the place of a number, whatever surrounds it.
TEXTS = [
    *(
        b"0",
        b"1",
        b"2",
        b"4",
        b"7",
        b"64",
        b"-1",
        b"1e999",
        b"NaN",
        b"-Infinity",
        b"9" * 25,
        b"9" * 5000,
        b"1152921504606846976",
        b"null",
        b"[3, 4]",
    ),
    *(b'"\x1b[2J"', b"[" * 2000, b'{"a":' * 2000, b"(" * 300, b"True", b"3.5", b"''", b"\x00", b"\xff\xfe", b"'|O'"),
]


@dataclass(frozen=True)
class Reader:
    """One kind of input: ``seeds`` are valid, ``attempt`` reads one from a folder."""

    seeds: Callable[[], list[Files]]
    attempt: Callable[[Path], None]


# ---- what a reader may do --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def laid_out(files: Files) -> Iterator[Path]:
    """The files of an input in a folder of their own."""
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        yield Path(folder)


def outcome(attempt: Callable[[Path], None], files: Files) -> str:
    """``read_records``, ``refused``, or what is wrong in a line that begins with ``defect``."""
    with laid_out(files) as folder:
        try:
            attempt(folder)
        except TilewrightError as error:
            return _judged(error)
        except Exception as error:
            return f"defect: {type(error).__name__}: {error!s:.200} {_place(error)}"
    return "read"


def _judged(error: TilewrightError) -> str:
    text = str(error)
    if _wanted_memory(error):
        return f"defect: memory: {text:.200} {_place(error)}"
    if not text or len(text) > 3000 or ("\n" in text.strip() and not error.multiline) or "Traceback" in text:
        return f"defect: no one line: {text!r:.200}"
    return "refused"


def _wanted_memory(error: BaseException | None) -> bool:
    """Whether an allocation failed; Python's parser says the same of an expression that is nested too deeply."""
    while error is not None:
        if isinstance(error, MemoryError) and not isinstance(error, TilewrightError):
            return not traceback.extract_tb(error.__traceback__)[-1].filename.endswith("ast.py")
        error = error.__cause__ or error.__context__
    return False


def _place(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"({Path(last.filename).name}:{last.lineno})"


# ---- matrices --------------------------------------------------------------------------------------------------------


def read_matrix(path: Path, **stated: Any) -> None:
    """Its corners, its fingerprint, the plan of a product with it, and the product where it is small."""
    with contextlib.closing(open_matrix(path, **stated)) as source:
        m, n = source.shape
        for rows, columns in (((0, min(3, m)), (0, min(3, n))), ((max(0, m - 3), m), (max(0, n - 3), n))):
            out = np.empty((rows[1] - rows[0], columns[1] - columns[0]), np.float32)
            source.read(slice(*rows), slice(*columns), out)
        source.fingerprint()
        if n >= 1 << 40:
            return
        right, out = np.broadcast_to(np.ones(1, np.float32), (n, 2)), path.with_name("c.npy")
        plan_multiply(source, right, out=out, device="cpu", memory="1GiB")
        if m * n <= 10_000 and m <= 10_000:
            multiply(source, right, out=out, device="cpu", memory="64MiB")


def _npy() -> list[Files]:
    made = []
    arrays = [np.arange(12, dtype=d).reshape(3, 4) for d in ("<f4", ">f8", "i2")] + [np.ones((3, 4), order="F")]
    for array in [*arrays, np.ones((0, 5)), np.ones((4, 0), "f2")]:
        written = io.BytesIO()
        np.save(written, array)
        made.append({"a.npy": written.getvalue()})
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1152921504606846976, 0), }\n"
    made.append({"a.npy": b"\x93NUMPY\x02\x00" + len(text).to_bytes(4, "little") + text})
    made.append({"a.npy": b"\x93NUMPY\x03\x00" + len(text).to_bytes(4, "little") + text})
    return made


def _safetensors() -> list[Files]:
    tensors = {"w": ("F32", [3, 4], [0, 48]), "v": ("I8", [4, 0], [48, 48]), "x\u2028": ("F64", [2, 1], [48, 64])}
    header = {name: dict(zip(("dtype", "shape", "data_offsets"), of, strict=True)) for name, of in tensors.items()}
    made = []
    for chosen in (header, {"w": header["w"]}, {"__metadata__": {"a": "b"}, "w": header["w"]}):
        text = json.dumps(chosen).encode()
        made.append({"a.safetensors": len(text).to_bytes(8, "little") + text + bytes(64)})
    return made


def _hdf5() -> list[Files]:
    import h5py

    made = []
    for stored in (
        {"data": np.arange(12.0).reshape(3, 4)},
        {"data": np.ones((20, 30), "f4"), "chunks": (7, 8), "compression": "gzip", "shuffle": True, "fletcher32": True},
        {"shape": (2**40, 2**40), "dtype": "f4", "chunks": (16, 16)},
        {"shape": (2**30, 2**20), "dtype": "f8"},
        {"data": np.ones((6, 6), "i2"), "maxshape": (None, None)},
    ):
        file = io.BytesIO()
        with h5py.File(file, "w") as opened:
            opened.create_dataset("group/x", **stored)
            opened["group"].attrs["about"] = "text"
        made.append({"a.h5": file.getvalue()})
    return made


def _zarr() -> list[Files]:
    import zarr

    made = []
    for version in (2, 3):
        for group in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                root = Path(folder) / "a.zarr"
                where = zarr.create_group(root, zarr_format=version).create_group("g") if group else zarr
                name = {"name": "x"} if group else {"store": root, "zarr_format": version}
                where.create_array(**name, data=np.arange(120, dtype="f4").reshape(10, 12), chunks=(4, 5))
                files = [path for path in root.rglob("*") if path.is_file()]
                made.append({str(path.relative_to(folder)): path.read_bytes() for path in files})
    return made


def _read_raw(folder: Path) -> None:
    try:  # what a caller states, here as JSON
        facts = json.loads((folder / "facts.json").read_bytes())
    except (ValueError, RecursionError):
        facts = None
    shape, dtype = (facts.get("shape"), facts.get("dtype")) if isinstance(facts, dict) else (facts, facts)
    read_matrix(folder / "a.raw", shape=shape, dtype=dtype)


# ---- records ---------------------------------------------------------------------------------------------------------


def _lines(*items: Any) -> bytes:
    return "".join(json.dumps(item) + "\n" for item in items).encode()


def _campaign() -> list[Any]:
    from support.report_records import campaign

    return [r for r in campaign() if r.n in (64, 512) and r.kernel in ("cpu/ikj", "cpu/naive", "ref/openblas")]


def _records() -> list[Files]:
    some = [asdict(r) for r in _campaign()]
    swept = [r | {"params": {"TILE": tile}} for r in some[:2] for tile in (8, 16)]
    return [{"a.jsonl": _lines(*some)}, {"a.jsonl": _lines(*swept)}, {"a.jsonl": _lines(some[0])}]


def _read_records(folder: Path) -> None:
    from tilewright.lab.terminal import show_bench, show_comparison
    from tilewright.records.bench import Writer, read_records
    from tilewright.records.compare import compare
    from tilewright.records.report import render

    found = read_records(folder / "a.jsonl")
    with Writer(folder / "a.jsonl", resume=True) as writer:
        found = writer.done or found
    console = _console()
    show_bench(console, found)
    with contextlib.suppress(TilewrightError):
        show_comparison(console, compare(_campaign(), found))
    render(found)


def _console() -> Any:
    from tilewright.lab.cli.application import Console

    return Console(file=io.StringIO(), width=80)


def _explanations() -> list[Files]:
    from support.explanations import coalesced

    one = coalesced().as_dict() if hasattr(coalesced(), "as_dict") else coalesced()
    one["occupancy"] = {**one["occupancy"], "by_registers": one["occupancy"].get("by_registers", [])[:3]}
    return [{"a.json": json.dumps(one).encode()}, {"a.json": json.dumps([one, one]).encode()}]


def _read_explanations(folder: Path) -> None:
    from tilewright.records.explanation import holds_explanations, read_explanations
    from tilewright.records.report import render_explanation

    holds_explanations(folder / "a.json")
    render_explanation(read_explanations(folder / "a.json"))


def _timelines() -> list[Files]:
    from support.timelines import tiny
    from tilewright.records.timeline import write_timelines

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        write_timelines(path, [tiny(), tiny("cuda:0", predicted=True)])
        return [{"a.jsonl": path.read_bytes()}]


def _read_timelines(folder: Path) -> None:
    from tilewright.records.json_data import holds_kind
    from tilewright.records.report import render_timeline, save_timeline, write_trace
    from tilewright.records.timeline import read_timelines

    holds_kind(folder / "a.jsonl", "timeline")
    found = read_timelines(folder / "a.jsonl")
    render_timeline(found)
    save_timeline(found[0], folder / "a.svg")
    write_trace(found[0], folder / "a.json")


# ---- what else is read -----------------------------------------------------------------------------------------------


def _headers() -> list[Files]:
    from tilewright.kernels.catalog import cuda_catalog

    return [{"a.cu": kernel.source.encode()} for kernel in list(cuda_catalog().values())[:6]]


def _read_header(folder: Path) -> None:
    from tilewright.kernels.catalog import load_cuda_file

    kernel = load_cuda_file(folder / "a.cu")
    kernel.launch(64, 64, 64)


READERS = {
    "npy": Reader(cache(_npy), lambda folder: read_matrix(folder / "a.npy")),
    "safetensors": Reader(cache(_safetensors), lambda folder: read_matrix(folder / "a.safetensors", name="w")),
    "hdf5": Reader(cache(_hdf5), lambda folder: read_matrix(folder / "a.h5")),
    "zarr": Reader(cache(_zarr), lambda folder: read_matrix(folder / "a.zarr")),
    "raw": Reader(lambda: [{"a.raw": bytes(96), "facts.json": b'{"shape": [4, 3], "dtype": "float64"}'}], _read_raw),
    "records": Reader(cache(_records), _read_records),
    "explanations": Reader(cache(_explanations), _read_explanations),
    "timelines": Reader(cache(_timelines), _read_timelines),
    "headers": Reader(cache(_headers), _read_header),
}


# ---- mutations -------------------------------------------------------------------------------------------------------


def mutated(kind: str, seed: int) -> Files:
    """Input number ``seed`` of a kind: the same on every machine."""
    rng = random.Random(f"{kind} {seed}")
    files = dict(rng.choice(READERS[kind].seeds()))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        name = rng.choice(sorted(files))
        files[name] = mutate(files[name], name, rng)
    return files


def mutate(data: bytes, name: str, rng: random.Random) -> bytes:
    """One mutation: of a JSON field where there is JSON, of a number in the text, of bytes anywhere."""
    how = rng.random()
    if how < 0.45 and name.endswith((".json", ".jsonl", ".zarray", ".zgroup", ".safetensors")):
        return _with_field_changed(data, name, rng)
    if how < 0.65 and (numbers := list(re.finditer(rb"\d+|'[<>|][^']*'|True|False|null", data))):
        at = rng.choice(numbers)
        return data[: at.start()] + rng.choice(TEXTS) + data[at.end() :]
    return _with_bytes_changed(data, rng)


def _with_bytes_changed(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    at, length = rng.randrange(len(data) + 1), rng.choice((1, 1, 2, 4, 8, 64))
    match rng.randrange(6):
        case 0:
            del changed[at:]
        case 1:
            del changed[at : at + length]
        case 2:
            changed[at:at] = bytes(rng.randrange(256) for _ in range(length))
        case 3:
            changed[at : at + length] = rng.choice((b"\xff", b"\x00", b"\x7f")) * length
        case 4:
            changed[at:at] = changed[at : at + length] * rng.choice((1, 2, 50))
        case _:
            for _ in range(rng.choice((1, 1, 3, 20))):
                if changed:
                    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _with_field_changed(data: bytes, name: str, rng: random.Random) -> bytes:
    """Of one line of JSON, or of a safetensors header, whose length then fits."""
    is_tensors = name.endswith(".safetensors")
    length = int.from_bytes(data[:8], "little") if is_tensors else 0
    lines = [data[8 : 8 + length]] if is_tensors else data.split(b"\n") if name.endswith("l") else [data]
    number = rng.randrange(max(1, len(lines) - 1))
    try:
        parsed = json.loads(lines[number])
    except (ValueError, RecursionError):
        return _with_bytes_changed(data, rng)
    lines[number] = json.dumps(_changed(parsed, rng)).encode("utf-8", "replace")
    if is_tensors:
        return len(lines[0]).to_bytes(8, "little") + lines[0] + data[8 + length :]
    return b"\n".join(lines)


def _changed(value: Any, rng: random.Random) -> Any:
    """``value`` with something within it replaced, removed or added."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.1:
        return rng.choice(VALUES)
    made = dict(value) if isinstance(value, dict) else list(value)
    key = rng.choice(list(made)) if isinstance(made, dict) else rng.randrange(len(made))
    match rng.randrange(10):
        case 0:
            del made[key]
        case 1 if isinstance(made, dict):
            made[rng.choice(["x", "\x1b[0m", "__proto__", "m", "shape"])] = rng.choice(VALUES)
        case 1:
            made.append(rng.choice([*VALUES, *made]))
        case 2 | 3 | 4:
            made[key] = rng.choice(VALUES)
        case _:
            made[key] = _changed(made[key], rng)
    return made
