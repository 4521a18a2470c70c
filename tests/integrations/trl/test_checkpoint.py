"""The monitor's state beside a checkpoint, with what a Trainer gives its callbacks."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from tracker_diag_transformers.checkpoint import load, save

import tracker_diag as td


@pytest.fixture
def ran(tmp_path, make_batch, rng):
    """A monitor after some steps, and the arguments and the state of its Trainer."""
    monitor = td.Monitor()
    for step in range(1, 6):
        monitor.observe(**make_batch(rng, pairs=("policy",)))
        monitor.log({"loss": 0.5}, step)
    return monitor, SimpleNamespace(output_dir=str(tmp_path), process_index=0), SimpleNamespace(global_step=5)


def test_what_is_saved_is_what_goes_on(ran):
    monitor, args, state = ran
    save(monitor, args, state)
    resumed = td.Monitor()
    load(resumed, args, state)
    monitor.checkpoint(Path(args.output_dir) / "checkpoint-5", 5)  # the one it goes on from is a whole one
    assert resumed.state_dict() == monitor.state_dict()
    assert resumed.failures == monitor.failures == []


@pytest.mark.slow
def test_a_run_that_does_not_resume_and_a_monitor_that_has_begun_are_left_as_they_are(ran):
    monitor, args, state = ran
    save(monitor, args, state)
    new, begun = td.Monitor(), td.Monitor()
    begun.log({"loss": 0.25}, 7)
    before = [one.state_dict() for one in (new, begun)]
    load(new, args, SimpleNamespace(global_step=0))
    load(begun, args, state)
    assert [one.state_dict() for one in (new, begun)] == before


@pytest.mark.slow
def test_a_process_that_was_not_there_before_begins_with_what_all_have_seen(ran, make_batch, rng):
    monitor, args, state = ran
    monitor.observe(**make_batch(rng, pairs=("policy",)))  # and no log yet: this rank's own
    save(monitor, args, state)
    other = td.Monitor()
    load(other, SimpleNamespace(output_dir=args.output_dir, process_index=3), state)
    assert other.state_dict()["windows"] == monitor.state_dict()["windows"]
    assert (monitor.observed, other.observed) == (True, False)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["{", "[]", "{}", "windows"])
def test_of_a_damaged_state_nothing_stays(ran, damage):
    monitor, args, state = ran
    save(monitor, args, state)
    (file,) = Path(args.output_dir).rglob("tracker_diag_*.json")
    saved = json.loads(file.read_text())
    file.write_text(json.dumps(saved | {"judge": None}) if damage == "windows" else damage)
    resumed = td.Monitor()
    before = resumed.state_dict()
    load(resumed, args, state)
    after = resumed.state_dict()
    assert resumed.health["integration_errors"] == 1
    assert len(resumed.failures) == 1
    differ = {name for name in before if before[name] != after[name]}
    assert differ == {"health", "rebaseline"}  # it is counted, and the run says that its baselines begin anew
