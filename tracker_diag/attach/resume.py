"""Rollback of trainers that cannot load a checkpoint midway: training stops, and a launcher starts it again.

    resume = None
    while True:
        train(resume_from_checkpoint=resume and resume.path)
        if (resume := resume_from(output_dir)) is None:
            break

The guard `rollback` leaves a file in the folder of the checkpoints. `resume_from` takes it, and reads the checkpoint
again before it is used.
"""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tracker_diag.errors import DiagError
from tracker_diag.guards.checkpoints import changed, of_state
from tracker_diag.guards.decision import Decision
from tracker_diag.health import private

FILE = "diag-resume.json"
"""What is to be resumed, until a launcher has taken it."""
TAKEN = "diag-resumed.json"
"""What was resumed last, and how often by then."""


@dataclass(frozen=True)
class Resume:
    """Where training is to be started again."""

    path: str
    """Folder or file of the checkpoint, which is what it was when it was saved."""
    step: int
    why: str
    """What the guard said."""
    times: int
    """How often training was rolled back by now, with this time."""


def leave(decision: Decision) -> None:
    """Leave word of the checkpoint to go back to, in the folder that it is in; nothing where there is none."""
    if (checkpoint := decision.rollback_to) is None:
        return
    folder = Path(checkpoint.path).parent
    why = next(order.why for order in decision.orders if order.do == "rollback" and not order.dry)
    times = 0
    if (taken := folder / TAKEN).exists():
        times = 1  # at least, if the file that says it cannot be read
        with suppress(OSError, ValueError, LookupError, TypeError):
            times = int(json.loads(taken.read_text())["times"])
    private(folder / FILE, json.dumps({"checkpoint": asdict(checkpoint), "why": why, "times": times + 1}, indent=1))


def resume_from(folder: str | Path, *, most: int = 2) -> Resume | None:
    """Where to start again; None if no guard has asked for it since the last call.

    Args:
        folder: of the checkpoints, such as `output_dir`.
        most: times that training may be rolled back; the count is in the folder and outlasts a rollback.

    Raises:
        DiagError: the checkpoint is gone or is not what it was, the file cannot be read, or `most` is exceeded.
    """
    file = Path(folder) / FILE
    if not file.exists():
        return None
    try:
        kept = json.loads(file.read_text())
        checkpoint, why, times = of_state(kept["checkpoint"]), str(kept["why"]), int(kept["times"])
    except (ValueError, LookupError, TypeError) as error:
        raise DiagError(f"{file}: {error!r}, expected what a guard has left; delete it to end the loop") from error
    if times > most:
        raise DiagError(
            f"rolled back {times} times, expected at most {most}: change the training or raise most=; last: {why}"
        )
    if problem := changed(checkpoint):
        raise DiagError(
            f"{checkpoint.path}: {problem}; expected the checkpoint of step {checkpoint.step} as it was saved, resume "
            "from an earlier one by hand"
        )
    file.replace(file.with_name(TAKEN))
    return Resume(checkpoint.path, checkpoint.step, why, times)
