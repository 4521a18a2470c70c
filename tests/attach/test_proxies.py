"""What `wrap` gives is in every place what it stands in for, with `.diag` added."""

import copy
import operator
import pickle
from collections.abc import Iterable

import pytest

from tracker_diag import DiagError, Monitor, wrap


class Rich:
    """A logger that can all that Python's syntax asks of an object."""

    def __init__(self, rows=()):
        self.rows, self.told = list(rows), []

    def log(self, data, step=None):
        self.rows.append(dict(data))
        return step

    def __call__(self, data, step=None):
        return self.log(data, step)

    def __len__(self):
        return len(self.rows)

    def __iter__(self):
        return iter(self.rows)

    def __contains__(self, row):
        return row in self.rows

    def __getitem__(self, place):
        return self.rows[place]

    def __setitem__(self, place, row):
        self.rows[place] = row

    def __delitem__(self, place):
        del self.rows[place]

    def __eq__(self, other):
        return isinstance(other, Rich) and self.rows == other.rows

    def __lt__(self, other):
        return len(self.rows) < len(other.rows)

    def __hash__(self):
        return 7

    def __str__(self):
        return "rows of a logger"

    def __repr__(self):
        return f"Rich({self.rows})"

    def __format__(self, how):
        return f"{len(self.rows):{how}}"

    def __add__(self, other):
        return [*self.rows, *other]

    def __enter__(self):
        self.told.append("entered")
        return self

    def __exit__(self, *error):
        self.told.append(error[0])
        return True


class Plain:
    def __init__(self):
        self.rows = []

    def log(self, data, step=None):
        self.rows.append((dict(data), step))


LOOKS = {
    "len": len,
    "iter": list,
    "in": lambda logger: ({"a": 1} in logger, {"a": 3} in logger),
    "index": lambda logger: logger[0],
    "slice": lambda logger: logger[1:],
    "==": lambda logger: (logger == Rich([{"a": 1}, {"a": 2}]), Rich() == logger, logger != 3),
    "<": lambda logger: (Rich() < logger, logger < Rich([1, 2, 3])),
    "hash": hash,
    "bool": bool,
    "str": str,
    "repr": repr,
    "format": lambda logger: f"{logger:03}",
    "+": lambda logger: operator.add(logger, [{"b": 1}]),
    "isinstance": lambda logger: (isinstance(logger, Rich), isinstance(logger, Plain), isinstance(logger, Iterable)),
    "class": lambda logger: logger.__class__,
    "callable": callable,
    "doc": lambda logger: logger.__doc__,
    "vars": lambda logger: vars(logger)["rows"],
    "hasattr": lambda logger: [
        hasattr(logger, name) for name in ("log", "rows", "_self_rows", "log_metrics", "_heard")
    ],
    "getattr": lambda logger: getattr(logger, "nothing", "there"),
    "star": lambda logger: [*logger],
    "call": lambda logger: logger({"a": 1}, 4),
    "log": lambda logger: logger.log({"a": 1}, step=5),
}


@pytest.mark.parametrize("look", LOOKS)
def test_looked_at_it_is_what_it_stands_in_for(look):
    rows = [{"a": 1}, {"a": 2}]
    assert LOOKS[look](wrap(Rich(rows))) == LOOKS[look](Rich(rows))


@pytest.mark.parametrize("look", [len, list, callable, bool, repr, lambda logger: logger[0], lambda logger: logger < 1])
def test_what_the_target_cannot_do_it_cannot_do_either(look):
    def outcome(logger):
        try:
            return look(logger)
        except TypeError:
            return TypeError

    target = Plain()
    assert outcome(wrap(target)) == outcome(target)


def test_what_is_changed_is_the_target():
    target = Rich([1, 2, 3])
    wrapped = wrap(target)
    wrapped[0] = 9
    del wrapped[1]
    wrapped.name = "mine"
    assert (target.rows, target.name) == ([9, 3], "mine")
    del wrapped.name
    assert not hasattr(target, "name")


def test_a_log_of_yours_that_is_put_there_is_called_and_heard():
    target, seen = Plain(), []
    wrapped = wrap(target)
    wrapped.log = lambda data, step: seen.append((data, step))
    wrapped.log({"loss": 0.5}, 3)
    assert seen == [({"loss": 0.5}, 3)]
    assert wrapped.diag.step == 3
    del wrapped.log
    wrapped.log({"loss": 0.5}, 4)
    assert target.rows == [({"loss": 0.5}, 4)]


def test_diag_is_listed_with_the_rest_and_stays_what_it_is():
    target = Plain()
    wrapped = wrap(target)
    assert set(dir(wrapped)) == {*dir(target), "diag"}
    assert isinstance(wrapped.diag, Monitor)
    with pytest.raises(AttributeError):
        wrapped.diag = None


def test_as_a_context_manager_it_ends_after_the_diagnostics():
    target = Rich()
    with wrap(target) as wrapped:
        assert wrapped.diag
        wrapped.log({"loss": 0.5}, 0)
        raise KeyError("heard by the target, which takes it")
    assert target.told == ["entered", KeyError]
    assert wrapped.diag.summary().steps == 1
    assert {"loss": 0.5} in target
    with pytest.raises((TypeError, AttributeError)), wrap(Plain()):
        pass


def test_what_the_target_gives_on_entering_is_given():
    class Opens(Plain):
        def __enter__(self):
            return "a cursor"

        def __exit__(self, *error):
            pass

    with wrap(Opens()) as entered:
        assert entered == "a cursor"


def test_a_copy_is_itself_and_pickling_says_what_to_do():
    wrapped = wrap(Rich())
    assert copy.copy(wrapped) is wrapped
    assert copy.deepcopy([wrapped])[0] is wrapped
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="wrap the tracker in the process that logs to it"):
            pickle.dumps(wrapped, protocol)


def test_wrapped_twice_is_wrapped_once():
    wrapped = wrap(Plain())
    assert wrap(wrapped) is wrapped
    with pytest.raises(DiagError, match="wrapped already, and window given; give all to the first wrap"):
        wrap(wrapped, window=4)
    assert wrapped.diag.summary().steps == 0


def test_a_diag_of_the_targets_own_is_told_with_the_way_out():
    class Doctor(Plain):
        def diag(self, text):
            return text

    message = r"Doctor with a `diag` of its own given, expected none, .*; rename it, or .* wrap\(target\.log\)"
    with pytest.raises(DiagError, match=message):
        wrap(Doctor())
    target = Doctor()
    wrapped = wrap(target.log)
    wrapped({"loss": 0.5}, step=2)
    assert target.rows == [({"loss": 0.5}, 2)]
    assert wrapped.diag.step == 2


def test_a_diag_that_is_only_declared_or_answered_to_is_none():
    class Declared(Plain):
        diag: Monitor

    class Answers(Plain):
        def __getattr__(self, name):
            return name

    assert isinstance(wrap(Declared()).diag, Monitor)
    assert isinstance(wrap(Answers()).diag, Monitor)
    assert wrap(Answers()).anything == "anything"
