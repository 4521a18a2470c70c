"""The report on disk, until the tracker has it."""

import contextlib
import os
from pathlib import Path

from tracker_diag.health import folder, private
from tracker_diag.trackers.delivery.journal import base_of
from tracker_diag.trackers.tracker import End, Tracker


class Undelivered(TimeoutError):
    """What the tracker does not have at the end; the message says where it is."""


def kept_report(tracker: Tracker, end: End) -> Path | Exception:
    """Write the report; where it is, or why it could not be written."""
    file = folder().absolute() / f"report-{base_of(tracker)}-{os.getpid()}.html"
    try:
        private(file, end.report)
    except Exception as error:  # noqa: BLE001  # the disk may be full
        return error
    return file


def released(report: Path | Exception | None, name: str, *, refused: bool) -> Undelivered | None:
    """Delete the report that tracker `name` has; if that has `refused` something, it stays, and this says where."""
    if not isinstance(report, Path):
        return None
    if refused:
        return Undelivered(f"{name}: it refused a part of the end; the report is in {report}")
    with contextlib.suppress(OSError):
        report.unlink()
    return None
