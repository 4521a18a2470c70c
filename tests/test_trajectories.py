"""A trajectory in several sequences, a turn each, through the Monitor's door: the blame goes to the right slice."""

import numpy as np
import pytest
import torch

from tracker_diag import Monitor
from tracker_diag.metrics.series import UNKNOWN
from tracker_diag.testing import CapturingTracker

TRAJECTORIES, TURNS, LENGTH, FROM = 24, 2, 16, 40


def batch_of(step):
    """Rows of one turn: each trajectory's second one answers a tool, and from `FROM` on its log-ratios grow."""
    rng = np.random.default_rng(step)
    turn = np.tile(np.arange(TURNS), TRAJECTORIES)
    old = rng.uniform(-3, -0.1, (len(turn), LENGTH))
    spread = np.where(turn > 0, 0.02 * 1.1 ** max(0, step - FROM), 0.02)
    new = old + spread[:, None] * rng.normal(size=old.shape)
    whose = np.repeat(np.arange(TRAJECTORIES), TURNS)
    tensors = {"logprobs": new, "old_logprobs": old, "model_mask": np.ones(old.shape, bool)}
    return tensors, {"trajectory_ids": whose, "turn": turn}


def watched(*known, steps=70):
    """What 70 steps come to, where of each row the trainer has `told` so much."""
    captured = CapturingTracker()
    with Monitor([captured]) as monitor:
        monitor.expect(steps)
        for step in range(steps):
            tensors, about = batch_of(step)
            monitor.observe(**tensors, **{name: about[name] for name in known})
            monitor.log({"reward": 0.5}, step)
    firing = {
        (finding.rule.id, finding.slice) for finding in captured.summary.findings if finding.rule.severity != "info"
    }
    return firing, captured.summary.caveats, counts(captured)


def counts(captured):
    (table,) = (item for item in captured.tables if item.name == "diag/slices")
    at = table.columns.index("count")
    return {row[1]: row[at] for row in table.rows if row[0] == "policy"}


@pytest.mark.slow
def test_what_grows_after_a_tool_is_blamed_on_it_where_each_turn_is_a_row():
    firing, _, seen = watched("trajectory_ids", "turn")
    assert ("POL001", "post_tool") in firing
    assert not {slice for _, slice in firing} & {"text_only"}
    assert seen["text_only"] == seen["post_tool"] == seen["turn:0"] == seen["turn:1"] == seen["all"] / 2
    assert UNKNOWN not in seen


@pytest.mark.slow
def test_where_nobody_says_which_turn_a_row_is_nothing_is_blamed_on_text_or_tool():
    firing, caveats, seen = watched("trajectory_ids")
    assert firing
    assert {slice for _, slice in firing} == {"all"}
    assert seen[UNKNOWN] == seen["all"]
    assert any("of 100% of the tokens nobody has said whether a tool result" in caveat for caveat in caveats)


@pytest.mark.nightly
def test_without_trajectories_the_rows_are_taken_for_whole_ones_and_the_blame_is_wrong():
    """The reproduction: this is what a trainer without `trajectory_ids` gets, and why they are asked for."""
    firing, _, seen = watched()
    assert {slice for _, slice in firing} <= {"text_only", "all"}
    assert "post_tool" not in seen or not seen["post_tool"]


@pytest.mark.slow
@pytest.mark.parametrize("on", ["numpy", "torch", "packed", "packed torch"])
@pytest.mark.parametrize("names", [int, "task {}".format])
def test_only_sequences_that_share_their_trajectory_are_unknown(on, names):
    """Rows of trajectories 5, 7, 5 and 9; the first has a gap, and what follows it is known."""
    model = np.array([[1, 1, 0, 1], [1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 1, 1]], bool)
    zero = np.zeros(model.shape, np.float32)
    given = {"logprobs": zero + 0.1, "old_logprobs": zero, "model_mask": model}
    ids = [names(item) for item in (5, 7, 5, 9)]
    if "packed" in on:
        given = {name: value.reshape(-1) for name, value in given.items()}
        given["sequence_ids"] = np.repeat(np.arange(4), 4)
    if "torch" in on:
        given = {name: torch.from_numpy(value) for name, value in given.items()}
    captured = CapturingTracker()
    with Monitor([captured]) as monitor:
        monitor.observe(**given, trajectory_ids=ids)
        monitor.log({}, 0)
    assert counts(captured) | {"text_only": 5, "post_tool": 3, UNKNOWN: 5, "all": 13} == counts(captured)


def test_a_negative_turn_is_unknown_and_nan_there_is_reported_of(caplog):
    model = np.ones((3, 4), bool)
    old = np.zeros(model.shape)
    captured = CapturingTracker()
    with Monitor([captured]) as monitor:
        for step, broken in enumerate((0.1, np.nan)):
            new = old + np.array([[0.1], [0.1], [broken]])
            monitor.observe(
                logprobs=new, old_logprobs=old, model_mask=model, trajectory_ids=[1, 1, 1], turn=np.array([0, 1, -1])
            )
            monitor.log({}, step)
    assert "of 4 of 12 model tokens nobody has said whether a tool result comes before them" in caplog.text
    assert (counts(captured)["text_only"], counts(captured)["post_tool"], counts(captured)[UNKNOWN]) == (8, 8, 4)
    assert any("log-ratio of policy on unknown" in str(item) for _, item in captured.findings)


@pytest.mark.slow
def test_what_is_unknown_survives_a_save():
    captured = CapturingTracker()
    with Monitor([captured]) as monitor:
        tensors, about = batch_of(0)
        monitor.observe(**tensors, trajectory_ids=about["trajectory_ids"])
        monitor.log({}, 0)
        state = monitor.state_dict()
    again = Monitor([resumed := CapturingTracker()])
    again.load_state_dict(state)
    again.close()
    assert counts(resumed) == counts(captured)
