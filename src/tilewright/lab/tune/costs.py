"""Fits the costs in the predicted times of the engine's kernels to measured launches (see ``kernels.cuda_kernel``).

A record, of ``benchmarks/fit_costs.py measure``, has products of random shapes, each with the times of several ways. The
costs of a kernel are those with which the logarithms of predicted and measured times differ least: by least squares whose
outliers count linearly (Huber), over the logarithms of the costs, which are positive. Products are divided by chance: some
are fitted to, others decide which costs are dropped, and those of the rest, which take part in neither, are reported.

A record has the ways that its table predicted to be among the best. A fit to it alone favours others, whose times are
predicted too short and were not measured; so measure once more with the fitted table, and fit to both records.
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

#: Of the products, the shares that are fitted to and that decide what is dropped.
FITTED, DECIDING = 0.6, 0.2
#: Residuals (logarithms of ratios) beyond this count linearly.
_HUBER = 0.1
#: A cost that no sample depends on stays where it is: a change by a factor of e counts as much as this residual.
_KEPT = 0.05
#: Steps at most, the largest of one in the logarithm of a cost, and the least gain of one.
_STEPS, _LARGEST, _GAIN = 40, 0.7, 1e-4
#: The factor by which a fit changes a cost at most: what a record does not tell apart should not become absurd.
_FARTHEST = 4.0
#: Costs that are rates of memory, and the most that one can be: the datasheet's of the card whose rates tables have.
_OF_MEMORY, _MOST_RATE = ("memory_rate", "read_rate", "write_rate"), 4.8e12
#: The ``memory_ratio`` of a card with slower memory.
_SLOWER = 1.5
#: Kernels of fewer ways keep their costs; and a launch always takes some time.
_FEW, _LAUNCH = 40, "launch_s"


class MeasuredWay(NamedTuple):
    """A measured way of a product: the number of the product, the kernel with its shape, parameters and parts of k, the
    seconds of all launches, and the predicted ones of those that are not the kernel's: that add, or split operands."""

    product: int
    kernel: str
    shape: EngineShape
    params: Mapping[str, int]
    parts: int
    total_s: float
    others_s: float


class Record(NamedTuple):
    """The measured ways, those of a product one after another, and the card."""

    ways: list[MeasuredWay]
    card: Card


def read_together(paths: Sequence[Path]) -> Record:
    """The ways in all files. Raises UsageError where they are of several cards."""
    first, *others = map(read_record, paths)
    ways = list(first.ways)
    for each in others:
        if each.card != first.card:
            raise UsageError(f"records of several cards: {first.card.name}, {each.card.name}")
        number = ways[-1].product + 1 if ways else 0
        ways += [way._replace(product=way.product + number) for way in each.ways]
    return first._replace(ways=ways)


def read_record(path: Path) -> Record:
    """The ways in a file, which may be compressed, without those in a dtype that their kernel no longer multiplies."""
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
    return Record(ways, Card(known["gpu"], known["sms"], known["memory_ratio"], capability=capability))


def _way(product: int, line: list[Any], shapes: list[list[Any]], kernels: list[tuple[str, list[str]]]) -> MeasuredWay:
    """A way as a record has it: the numbers of its kernel and shape, its parameters, parts of k, whether it was predicted to
    be near the best, and in nanoseconds the other launches as predicted, the samples of the launch, and of all."""
    kernel, shape, params, parts, _, others, launch, whole = line
    name, names = kernels[kernel]
    # A launch that others follow does not begin before what precedes it has ended, as it does alone.
    total_ns = float(np.median(whole)) if whole else float(np.median(launch)) + others
    given = dict(zip(names, params, strict=True))
    return MeasuredWay(product, name, EngineShape(*shapes[shape]), given, parts, total_ns * 1e-9, others * 1e-9)


class Model:
    """The launches of a kernel in a record, as a program that predicts their times for any costs."""

    def __init__(self, kernel: CudaKernel, record: Record, numbers: npt.NDArray[np.intp]) -> None:
        self.kernel, self.numbers = kernel, numbers
        given = [_given(kernel, record.ways[i], record.card) for i in numbers]
        columns = {name: np.array([each[name] for each in given], float) for name in given[0]}
        self._program = staged(kernel.time, tuple(columns), kernel.costs, set(columns))
        self._prepared = self._program.prepare(columns)
        ways = [record.ways[i] for i in numbers]
        #: All launches, and of these the predicted times of those that are not the kernel's.
        self.measured = np.array([way.total_s for way in ways])
        self.beside = np.array([way.others_s for way in ways])

    def seconds(self, costs: Costs) -> Column:
        """The predicted times of the launches that multiply. Raises ZeroDivisionError."""
        return self._program.finish(self._prepared, None, costs)

    def errors(self, costs: Costs) -> Column:
        """The logarithms of predicted over measured times."""
        with np.errstate(all="ignore"):
            found: Column = np.log((self.seconds(costs) + self.beside) / self.measured)
        if not np.isfinite(found).all():
            raise ZeroDivisionError(f"{self.kernel.name}: a predicted time is not a positive number")
        return found


def _given(kernel: CudaKernel, way: MeasuredWay, card: Card) -> dict[str, float]:
    """The value of each name of TIMED, of LINE and of the parameters, as ``gpu.planning.ways`` has them."""
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
    """Whether a cost says from where on another counts, which least squares cannot find."""
    return name.endswith(("_above", "_below"))


def free_costs(kernel: CudaKernel, costs: Costs) -> list[str]:
    """The costs of a kernel that a fit changes: no thresholds, none that was dropped, and none that its header excepts."""
    return [name for name, cost in costs.items() if cost > 0 and not is_threshold(name) and name not in kernel.unfitted]


def fitted(model: Model, costs: Costs, weights: Column, present: Costs, *, steps: int = _STEPS) -> dict[str, float]:
    """Costs whose predicted times are nearest to the measured ones, by the method of Levenberg and Marquardt from ``costs``,
    and not too far from the ``present`` ones. Those that were dropped stay dropped."""
    free = free_costs(model.kernel, costs)
    if not free:
        return dict(costs)
    begun = logs = np.log([costs[name] for name in free])
    low, high = (np.log([present[name] for name in free]) + sign * np.log(_FARTHEST) for sign in (-1, 1))
    high = np.minimum(high, [np.log(max(_MOST_RATE, present[name])) if name in _OF_MEMORY else np.inf for name in free])
    damping, errors = 1e-3, model.errors(costs)
    least = _loss(errors, weights, logs - begun)
    for _ in range(steps):
        slopes = _slopes(model, _with(costs, free, logs), free, errors)
        counted = weights * np.minimum(1, _HUBER / np.maximum(abs(errors), 1e-300))
        normal = slopes.T * counted @ slopes + _KEPT**2 * np.eye(len(free))
        downhill = slopes.T @ (counted * errors) + _KEPT**2 * (logs - begun)
        for _ in range(8):
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -downhill)
            tried = np.clip(logs + np.clip(step, -_LARGEST, _LARGEST), low, high)
            errors_there = model.errors(_with(costs, free, tried))
            loss = _loss(errors_there, weights, tried - begun)
            if loss < least:
                break
            damping *= 4
        else:
            break
        gained, least, logs, errors, damping = 1 - loss / least, loss, tried, errors_there, damping / 4
        if gained < _GAIN:
            break
    return _with(costs, free, logs)


def _slopes(model: Model, costs: Costs, free: list[str], errors: Column) -> npt.NDArray[np.float64]:
    """The derivatives of the errors by the logarithms of the costs."""
    small = 1e-5
    return np.array([(model.errors({**costs, name: costs[name] * np.exp(small)}) - errors) / small for name in free]).T


def _with(costs: Costs, names: list[str], logs: Column) -> dict[str, float]:
    return {**costs, **dict(zip(names, np.exp(logs).tolist(), strict=True))}


def _loss(errors: Column, weights: Column, moved: Column) -> float:
    size = abs(errors)
    robust = np.where(size < _HUBER, size**2, 2 * _HUBER * size - _HUBER**2)
    return float(weights @ robust + (_KEPT * moved) @ (_KEPT * moved))


# ---- choosing --------------------------------------------------------------------------------------------------------


class Split(NamedTuple):
    """The ways of products that are fitted to, that decide what is dropped, and that are reported alone."""

    fitted: Mask
    deciding: Mask
    reported: Mask

    @classmethod
    def of(cls, record: Record, seed: int = 1) -> Split:
        """By chance, whole products at a time."""
        products = np.array([way.product for way in record.ways])
        drawn = np.random.default_rng(seed).random(products.max(initial=0) + 1)[products]
        return cls(drawn < FITTED, (drawn >= FITTED) & (drawn < FITTED + DECIDING), drawn >= FITTED + DECIDING)


def regrets(products: npt.NDArray[np.intp], predicted: Column, measured: Column) -> Column:
    """Of each product how much longer the way takes that is predicted to be the fastest than the fastest measured one, as a
    share. Ways of a product follow each other."""
    if not len(products):
        return np.empty(0)
    begins = np.flatnonzero(np.diff(products, prepend=products[0] - 1))
    least = np.minimum.reduceat(measured, begins)
    chosen = [begin + int(each.argmin()) for begin, each in zip(begins, np.split(predicted, begins[1:]), strict=True)]
    found: Column = measured[chosen] / least - 1
    return found


class Fit:
    """The kernels of a record with their costs, at first those of a table."""

    def __init__(self, record: Record, kernels: Iterable[CudaKernel], costs: Mapping[str, Costs]) -> None:
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
        #: Ways that are far from the fastest count less.
        self.weights = best[self.products] / self.measured

    def predicted(self, changed: Mapping[str, Costs] | None = None) -> Column:
        """The times of all ways with all their launches, with other costs for some kernels."""
        found = self.others.copy()
        for name, model in self.models.items():
            costs = (changed or {}).get(name) or self.costs[name]
            known, seconds = self._known.get(name, (None, None))
            if known is not costs:  # most kernels keep their costs from one question to the next
                seconds = model.seconds(costs)
                self._known[name] = costs, seconds
            found[model.numbers] += seconds
        return found

    def regrets(self, mask: Mask, changed: Mapping[str, Costs] | None = None) -> Column:
        """Those of the products of a mask."""
        return regrets(self.products[mask], self.predicted(changed)[mask], self.measured[mask])

    def fit(self, name: str, *, steps: int = _STEPS, costs: Costs | None = None) -> dict[str, float]:
        """The costs of a kernel that are nearest to the products that are fitted to."""
        model = self.models[name]
        weights = (self.weights * self.split.fitted)[model.numbers]
        return fitted(model, costs or self.costs[name], weights, self.present[name], steps=steps)

    def loss(self, name: str, costs: Costs, mask: Mask) -> float:
        """The mean error of a kernel, outliers as in the fit."""
        model = self.models[name]
        weights = (self.weights * mask)[model.numbers]
        return _loss(model.errors(costs), weights, np.zeros(1)) / max(weights.sum(), 1e-300)

    def improve(self, tell: Callable[[str], object] = print) -> None:
        """Fit each kernel. Its costs stay where the new ones are worse, for the products that are not reported: in errors of
        those that decide, or in the regrets of all."""
        both = ~self.split.reported
        for name in self.models:
            if len(self.models[name].numbers) < _FEW:
                continue
            costs = self.fit(name)
            before, after = (self.loss(name, each, self.split.deciding) for each in (self.costs[name], costs))
            regret_before, regret_after = (
                float(self.regrets(both, {name: c}).mean()) for c in (self.costs[name], costs)
            )
            is_better = after <= before and regret_after <= regret_before + LEAST_REGRET
            tell(
                f"{name}: error {before**0.5:.3f} -> {after**0.5:.3f}, regret {regret_before:.4f} -> {regret_after:.4f}"
                f"{'' if is_better else ': not taken'}"
            )
            if is_better:
                self.costs[name] = costs

    def settle(self, versions: Iterable[Mapping[str, Costs]], tell: Callable[[str], object] = print) -> None:
        """Of each kernel take the first of these versions of costs with which the regrets are not larger than with another,
        of the products that are reported and of the others; of the former never larger than with the last version."""
        known = list(versions)
        for name in self.models:
            found = np.array([
                [self.regrets(mask, {name: each[name]}).mean() for mask in (self.split.reported, ~self.split.reported)]
                for each in known
            ])  # fmt: skip
            worse = (found - found.min(axis=0)).max(axis=1)
            worse[found[:, 0] > found[-1, 0] + SETTLED] = np.inf
            best = int((worse <= SETTLED).argmax()) if (worse <= SETTLED).any() else int(worse.argmin())
            tell(f"{name}: version {best} of {len(known)}, regrets {' / '.join(f'{each[0]:.4f}' for each in found)}")
            self.costs[name] = known[best][name]

    def report(self, costs: Mapping[str, Costs]) -> dict[str, dict[str, float]]:
        """Of all kernels together, and of each, what the products that are reported say of these costs."""
        held, totals = self.split.reported, self.predicted(costs)
        errors = np.exp(abs(np.log(totals / self.measured))) - 1
        names = np.array([way.kernel for way in self.record.ways])
        masks = {"all": held} | {name: held & (names == name) for name in self.models}
        return {
            name: {
                "costs": sum(len(_counted(costs[each])) for each in self.models if name in ("all", each)),
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

    def slimmed(self, name: str, tell: Callable[[str], object] = print) -> dict[str, float]:
        """The costs of a kernel without those that do not earn their place: if they are dropped, and others fitted again,
        neither the errors nor the regrets of the products that decide grow by more than a tolerance."""
        deciding, both = self.split.deciding, self.split.fitted | self.split.deciding
        if len(self.models[name].numbers) < _FEW:
            return dict(self.costs[name])
        costs = self.fit(name)
        most = self.loss(name, costs, deciding) * (1 + MORE_LOSS)
        most_regret = float(self.regrets(both, {name: costs}).mean()) + MORE_REGRET
        many, kept = max(1, len(costs) // 5), set[str]()
        while candidates := [each for each in self._least_missed(name, costs) if each not in kept]:
            some = candidates[:many]
            try:
                tried = self.fit(name, steps=10, costs={**costs, **dict.fromkeys(some, 0.0)})
                is_good = (
                    self.loss(name, tried, deciding) <= most
                    and float(self.regrets(both, {name: tried}).mean()) <= most_regret
                )
            except (ZeroDivisionError, np.linalg.LinAlgError):
                is_good = False
            if is_good:
                costs = tried
                tell(f"{name}: dropped {', '.join(some)}")
            elif len(some) > 1:
                many = max(1, len(some) // 2)
            else:
                kept.add(some[0])
                if len(kept) > PATIENCE:
                    break
        return self.fit(name, costs=costs)

    def _least_missed(self, name: str, costs: Costs) -> list[str]:
        """The costs that can be dropped, the one first whose loss the others can make good best (to first order)."""
        model = self.models[name]
        free = free_costs(model.kernel, costs)
        errors, weights = model.errors(costs), (self.weights * self.split.fitted)[model.numbers]
        slopes = _slopes(model, costs, free, errors)
        inverse = np.linalg.inv(slopes.T * weights @ slopes + _KEPT**2 * np.eye(len(free)))
        missed = dict(zip(free, 1 / np.diag(inverse), strict=True))
        slower = self.record.card._replace(memory_ratio=_SLOWER)
        elsewhere = Model(model.kernel, self.record._replace(card=slower), model.numbers)
        most_here, most_there = (
            abs(each).max(axis=0) for each in (slopes, _slopes(elsewhere, costs, free, elsewhere.errors(costs)))
        )
        # Of others, such as those that count where memory is slower, this card says nothing.
        told = {each for each, here, there in zip(free, most_here, most_there, strict=True) if here > there / 2}
        return sorted((each for each in free if each in told and _can_drop(model, costs, each)), key=missed.__getitem__)


def _counted(costs: Costs) -> list[str]:
    """The costs that were not dropped."""
    return [name for name, value in costs.items() if value > 0]


#: By how much the mean regret may grow where a kernel is fitted: noise of the measured times.
LEAST_REGRET = 2e-5
#: By how much the mean regret with one version of the costs of a kernel may exceed that with another.
SETTLED = 5e-4
#: By how much errors and regrets may grow when costs are dropped, and how many costs are tried in vain before an end.
MORE_LOSS, MORE_REGRET, PATIENCE = 0.04, 1e-4, 12


def _can_drop(model: Model, costs: Costs, name: str) -> bool:
    """Whether times can do without it: a share or a time that is zero, but no rate."""
    try:
        model.errors({**costs, name: 0.0})
    except ZeroDivisionError:
        return False
    return name != _LAUNCH
