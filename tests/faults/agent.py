"""Runs of the demo's agent, with the tensors of each step observed."""

from collections.abc import Mapping
from typing import Any

import control

from tracker_diag import Monitor
from tracker_diag.demo.grpo import ARMS, train
from tracker_diag.testing import CapturingTracker

STEPS = 300


def run(fault: Mapping[str, Any], seed: int) -> dict[int, dict[str, float]]:
    """Rows by step of one arm; the healthy one where no other is named."""
    capture = CapturingTracker()
    monitor = Monitor([capture], algorithm="grpo")
    rows: dict[int, dict[str, float]] = {}
    for step in train(ARMS[fault.get("arm", "healthy")], seed, STEPS):
        monitor.observe(**step.tensors)
        monitor.log(step.metrics, step.step)
        rows[step.step] = dict(step.metrics)
    monitor.close()
    return control.joined(rows, capture)
