"""At the monitor's door: what is kept, shown and reported of the sequences behind a tail, and what is not."""

import json
import math
import threading

import numpy as np
import pytest
import torch

from tracker_diag import Monitor
from tracker_diag.monitor import worst as keep
from tracker_diag.records import Table
from tracker_diag.report.tokens import WORST
from tracker_diag.tensors.decode import Decoder
from tracker_diag.tensors.slices import Names
from tracker_diag.tensors.store import Merged
from tracker_diag.testing import EXAMPLE_FAULT, CapturingTracker, example_batch

pytestmark = pytest.mark.slow

SECRET = 424_242
WORD = "hunter2"


def batch(step, *, far=True, ids=True):
    """The example's batch; in its sequence 5, once the tail grows, one token far off, at position 17."""
    given = example_batch(step)
    if far and step > EXAMPLE_FAULT:
        given["logprobs"][5, 17] = given["old_logprobs"][5, 17] - 5 - step / 100
    if ids:
        given["token_ids"] = np.full((64, 24), SECRET)
    return given | {"tool": ["search" if i < 32 else "" for i in range(64)]}


def run(batches, **options):
    seen = CapturingTracker()
    monitor = Monitor([seen], **options)
    for step, given in enumerate(batches):
        monitor.observe(**given)
        monitor.log({"reward": 0.5}, step)
    monitor.close()
    return seen, monitor


def rows(table):
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def tables(seen):
    """The tables that came with steps, by step."""
    return {
        step: item
        for step, source in seen.records.items()
        for item in source
        if isinstance(item, Table) and item.name == WORST
    }


def test_the_planted_sequence_tool_and_position_are_named_at_the_alert_and_at_the_end():
    seen, monitor = run(batch(step) for step in range(110))
    (messages,) = [notice.step for notice in seen.notices]
    first = rows(tables(seen)[messages])[0]
    (table,) = [item for item in seen.tables if item.name == WORST]
    last = rows(table)[0]
    for row in (first, last):
        result = {name: row[name] for name in ("pair", "slice", "sequence", "tool", "position", "length", "batch")}
        assert result == {
            "pair": "policy", "slice": "post_tool", "sequence": 5, "tool": "search", "position": 17, "length": 24,
            "batch": 0,
        }  # fmt: skip
        assert row["log_ratio"] == pytest.approx(-5 - row["step"] / 100)
        assert 0 < row["share"] < 1
        assert row["excerpt"].count("«█»") == 1
        assert row["excerpt"].count("□") == 4
    assert [row["moment"] for row in rows(table)] == ["worst"] * 8 + ["first"] * 8  # the last step is the worst
    assert {row["onset"] for row in rows(table)} == {monitor.summary().first_break.onset}
    assert monitor.failures == []


@pytest.mark.nightly
def test_shares_are_parts_of_the_tail_of_the_windows_eight_steps():
    seen, _ = run(batch(step) for step in range(110))
    worst = [item for item in seen.summary.worst if item.moment == "worst"]
    assert len(worst) == 8

    def mass(step):
        given = batch(step)
        after = np.cumsum(~given["model_mask"], axis=1) > 0
        sizes = np.abs(given["logprobs"] - given["old_logprobs"]) * (given["model_mask"] & after)
        return np.maximum(sizes - worst[0].limit, 0).sum(axis=1)

    window = sum(mass(step).sum() for step in range(worst[0].step - 7, worst[0].step + 1))
    for item in worst:
        assert item.share == pytest.approx(mass(item.step)[item.sequence] / window, rel=0.01)
    assert [item.sequence for item in worst] == np.argsort(-mass(worst[0].step))[:8].tolist()


@pytest.mark.nightly
def test_without_ids_and_decoder_bars_are_shown():
    seen, monitor = run(batch(step, ids=False) for step in range(110))
    (table,) = [item for item in seen.tables if item.name == WORST]
    assert set("".join(row["excerpt"] for row in rows(table))) <= set("·▂▄▆█×□ «»")
    assert all(item.token_ids is None and item.texts is None for item in seen.summary.worst)
    assert monitor.failures == []


@pytest.mark.nightly
def test_ids_go_nowhere(journals):
    seen, monitor = run(batch(step) for step in range(110))
    assert len(seen.summary.worst) > 8
    assert all(item.token_ids is None for item in seen.summary.worst)
    assert str(SECRET) not in repr([seen.tables, seen.records, seen.notices, seen.summary.to_json()])
    assert str(SECRET) not in json.dumps(monitor.state_dict())
    assert list(journals.iterdir()) == []


@pytest.mark.nightly
def test_text_is_shown_where_a_decoder_was_given():
    seen, monitor = run((batch(step) for step in range(110)), decode=lambda ids: " ".join([WORD] * len(ids)))
    (table,) = [item for item in seen.tables if item.name == WORST]
    assert all(f"« {WORD}»" in row["excerpt"] or f"«{WORD}»" in row["excerpt"] for row in rows(table))
    assert rows(table)[0]["excerpt"].count(WORD) == 24
    assert f"[ {WORD} {WORD} {WORD} {WORD}]" in rows(table)[0]["excerpt"]
    (at_alert,) = tables(seen).values()
    assert WORD in repr(at_alert.rows)
    assert monitor.failures == []


@pytest.mark.nightly
def test_text_that_comes_in_the_instant_in_which_it_is_asked_for_is_shown(monkeypatch):
    busy = Decoder.busy.fget

    def done_by_now(self):
        self.wait(60)
        return busy(self)

    monkeypatch.setattr(Decoder, "busy", property(done_by_now))
    seen, _ = run((batch(step) for step in range(110)), decode=lambda ids: " ".join([WORD] * len(ids)))
    (at_alert,) = tables(seen).values()
    assert WORD in repr(at_alert.rows)


@pytest.mark.nightly
def test_a_decoder_without_ids_is_reported_what_it_lacks_once(caplog):
    seen, _ = run((batch(step, ids=False) for step in range(110)), decode=str)
    messages = [record.getMessage() for record in caplog.records if "decode was given" in record.getMessage()]
    assert len(messages) == 1
    assert "give token_ids=... to observe" in messages[0]
    assert [record.name for record in seen.tables] == ["diag/slices", WORST]


@pytest.mark.nightly
def test_a_decoder_that_raises_is_counted_and_the_rest_is_as_ever():
    def decode(_):
        raise KeyError("no such token")

    seen, monitor = run((batch(step) for step in range(110)), decode=decode)
    (table,) = [item for item in seen.tables if item.name == WORST]
    assert rows(table)[0]["sequence"] == 5
    assert monitor.health["decode_errors"] > 0
    assert [failure.split(":")[:2] for failure in monitor.failures] == [["decode_errors", " KeyError"]]


@pytest.mark.nightly
def test_a_decoder_that_hangs_holds_up_neither_training_nor_the_end_for_long(monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(keep, "CLOSE_WITHIN", 0.05)

    def decode(ids):
        release.wait(60)
        return str(ids)

    try:
        seen, monitor = run((batch(step) for step in range(110)), decode=decode)
    finally:
        release.set()
    (table,) = [item for item in seen.tables if item.name == WORST]
    assert set(rows(table)[0]["excerpt"]) <= set("·▂▄▆█×□ «»")
    assert monitor.health["decode_errors"] == 1
    assert "not decoded within 0 s" in monitor.failures[0]


@pytest.mark.nightly
def test_a_quiet_run_looks_at_nothing_and_shows_nothing(monkeypatch):
    looked = []  # by the function that all looking goes through: a quiet run pays for nothing
    monkeypatch.setattr("tracker_diag.tensors.worst._rows", lambda *given: looked.append(given))
    seen, monitor = run(example_batch(step % 60) | {"token_ids": np.ones((64, 24), int)} for step in range(100))
    assert monitor.summary().first_break is None
    assert looked == []
    assert [item.name for item in seen.tables] == ["diag/slices"]
    assert seen.summary.worst == ()


@pytest.mark.nightly
def test_what_was_pending_and_never_fired_is_forgotten():
    seen, monitor = run(batch(step) if step == 85 else example_batch(step % 60) for step in range(100))
    assert [finding for finding in monitor.summary().findings if finding.fired is not None] == []
    assert seen.summary.worst == ()


@pytest.mark.nightly
def test_each_finding_keeps_its_own_and_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(keep, "MOST_EPISODES", 3)

    def course():
        for step in range(600):
            growth = math.exp(max(0.0, (step % 100) - 75) * 0.1) if step >= 100 else 1.0
            given = example_batch(step % 60) | {"token_ids": np.full((64, 24), step)}
            after = np.zeros((64, 24), bool)
            after[:32, 12:] = True
            r = given["logprobs"] - given["old_logprobs"]
            yield given | {"logprobs": given["old_logprobs"] + np.where(after, growth * r, r)}

    seen, monitor = run(course())
    onsets = sorted({item.onset for item in seen.summary.worst})
    findings = sorted({f.onset for f in monitor.summary().findings if f.fired is not None and f.pair})
    assert len(findings) > 3
    assert len(onsets) <= 3
    assert onsets[0] == findings[0]
    assert monitor.failures == []


@pytest.mark.nightly
def test_a_resumed_run_keeps_on_from_the_next_step():
    first = Monitor()
    for step in range(100):
        first.observe(**batch(step))
        first.log({}, step)
    state = json.loads(json.dumps(first.state_dict()))
    second = Monitor([seen := CapturingTracker()])
    second.load_state_dict(state)
    for step in range(100, 110):
        second.observe(**batch(step))
        second.log({}, step)
    second.close()
    worst = [item for item in seen.summary.worst if item.moment == "worst"]
    assert (worst[0].sequence, worst[0].position, worst[0].onset) == (5, 17, first.summary().first_break.onset)
    assert {item.step for item in seen.summary.worst} <= set(range(101, 110))


@pytest.mark.nightly
def test_of_several_ranks_one_has_its_own_sequences_with_their_share_of_the_whole():
    class Twice:
        """Two ranks that observe the same."""

        names = Names()

        def merge(self, step, observed, names, seconds=None):
            self.names = names
            return Merged({pair: our + our for pair, our in observed.items()})

        def received(self):
            return ()

        def errors(self):
            return ()

        def close(self):
            return Merged({})

    (alone, _), (both, monitor) = (run((batch(s) for s in range(110)), ranks=ranks) for ranks in (None, Twice()))
    mine, ours = ([our for our in source.summary.worst if our.moment == "worst"] for source in (alone, both))
    assert [our.sequence for our in ours] == [our.sequence for our in mine]
    assert [our.share for our in ours] == pytest.approx([our.share / 2 for our in mine], rel=0.01)
    assert monitor.failures == []


@pytest.mark.nightly
@pytest.mark.parametrize("form", ["torch", "bfloat16", "packed", "ragged", "micro-batches"])
def test_the_planted_sequence_is_found_in_whatever_form_it_comes(form):
    def given(step):
        item = batch(step)
        if form == "packed":
            return {name: np.asarray(value).reshape(-1) for name, value in item.items() if name != "tool"} | {
                "sequence_ids": np.repeat(np.arange(64) + 1000, 24),
                "tool": item["tool"],
            }
        if form == "ragged":
            return {name: value if name == "tool" else list(map(list, value)) for name, value in item.items()}
        kinds = {"f": torch.bfloat16 if form == "bfloat16" else torch.float64}
        return {
            name: value if name == "tool" else torch.from_numpy(value).to(kinds.get(value.dtype.kind))
            for name, value in item.items()
        }

    if form == "micro-batches":
        seen = CapturingTracker()
        monitor = Monitor([seen])
        for step in range(110):
            for part in (slice(32, 64), slice(0, 32)):
                monitor.observe(**{name: value[part] for name, value in batch(step).items()})
            monitor.log({"reward": 0.5}, step)
        monitor.close()
    else:
        seen, monitor = run(map(given, range(110)))
    worst = seen.summary.worst[0]
    assert (worst.sequence, worst.batch) == (1005 if form == "packed" else 5, int(form == "micro-batches"))
    assert (worst.slice, worst.tool, worst.position, worst.length) == ("post_tool", "search", 17, 24)
    assert monitor.failures == []
