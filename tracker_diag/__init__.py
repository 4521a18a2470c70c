"""tracker_diag: see which slice of an agent-RL run becomes unstable, inside the tracker that you use.

A name is imported when it is first used, so `import tracker_diag` itself costs almost nothing.
"""

from typing import TYPE_CHECKING

from tracker_diag import errors
from tracker_diag.errors import DiagError

if TYPE_CHECKING:
    from tracker_diag.attach.watch import watch
    from tracker_diag.attach.wrap import wrap
    from tracker_diag.detect.growth import GrowthSettings
    from tracker_diag.guards.decision import Decision
    from tracker_diag.guards.policy import Guard
    from tracker_diag.monitor.monitor import Monitor
    from tracker_diag.preflight.run import preflight
    from tracker_diag.rules.findings import Finding
    from tracker_diag.rules.incidents import Incident
    from tracker_diag.rules.loader import catalog, load_rules
    from tracker_diag.rules.model import Rule
    from tracker_diag.rules.triage import Summary
    from tracker_diag.runs.compare import compare
    from tracker_diag.runs.diagnose import diagnose
    from tracker_diag.runs.replay.replay import replay
    from tracker_diag.samples.audit.audit import audit
    from tracker_diag.samples.traces.report import read_traces
    from tracker_diag.tensors.ranks import AllReduce
    from tracker_diag.tensors.store import ThroughStore
    from tracker_diag.trackers.notify import Notifier
    from tracker_diag.trackers.open import read_run
    from tracker_diag.trackers.tracker import Tracker
else:
    from tracker_diag import preflight

    del preflight  # now that the room is loaded, a later import of it cannot replace the function of its name

__all__ = [
    "AllReduce",
    "Decision",
    "DiagError",
    "Finding",
    "GrowthSettings",
    "Guard",
    "Incident",
    "Monitor",
    "Notifier",
    "Rule",
    "Summary",
    "ThroughStore",
    "Tracker",
    "audit",
    "catalog",
    "compare",
    "diagnose",
    "errors",
    "load_rules",
    "preflight",
    "read_run",
    "read_traces",
    "replay",
    "watch",
    "wrap",
]

if not TYPE_CHECKING:  # a checker that saw `__getattr__` would accept every misspelt name
    _HOMES = {
        "AllReduce": "tensors.ranks",
        "Decision": "guards.decision",
        "Finding": "rules.findings",
        "GrowthSettings": "detect.growth",
        "Guard": "guards.policy",
        "Incident": "rules.incidents",
        "Monitor": "monitor.monitor",
        "Notifier": "trackers.notify",
        "Rule": "rules.model",
        "Summary": "rules.triage",
        "ThroughStore": "tensors.store",
        "Tracker": "trackers.tracker",
        "audit": "samples.audit.audit",
        "catalog": "rules.loader",
        "compare": "runs.compare",
        "diagnose": "runs.diagnose",
        "load_rules": "rules.loader",
        "preflight": "preflight.run",
        "read_run": "trackers.open",
        "read_traces": "samples.traces.report",
        "replay": "runs.replay.replay",
        "watch": "attach.watch",
        "wrap": "attach.wrap",
    }

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return value

    def __dir__() -> list[str]:
        return sorted(__all__)
