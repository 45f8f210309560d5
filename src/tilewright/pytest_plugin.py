"""The plugin for pytest: the marker and the fixture ``cuda_kernel`` run a CUDA kernel on the CPU in a test.

Every run of pytest loads this module if the package is installed. So this module imports the rest of the package only
when a test uses the fixture.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .simulator.microscope import Observation

_MARKER = (
    "cuda_kernel(file, kernel=None, *, require={'findings': 0}, **launch): what the fixture cuda_kernel runs on the CPU. "
    "The file is looked for beside the test; launch are options of tilewright.microscope: grid, block, defines, …"
)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker ``cuda_kernel``."""
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture
def cuda_kernel(request: pytest.FixtureRequest) -> Callable[..., Observation]:
    """A fixture: a function that runs the kernel named in the test's marker ``cuda_kernel``.

    The marker is ``cuda_kernel(file, kernel=None, *, require={"findings": 0}, **launch)``. A relative path ``file``
    starts at the folder of the test. ``launch`` are options of ``tilewright.microscope``, such as ``grid``, ``block``
    and ``defines``.

    Returns
    -------
    function
        The function takes the kernel's arguments. Its keyword arguments are options of the launch, which replace those
        of the marker. It returns an ``Observation``. The test fails if the launch does not keep the marker's
        ``require`` (see ``Observation.require``). Without ``require`` the test fails if there are findings.

    See Also
    --------
    microscope : Runs a kernel without pytest.
    tilewright.simulator.microscope.Observation : What the function returns.
    """
    # The marker nearest to the test comes first: its options replace those of the class or module.
    markers = list(request.node.iter_markers("cuda_kernel"))
    if not markers:
        raise pytest.UsageError(f"{request.node.nodeid}: mark it with pytest.mark.cuda_kernel(file, kernel, grid=…)")
    places: tuple[Any, ...] = next((marker.args for marker in markers if marker.args), ())
    options: dict[str, Any] = {}
    for marker in reversed(markers):
        options |= marker.kwargs
    if not 1 <= len(places) <= 2:
        raise pytest.UsageError(f"{request.node.nodeid}: cuda_kernel takes a file and a kernel, got {places}")
    require = options.pop("require", {"findings": 0})

    def run(*args: Any, **launch: Any) -> Observation:
        __tracebackhide__ = True  # a failed test shows its own line
        from .simulator.microscope import microscope

        file, kernel, *_ = *places, None
        source = Path(request.path).parent / file
        return microscope(source, kernel, args=args, **(options | launch)).require(**require)

    return run
