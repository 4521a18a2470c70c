"""tracker_diag: see which slice of an agent-RL run becomes unstable, inside the tracker that you use.

A name is imported when it is first used, so `import tracker_diag` itself costs almost nothing.
"""

from typing import TYPE_CHECKING

from tracker_diag import errors as errors
from tracker_diag.errors import DiagError as DiagError

if TYPE_CHECKING:
    from tracker_diag.attach.watch import watch as watch
    from tracker_diag.attach.wrap import wrap as wrap
    from tracker_diag.detect.growth import GrowthSettings as GrowthSettings
    from tracker_diag.guards.decision import Decision as Decision
    from tracker_diag.guards.policy import Guard as Guard
    from tracker_diag.monitor.monitor import Monitor as Monitor
    from tracker_diag.preflight.run import preflight as preflight
    from tracker_diag.rules.findings import Finding as Finding
    from tracker_diag.rules.incidents import Incident as Incident
    from tracker_diag.rules.loader import catalog as catalog
    from tracker_diag.rules.loader import load_rules as load_rules
    from tracker_diag.rules.model import Rule as Rule
    from tracker_diag.rules.triage import Summary as Summary
    from tracker_diag.runs.compare import compare as compare
    from tracker_diag.runs.diagnose import diagnose as diagnose
    from tracker_diag.runs.replay.replay import replay as replay
    from tracker_diag.samples.audit.audit import audit as audit
    from tracker_diag.samples.traces.report import read_traces as read_traces
    from tracker_diag.tensors.ranks import AllReduce as AllReduce
    from tracker_diag.tensors.store import ThroughStore as ThroughStore
    from tracker_diag.trackers.notify import Notifier as Notifier
    from tracker_diag.trackers.open import read_run as read_run
    from tracker_diag.trackers.tracker import Tracker as Tracker
else:
    # Not for a checker: one that saw `__getattr__` would accept every misspelt name.
    from importlib import import_module

    from tracker_diag import preflight

    del preflight  # now that the room is loaded, a later import of it cannot replace the function of its name

    _HOMES = {
        "DiagError": "errors",
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

    __all__ = list(_HOMES)
    __all__ += ["errors"]

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return value

    def __dir__() -> list[str]:
        return __all__
