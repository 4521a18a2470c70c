"""What holds of every integration, whatever its framework.

The tests of a framework derive one class from the invariants below that apply to it. That class is the adapter: it says
how a training is made, watched and run to its end.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from tracker_diag import DiagError, Monitor
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


class SurvivesWhatIsGone(Adapter):
    """A part of the framework that is not there when we attach is reported once, and training is as without us."""

    GONE: Mapping[tuple[str | None, str], bool]
    """By owner and attribute, or by None and module: whether rows are heard without it."""

    BY_DEFAULT: set[str] = set()
    """Attributes that the default monitor alone is made from."""

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
        without.told_once(messages())
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
            without.told(messages())
        lost = self.TOUCHED[touched]
        assert self.lost(training) == (lost if error is GONE else self.LOST_IF_IT_RAISES.get(touched, lost))
