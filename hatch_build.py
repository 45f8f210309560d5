"""Builds the engine's machine code with the package: for this machine's level, or those that $TILEWRIGHT_LEVELS names."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path(__file__).parent / "src"


class MachineCode(BuildHookInterface):  # type: ignore[misc]
    """Runs before a wheel is packed, and before an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build what is not up to date; without a C compiler the package has no machine code, and NumPy multiplies."""
        if self.target_name != "wheel":
            return
        sys.path.insert(0, str(SOURCE))
        from tilewright.prebuilt import build

        try:
            levels = build.make_current(os.environ.get("TILEWRIGHT_LEVELS", "").split(), say=self.app.display_info)
        except build.BuildError as error:
            self.app.display_warning(f"no machine code is built, so NumPy will multiply: {error}")
            return
        finally:
            sys.path.remove(str(SOURCE))
        (arch,) = {level.arch for level in levels}
        extension = build.native_file(arch)
        tag = build.python_tag() if extension.is_file() else "py3-none"
        build_data.update(pure_python=False, tag=f"{tag}-linux_{arch}")
        build_data["artifacts"] += [f"src/tilewright/prebuilt/built/{level.name}.*" for level in levels]
        if version == "standard" and extension.is_file():  # an editable installation has it where it lies
            build_data["force_include"][str(extension)] = f"tilewright/{extension.name}"
