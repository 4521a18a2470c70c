"""W&B: `Run.log` and `wandb.log`, the end of a run by any way, and its beginning."""

import atexit
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from tracker_diag.hooks import Unlocked, all_off, before
from tracker_diag.trackers.tracker import Listener, Off

PARAMETERS = ("data", "step", "commit")


def on_log(run: Any, logged: Callable[[Mapping[str, Any]], None], failed: Callable[[Exception], None]) -> Off:
    """Have `logged` called before each call of `run.log`, with its arguments."""
    own = Unlocked(lambda _, error: failed(error))
    module: Any = sys.modules.get("wandb")
    # That one would keep the run's own method.
    current = getattr(getattr(module, "log", None), "__self__", None) is run
    of_run = before(run, "log", PARAMETERS, logged, own)
    return all_off(of_run, before(module, "log", PARAMETERS, logged, own)) if current else of_run


def on_end(run: Any, listener: Listener) -> Off:
    """Have the listener's `end` called before `run` is finished, by anybody, or the process ends."""

    def end() -> None:
        atexit.unregister(end)
        listener.end()

    with suppress(ImportError, AttributeError):  # a W&B without such a hook leaves it to `finish`
        from wandb.sdk.wandb_run import TeardownHook, TeardownStage

        run._teardown_hooks.append(TeardownHook(end, TeardownStage.EARLY))  # noqa: SLF001  # there is no other way
    atexit.register(end)
    return before(run, "finish", (), lambda _: end(), Unlocked(listener.record))
