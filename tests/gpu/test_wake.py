"""The driver is started ahead: once for a GPU, for devices that are GPUs alone, and errors are left to those who open it."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright.gpu.runtime import wake as module
from tilewright.gpu.runtime.wake import wake, wake_named


@pytest.fixture(autouse=True)
def none_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_threads", {})


class Driver:
    """Remembers for which GPUs a context was created, and waits in the middle until it may go on."""

    def __init__(self, status: int = 0) -> None:
        self.created: list[int] = []
        self.may_go_on = threading.Event()
        self.status = status

    def cuInit(self, _flags: int) -> int:  # noqa: N802  # as the driver calls it
        assert self.may_go_on.wait(30)
        return self.status

    def cuDeviceGet(self, device: Any, ordinal: Any) -> int:  # noqa: N802
        device._obj.value = 100 + ordinal.value
        return 0

    def cuDevicePrimaryCtxRetain(self, _context: Any, device: Any) -> int:  # noqa: N802
        self.created.append(device.value)
        return 0


def use(monkeypatch: pytest.MonkeyPatch, driver: Any) -> None:
    monkeypatch.setattr(module, "ctypes", SimpleNamespace(**vars(ctypes) | {"CDLL": driver}))


@pytest.mark.parametrize(
    ("device", "created"),
    [("cpu", []), (None, [100]), ("cuda", [100]), ("cuda:2", [102]), ("cuda:3,1", [103]), ("host", [])],
)
def test_the_first_gpu_of_a_device_is_woken_once(
    monkeypatch: pytest.MonkeyPatch, device: str | None, created: list[int]
) -> None:
    driver = Driver()
    use(monkeypatch, lambda name: driver)
    assert [wake_named(device) for _ in range(2)] == [bool(created)] * 2
    driver.may_go_on.set()
    for ordinal in created:
        wake(ordinal - 100).join()
    assert driver.created == created
    assert not wake_named(device)


def test_a_driver_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(status=100)
    driver.may_go_on.set()
    use(monkeypatch, lambda name: driver)
    wake(0).join()
    assert driver.created == []


def test_no_driver_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(name)

    use(monkeypatch, missing)
    wake(0).join()
    assert not wake_named("cuda")
