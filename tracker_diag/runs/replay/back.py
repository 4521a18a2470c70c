"""Back: what a replay says goes into the run whose tokens they were, once, however often it is replayed."""

from tracker_diag.errors import SourceError
from tracker_diag.trackers.delivery.outbox import Outbox
from tracker_diag.trackers.discovery import reopened
from tracker_diag.trackers.open import held, of_tracker, prefixes
from tracker_diag.trackers.tracker import Event, Name, Tracker, give


def run_called(target: str, tokens: str) -> Tracker:
    """The finished run `target`, to write into; what it holds of the diagnostics is not written once more.

    It is `<tracker>:<run>`, such as `mlflow:<run id>[@tracking uri]`. An event in it names the `tokens` of the replay.
    """
    kind, _, run = target.partition(":")
    if f"{kind}:" not in prefixes() or not run:
        raise SourceError(f"--log-to: {target} given, expected {', '.join(prefixes())} and what the run is called")
    before = held(target)
    outbox = Outbox(of_tracker(target, lambda kind, name, _shown: reopened(kind, Name(name))), there=before)
    if not any(before.values()):
        give(outbox, 0, [Event(f"replayed from {tokens}")])
    return outbox
