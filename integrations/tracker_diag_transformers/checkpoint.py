"""The monitor's state in a Trainer's checkpoints: a resumed run raises the alerts of an unbroken one. For TRL too."""

import json
from pathlib import Path
from typing import Any

from tracker_diag import Monitor
from tracker_diag.attach.kit import resume


def folder_of(args: Any, state: Any) -> Path:
    """Where the Trainer puts the checkpoint of this step."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def save(monitor: Monitor, args: Any, state: Any) -> None:
    """Write it into the checkpoint that the Trainer has just made; every process its own, as with random states."""
    with monitor.guard("integration_errors"):
        file = _file(args, state, args.process_index)
        file.parent.mkdir(parents=True, exist_ok=True)  # another node has its own disk, perhaps
        part = file.with_suffix(".part")
        part.write_text(json.dumps(monitor.state_dict()))
        part.replace(file)  # whole, or not at all


def load(monitor: Monitor, args: Any, state: Any) -> None:
    """Go on from the checkpoint that the Trainer resumes from, if it does.

    It is looked for among those of `output_dir`. A monitor that has seen steps already is left as it is; one whose
    state is missing or damaged begins anew, and says so.
    """
    if not state.global_step or monitor.step is not None:
        return
    with monitor.guard("integration_errors"):
        own, first = (_file(args, state, rank) for rank in (args.process_index, 0))
        file = own if own.exists() else first  # there may be more processes now than there were
        saved = json.loads(file.read_text()) if file.exists() else None
        if file != own and saved is not None:
            saved["intake"]["observed"] = [{}, {}]
        if resume(monitor, saved, f"{own} is not there"):
            monitor.checkpoint(file.parent, state.global_step)  # its own state does not know of it


def _file(args: Any, state: Any, rank: int) -> Path:
    return folder_of(args, state) / f"tracker_diag_{rank}.json"
