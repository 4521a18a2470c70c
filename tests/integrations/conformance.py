"""What holds of every integration, whatever its framework.

The tests of a framework derive one class from the invariants below that apply to it. That class is the adapter: it says
how a training is made, watched and run to its end.
"""

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from tracker_diag import DiagError, Monitor
from tracker_diag.attach.workers import Recorder, Workers
from tracker_diag.testing import CapturingTracker

METRICS, RATIOS, SAMPLES = "metrics", "ratios", "samples"
"""What an integration sees, and may lose."""


def same(first: Any, second: Any) -> bool:
    """Whether two results are equal, tensors bit by bit."""
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, np.ndarray):
        return np.array_equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(value, second[key]) for key, value in first.items())
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


def counted(monitor: Monitor, pair: str, column: str = "count") -> dict[str, Any]:
    """A statistic of each slice of a pair. It closes the monitor: what has no row yet counts too."""
    monitor.close()
    table = monitor.slices_table()
    rows = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    return {row["slice"]: row[column] for row in rows if row["pair"] == pair}


def responses(rng: np.random.Generator, rows: int, width: int, post: float = 0.02) -> tuple[np.ndarray, ...]:
    """Masks (rows, width) of model tokens, with a tool's result amid the first half, and two log-probabilities of each.

    Args:
        post: the spread of their difference after the result; elsewhere it is 0.02.
    """
    model, spread = np.ones((rows, width), bool), np.full((rows, width), 0.02)
    model[: rows // 2, 8:12] = False
    spread[: rows // 2, 12:] = post
    old = rng.uniform(-3, -0.1, (rows, width))
    return model, old, old - spread * rng.normal(size=old.shape)


def names_the_tail(monitor: Monitor, planted: int = 30) -> bool:
    """Whether what grew after tools is named, from about the step on at which it was planted, and nothing failed."""
    onsets = [
        finding.onset
        for finding in monitor.summary().findings
        if finding.slice == "post_tool" and finding.fired is not None
    ]
    failed = monitor.health["integration_errors"] + monitor.health["rejected_batches"] + monitor.health["rank_errors"]
    return bool(onsets) and min(onsets) >= planted - 10 and not failed


class Adapter:
    """One framework."""

    STEPS: list[int]
    """The steps that a training logs."""

    @pytest.fixture
    def messages(self, caplog):
        """Gives the messages so far; a framework with a logging of its own has another fixture."""
        return lambda: caplog.messages

    def make(self) -> Any:
        """A training that has not begun."""
        raise NotImplementedError

    def attach(self, training: Any, monitor: Monitor | None = None) -> Monitor:
        raise NotImplementedError

    def train(self, training: Any) -> Any:
        """Run it to its end. Gives losses or weights, and the rows of the user's own trackers."""
        raise NotImplementedError

    def plain(self) -> Any:
        """What a training gives that is not watched."""
        return self.train(self.make())


class SameWithUs(Adapter):
    """Training and the user's rows are as without us, and each row is heard at its step."""

    def test_training_and_rows_are_as_without_us(self):
        plain, training = self.plain(), self.make()
        state = torch.get_rng_state()
        monitor = self.attach(training, Monitor([kept := CapturingTracker()]))
        assert torch.equal(torch.get_rng_state(), state)
        assert same(self.train(training), plain)
        monitor.close()
        assert list(kept.own) == self.STEPS
        assert not +monitor.health


class WatchedOnce(Adapter):
    """However often it is attached to a training, one monitor watches it."""

    def test_attached_twice_each_step_is_heard_once(self):
        plain, training = self.plain(), self.make()
        monitor = self.attach(training, Monitor([kept := CapturingTracker()]))
        assert self.attach(training) is self.attach(training, monitor) is monitor
        with pytest.raises(DiagError, match="monitor: another one given"):
            self.attach(training, Monitor())
        assert same(self.train(training), plain)
        monitor.close()
        assert list(kept.own) == self.STEPS
        assert monitor.summary().steps == len(self.STEPS)
        assert not +monitor.health


class KnowsTheSettings(Adapter):
    """The default monitor has the run's settings, and none that is secret."""

    CLIP: tuple[float, float]
    CONFIG: Mapping[str, object]
    SECRET = ""
    """How no setting's name begins."""

    def test_the_default_monitor_knows_the_settings(self):
        monitor = self.attach(self.make())
        assert monitor.clip == self.CLIP
        assert {name: monitor.config.get(name) for name in self.CONFIG} == self.CONFIG
        assert not [name for name in monitor.config if self.SECRET and name.startswith(self.SECRET)]
        monitor.close()


class LeavesNoHook(Adapter):
    """When a training has ended, the framework is as it was."""

    def hooked(self, training: Any) -> list[Any]:
        """What is at the places where hooks are put."""
        raise NotImplementedError

    def test_when_training_has_ended_no_hook_is_left(self):
        training = self.make()
        before = self.hooked(training)
        self.attach(training, Monitor())
        hooked = self.hooked(training)
        assert all(ours is not theirs for ours, theirs in zip(hooked, before, strict=True))
        self.train(training)
        assert all(left is theirs for left, theirs in zip(self.hooked(training), before, strict=True))


class Resumes(Adapter):
    """A resumed training has the state that is next to its checkpoint, and without one starts over and says so."""

    KEPT: int
    """The step of the state next to the checkpoint."""
    ANEW: int | None = None
    """The step after `resume` of one that starts over."""
    ROWS: tuple[int | None, int | None] = (None, None)
    """Rows to come of the first training, and of one that is resumed without a state; None where it is not known."""

    def begin(self, folder: Any, monitor: Monitor) -> None:
        """Train, with a checkpoint in `folder`."""
        raise NotImplementedError

    def resume(self, folder: Any, monitor: Monitor) -> None:
        """Begin from that checkpoint; no step need be made."""
        raise NotImplementedError

    def test_a_resumed_training_has_the_state_next_to_its_checkpoint(self, tmp_path, messages):
        first, second, third = Monitor(), Monitor(), Monitor()
        self.begin(tmp_path, first)
        self.resume(tmp_path, second)
        assert second.step == self.KEPT
        assert not [message for message in messages() if "start over" in message]
        for file in tmp_path.rglob("tracker_diag_0.json"):
            file.unlink()
        self.resume(tmp_path, third)
        assert third.step == self.ANEW
        assert len([message for message in messages() if "start over" in message]) == 1
        assert (first.state_dict()["rows"], third.state_dict()["rows"]) == self.ROWS
        assert first.failures == second.failures == third.failures == []


class SurvivesWhatIsGone(Adapter):
    """A part of the framework that is not there when we attach is reported once, and training is as without us."""

    GONE: Mapping[tuple[str | None, str], bool]
    """By owner and attribute, or by None and module: whether rows are heard without it."""
    BY_DEFAULT: set[str] = set()
    """Attributes that the default monitor alone is made from."""
    REPORTED: Mapping[str, int] = {}
    """How often, of what is needed by several parts or by none."""

    def owners(self, training: Any) -> dict[str, Any]:
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc):
        if "gone" in metafunc.fixturenames:
            metafunc.parametrize("gone", self.GONE, ids=lambda gone: gone[1])

    def test_what_is_gone_is_reported_once_and_training_is_as_without_us(self, without, messages, gone):
        plain, training, (owner, name) = self.plain(), self.make(), gone
        place = None if owner is None else self.owners(training)[owner]
        given = None if name in self.BY_DEFAULT else Monitor()
        monitor = without(place, name, lambda: self.attach(training, given))
        assert same(self.train(training), plain)
        reported = [message for message in messages() if "is not a tested version" in message]
        assert len(reported) == len({*reported}) == self.REPORTED.get(name, 1)
        assert monitor.step == (self.STEPS[-1] if self.GONE[gone] else None)
        assert given is None or monitor.failures == []  # by default it writes to the trackers that are there
        monitor.close()


GONE, RAISES = AttributeError("gone"), RuntimeError("not in this release")


class SurvivesWhatBreaks(Adapter):
    """An attribute that is gone or raises while our callbacks run costs its own part, and training is as without us."""

    TOUCHED: Mapping[str, set[str]]
    """By class and attribute: what is lost without it."""
    LOST_IF_IT_RAISES: Mapping[str, set[str]] = {}
    """Where that is more than without it."""
    OPTIONAL: set[str] = set()
    """What not each training has: without it nothing is said, but that it raises is said."""
    BY_DAY: set[str]
    """What `make test` tries; the rest is nightly."""
    RAISING: set[str] | None = None
    """Of what it is tried that it raises; None is all."""
    WHILE_ATTACHING = False
    """Whether what is gone is gone when we attach, too."""

    def ours(self) -> list[type]:
        """The classes of ours that touch the framework in training."""
        raise NotImplementedError

    def owner(self, kind: str) -> type:
        """The framework's class of that name."""
        raise NotImplementedError

    def lost(self, training: Any) -> set[str]:
        """What has not been seen of a training that has ended."""
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc):
        if "touched" in metafunc.fixturenames:
            pairs = [(touched, error) for error in (GONE, RAISES) for touched in self.TOUCHED
                     if error is GONE or self.RAISING is None or touched in self.RAISING]  # fmt: skip
            nightly = [() if touched in self.BY_DAY else pytest.mark.nightly for touched, _ in pairs]
            ids = [f"{touched}-{'gone' if error is GONE else 'raises'}" for touched, error in pairs]
            rows = [pytest.param(*row, marks=marks, id=id) for row, marks, id in zip(pairs, nightly, ids, strict=True)]
            metafunc.parametrize(("touched", "error"), rows)

    def test_what_breaks_costs_its_own_part(self, without, messages, touched, error):
        plain, training, (kind, _, name) = self.plain(), self.make(), touched.partition(".")
        without.on = self.WHILE_ATTACHING and error is GONE
        without.during(self.ours(), self.owner(kind), name, error)
        self.attach(training)
        without.on = True
        assert same(self.train(training), plain)
        if error is GONE and touched in self.OPTIONAL:
            assert not [message for message in messages() if "gone" in message]
        else:
            about = [text for text in messages() if "is not a tested version" in text or "integration_errors: " in text]
            assert len(about) == len({*about}) > 0, messages()
        lost = self.TOUCHED[touched]
        assert self.lost(training) == (lost if error is GONE else self.LOST_IF_IT_RAISES.get(touched, lost))


class SketchesLosses:
    """In a worker the losses are as without us, and what they are made of is sent; a first update is left out."""

    WORKERS: ModuleType
    """The integration's module for worker processes."""
    KIND: Mapping[str, object] = {}
    """What the integration's `Workers` is made with."""
    TOKENS: tuple[int, int]
    """Of one update: all, and those after a tool."""

    def put(self) -> None:
        """Put our hooks on: the framework's modules are loaded."""
        self.WORKERS.install()

    def update(self, times: int) -> Any:
        """Losses and gradients of some updates. Log-probabilities grow by 0.1 with each, advantages are 1.

        The loss clips ratios between e^0.1 and e^0.2.
        """
        raise NotImplementedError

    @pytest.fixture
    def watched(self, monkeypatch):
        """The monitor that gets it, and what takes in all that has come."""
        watched = Monitor()
        workers = Workers(watched, **self.KIND)
        recorder = Recorder(0, 1, workers.receive)
        monkeypatch.setattr(self.WORKERS, "RECORDER", recorder)

        def take_in():
            recorder.close(60)
            workers.take_in()
            watched.log({}, 1)
            assert watched.health["rank_errors"] == 0
            return watched

        return take_in

    @pytest.mark.parametrize("times", [1, 3])
    def test_losses_are_as_without_us_and_sent_without_a_first_update(self, watched, times):
        plain = self.update(times)
        self.put()
        assert same(self.update(times), plain)
        monitor, updates = watched(), max(times - 1, 1)
        tokens = counted(monitor, "policy")
        assert (tokens["all"], tokens["post_tool"]) == (updates * self.TOKENS[0], updates * self.TOKENS[1])
        # Of ratios e^0.1 and e^0.2 the loss clips the second; a first update's are 1 and have no share.
        second, third = np.exp([0.1, 0.2])
        expected = {1: None, 3: pytest.approx(third / (second + third))}[times]
        assert counted(monitor, "policy", "gradient_clipped")["all"] == expected
