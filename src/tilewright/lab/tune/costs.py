"""Fits the costs in the predicted times of the engine's kernels to measured launches (see ``kernels.cuda_kernel``).

The script ``benchmarks/fit_costs.py`` uses this module. Its command ``measure`` writes the records to which costs are
fitted: products of random shapes, each with the times of several ways to compute it. The fit minimises the differences
between the logarithms of predicted and measured times, by least squares with Huber's loss, in which outliers count
linearly. The unknowns of the fit are the logarithms of the costs, so costs stay positive. Measured products are divided
at random into three sets. Costs are fitted to the first set of products. The second set of products decides which costs
are dropped. The errors are reported for the third set of products, which affects neither the fit nor the dropping.

A record contains only those ways to compute a product that were predicted, with the present table of costs, to be among
the fastest. A fit to one record may therefore predict too short times for ways to compute a product that were not
measured, and the planner would then prefer such ways. So measure again with the fitted table of costs, and fit to both
records together.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...errors import UsageError
from ...gpu.planning.columns import Column, staged
from ...gpu.planning.ways import EngineShape, part_steps, sums_dtype
from ...kernels.catalog import cuda_engine
from ...kernels.cuda_kernel import LINE, TIMED, Card, CudaKernel
from ...product.problem import itemsize_of

Mask = npt.NDArray[np.bool_]
Costs = Mapping[str, float]

#: The fraction of the products to which costs are fitted, and the fraction that decides which costs are dropped.
FIT_SHARE, DECIDING_SHARE = 0.6, 0.2
#: Residuals (logarithms of ratios) beyond this count linearly.
_HUBER = 0.1
#: Weight of the penalty on moving a cost from its starting value: a change by a factor of e costs as much as a residual of
#: this size. It keeps costs that no sample depends on where they are.
_PENALTY = 0.05
#: The most steps of a fit, the largest change of the logarithm of a cost in one step, and the least relative gain of a step.
_MAX_STEPS, _MAX_LOG_STEP, _LEAST_GAIN = 40, 0.7, 1e-4
#: The largest factor by which a fit changes a cost: costs that a record cannot separate should stay plausible.
_MAX_FACTOR = 4.0
#: The costs that are rates of memory, and their upper limit: the datasheet's bandwidth of the card that the tables are for.
_MEMORY_RATES, _MAX_MEMORY_RATE = ("memory_rate", "read_rate", "write_rate"), 4.8e12
#: The ``memory_ratio`` of a card with slower memory.
_SLOW_MEMORY_RATIO = 1.5
#: Kernels with fewer measured ways keep their costs.
_FEWEST_WAYS = 40
#: The cost that must not be dropped, because every launch takes some time.
_LAUNCH = "launch_s"
#: The amount by which the mean regret may grow when a kernel is fitted, because measured times are noisy.
REGRET_NOISE = 2e-5
#: The most by which the mean regret of the chosen version of a kernel's costs may exceed the smallest of all versions.
REGRET_TOLERANCE = 5e-4
#: The most by which the loss (relatively) and the mean regret may grow when costs are dropped.
MORE_LOSS, MORE_REGRET = 0.04, 1e-4
#: The search for costs to drop ends after this many costs that could not be dropped.
MAX_DROP_FAILURES = 12


class MeasuredWay(NamedTuple):
    """One measured way to compute a product. A ``MeasuredWay`` has the number of the product; the kernel with its
    shape, its parameters and the number of parts of k; the measured seconds of all launches; and the predicted seconds
    of the other kernels' launches, which add parts of C or split operands."""

    product: int
    kernel: str
    shape: EngineShape
    params: Mapping[str, int]
    parts: int
    total_s: float
    others_s: float


class MeasuredLaunches(NamedTuple):
    """The measured ways to compute products in one or several record files, ordered by product, and the GPU on which
    they were measured."""

    ways: list[MeasuredWay]
    card: Card


def read_together(paths: Sequence[Path]) -> MeasuredLaunches:
    """Read the measured ways to compute products from several files. Raises UsageError if the files were measured on
    different GPUs."""
    first, *others = map(read_record, paths)
    ways = list(first.ways)
    for each in others:
        if each.card != first.card:
            raise UsageError(f"records of several cards: {first.card.name}, {each.card.name}")
        number = ways[-1].product + 1 if ways else 0
        ways += [way._replace(product=way.product + number) for way in each.ways]
    return first._replace(ways=ways)


def read_record(path: Path) -> MeasuredLaunches:
    """Read the measured ways to compute products from a file, which may be compressed (``.xz``). A measured way is
    skipped if its kernel no longer multiplies its dtype."""
    multiplied = {(kernel.name, dtype) for kernel in cuda_engine().values() for dtype in kernel.dtypes}
    with lzma.open(path, "rt") if path.suffix == ".xz" else path.open(encoding="utf-8") as file:
        header = json.loads(next(file))
        kernels = list(header["kernels"].items())
        ways = [
            way
            for i, line in enumerate(map(json.loads, file))
            for way in (_way(i, each, line["shapes"], kernels) for each in line["ways"])
            if (way.kernel, way.shape.dtype) in multiplied
        ]
    known = header["environment"]
    # Records of schema 1 may not say the compute capability: those were measured on an H200.
    capability = known.get("capability", Card().capability)
    return MeasuredLaunches(ways, Card(known["gpu"], known["sms"], known["memory_ratio"], capability=capability))


def _way(product: int, line: list[Any], shapes: list[list[Any]], kernels: list[tuple[str, list[str]]]) -> MeasuredWay:
    """A way from one line of a record: [kernel number, shape number, parameters, parts of k, 1 if predicted to be near the
    best, predicted ns of the other launches, measured ns of the kernel's launch (samples), measured ns of all launches
    (samples)]. One of the two lists of samples may be empty."""
    kernel, shape, params, parts, _, others, launch, whole = line
    name, names = kernels[kernel]
    # A launch that is submitted alone begins before the preceding work has ended; one with launches after it does not. So
    # use the measured time of all launches if there is one.
    total_ns = float(np.median(whole)) if whole else float(np.median(launch)) + others
    given = dict(zip(names, params, strict=True))
    return MeasuredWay(product, name, EngineShape(*shapes[shape]), given, parts, total_ns * 1e-9, others * 1e-9)


class Model:
    """The launches of one kernel in a record, compiled to a program that predicts the times of these launches from
    costs."""

    def __init__(self, kernel: CudaKernel, record: MeasuredLaunches, numbers: npt.NDArray[np.intp]) -> None:
        self.kernel, self.numbers = kernel, numbers
        given = [_timing_variables(kernel, record.ways[i], record.card) for i in numbers]
        columns = {name: np.array([each[name] for each in given], float) for name in given[0]}
        self._program = staged(kernel.time, tuple(columns), kernel.costs, set(columns))
        self._prepared = self._program.prepare(columns)
        ways = [record.ways[i] for i in numbers]
        #: For each way, the measured seconds of all launches, and the predicted seconds of those among them that other
        #: kernels make.
        self.measured = np.array([way.total_s for way in ways])
        self.others = np.array([way.others_s for way in ways])

    def seconds(self, costs: Costs) -> Column:
        """Return the predicted seconds of the kernel's own launches. Raises ZeroDivisionError if one of the costs is a
        rate and zero."""
        return self._program.finish(self._prepared, None, costs)

    def errors(self, costs: Costs) -> Column:
        """Return the natural logarithm of predicted over measured time, for each measured way to compute a product.
        Raises ZeroDivisionError if a predicted time is not positive."""
        with np.errstate(all="ignore"):
            found: Column = np.log((self.seconds(costs) + self.others) / self.measured)
        if not np.isfinite(found).all():
            raise ZeroDivisionError(f"{self.kernel.name}: a predicted time is not a positive number")
        return found


def _timing_variables(kernel: CudaKernel, way: MeasuredWay, card: Card) -> dict[str, float]:
    """The variables of the kernel's ``time`` expression for this way: the names of TIMED, LINE and the parameters, with the
    values that ``gpu.planning.ways`` gives them."""
    shape, params, parts = way.shape, kernel.checked(way.params), way.parts
    size, k, is_whole = itemsize_of(shape.dtype), shape.k, way.parts == 1
    step = kernel.step_of_k(size, params) if not is_whole else 1
    part = k if is_whole else part_steps(kernel, params, shape.dtype, k, parts) * step
    blocks = kernel.launch(shape.m, shape.n, k, **params).blocks * shape.batch * parts
    out = itemsize_of(shape.out if is_whole else sums_dtype(shape.dtype))
    of_shape = {name: getattr(shape, name) for name in TIMED if hasattr(shape, name)}
    of_shape |= {"c_down": is_whole and shape.c_down, "lines": shape.a_start == shape.b_start == 128}
    of_way = {"parts": parts, "part": part, "size": size, "out_size": out, "blocks": blocks}
    of_card = dict(zip(("sms", "memory_ratio", "int8_rate"), card.facts, strict=True))
    return {
        **of_shape, **of_way, **of_card, "finished": shape.vectors is not None, "scaled": shape.blocks,
        LINE: 128 // size, **params,
    }  # fmt: skip


# ---- fitting ---------------------------------------------------------------------------------------------------------


def is_threshold(name: str) -> bool:
    """Return whether a cost is a threshold: the value of a quantity at which another cost begins to apply. The
    derivative of a predicted time with respect to a threshold is 0 almost everywhere, so least squares cannot fit
    thresholds."""
    return name.endswith(("_above", "_below"))


def free_costs(kernel: CudaKernel, costs: Costs) -> list[str]:
    """Return the costs of a kernel that a fit changes: all except thresholds, dropped costs (zero), and costs that the
    kernel's header lists as ``unfitted``."""
    return [name for name, cost in costs.items() if cost > 0 and not is_threshold(name) and name not in kernel.unfitted]


def fit_costs(
    model: Model, costs: Costs, weights: Column, present: Costs, *, steps: int = _MAX_STEPS
) -> dict[str, float]:
    """Return the costs that minimise the loss, found by the method of Levenberg and Marquardt from the starting values
    ``costs``. Each fitted cost stays within a factor of 4 of its ``present`` value. Dropped costs stay dropped."""
    free = free_costs(model.kernel, costs)
    if not free:
        return dict(costs)
    start = logs = np.log([costs[name] for name in free])
    low, high = (np.log([present[name] for name in free]) + sign * np.log(_MAX_FACTOR) for sign in (-1, 1))
    high = np.minimum(
        high, [np.log(max(_MAX_MEMORY_RATE, present[name])) if name in _MEMORY_RATES else np.inf for name in free]
    )
    damping, errors = 1e-3, model.errors(costs)
    least = _loss(errors, weights, logs - start)
    for _ in range(steps):
        slopes = _slopes(model, _with(costs, free, logs), free, errors)
        robust_weights = weights * np.minimum(1, _HUBER / np.maximum(abs(errors), 1e-300))
        normal = slopes.T * robust_weights @ slopes + _PENALTY**2 * np.eye(len(free))
        gradient = slopes.T @ (robust_weights * errors) + _PENALTY**2 * (logs - start)
        for _ in range(8):
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -gradient)
            trial = np.clip(logs + np.clip(step, -_MAX_LOG_STEP, _MAX_LOG_STEP), low, high)
            trial_errors = model.errors(_with(costs, free, trial))
            loss = _loss(trial_errors, weights, trial - start)
            if loss < least:
                break
            damping *= 4
        else:
            break
        gain, least, logs, errors, damping = 1 - loss / least, loss, trial, trial_errors, damping / 4
        if gain < _LEAST_GAIN:
            break
    return _with(costs, free, logs)


def _slopes(model: Model, costs: Costs, free: list[str], errors: Column) -> npt.NDArray[np.float64]:
    """The derivatives of the errors by the logarithms of the costs, one column for each of ``free``."""
    small = 1e-5
    return np.array([(model.errors({**costs, name: costs[name] * np.exp(small)}) - errors) / small for name in free]).T


def _with(costs: Costs, names: list[str], logs: Column) -> dict[str, float]:
    return {**costs, **dict(zip(names, np.exp(logs).tolist(), strict=True))}


def _loss(errors: Column, weights: Column, moved: Column) -> float:
    """The sum that a fit minimises: Huber's loss of the errors, and the penalty on the logarithms ``moved`` by which costs
    have changed."""
    size = abs(errors)
    robust = np.where(size < _HUBER, size**2, 2 * _HUBER * size - _HUBER**2)
    return float(weights @ robust + (_PENALTY * moved) @ (_PENALTY * moved))


# ---- choosing --------------------------------------------------------------------------------------------------------


class Split(NamedTuple):
    """Masks that select measured ways to compute products: those of products to which costs are fitted, of products
    that decide which costs are dropped, and of products that are only reported."""

    fit_mask: Mask
    deciding: Mask
    reported: Mask

    @classmethod
    def of(cls, record: MeasuredLaunches, seed: int = 1) -> Split:
        """Divide the measured ways to compute products at random into three sets; all ways to compute one product are
        in the same set."""
        products = np.array([way.product for way in record.ways])
        drawn = np.random.default_rng(seed).random(products.max(initial=0) + 1)[products]
        last = FIT_SHARE + DECIDING_SHARE
        return cls(drawn < FIT_SHARE, (drawn >= FIT_SHARE) & (drawn < last), drawn >= last)


def regrets(products: npt.NDArray[np.intp], predicted: Column, measured: Column) -> Column:
    """Return the regret of each product: the time lost by choosing the predicted fastest way to compute it. The regret
    is t / t₀ − 1, where t is the measured time of the way with the shortest predicted time, and t₀ is the shortest
    measured time. The measured ways must be ordered by product."""
    if not len(products):
        return np.empty(0)
    begins = np.flatnonzero(np.diff(products, prepend=products[0] - 1))
    least = np.minimum.reduceat(measured, begins)
    chosen = [begin + int(each.argmin()) for begin, each in zip(begins, np.split(predicted, begins[1:]), strict=True)]
    found: Column = measured[chosen] / least - 1
    return found


class Fit:
    """Fits the costs in the predicted times of all kernels of a record. The fit begins with the ``costs`` of a
    table."""

    def __init__(self, record: MeasuredLaunches, kernels: Iterable[CudaKernel], costs: Mapping[str, Costs]) -> None:
        names = np.array([way.kernel for way in record.ways])
        self.record, self.split = record, Split.of(record)
        self.products = np.array([way.product for way in record.ways])
        self.measured = np.array([way.total_s for way in record.ways])
        self.others = np.array([way.others_s for way in record.ways])
        numbers = {kernel: (names == kernel.name).nonzero()[0] for kernel in kernels}
        self.models = {k.name: Model(k, record, found) for k, found in numbers.items() if len(found)}
        self.costs: dict[str, Costs] = {name: dict(costs[name]) for name in self.models}
        self.present, self._known = dict(self.costs), dict[str, tuple[Any, Any]]()
        best = np.full(self.products.max() + 1, np.inf)
        np.minimum.at(best, self.products, self.measured)
        #: Ways that are much slower than the fastest way of their product have small weights.
        self.weights = best[self.products] / self.measured

    def predicted(self, changed: Mapping[str, Costs] | None = None) -> Column:
        """Return the predicted times of all measured ways to compute products, including all launches; ``changed`` has
        other costs for some kernels."""
        found = self.others.copy()
        for name, model in self.models.items():
            costs = (changed or {}).get(name) or self.costs[name]
            known, seconds = self._known.get(name, (None, None))
            if known is not costs:  # most kernels keep their costs from one call to the next
                seconds = model.seconds(costs)
                self._known[name] = costs, seconds
            found[model.numbers] += seconds
        return found

    def regrets(self, mask: Mask, changed: Mapping[str, Costs] | None = None) -> Column:
        """Return the regrets of the products in ``mask``."""
        return regrets(self.products[mask], self.predicted(changed)[mask], self.measured[mask])

    def fit(self, name: str, *, steps: int = _MAX_STEPS, costs: Costs | None = None) -> dict[str, float]:
        """Fit the costs of a kernel to the products of ``split.fit_mask``, from the starting values ``costs``."""
        model = self.models[name]
        weights = (self.weights * self.split.fit_mask)[model.numbers]
        return fit_costs(model, costs or self.costs[name], weights, self.present[name], steps=steps)

    def loss(self, name: str, costs: Costs, mask: Mask) -> float:
        """Return the mean loss of a kernel on the products in ``mask``; outliers count as in the fit."""
        model = self.models[name]
        weights = (self.weights * mask)[model.numbers]
        return _loss(model.errors(costs), weights, np.zeros(1)) / max(weights.sum(), 1e-300)

    def improve(self, tell: Callable[[str], object] = print) -> None:
        """Fit each kernel. The new costs of a kernel are used only if two conditions hold. First, the loss on the
        products of the second set (``Split``), which decide about costs, must not grow. Second, the mean regret
        (``regrets``) on all products but those of the third set, which are only reported, may grow by at most
        REGRET_NOISE."""
        fitted_and_deciding = ~self.split.reported
        for name in self.models:
            if len(self.models[name].numbers) < _FEWEST_WAYS:
                continue
            costs = self.fit(name)
            before, after = (self.loss(name, each, self.split.deciding) for each in (self.costs[name], costs))
            regret_before, regret_after = (
                float(self.regrets(fitted_and_deciding, {name: c}).mean()) for c in (self.costs[name], costs)
            )
            is_better = after <= before and regret_after <= regret_before + REGRET_NOISE
            tell(
                f"{name}: error {before**0.5:.3f} -> {after**0.5:.3f}, regret {regret_before:.4f} -> {regret_after:.4f}"
                f"{'' if is_better else ': not taken'}"
            )
            if is_better:
                self.costs[name] = costs

    def choose_versions(self, versions: Iterable[Mapping[str, Costs]], tell: Callable[[str], object] = print) -> None:
        """For each kernel, choose the first version of its costs whose mean regret (``regrets``) is at most
        REGRET_TOLERANCE above the smallest of all versions. The limit applies to the mean regret on the reported
        products and to that on the other products. If no version is within the tolerance, choose the version that
        exceeds the smallest regret by the least. A version of the costs is excluded if its mean regret on the reported
        products exceeds that of the last version by more than the tolerance."""
        known = list(versions)
        for name in self.models:
            found = np.array([
                [self.regrets(mask, {name: each[name]}).mean() for mask in (self.split.reported, ~self.split.reported)]
                for each in known
            ])  # fmt: skip
            worse = (found - found.min(axis=0)).max(axis=1)
            worse[found[:, 0] > found[-1, 0] + REGRET_TOLERANCE] = np.inf
            is_close = worse <= REGRET_TOLERANCE
            best = int(is_close.argmax()) if is_close.any() else int(worse.argmin())
            tell(f"{name}: version {best} of {len(known)}, regrets {' / '.join(f'{each[0]:.4f}' for each in found)}")
            self.costs[name] = known[best][name]

    def report(self, costs: Mapping[str, Costs]) -> dict[str, dict[str, float]]:
        """Return the errors and regrets of these costs on the reported products: for "all" kernels together, and for
        each kernel."""
        reported, totals = self.split.reported, self.predicted(costs)
        errors = np.exp(abs(np.log(totals / self.measured))) - 1
        names = np.array([way.kernel for way in self.record.ways])
        masks = {"all": reported} | {name: reported & (names == name) for name in self.models}
        return {
            name: {
                "costs": sum(len(_not_dropped(costs[each])) for each in self.models if name in ("all", each)),
                "ways": int(mask.sum()),
                "median_error": float(np.median(errors[mask])),
                "error_of_90_percent": float(np.quantile(errors[mask], 0.9)),
                "within_15_percent": float((errors[mask] <= 0.15).mean()),
                "products": len(regret := regrets(self.products[mask], totals[mask], self.measured[mask])),
                "mean_regret": float(regret.mean()),
                "within_3_percent": float((regret <= 0.03).mean()),
            }
            for name, mask in masks.items()
            if mask.any()
        }

    def without_needless_costs(self, name: str, tell: Callable[[str], object] = print) -> dict[str, float]:
        """Return the costs of a kernel, with every cost that is not needed dropped. A cost is not needed if times are
        predicted almost as well after the other costs are fitted without it: the loss on the products that decide which
        costs are dropped grows by at most MORE_LOSS, and the mean regret on all products except those that are only
        reported grows by at most MORE_REGRET."""
        deciding, fitted_and_deciding = self.split.deciding, ~self.split.reported
        if len(self.models[name].numbers) < _FEWEST_WAYS:
            return dict(self.costs[name])
        costs = self.fit(name)
        most = self.loss(name, costs, deciding) * (1 + MORE_LOSS)
        most_regret = float(self.regrets(fitted_and_deciding, {name: costs}).mean()) + MORE_REGRET
        count, needed = max(1, len(costs) // 5), set[str]()
        while candidates := [each for each in self._droppable_costs(name, costs) if each not in needed]:
            dropped = candidates[:count]
            try:
                trial = self.fit(name, steps=10, costs={**costs, **dict.fromkeys(dropped, 0.0)})
                is_good = (
                    self.loss(name, trial, deciding) <= most
                    and float(self.regrets(fitted_and_deciding, {name: trial}).mean()) <= most_regret
                )
            except (ZeroDivisionError, np.linalg.LinAlgError):
                is_good = False
            if is_good:
                costs = trial
                tell(f"{name}: dropped {', '.join(dropped)}")
            elif len(dropped) > 1:
                count = max(1, len(dropped) // 2)
            else:
                needed.add(dropped[0])
                if len(needed) > MAX_DROP_FAILURES:
                    break
        return self.fit(name, costs=costs)

    def _droppable_costs(self, name: str, costs: Costs) -> list[str]:
        """The costs that may be dropped, in increasing order of the loss that remains after one is dropped and the others
        are refitted (first-order estimate)."""
        model = self.models[name]
        free = free_costs(model.kernel, costs)
        errors, weights = model.errors(costs), (self.weights * self.split.fit_mask)[model.numbers]
        slopes = _slopes(model, costs, free, errors)
        inverse = np.linalg.inv(slopes.T * weights @ slopes + _PENALTY**2 * np.eye(len(free)))
        remaining_loss = dict(zip(free, 1 / np.diag(inverse), strict=True))
        # Keep costs that matter mainly on cards with slower memory: their slope on this card is at most half of their slope
        # there, so this record cannot judge them.
        slower = self.record.card._replace(memory_ratio=_SLOW_MEMORY_RATIO)
        on_slower_card = Model(model.kernel, self.record._replace(card=slower), model.numbers)
        slopes_there = _slopes(on_slower_card, costs, free, on_slower_card.errors(costs))
        largest = abs(slopes).max(axis=0), abs(slopes_there).max(axis=0)
        judged = [each for each, here, there in zip(free, *largest, strict=True) if here > there / 2]
        return sorted((each for each in judged if _can_drop(model, costs, each)), key=remaining_loss.__getitem__)


def _not_dropped(costs: Costs) -> list[str]:
    """The costs that were not dropped."""
    return [name for name, value in costs.items() if value > 0]


def _can_drop(model: Model, costs: Costs, name: str) -> bool:
    """Whether the cost may be set to 0: a share or a time may, a rate (a divisor) may not."""
    try:
        model.errors({**costs, name: 0.0})
    except ZeroDivisionError:
        return False
    return name != _LAUNCH
