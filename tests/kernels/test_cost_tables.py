"""Tables of costs: that of the package, one that was fitted here, and cards that have none."""

from pathlib import Path

import pytest

from tilewright.gpu.planning.ways import EngineShape, timed_ways
from tilewright.kernels import cuda_kernel
from tilewright.kernels.catalog import cuda_engine
from tilewright.kernels.cuda_kernel import BASE, TABLES, Card, cached_table, cost_table, own_table, table_of

KERNELS = list(cuda_engine().values())
CARD = "NVIDIA Simulated 7"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(cuda_kernel, "cost_table", cuda_kernel.cost_table.__wrapped__)


@pytest.mark.parametrize("path", sorted(TABLES.glob("*.json")), ids=lambda path: path.stem)
def test_a_table_of_the_package_has_the_costs_of_each_kernel_and_no_others(path: Path) -> None:
    table = cuda_kernel.cost_table(path.stem)
    assert {name: set(known) for name, known in table.kernels.items()} == {k.name: set(k.costs) for k in KERNELS}
    assert all(cost > 0 for known in table.kernels.values() for cost in known.values())


def test_every_cost_of_a_header_is_used() -> None:
    for kernel in KERNELS:
        used = {name for expression in kernel.time.values() for name in expression.names}
        assert set(kernel.costs) <= used, kernel.name


def test_a_card_without_a_table_has_that_of_another_scaled_by_the_rates_of_memories() -> None:
    card = Card.of(CARD, 132, 3_201_000 // 2, 6144)
    assert card.table == BASE
    assert card.memory_ratio == pytest.approx(2, rel=1e-6)
    hopper, stream = cuda_engine()["cuda/slices_fma"], EngineShape("float32", "float32", 4, 16384, 16384)
    slow, fast = (timed_ways(hopper, stream, each).fastest.seconds for each in (card, Card()))
    assert slow > 1.8 * fast


def test_a_table_that_was_fitted_here_precedes_where_it_is_complete() -> None:
    assert table_of(CARD) == BASE
    present = cost_table(BASE)
    simt = {name: 2 * cost for name, cost in present.kernels["cuda/simt"].items()}
    own = {"cuda/simt": simt, "cuda/mma": {"launch_s": 1.0}}  # of another version: it lacks costs
    cached_table(own_table(CARD)).write_json({"kernels": own})
    assert table_of(CARD) == own_table(CARD) == "simulated-7"
    table = cuda_kernel.cost_table("simulated-7")
    assert table.costs_of(cuda_engine()["cuda/simt"]) == simt
    assert table.costs_of(cuda_engine()["cuda/mma"]) == present.costs_of(cuda_engine()["cuda/mma"])
