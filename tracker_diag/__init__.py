"""tracker_diag: see which slice of an agent-RL run goes unstable, inside the tracker that you use."""

from tracker_diag.attach.watch import watch
from tracker_diag.attach.wrap import wrap
from tracker_diag.detect.growth import GrowthSettings
from tracker_diag.errors import (
    BatchError,
    DiagError,
    GuardError,
    MissingExtra,
    RuleError,
    SourceError,
    StateError,
    StepError,
    UnknownName,
)
from tracker_diag.guards.decision import Decision
from tracker_diag.guards.policy import Guard
from tracker_diag.monitor.monitor import Monitor
from tracker_diag.preflight.run import preflight
from tracker_diag.report.notebook import shown as _shown
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.incidents import Incident
from tracker_diag.rules.loader import catalog, load_rules
from tracker_diag.rules.model import Rule
from tracker_diag.rules.triage import Summary
from tracker_diag.runs.compare import compare
from tracker_diag.runs.diagnose import diagnose
from tracker_diag.runs.replay import replay
from tracker_diag.samples.audit.audit import audit
from tracker_diag.samples.traces.report import read_traces
from tracker_diag.tensors.batch import TokenBatch
from tracker_diag.tensors.ranks import AllReduce
from tracker_diag.tensors.store import ThroughStore
from tracker_diag.trackers.files.write import JsonlTracker
from tracker_diag.trackers.notify import Notifier
from tracker_diag.trackers.open import read_run
from tracker_diag.trackers.tracker import Tracker

__all__ = [
    "AllReduce",
    "BatchError",
    "Decision",
    "DiagError",
    "Finding",
    "GrowthSettings",
    "Guard",
    "GuardError",
    "Incident",
    "JsonlTracker",
    "MissingExtra",
    "Monitor",
    "Notifier",
    "Rule",
    "RuleError",
    "SourceError",
    "StateError",
    "StepError",
    "Summary",
    "ThroughStore",
    "TokenBatch",
    "Tracker",
    "UnknownName",
    "audit",
    "catalog",
    "compare",
    "diagnose",
    "load_rules",
    "preflight",
    "read_run",
    "read_traces",
    "replay",
    "watch",
    "wrap",
]

Summary.shown_by = _shown  # in notebooks; rules know no report
