"""The fit of costs to measured launches, of times that are simulated."""

import json
import lzma
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fit_costs
from tilewright.errors import UsageError
from tilewright.gpu.runtime.device import add_described
from tilewright.kernels.catalog import cuda_engine
from tilewright.kernels.cuda_kernel import BASE, cost_table
from tilewright.lab.tune.costs import Fit, is_threshold, read_record, read_together, regrets
from tilewright.prebuilt.gpu import GPUS, _Described

KERNELS = list(cuda_engine().values())
NOISE = 0.02


def simulated(path: Path, true: dict[str, dict[str, float]], products: int = 200) -> Fit:
    """A fit of the present costs to a record of a card whose launches take the times that ``true`` predict, with noise."""
    capability, (facts, *_) = GPUS["sm_90a"]
    gpu: Any = _Described("sm_90a", capability, *facts)
    add_described(gpu)
    rng, names, lines = np.random.default_rng(4), [kernel.name for kernel in KERNELS], []
    for _, product in zip(range(products), fit_costs.drawn(rng), strict=False):
        found, near = fit_costs.candidates(product, gpu), {True: 8, False: 4}
        picked = []
        for candidate, is_near in fit_costs.picked(found, rng) if found else ():
            near[is_near] -= 1
            if near[is_near] >= 0:
                ordered, way, total = candidate
                case = dict(zip(("dtype", "precision", "out_dtype"), fit_costs.CASES[product.case], strict=False))
                picked.append({
                    **case, **product._asdict(), "near": is_near, "kernel": way.kernel.name, "params": dict(way.params),
                    "kernel_shape": list(ordered.shape), "parts": way.parts, "predicted_s": way.seconds,
                    "predicted_total_s": total, "launch_s": [way.seconds],
                })  # fmt: skip
        if picked:
            lines.append(fit_costs.lines_of(picked, names))
    card = {"gpu": gpu.name, "sms": gpu.sms, "memory_ratio": 1.0}
    header = {"environment": card, "kernels": {kernel.name: list(kernel.params) for kernel in KERNELS}}
    path.write_text("\n".join(map(json.dumps, [header, *lines])) + "\n")
    present = {kernel.name: cost_table(BASE).costs_of(kernel) for kernel in KERNELS}
    fit = Fit(read_record(path), KERNELS, present)
    for name, model in fit.models.items():
        # The record's times are rounded to nanoseconds.
        np.testing.assert_allclose(model.errors(present[name]), 0, atol=2e-3)
        noise = np.exp(rng.normal(0, NOISE, len(model.numbers)))
        fit.measured[model.numbers] = model.measured = (model.seconds(true[name]) + model.others) * noise
    return fit


def changed(share: float) -> dict[str, dict[str, float]]:
    """The present costs, each changed by chance."""
    rng = np.random.default_rng(9)
    return {
        kernel.name: {
            name: cost if is_threshold(name) else float(cost * np.exp(rng.normal(0, share)))
            for name, cost in cost_table(BASE).costs_of(kernel).items()
        }
        for kernel in KERNELS
    }


@pytest.mark.thorough
def test_the_committed_record_can_still_be_fitted_to() -> None:
    """Of its dtypes one has been replaced: float64 by 14 residues. All others are still read."""
    path = Path(fit_costs.__file__).parent / "launches-h200.jsonl.xz"
    present = {kernel.name: cost_table("h200").costs_of(kernel) for kernel in KERNELS}
    fit = Fit(read_record(path), KERNELS, present)
    assert fit.report(present)["all"]["within_15_percent"] > 0.6
    with lzma.open(path, "rt") as file:
        next(file)
        lines = [json.loads(line) for line in file]
    left_out = Counter(line["shapes"][way[1]][0] for line in lines for way in line["ways"])
    left_out -= Counter(way.shape.dtype for way in fit.record.ways)
    assert set(left_out) == {"int8x14"}


@pytest.mark.thorough
def test_the_fit_finds_the_costs_of_another_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kernel in KERNELS:
        monkeypatch.setitem(vars(kernel), "unfitted", ())  # all costs are fitted
    true = changed(0.3)
    fit = simulated(tmp_path / "launches.jsonl", true)
    before = fit.report(fit.costs)["all"]
    fit.improve(tell=lambda _: None)
    after = fit.report(fit.costs)["all"]
    assert before["within_15_percent"] < 0.75
    assert after["within_15_percent"] > 0.9
    assert after["median_error"] < 2 * NOISE
    assert after["mean_regret"] < before["mean_regret"]
    # Costs on which the times of many launches depend are found themselves.
    for kernel, name in (
        ("cuda/hopper", "multiply_rate"), ("cuda/mma_tf32", "multiply_rate"), ("cuda/dmma", "multiply_rate"),
    ):  # fmt: skip
        assert fit.costs[kernel][name] == pytest.approx(true[kernel][name], rel=0.1)


@pytest.mark.thorough
def test_costs_of_long_products_stay(tmp_path: Path) -> None:
    """Also where all launches of a record say that they are others."""
    fit = simulated(tmp_path / "launches.jsonl", changed(0.3))
    before = {name: dict(each) for name, each in fit.costs.items()}
    fit.improve(tell=lambda _: None)
    assert fit.costs["cuda/hopper_promoted"] == before["cuda/hopper_promoted"]
    moved = {name for name, cost in fit.costs["cuda/hopper"].items() if cost != before["cuda/hopper"][name]}
    assert moved
    assert not moved & {*cuda_engine()["cuda/hopper"].unfitted}


@pytest.mark.thorough
def test_costs_that_make_nothing_better_are_not_taken(tmp_path: Path) -> None:
    """The times of the products that are fitted to are those of another card than the times of those that decide."""
    fit = simulated(tmp_path / "launches.jsonl", changed(0))
    present = {name: dict(costs) for name, costs in fit.costs.items()}
    for model in fit.models.values():
        model.measured = np.where(fit.split.fit_mask[model.numbers], 1.7, 1) * model.measured
    told = list[str]()
    fit.improve(tell=told.append)
    taken = {line.partition(":")[0] for line in told if not line.endswith("not taken")}
    assert len(told) > 5
    assert not taken & {"cuda/simt", "cuda/hopper", "cuda/mma", "cuda/dmma"}
    assert all(fit.costs[name] == present[name] for name in fit.models if name not in taken)


@pytest.mark.thorough
def test_a_cost_without_effect_is_dropped(tmp_path: Path) -> None:
    true = changed(0)
    true["cuda/mma"]["odd_step_s"] = 0.0  # what waits for single elements, of which a record has many
    fit = simulated(tmp_path / "launches.jsonl", true)
    slim = fit.without_needless_costs("cuda/mma", tell=lambda _: None)
    assert slim["odd_step_s"] == 0
    assert slim["multiply_rate"] > 0
    assert slim["launch_s"] > 0


def test_records_of_one_card_are_one(tmp_path: Path) -> None:
    """Products keep apart, and records of two cards are refused."""
    path, other = tmp_path / "launches.jsonl", tmp_path / "other.jsonl"
    simulated(path, changed(0), products=6)
    header, *lines = path.read_text().splitlines()
    one, two = read_record(path), read_together([path, path])
    assert len(two.ways) == 2 * len(one.ways)
    assert [way.product for way in two.ways] == [
        *(way.product for way in one.ways),
        *(way.product + one.ways[-1].product + 1 for way in one.ways),
    ]
    known = json.loads(header)
    known["environment"]["gpu"] = "NVIDIA L4"
    other.write_text("\n".join([json.dumps(known), *lines]) + "\n")
    with pytest.raises(UsageError, match="NVIDIA H200, NVIDIA L4"):
        read_together([path, other])


def test_regrets_are_those_of_the_way_that_is_chosen() -> None:
    products, predicted = np.array([0, 0, 0, 2, 2]), np.array([3.0, 1, 2, 5, 4])
    assert regrets(products, predicted, np.array([2.0, 3, 4, 7, 7])).tolist() == [0.5, 0]
