"""Owner: whose a journal is, by what is in it and by its name, and whether that process may be alive."""

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

STALE = 600.0
"""Seconds without a change after which the process of a journal on another machine is taken for dead: it dates its
files anew every few seconds."""

FIRST_SPACE = 0xEFFFFFFC
"""The number of the machine's own process namespace, PROC_PID_INIT_INO of Linux."""


@dataclass(frozen=True)
class Owner:
    """A process; of host "" and pid 0 where the file belongs to nobody any more."""

    host: str = ""
    pid: int = 0
    start: int = 0
    """When it began, in the clock ticks of its machine since that was started; 0 where that is unknown."""

    def __str__(self) -> str:
        return f"{self.host}.{self.pid}.{self.start}"

    def alive(self, path: Path) -> str | None:
        """Why the process may be alive; None where it is dead."""
        if self.pid <= 0:
            return None
        if self.host == here().host and os.name != "nt":  # there, asking for a process ends it
            same = _exists(self.pid) and self.start in (0, _started(self.pid))
            return f"its process {self.pid} is alive and delivers it itself" if same else None
        still = time.time() - path.lstat().st_mtime
        if still > STALE:
            return None
        return f"its process on {self.host} may be alive: it changed {still:.0f} s ago; try again in {STALE:.0f} s"


def owner_of(name: str) -> tuple[Owner, str]:
    """The owner in the `name` of a journal, and the rest of it; nobody where the name is another one."""
    base, *parts = name.rsplit(".", 3)
    if len(parts) < 3 or not (parts[1].isdecimal() and parts[2].isdecimal()):
        return Owner(), name
    return Owner(parts[0], int(parts[1]), int(parts[2])), base


def owner_in(line: Mapping[str, object]) -> Owner | None:
    """The owner that a line of a journal names; None where it names none."""
    host, pid, start = (line.get(name) for name in ("host", "pid", "start"))
    if isinstance(host, str) and isinstance(pid, int) and isinstance(start, int):
        return Owner(host, pid, start)
    return None


def here() -> Owner:
    """This process."""
    return _here(os.getpid())


@cache
def _here(pid: int) -> Owner:
    host = "".join(char if char.isalnum() or char in "-_" else "_" for char in socket.gethostname())
    return Owner((host or "localhost") + _inside(), pid, _started(pid))


def _inside() -> str:
    """Which container this is, where processes have numbers of its own; two may have one host name."""
    try:
        space = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return ""
    return "" if space == FIRST_SPACE else f"-{space}"


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _started(pid: int) -> int:
    """When process `pid` began; 0 where the system does not say, −1 of a dead one that nobody has asked for yet."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return -1 if fields[0] in "ZX" else int(fields[19])
