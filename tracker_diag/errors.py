"""What tracker_diag raises at set-up or on a first call; nothing is raised into training.

DiagError
├── BatchError      tensors that do not fit together
├── SourceError     a run, a file or saved state that cannot be read
├── RuleError       a rule or a guard that cannot be used
├── UnknownName     an unknown pair, slice, rule or metric
└── MissingExtra    an optional dependency that is not installed

Other subclasses of DiagError are handled inside the package and reach no user. Each is in the file that raises it;
StepError is here because `health` counts it.
"""

import os
import signal
import sys
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from types import CodeType, ModuleType
from typing import Any


class DiagError(Exception):
    """Catch this to catch everything that tracker_diag raises."""


class BatchError(DiagError, ValueError):
    """Tensors that do not fit together; `field` names the offending one.

    `masked`: all tokens of a micro-batch are masked, which is counted, and raises not even on the first call.
    """

    def __init__(self, field: str, given: str, expected: str, do: str = "", *, masked: bool = False) -> None:
        self.field, self.masked = field, masked
        super().__init__(f"{field}: {given} given, expected {expected}" + (f"; {do}" if do else ""))


class StepError(DiagError, ValueError):
    """A step that goes backwards. Its metrics are left out, and `diag/health/late_steps` counts it."""


MOST_NAMED = 40
"""Names that a message lists; of more, the first and the last."""


class UnknownName(DiagError, ValueError):
    """A pair, slice, rule or metric that does not exist; the message lists those that do, or some of many."""

    def __init__(self, what: str, given: str, known: tuple[str, ...]) -> None:
        few = known if len(known) <= MOST_NAMED else (*known[:3], "…", known[-1])
        super().__init__(f"{what}: {given!r} given, expected one of {', '.join(few)}{nearest(given, known)}")


class RuleError(DiagError, ValueError):
    """A rule or a guard that cannot be used; of a file, the message starts with file and line."""


class SourceError(DiagError, ValueError):
    """A run, a file or saved state that cannot be read; the message says which, and what is wrong with it."""


class MissingExtra(DiagError, ImportError):
    """An optional dependency that is not installed; the message names the extra to install."""


@contextmanager
def restoring(state: Mapping[str, Any], version: int) -> Generator[None, None, None]:
    """Restore saved state inside; whatever is wrong with it is raised as `SourceError`.

    Raises:
        SourceError: `state` is of another version than `version`, or is damaged.
    """
    if state.get("version") != version:
        given = f"version {state.get('version')} given, expected {version}"
        raise SourceError(f"state: {given}; leave it out, and the diagnostics start over")
    try:
        yield
    except SourceError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise SourceError(f"state: {type(error).__name__}: {error}; expected what state_dict gave") from error


def nearest(given: str, known: Collection[str], *, otherwise: bool = False) -> str:
    """The end of a message about a misspelt name: "; did you mean reward?".

    Args:
        otherwise: say what there is if nothing is near; else nothing is said then.
    """
    near = get_close_matches(given, known, n=1)
    if near and near[0] != given:
        return f"; did you mean {near[0]}?"
    return f", expected one of {', '.join(known)}" if otherwise else ""


DISABLED = "TRACKER_DIAG_DISABLED"
"""Environment variable: 1 turns the diagnostics off, wherever they are attached."""


def disabled() -> bool:
    """Whether the diagnostics are off."""
    return os.environ.get(DISABLED, "").lower() in {"1", "true", "yes"}


def require(module: str, extra: str, *older: str) -> ModuleType:
    """Import `module`, or raise `MissingExtra`, which says what to do.

    Args:
        extra: of ours that installs it; or, where we have no such extra, the name of the package that it is in.
        older: what it is called in older versions of its package, the latest first.
    """
    from importlib import import_module

    name = next((candidate for candidate in (module, *older) if _exists(candidate)), None)
    if name is None:
        raise MissingExtra(_lacking((module, *older), extra))
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtra(f"{name} cannot be imported: {error}") from error


def require_installed(module: str, extra: str) -> None:
    """As `require`, without importing it: what takes long to import may be for another process to use."""
    if not _exists(module):
        raise MissingExtra(_lacking((module,), extra))


def _exists(module: str) -> bool:
    """Whether there is such a module; the packages that it is in are imported for that."""
    from importlib.util import find_spec

    try:
        return sys.modules.get(module) is not None or find_spec(module) is not None
    except ImportError as error:  # of a package that it is in: it is there if that lacks something else
        return error.name is None or not f"{module}.".startswith(f"{error.name}.")


def _lacking(modules: Sequence[str], extra: str) -> str:
    from importlib.metadata import PackageNotFoundError, metadata

    package = modules[0].partition(".")[0]
    if package != modules[0] and _exists(package):
        return f"no module {' or '.join(modules)} in the installed {package}, which is not a tested version"
    try:
        ours = metadata("tracker-diag").get_all("Provides-Extra") or []
    except PackageNotFoundError:  # a source tree on the path
        ours = [extra]
    how = f'pip install "tracker-diag[{extra}]"' if extra in ours else f"install {extra} as its own documentation says"
    return f"{modules[0]} is not installed: {how}"


SIGNALS = tuple(
    number
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM")
    if (number := getattr(signal, name, None)) is not None
)
"""Those that programs have handlers of their own for."""


def _code(handler: Any) -> CodeType | None:
    """What runs when `handler`, a function, a method or an object that can be called, is called."""
    while isinstance(handler, partial):
        handler = handler.func
    if not callable(handler) or isinstance(handler, signal.Handlers):  # the system's own, an enum
        return None
    function = getattr(handler, "__func__", handler)
    return getattr(function, "__code__", None) or getattr(type(handler).__call__, "__code__", None)


def signal_handlers() -> list[object]:
    """The handlers that are set now, of the signals that programs handle."""
    return [signal.getsignal(number) for number in SIGNALS]


def of_a_handler(error: Exception, before: Sequence[object] = ()) -> bool:
    """Whether `error` comes from a signal handler, which runs in the midst of whatever the main thread does.

    Args:
        before: handlers that were set when the work began; a handler may take itself off.
    """
    codes = {_code(handler) for handler in (*before, *signal_handlers())} - {None}
    at = error.__traceback__
    while at is not None:
        if at.tb_frame.f_code in codes:
            return True
        at = at.tb_next
    return False
