"""What verl loads on its import, by the entry point group `verl.plugins`: each `Tracking` gets a monitor.

Only the trainer's process makes one, and by then its trainer is imported; so nothing else is touched before, but what
loads a checkpoint, as soon as there is such a class.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from tracker_diag import Monitor
from tracker_diag.attach.kit import unless_changed
from tracker_diag.hooks import after, when_imported
from tracker_diag_verl import TESTED, attach
from tracker_diag_verl.checkpoints import CHECKPOINTS, TRAINERS
from tracker_diag_verl.workers import install


def _look(tracking: Any) -> None:
    def begun(_: None, given: Mapping[str, Any]) -> None:
        attach(given["self"], config=given.get("config"))

    # The monitor is only for failures of attach itself, which are logged.
    after(tracking.Tracking, "__init__", ("default_backend", "config"), begun, Monitor(catalog=False))


with unless_changed("verl", TESTED):
    _look(import_module("verl.utils.tracking"))
    when_imported("rllm.utils.tracking", _look)  # rLLM's own, with verl as its backend
    for name in TRAINERS:
        when_imported(name, lambda _: CHECKPOINTS.hook_trainers(TESTED))
install()
