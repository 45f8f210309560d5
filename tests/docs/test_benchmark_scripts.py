"""Every script under ``benchmarks`` starts by itself: its imports are there, without the search path of the tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
#: Imports each script in turn, with nothing on the path but its own folder; prints what each lacks.
IMPORTED = """
import importlib.util, json, sys
from pathlib import Path

kept, lacking = list(sys.path), {}
for number, path in enumerate(sys.argv[1:]):
    sys.path[:] = [str(Path(path).parent), *kept]
    spec = importlib.util.spec_from_file_location(f"script{number}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        lacking[Path(path).name] = error.name
    for name in [name for name in sys.modules if name.split(".")[0] == "support"]:
        del sys.modules[name]
print(json.dumps(lacking))
"""
#: What no extra of the package installs: PyTorch for the comparison with it, atheris for guided fuzzing.
OTHERS = {"torch", "atheris"}


def lacking(*scripts: Path) -> dict[str, str]:
    command = [sys.executable, "-W", "ignore", "-c", IMPORTED, *map(str, scripts)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_every_script_finds_what_it_imports() -> None:
    scripts = sorted(BENCHMARKS.glob("*.py"))
    assert scripts
    assert set(lacking(*scripts).values()) <= OTHERS


def test_a_script_that_lacks_something_is_named(tmp_path: Path) -> None:
    script = tmp_path / "moved.py"
    script.write_text("from support.twelve_kernels import CASES\n")
    assert lacking(script) == {"moved.py": "support"}
