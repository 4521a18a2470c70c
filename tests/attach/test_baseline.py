"""`baseline=` at the user's door: a run that is ill from its first step, held against runs that went well."""

import json

import numpy as np
import pytest

from tracker_diag import DiagError, Monitor, read_run, watch, wrap
from tracker_diag.errors import SourceError
from tracker_diag.testing import CapturingTracker
from tracker_diag.trackers.files.write import JsonlTracker

pytestmark = pytest.mark.slow

STEPS = 30


def train(diag, make_batch, seed, post, steps=range(STEPS), *, pairs=("policy",), log=None):
    """Observe and log `steps` batches, whose log-ratios after tools have a standard deviation of `post`."""
    rng = np.random.default_rng(seed)
    batches = [make_batch(rng, post=post, text=0.04, pairs=pairs) for _ in range(steps.stop)]
    for step in steps:
        diag.observe(**batches[step])
        (log or diag.log)({"reward": 0.5}, step)


def shown(capsys):
    return " ".join("".join(capsys.readouterr()).split())


def fired(summary):
    return [(finding.rule.id, finding.slice, finding.fired) for finding in summary.findings]


@pytest.fixture(scope="module")
def good(tmp_path_factory, make_batch):
    """Folders of three runs that went well."""
    folders = [tmp_path_factory.mktemp(f"good-{seed}") for seed in range(3)]
    for seed, folder in enumerate(folders):
        with Monitor([JsonlTracker(folder)]) as monitor:
            train(monitor, make_batch, seed, 0.05)
    return [str(folder) for folder in folders]


@pytest.mark.nightly
def test_a_run_of_mlflow_judges_the_next_one_from_its_first_step(mlflow_store, make_batch):
    import mlflow

    def run(seed, post, **options):
        with mlflow.start_run() as begun:
            wrapped = wrap(mlflow, **options)
            train(wrapped.diag, make_batch, seed, post)
            return begun.info.run_id, wrapped.diag.close()

    known, _ = run(0, 0.05)
    _, ill = run(1, 0.125, baseline=f"mlflow:{known}@{mlflow_store}")
    assert fired(ill) == [("POL001", "post_tool", 6)]
    (finding,) = ill.findings
    grows = next(item for item in finding.evidence if item.signal == "post_tool_tail_grows_each_step")
    assert (finding.onset, grows.baseline) == (0, pytest.approx(0.1, rel=0.1))
    assert "too early" not in str(ill.caveats)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("post", "runs", "expected"), [(0.05, 1, []), (0.05, 3, []), (0.1, 3, [("POL001", "post_tool", 6)]), (0.1, 0, [])]
)
def test_only_an_ill_run_is_alarmed_and_only_by_earlier_ones(good, make_batch, post, runs, expected):
    run = wrap(lambda metrics, step=None: None, baseline=good[:runs])
    train(run.diag, make_batch, 7, post)
    assert fired(run.diag.close()) == expected


def test_a_tail_far_too_large_from_the_first_step_is_an_alarm_at_once(good, make_batch):
    with Monitor(baseline=[read_run(good[0])]) as monitor:
        train(monitor, make_batch, 7, 1.5, range(12))
    assert not +monitor.health
    assert ("POL001", "post_tool", 3) in fired(monitor.summary())


@pytest.mark.nightly
def test_more_runs_tell_what_one_alone_does_not(good, make_batch):
    for baseline, result in ((good[:1], False), (good, True)):
        with Monitor(baseline=[read_run(item) for item in baseline]) as monitor:
            train(monitor, make_batch, 7, 0.075, range(60))
        assert bool(monitor.summary().findings) is result


@pytest.mark.nightly
def test_growth_within_the_run_is_found_as_without_a_baseline(good, make_batch):
    later = {}
    for baseline in ([], [read_run(good[0])]):
        with Monitor(baseline=baseline) as monitor:
            train(monitor, make_batch, 7, 0.03, range(80))
            train(monitor, make_batch, 8, 0.06, range(80, 110))  # ×2, and no more than 1.2 times the earlier run's
        later[len(baseline)] = fired(monitor.summary())
    assert later[0] == later[1]
    assert later[0][0][:2] == ("POL001", "post_tool")


@pytest.mark.nightly
def test_the_reference_pair_is_not_held_against_an_earlier_run(tmp_path, make_batch):
    pairs = ("policy", "reference")
    with Monitor([JsonlTracker(tmp_path)]) as monitor:
        train(monitor, make_batch, 0, 0.05, pairs=pairs)
    with Monitor(baseline=[read_run(str(tmp_path))]) as monitor:
        train(monitor, make_batch, 1, 0.125, pairs=pairs)
    assert {finding.pair for finding in monitor.summary().findings} == {"policy"}


def test_what_is_judged_by_which_runs_is_said(good, make_batch, capsys):
    capturing = CapturingTracker()
    run = wrap(lambda metrics, step=None: None, baseline=good[:2], also=[capturing])
    train(run.diag, make_batch, 7, 0.05, range(10))
    assert not any("earlier run" in event for _, event in capturing.events)  # she gave them herself
    run.diag.explain()
    expected = f"baseline 2 earlier runs to judge policy from the first step on: {good[0]}, {good[1]}"
    assert expected.replace(" ", "") in shown(capsys).replace(" ", "")  # a long path is broken


def test_pairs_that_the_earlier_runs_lack_are_said_at_once(good, make_batch, capsys):
    capturing = CapturingTracker()
    monitor = Monitor([capturing], baseline=[read_run(good[0])])
    train(monitor, make_batch, 7, 0.05, range(10), pairs=("reference",))
    output = "baseline 1 earlier run to judge nothing, as they have policy alone: "
    assert output in " ".join(" ".join(event for _, event in capturing.events).split())
    monitor.explain()
    assert output in shown(capsys)
    assert "10 of 65 steps" in str(monitor.summary().caveats)


def test_a_run_that_is_killed_continues_with_its_earlier_runs(good, make_batch):
    """Also where they are not given again: the store they were in may be gone."""
    whole = Monitor(baseline=[read_run(good[0])])
    train(whole, make_batch, 1, 0.1, range(20))
    for again in ([read_run(good[0])], []):
        first, second = Monitor(baseline=[read_run(good[0])]), Monitor(baseline=again)
        train(first, make_batch, 1, 0.1, range(4))
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        train(second, make_batch, 1, 0.1, range(4, 20))
        assert fired(second.summary()) == fired(whole.summary()) == [("POL001", "post_tool", 6)]


def test_a_new_baseline_takes_the_place_of_the_earlier_runs(good, make_batch):
    monitor = Monitor(baseline=[read_run(good[0])])
    train(monitor, make_batch, 1, 0.1, range(10))
    monitor.rebaseline("the tool answers at greater length")
    train(monitor, make_batch, 1, 0.1, range(10, 40))
    (finding,) = monitor.summary().findings
    assert finding.resolved == 10
    resumed = Monitor(baseline=[read_run(good[0])])
    resumed.load_state_dict(monitor.state_dict())
    train(resumed, make_batch, 1, 0.1, range(40, 60))
    assert len(resumed.summary().findings) == 1


def test_an_unknown_run_is_reported_before_anything_is_wrapped(mlflow_store):
    import mlflow

    with pytest.raises(SourceError, match=r"^mlflow:nowhere: "), mlflow.start_run():
        wrap(mlflow, baseline="mlflow:nowhere")


def test_watch_tells_of_an_unknown_run_at_once(tmp_path):
    with pytest.raises(SourceError, match="no such file or folder"):
        watch(baseline=str(tmp_path / "nothing.jsonl"))


def test_a_run_without_diagnostics_is_reported(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps({"step": step, "reward": 0.5}) + "\n" for step in range(30)))
    with pytest.raises(DiagError, match=r"^baseline: .*metrics.jsonl has no series diag/<pair>/<slice>/p95; expected"):
        wrap(lambda metrics, step=None: None, baseline=str(file))


def test_it_is_given_to_the_first_wrap(good):
    run = wrap(lambda metrics, step=None: None)
    with pytest.raises(DiagError, match="wrapped already, and baseline given; give all to the first wrap"):
        wrap(run, baseline=good)


@pytest.mark.nightly
def test_runs_that_begin_later_are_held_against_it(good, make_batch, mlflow_store):
    import mlflow

    watcher = watch(baseline=good)
    with mlflow.start_run():
        train(watcher, make_batch, 1, 0.125, range(15), log=mlflow.log_metrics)
        assert fired(watcher.diag.summary()) == [("POL001", "post_tool", 6)]
    watcher.close()
