"""The monitor's state in a Trainer's checkpoints: a resumed run raises the alerts of an unbroken one. For TRL too."""

from pathlib import Path
from typing import Any

from tracker_diag import Monitor
from tracker_diag.attach.saved import Saved


def folder_of(args: Any, state: Any) -> Path:
    """Where the Trainer puts the checkpoint of this step."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def save(monitor: Monitor, args: Any, state: Any) -> None:
    """Write it into the checkpoint that the Trainer has just made; every process its own, as with random states."""
    with monitor.guard("integration_errors"):
        Saved(monitor, args.process_index).put(folder_of(args, state))


def load(monitor: Monitor, args: Any, state: Any) -> None:
    """Continue from the checkpoint that the Trainer resumes from, if it does.

    It is looked for among those of `output_dir`. A monitor that has seen steps already is left as it is; one whose
    state is missing or damaged starts over, and says so.
    """
    with monitor.guard("integration_errors"):
        if not state.global_step or monitor.step is not None:
            return
        folder = folder_of(args, state)
        if Saved(monitor, args.process_index).find(folder):
            monitor.checkpoint(folder, state.global_step)  # its own state does not know of it
