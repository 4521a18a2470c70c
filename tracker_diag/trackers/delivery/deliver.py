"""Deliver: what is left in the journals of processes that have died goes to their trackers."""

import os
import shlex
import stat
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TypeAlias

from tracker_diag.errors import DiagError, without_secrets
from tracker_diag.trackers.delivery.journal import Journal, JournalInUse
from tracker_diag.trackers.delivery.outbox import Outbox, There
from tracker_diag.trackers.discovery import tracker_class
from tracker_diag.trackers.tracker import Address

Held: TypeAlias = Callable[[str], There]
"""What of ours a run holds already, by what `tracker-diag diagnose` reads it from."""


def deliver(folder: Path, seconds: float, there: Held = lambda _: {}) -> Generator[tuple[Path, str, bool]]:
    """Deliver what dead processes left in `folder`: each journal's path, what became of it, and whether all is well.

    Args:
        folder: or one journal.
        seconds: to spend on each.
        there: asked of trackers that would take a step twice; their address has a `source`.
    """
    for path in [folder] if folder.is_file() else sorted(folder.glob("*.jsonl")):
        if path.name.endswith(".findings.jsonl"):
            continue
        if problem := _foreign(path):
            yield path, f"left alone: {problem}", False
            continue
        try:
            journal = Journal(path, {})
        except JournalInUse:
            yield path, "left alone: its process is alive and delivers it itself", True
            continue
        except (DiagError, OSError, ValueError) as error:  # one journal is in no other's way
            yield path, f"left alone: {error}", False
            continue
        yield path, *_deliver(journal, seconds, there)


def _foreign(path: Path) -> str | None:
    """Why `path` is not to be trusted: what stands in it says where a tracker is written to, with what you may do."""
    if os.name == "nt":  # no owners and modes of this kind
        return None
    try:
        there = path.stat()
    except OSError as error:
        return without_secrets(str(error))
    if there.st_uid != os.getuid():
        return f"it belongs to another user; if you trust what stands in it: sudo chown $USER {shlex.quote(str(path))}"
    if there.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may have written it; if you trust what stands in it: chmod 600 {shlex.quote(str(path))}"
    return None


def _deliver(journal: Journal, seconds: float, there: Held) -> tuple[str, bool]:
    if not journal.undelivered:
        journal.close(keep=False)
        return "nothing was left", True
    try:
        about = journal.about
        address = Address(about["address"])
        tracker = tracker_class(about["tracker"]).find(address)
        if tracker is None:
            raise DiagError(f"{about['tracker']} does not open {dict(address)} again")  # noqa: TRY301
        source = address.get("source")
        outbox = Outbox(tracker, journal, there(source) if source else {})
        try:
            whole = outbox.drain(seconds)
        finally:
            tracker.close()
    except Exception as error:  # noqa: BLE001  # whatever a tracker raises is to be told, and the next journal tried
        journal.close(keep=True)
        return without_secrets(f"kept: {error if isinstance(error, DiagError) else repr(error)}"), False
    _, errors = outbox.tally.taken()
    if not whole:
        return without_secrets(f"kept: {errors[-1] if errors else 'not all was delivered in time'}"), False
    lost = [error for error in errors if not isinstance(error, OSError)]
    refused = without_secrets(f", but for {len(lost)} that it refused, {lost[0]}") if lost else ""
    return f"delivered to {about['tracker']} {about['address'].get('run', '')}{refused}", not lost
