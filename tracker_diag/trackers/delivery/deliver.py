"""Deliver: what is left in the journals of processes that have died goes to their trackers."""

from collections.abc import Callable, Generator
from pathlib import Path
from typing import TypeAlias

from tracker_diag.errors import DiagError
from tracker_diag.scrub import without_secrets
from tracker_diag.trackers.delivery.journal import END, InUse, Journal, NoJournal
from tracker_diag.trackers.delivery.outbox import Outbox, There
from tracker_diag.trackers.discovery import reopened, tracker_class
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
    for path in [folder] if not folder.is_dir() else sorted(folder.glob(f"*{END}")):
        try:
            outcome, well = _deliver(Journal.taken(path), seconds, there)
        except FileNotFoundError:
            outcome, well = "left alone: another process has just taken it, and delivers it", True
        except (NoJournal, OSError) as error:  # one journal is in no other's way
            outcome, well = f"left alone: {error}", isinstance(error, InUse)
        yield path, without_secrets(outcome), well


def _deliver(journal: Journal, seconds: float, there: Held) -> tuple[str, bool]:
    if not journal.undelivered:
        journal.close(keep=False)
        return "nothing was left", True
    name, address = str(journal.about.get("tracker")), Address(journal.about.get("address", {}))
    try:
        tracker = reopened(tracker_class(name), address)
        outbox = Outbox(tracker, journal, there(address["source"]) if address.get("source") else {})
        try:
            whole = outbox.drain(seconds)
        finally:
            tracker.close()
    except Exception as error:  # noqa: BLE001  # whatever a tracker raises is reported, and the next journal tried
        journal.close(keep=True)
        return f"kept: {error if isinstance(error, DiagError) else repr(error)}", False
    _, errors = outbox.tally.taken()
    if not whole:
        return f"kept: {errors[-1] if errors else 'not all was delivered in time'}", False
    lost = [error for error in errors if not isinstance(error, OSError)]
    refused = f", but for {len(lost)} that it refused, {lost[0]}" if lost else ""
    return f"delivered to {name} {address.get('run', '')}{refused}", not lost
