import math

import tracker_diag
from tracker_diag import errors


def test_public_names_are_pinned():
    public = sorted(name for name in tracker_diag.__all__)
    assert public == tracker_diag.__all__
    assert all(hasattr(tracker_diag, name) for name in public)
    assert public == [
        "AllReduce",
        "Tracker",
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


def test_every_error_of_set_up_can_be_caught_by_its_public_name():
    raised = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.DiagError)}
    assert {kind.__name__ for kind in raised} <= set(tracker_diag.__all__)


def test_what_a_run_adds_up_to_prints_as_a_short_paragraph(make_batch, rng):
    monitor = tracker_diag.Monitor()
    for step in range(3):
        monitor.observe(**make_batch(rng))
        monitor.log({"reward": math.nan if step == 2 else 0.5}, step)
    summary = monitor.close()
    assert len(str(summary)) < 500
    assert str(summary).startswith(
        "live, 3 steps. Broke first: NUM004 NaN or infinity (all): error, firing from step 2. "
    )
    assert repr(summary) == str(summary)
    assert repr(summary.findings) == f"({summary.first_break},)"


def test_a_file_is_diagnosed_in_two_calls(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(f'{{"step": {step}, "reward": 0.5}}\n' for step in range(5)))
    found = tracker_diag.diagnose(tracker_diag.read_run(str(file)))
    assert repr(found).startswith(f"{file}, 5 steps. No rule fired at warn or above. ")
