"""Measures a cell on a GPU, in the process that uses the GPU.

A cell goes through these steps: is the kernel supported, and does it compile? → do the operands fit in memory? → run
once into an output full of NaN, and verify the result → take times, in alternation with the reference on the same
operands → verify the last output, and check that nothing else was written → make the record. If the GPU refuses or
stops a launch, the record gives its CUDA error as the reason.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import CompileError, LaunchError, UnavailableError, UsageError
from ...gpu.runtime.cublas import Cublas
from ...gpu.runtime.device import Device
from ...gpu.runtime.engine_product import plain_launch
from ...gpu.runtime.launch import Submission
from ...gpu.runtime.memory import Memory
from ...gpu.runtime.nvrtc import compile_file, compiler
from ...host.machine import bytes_text
from ...kernels.cuda_kernel import CudaKernel
from ...simulator.gpus import GPUS, capability_of
from ...simulator.occupancy import occupancy
from ..inputs.formats import NumberFormat, format_of
from ..inputs.options import Shape
from ..verify.device_verify import DeviceChecks, DeviceOracle
from .cells import Cell, Outcome, Settings

# ---- readings of the GPU: clocks, power, temperature -----------------------------------------------------------------

# nvmlClockType_t and nvmlTemperatureSensors_t
_SM, _MEMORY = 1, 2
_GPU_SENSOR = 0

#: Reasons for a low clock, as bits (nvml.h), except those that are expected: an idle GPU, and a clock that a user has set.
_REASONS = {
    0x04: "power limit",
    0x08: "hardware slowdown",
    0x20: "temperature limit",
    0x40: "hardware temperature limit",
    0x80: "power brake",
}


class Gauge:
    """Reads clocks, power and temperature of one GPU, which is found by its PCI address. The value of a reading that
    fails is None."""

    def __init__(self, pci_bus_id: str) -> None:
        self._nvml: Any = None
        try:
            nvml = importlib.import_module("cuda.bindings.nvml")
            nvml.init_v2()
            self._device = nvml.device_get_handle_by_pci_bus_id_v2(pci_bus_id)
            self._nvml = nvml
        except Exception:  # no bindings, no driver, no such GPU: each raises another class
            return

    def facts(self) -> dict[str, Any]:
        """Return the facts that do not change: driver version, power limit in watts, and highest clocks in MHz."""
        return {
            "driver": self._read("system_get_driver_version"),
            "power_limit_w": _thousandth(self._of_device("enforced_power_limit")),
            "max_clock_mhz": self._of_device("max_clock_info", _SM),
            "max_memory_clock_mhz": self._of_device("max_clock_info", _MEMORY),
        }

    def read(self) -> dict[str, Any]:
        """Return current readings: clocks in MHz, watts, degrees Celsius, and the reasons for low clocks as text."""
        reasons = self._of_device("current_clocks_event_reasons")
        return {
            "clock_mhz": self._of_device("clock_info", _SM),
            "memory_clock_mhz": self._of_device("clock_info", _MEMORY),
            "power_w": _thousandth(self._of_device("power_usage")),
            "temperature_c": self._of_device("temperature_v", _GPU_SENSOR),
            "throttled": [reason for bit, reason in _REASONS.items() if (reasons or 0) & bit],
        }

    def _of_device(self, reading: str, *which: int) -> int | None:
        return None if self._nvml is None else self._read(f"device_get_{reading}", self._device, *which)

    def _read(self, function: str, *args: Any) -> Any:
        try:
            return getattr(self._nvml, function)(*args)
        except Exception:  # the library's own class, or a function that its release lacks
            return None


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000


# ---- samples of time -------------------------------------------------------------------------------------------------

#: A sample lasts at least this many seconds; short products are repeated within it.
SAMPLE_S = 5e-3
#: The most launches in one sample: the GPU's queue can hold about 1,000 launches, and a product may take several.
MOST_LAUNCHES = 400
#: A function runs for this many seconds before the first sample that counts, so that clocks rise and settle.
WARM_S = 0.05
#: While a sample is queued, the GPU is held busy for SLACK times the seconds in which the last sample was queued, plus 50
#: µs, but never longer than MOST_HOLD_S.
SLACK, MOST_HOLD_S = 1.5, 20e-3


class DeviceSampleLoop:
    """Takes samples of one function. ``launches`` has one launch for each set of operands; the sets are used in turn.

    The launches of a sample are queued while the GPU is held busy. The GPU's own clock measures the time of the
    launches, so the time that the host needs to launch a short kernel is not included. ``last`` is the number of the
    set whose output was written last.
    """

    def __init__(
        self, gpu: Device, checks: DeviceChecks, launches: Sequence[Submission], outputs: Sequence[Memory]
    ) -> None:
        self._gpu, self._checks, self._launches, self._outputs = gpu, checks, launches, outputs
        self._timer = gpu.timer()
        self._queueing_s = 1e-4
        self._inner = 1
        self.last, self.spent_s = -1, 0.0

    def warm_up(self) -> None:
        """Run the function for WARM_S seconds, and find out how many runs a sample takes."""
        warm = 0.0
        while True:
            once = self.sample()
            warm += self.spent_s
            self._inner = min(MOST_LAUNCHES, max(1, math.ceil(SAMPLE_S / max(once, 1e-7))))
            if warm >= WARM_S:
                return

    def sample(self) -> float:
        """Take one sample; return the mean seconds of one product in the sample. Raises LaunchError if a launch
        fails."""
        order = [(self.last + 1 + i) % len(self._launches) for i in range(self._inner)]
        self._gpu.fill(self._outputs[order[-1]], 0xFF)  # the result that is verified must come from a timed run
        self._checks.hold(min(MOST_HOLD_S, SLACK * self._queueing_s + 50e-6))()
        self._timer.start()
        start = time.perf_counter()
        for i in order:
            self._launches[i]()
        self._queueing_s = time.perf_counter() - start
        self.spent_s = self._timer.stop()
        self.last = order[-1]
        return self.spent_s / self._inner


# ---- cells -----------------------------------------------------------------------------------------------------------

#: A cell takes LEAST_SAMPLES samples or more, unless these take LONG_S seconds; and up to MOST_SAMPLES while all samples
#: together take less than CHEAP_S seconds.
LEAST_SAMPLES, LONG_S = 7, 2.0
MOST_SAMPLES, CHEAP_S = 10, 0.1
#: The part of the GPU's memory that one cell may use.
MEMORY_SHARE = 0.95
#: The longest time, in seconds, to prepare a cell, and the seconds that a sample may take beyond the limit for one
#: product.
PREPARE_S, GRACE_S = 900.0, 10.0

FIRST = "the first product"

#: A function that is called before each step of work on the GPU, with the most seconds until the next call and the name of
#: the step.
Watch = Callable[[float, str], None]
#: A function that takes the operands A, B and C, and returns a launch of their product.
Product = Callable[[Memory, Memory, Memory], Submission]


@dataclass
class MeasuredCell:
    """The result of measuring a cell: its outcome, the seconds of its first product, what the kernel needs of the GPU,
    such as registers and shared memory (``about``), and what NVML reported during the measurement (``moment``).
    ``lost`` is True if the GPU accepts no more work from this process."""

    outcome: Outcome
    once_s: float | None = None
    about: dict[str, Any] = field(default_factory=dict)
    moment: dict[str, Any] = field(default_factory=dict)
    lost: bool = False


class DeviceBench:
    """Measures cells on one GPU. Operands and the oracle's result stay in the GPU's memory for the next cells of the
    same shape, dtype and precision."""

    def __init__(self, gpu: Device, settings: Settings, *, watch: Watch = lambda seconds, what: None) -> None:
        self.gpu, self.settings, self.watch = gpu, settings, watch
        self.gauge = Gauge(gpu.pci_bus_id)
        self._room = int(MEMORY_SHARE * gpu.memory_bytes()[0])
        self._cublas: Cublas | None = None
        self._key: Any = None
        self._cached: tuple[DeviceSets, DeviceOracle] | None = None

    def facts(self) -> dict[str, Any]:
        """Return the facts about this GPU for the environment of every record."""
        try:
            library = self._library().version
        except UnavailableError:
            library = None
        return {
            "gpu": self.gpu.name,
            "arch": self.gpu.arch,
            "sms": self.gpu.sms,
            "gpu_l2": self.gpu.l2_bytes,
            "gpu_memory": self.gpu.memory_bytes()[1],
            **self.gauge.facts(),
            "nvrtc": compiler(),
            "cublas": library,
        }

    def peak(self, dtype: str) -> float | None:
        """Return the measured peak rate for a dtype, in GFLOPS; None for dtypes whose peak is not measured."""
        self.watch(PREPARE_S, "measuring the peak")
        return device_peak_gflops(self.gpu, dtype)

    def measure(self, cell: Cell, *, with_reference: bool = True, repeat: int | None = None) -> MeasuredCell:
        """Measure one cell, or find out why it cannot be measured. Samples of the cell alternate with samples of the
        reference, if there is one and ``with_reference`` is True.

        ``repeat`` is the number of samples. If ``repeat`` is None, the settings' number of samples is taken, and more
        as long as samples are short.
        """
        measured = MeasuredCell(Outcome("wrong"))
        try:
            self._attempt(cell, with_reference, repeat, measured)
        except (UnavailableError, UsageError, CompileError) as error:
            measured.outcome = Outcome("unsupported", str(error))
        except MemoryError as error:
            measured.outcome = Outcome("out_of_memory", str(error) or "the host's memory is full")
        except _StoppedError as error:
            measured.outcome = Outcome("wrong", str(error))
        except LaunchError as error:
            full = "CUDA_ERROR_OUT_OF_MEMORY" in str(error)
            measured.outcome = Outcome("out_of_memory" if full else "unsupported", str(error))
        measured.lost = self._is_lost()
        if measured.outcome.verdict not in ("ok", "unsupported") and not measured.lost:
            self._drop()  # it may have written to operands too: the next kernel gets new ones
        return measured

    def _attempt(self, cell: Cell, with_reference: bool, repeat: int | None, measured: MeasuredCell) -> None:
        product = self._compiled(cell, measured)
        sets, oracle = self._operands(cell)
        if not self._first(product, sets, oracle, measured):
            return
        launches = [product(a, b, c) for a, b, c in zip(sets.a, sets.b, sets.c, strict=True)]
        loop = DeviceSampleLoop(self.gpu, sets.checks, launches, sets.c)
        reference = self._reference(cell, sets) if with_reference else None
        self._sample(loop, reference, measured, repeat)
        last_check = self._verified(sets, oracle, loop.last)
        if last_check.verdict != "ok":
            measured.outcome = last_check

    def _is_lost(self) -> bool:
        """Whether an error is permanent: the GPU then refuses all further work of this process."""
        try:
            self.gpu.wait()
        except LaunchError:
            return True
        return False

    # ---- what a cell needs

    def _compiled(self, cell: Cell, measured: MeasuredCell) -> Product:
        """The compiled product of this cell. Raises an error if the cell is not supported."""
        self.watch(PREPARE_S, "compiling")
        if cell.dtype not in cell.kernel.dtypes:
            raise UsageError(f"{cell.kernel.name} has no {cell.dtype}: it takes {', '.join(cell.kernel.dtypes)}")
        if cell.kernel.is_reference:
            library = self._library()
            return lambda a, b, c: library.gemm(a, b, c, cell.shape, cell.dtype, precision=cell.precision)
        (m, n, _), kernel, gpu = cell.shape, cell.kernel, self.gpu
        if not m * n:
            raise UsageError(f"C is {m}x{n}: it has no elements, so nothing is launched")
        p = plain_launch(kernel, cell.shape, cell.dtype, cell.params, arch=gpu.arch, sms=gpu.sms)
        has = gpu.attributes(p.compiled, p.entry)
        shared = has.shared_bytes + p.launch.shared_bytes
        measured.about = {
            "threads": p.launch.threads,
            "registers": has.registers,
            "local_bytes": has.local_bytes,
            "shared_bytes": shared,
            "arch": gpu.arch,
            **residency(gpu.arch, p.launch.threads, has.registers, shared),
            "formulas": formula_values(kernel, cell.shape, cell.params),
        }

        def product(*operands: Memory) -> Submission:
            launch = p.launch
            return gpu.prepare(
                p.compiled, p.entry, launch.grid, launch.block, p.arguments(operands), launch.shared_bytes
            )

        return product

    def _library(self) -> Cublas:
        if self._cublas is None:
            self._cublas = Cublas(self.gpu)
        return self._cublas

    def _operands(self, cell: Cell) -> tuple[DeviceSets, DeviceOracle]:
        """The operands of this cell's shape and dtype, and their oracle. Raises MemoryError where they do not fit."""
        key = (cell.shape, cell.dtype, cell.precision)
        if self._cached is not None and self._key == key:
            return self._cached
        self._drop()
        form, (m, n, _) = format_of(cell.dtype, cell.precision), cell.shape
        layout = SetLayout.of(cell.shape, form, self.gpu.l2_bytes)
        needed = layout.nbytes + 16 * m * n
        if needed > self._room:
            raise MemoryError(f"needs {bytes_text(needed)} with its verification, {bytes_text(self._room)} are free")
        checks = DeviceChecks(self.gpu, form)
        values = self._values(cell, form)
        sets = DeviceSets(self.gpu, checks, layout, values)
        oracle = DeviceOracle(checks, cell.shape, sets.a[0], sets.b[0], values, seed=self.settings.seed)
        self._key, self._cached = key, (sets, oracle)
        return self._cached

    def _values(self, cell: Cell, form: NumberFormat) -> Any:
        operands = self.settings.given(cell.shape, cell.dtype)
        return (
            random_values(cell.shape, form, self.settings.seed) if operands is None else given_values(*operands, form)
        )

    def _drop(self) -> None:
        """Free the operands and the oracle, for another size, or because a wrong kernel may have written to them."""
        for cached in self._cached or ():
            cached.close()
        self._key = self._cached = None

    # ---- the steps of a cell

    def _first(self, product: Product, sets: DeviceSets, oracle: DeviceOracle, measured: MeasuredCell) -> bool:
        """Run it once, into an output full of NaN, and verify. Returns whether it is to be timed."""
        limit = self.settings.limit_s
        submit, timer = product(sets.a[0], sets.b[0], sets.c[0]), self.gpu.timer()
        sets.poison()
        self.watch(limit + GRACE_S, FIRST)
        timer.start()
        submit()
        with _stopped_not_refused():
            measured.once_s = timer.stop()
        if measured.once_s > limit:
            measured.outcome = Outcome("time_limit", f"took {measured.once_s:.3g} s, the limit is {limit:g} s")
        else:
            measured.outcome = self._verified(sets, oracle, 0)
        if measured.outcome.verdict != "ok":
            return False
        measured.outcome.rms_error = oracle.rms_error(sets.c[0])
        return True

    def _verified(self, sets: DeviceSets, oracle: DeviceOracle, index: int) -> Outcome:
        self.watch(PREPARE_S, "the verification")
        if changed := sets.changed():
            return Outcome("wrong", f"{changed}: a kernel writes to C alone")
        check = oracle.check(sets.c[index])
        verdict = "ok" if check.ok else "wrong"
        return Outcome(verdict, check.reason, [], [], check.max_abs_error, check.error_over_bound)

    def _reference(self, cell: Cell, sets: DeviceSets) -> DeviceSampleLoop | None:
        """The library that R refers to, unless this cell is that library, or it does not take this dtype or size."""
        references = self.settings.references
        if not references or cell.kernel.name == references[0].name or cell.dtype not in references[0].dtypes:
            return None
        try:
            library = self._library()
            launches = [
                library.gemm(a, b, r, cell.shape, cell.dtype, precision=cell.precision)
                for a, b, r in zip(sets.a, sets.b, sets.reference_c, strict=True)
            ]
            launches[0]()
            self.gpu.wait()
        except (UnavailableError, LaunchError):
            return None
        return DeviceSampleLoop(self.gpu, sets.checks, launches, sets.reference_c)

    def _sample(
        self, loop: DeviceSampleLoop, reference: DeviceSampleLoop | None, measured: MeasuredCell, repeat: int | None
    ) -> None:
        """Alternate samples of the kernel and the reference, and read clocks, power and temperature between them."""
        outcome, loops = measured.outcome, [loop] if reference is None else [loop, reference]
        samples, spent = (outcome.samples_s, outcome.reference_samples_s), 0.0
        allowance = self.settings.limit_s + GRACE_S
        with _stopped_not_refused():
            for each in loops:
                self.watch(2 * allowance, "warming up")
                each.warm_up()
            readings = [self.gauge.read()]
            while not self._enough(len(outcome.samples_s), spent, repeat):
                for each, seconds in zip(loops, samples, strict=False):
                    self.watch(allowance, "a sample")
                    seconds.append(each.sample())
                    spent += each.spent_s
                readings.append(self.gauge.read())
        measured.moment = _nvml_facts(readings)

    def _enough(self, count: int, spent: float, repeat: int | None) -> bool:
        if repeat is not None:
            return count >= repeat
        if count < self.settings.repeat or (count < LEAST_SAMPLES and spent < LONG_S):
            return False
        return spent >= CHEAP_S or count >= MOST_SAMPLES


class _StoppedError(Exception):
    """Raised if the GPU stopped a kernel that was running; a refused launch raises another error."""


@contextlib.contextmanager
def _stopped_not_refused() -> Iterator[None]:
    """Turns a LaunchError into _StoppedError: the kernel has started."""
    try:
        yield
    except LaunchError as error:
        raise _StoppedError(str(error)) from error


def _nvml_facts(readings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What NVML reported while a cell was sampled: clocks before and after, the highest power and temperature, and every
    reason for a reduced clock."""
    first, last = readings[0], readings[-1]

    def highest(name: str) -> Any:
        return max((r[name] for r in readings if r[name] is not None), default=None)

    return {
        "clock_mhz_before": first["clock_mhz"],
        "clock_mhz_after": last["clock_mhz"],
        "memory_clock_mhz": last["memory_clock_mhz"],
        "power_w": highest("power_w"),
        "temperature_c": highest("temperature_c"),
        "throttled": ", ".join(sorted({reason for r in readings for reason in r["throttled"]})),
    }


# ---- residency -------------------------------------------------------------------------------------------------------
# Facts about a CUDA kernel for a record of the bench: its resident warps, and what its formulas count.


def residency(arch: str, threads: int, registers: int, shared: int) -> dict[str, Any]:
    """Return the number of resident warps of a multiprocessor for blocks of ``threads`` threads, the most warps that it
    can hold, and what limits the number. The result is empty for an unknown ``arch``.

    ``registers`` is the number of registers of each thread, and ``shared`` is the bytes of shared memory of each block.
    The limits are those of the GPU's compute capability.

    >>> residency("sm_90a", 256, 64, 0)
    {'resident_warps': 32, 'max_warps': 64, 'limited_by': 'registers'}
    >>> residency("sm_11", 256, 64, 0)
    {}
    """
    card = next((gpu for gpu in GPUS if gpu.compute_capability == capability_of(arch)), None)
    if card is None:
        return {}
    resident = occupancy(card, threads, registers, shared)
    limits = ", ".join(resident.limiting)
    return {"resident_warps": resident.warps, "max_warps": resident.max_warps, "limited_by": limits}


def formula_values(kernel: CudaKernel, shape: Shape, params: dict[str, int]) -> dict[str, int]:
    """Return the values that the kernel's own formulas give for a shape.

    >>> from tilewright.kernels.catalog import cuda_catalog
    >>> formula_values(cuda_catalog()["cuda/coalesced"], (32, 32, 32), {})["global_load_sectors"]
    5120
    """
    values = dict(zip("mnk", shape, strict=True)) | kernel.checked(params)
    counts: dict[str, int] = {}
    for name, formula in kernel.formulas.items():
        with contextlib.suppress(UsageError):  # a user's formula that divides by zero is left out
            counts[name] = formula(**values)
    return counts


# ---- device peaks ----------------------------------------------------------------------------------------------------
# The measured peak of a GPU: multiply-adds a second in registers; in float64 by tensor cores too.


SOURCE = Path(__file__).with_name("device_peaks.cu")
_SAMPLES = 10
_SAMPLE_S = 0.02
_THREADS = 256
_BLOCKS = 8  # for each multiprocessor: all the threads it can hold

#: Operations of one round of 256 threads, without and with matrix instructions; the latter for one multiply-add each.
_PLAIN = 2 * 8 * 32 * _THREADS
_MATRIX = 2 * 8 * 8 * _THREADS // 32


def device_peak_gflops(gpu: Device, dtype: str) -> float | None:
    """Measure the peak of this GPU in 1e9 operations a second; a multiply-add is two operations. The peak is the best
    of ten samples of 20 ms.

    The result is None for float16 and bfloat16, whose multiply-adds this function does not measure.
    """
    if dtype not in ("float32", "float64"):
        return None
    peaks = [_measured(gpu, dtype, "multiply_add", _PLAIN)]
    generation = int(gpu.capability.split(".")[0])
    if dtype == "float64" and generation >= 8:
        size = 16 * 8 * 16 if generation >= 9 else 8 * 8 * 4  # multiply-adds of one matrix instruction
        peaks.append(_measured(gpu, dtype, "multiply_add_matrix", _MATRIX * size))
    return max(peaks)


def _measured(gpu: Device, dtype: str, entry: str, operations: int) -> float:
    compiled = compile_file(SOURCE, arch=gpu.arch, defines={f"DTYPE_{dtype.upper()}": 1})
    number, timer, blocks = np.dtype(dtype).type, gpu.timer(), _BLOCKS * gpu.sms

    def seconds(rounds: int) -> float:
        timer.start()
        gpu.submit(compiled, entry, blocks, _THREADS, (out, rounds, number(0.5), number(1)))
        return timer.stop()

    with gpu.allocate(8) as out:
        rounds = 64
        while seconds(rounds) < _SAMPLE_S and rounds < 1 << 24:
            rounds *= 2
        best = min(seconds(rounds) for _ in range(_SAMPLES))
    return operations * blocks * rounds / best / 1e9


# ---- device sets -----------------------------------------------------------------------------------------------------
# What a benchmark multiplies on a GPU: operands in one piece of memory, with guards between them.
#
# Every set holds the same two matrices at other addresses, so that one oracle serves them all. Guards are bytes before and
# behind each matrix that no kernel may write. They are 0xFF, as C is before a kernel runs: a NaN in every format. So a
# guard that is read makes the result NaN, and an element of C that is not written is found.


#: The bytes of all sets together, as a multiple of the L2 cache, so that a set has been evicted from it when the set is
#: used again.
ROTATION = 2
MOST_SETS = 4096
#: The least and the most bytes of a guard. Within these limits a guard is as large as C, because a tile that extends
#: beyond C's edge would write to it.
LEAST_GUARD, MOST_GUARD = 4096, 1 << 20

_ALIGNMENT = 256
_POISON = 0xFF
_NAMES = ("A", "B", "C", "the reference's C")

Values = tuple[NDArray[np.floating[Any]], NDArray[np.floating[Any]]]


def random_values(shape: Shape, form: NumberFormat, seed: int) -> Values:
    """Return A and B with uniform random elements in [−1, 1), rounded to the format. The elements depend only on the
    seed and the shape."""
    m, n, k = shape
    rng = np.random.default_rng([seed, m, n, k])
    a, b = (_uniform(rng, size, form.working) for size in ((m, k), (k, n)))
    return form.values(form.stored(a)), form.values(form.stored(b))


def given_values(a: NDArray[Any], b: NDArray[Any], form: NumberFormat) -> Values:
    """Return the user's own matrices, rounded to the format."""
    return form.values(form.stored(a)), form.values(form.stored(b))


def _uniform(rng: np.random.Generator, size: tuple[int, int], dtype: np.dtype[Any]) -> NDArray[np.floating[Any]]:
    x = rng.random(size, dtype=dtype.type)
    x *= 2
    x -= 1
    return x


@dataclass(frozen=True)
class SetLayout:
    """The positions of the matrices in memory: the starts and sizes in bytes of A, B, C and the reference's C in a set
    of operands, the bytes of a set (``period``), and the number of sets."""

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    period: int
    count: int

    @classmethod
    def of(cls, shape: Shape, form: NumberFormat, l2_bytes: int) -> SetLayout:
        """Return the layout with so many sets that each set has been evicted from the L2 cache when it is used again.

        >>> from tilewright.lab.inputs.formats import FORMATS
        >>> SetLayout.of((256, 256, 256), FORMATS["float32"], 60_000_000).count
        115
        """
        m, n, k = shape
        sizes = tuple(elements * form.itemsize for elements in (m * k, k * n, m * n, m * n))
        guard = _aligned(min(MOST_GUARD, max(LEAST_GUARD, sizes[2])))
        starts, at = [], guard
        for size in sizes:
            starts.append(at)
            at = _aligned(at + size) + guard
        count = math.ceil(ROTATION * l2_bytes / max(1, sum(sizes)))
        return cls(tuple(starts), sizes, at, min(MOST_SETS, max(1, count)))

    @property
    def nbytes(self) -> int:
        """The bytes of all sets, including guards."""
        return self.period * self.count

    @property
    def guards(self) -> list[tuple[str, int, int]]:
        """Return name, start and size of each guard of a set; a guard is the bytes between the end of one matrix and
        the start of the next."""
        ends = [start + size for start, size in zip(self.starts, self.sizes, strict=True)]
        begins = zip(("before A", *(f"behind {name}" for name in _NAMES)), (0, *ends), strict=True)
        return [
            (name, start, end - start) for (name, start), end in zip(begins, (*self.starts, self.period), strict=True)
        ]


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


class DeviceSets:
    """The sets of operands of one shape and format, in the GPU's memory. ``c`` has the kernel's output of each set, and
    ``reference_c`` has the reference's output.

    Raises LaunchError if the GPU's memory cannot hold the sets.
    """

    def __init__(self, gpu: Device, checks: DeviceChecks, layout: SetLayout, values: Values) -> None:
        self._gpu, self.checks, self.layout = gpu, checks, layout
        self._memory = gpu.allocate(layout.nbytes)
        gpu.fill(self._memory, _POISON)
        self.a, self.b, self.c, self.reference_c = (
            [self._part(start, size, i) for i in range(layout.count)]
            for start, size in zip(layout.starts, layout.sizes, strict=True)
        )
        for copies, matrix in zip((self.a, self.b), values, strict=True):
            gpu.copy_to(copies[0], checks.form.stored(matrix))
            for other in copies[1:]:
                gpu.copy(other, copies[0])
        self._sums = [int(checks.checksums(copies[0], 0, 1)[0]) for copies in (self.a, self.b)]

    def __len__(self) -> int:
        return self.layout.count

    def _part(self, start: int, size: int, index: int) -> Memory:
        return self._memory.part(start + index * self.layout.period, size)

    def poison(self) -> None:
        """Fill every output of the kernel with NaN."""
        for c in self.c:
            self._gpu.fill(c, _POISON)

    def changed(self) -> str:
        """Return as text what a kernel has written outside C; empty if it wrote to C alone. All sets are checked."""
        period, parts = self.layout.period, len(self)
        operands = zip("AB", (self.a, self.b), self._sums, strict=True)
        names = [name for name, x, sum_ in operands if (self.checks.checksums(x[0], period, parts) != sum_).any()]
        if names:
            return f"it changed {' and '.join(names)}"
        for name, start, size in self.layout.guards:
            if (touched := self.checks.touched(self._part(start, size, 0), period, parts)) is not None:
                return f"it wrote memory {name}, byte {touched[1]} of {size} there"
        return ""

    def close(self) -> None:
        """Free the GPU's memory."""
        self._memory.close()
