"""Back: what a replay says goes into the run whose tokens they were, once, however often it is replayed."""

from collections.abc import Callable, Mapping

from tracker_diag.errors import SourceError, require
from tracker_diag.trackers.delivery.outbox import Outbox
from tracker_diag.trackers.discovery import tracker_class
from tracker_diag.trackers.open import held, of_tracker
from tracker_diag.trackers.tracker import Address, Event, Tracker, give
from tracker_diag.trackers.wandb.read import finished_address


def run_called(target: str, tokens: str) -> Tracker:
    """The finished run `target`, to write into; what it holds of the diagnostics is not written once more.

    Args:
        target: `mlflow:<run id>[@tracking uri]`, `wandb:<entity>/<project>/<run>` or `trackio:<project>/<run>`.
        tokens: what is replayed; an event in the run says so.

    Raises:
        MissingExtra: the tracker is not installed.
        SourceError: there is no such run, or it is of another tracker.
    """
    kind, _, name = target.partition(":")
    if kind not in _REOPEN or not name:
        raise SourceError(
            f"--log-to: {target} given, expected mlflow:<run id>[@tracking uri], wandb:<entity>/<project>/<run> or "
            "trackio:<project>/<run>"
        )
    before = held(target)
    outbox = Outbox(of_tracker(target, lambda _kind, name, _shown: _REOPEN[kind](name)), there=before)
    if not any(before.values()):
        give(outbox, 0, [Event(f"replayed from {tokens}")])
    return outbox


def _mlflow(name: str) -> Tracker:
    mlflow = require("mlflow", "mlflow")
    run, _, uri = name.partition("@")
    tracker = tracker_class("mlflow").find(mlflow.MlflowClient(uri or None), run_id=run)
    assert tracker is not None, "of a client there always is one"  # noqa: S101
    return tracker


def _wandb(name: str) -> Tracker:
    return _opened("wandb", finished_address(name, f"wandb:{name}"))


def _trackio(name: str) -> Tracker:
    require("trackio", "trackio")
    project, _, run = name.partition("/")
    return _opened("trackio", Address(project=project, name=run))


def _opened(kind: str, address: Address) -> Tracker:
    tracker = tracker_class(kind).find(address)
    assert tracker is not None, "an address is always opened"  # noqa: S101
    return tracker


_REOPEN: Mapping[str, Callable[[str], Tracker]] = {"mlflow": _mlflow, "wandb": _wandb, "trackio": _trackio}
