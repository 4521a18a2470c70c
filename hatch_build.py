"""Build the kernel with whatever C compiler there is; without one the wheel is pure, and numpy does the work."""

import os
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = "tracker_diag/stats/kernel.c"
TARGET = "tracker_diag/stats/_kernel.so"
# Without fused operations, so that sums are the same bits on every processor. The next two change no value: loops can
# then work on several values at once.
FLAGS = ("-O3", "-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno", "-shared", "-fPIC")


class KernelHook(BuildHookInterface[Any]):
    """Compiles kernel.c into the wheel, which then is of this platform, and of any Python."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        compiler = os.environ.get("CC", "cc").split()
        command = [*compiler, *FLAGS, SOURCE, "-o", TARGET, "-lm"]
        (Path(self.root) / TARGET).unlink(missing_ok=True)
        try:
            subprocess.run(command, cwd=self.root, check=True, capture_output=True, text=True)  # noqa: S603
        except (OSError, subprocess.CalledProcessError) as error:
            why = getattr(error, "stderr", None) or error
            self.app.display_warning(f"the kernel was not compiled, so numpy does its work: {why}")
            return
        build_data["artifacts"].append(TARGET)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform()}"


def _platform() -> str:
    if sys.platform == "darwin":  # Python may be built for two processors, and the compiler takes this one
        return f"macosx_11_0_{platform.machine()}"
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
