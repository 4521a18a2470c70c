"""tracker_diag: see which slice of an agent-RL run goes unstable, inside the tracker that you use."""

from tracker_diag.attach.wrap import wrap
from tracker_diag.errors import BatchError, DiagError, MissingExtra, RuleError, SourceError, StepError, UnknownName
from tracker_diag.monitor import Monitor
from tracker_diag.tensors.batch import TokenBatch

__all__ = [
    "BatchError",
    "DiagError",
    "MissingExtra",
    "Monitor",
    "RuleError",
    "SourceError",
    "StepError",
    "TokenBatch",
    "UnknownName",
    "wrap",
]
