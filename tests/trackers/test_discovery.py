"""Which trackers there are: by name, for an object, underway in this process; all at one place."""

import logging
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from tracker_diag import DiagError, wrap
from tracker_diag.errors import UnknownName
from tracker_diag.trackers import discovery
from tracker_diag.trackers.discovery import GROUP, active_trackers, tracker_class, tracker_of
from tracker_diag.trackers.files.write import JsonlTracker
from tracker_diag.trackers.tracker import Tracker


class Fake:
    """Of a package that nobody here has heard of; counts how often it was looked for."""

    underway = None
    asked = 0


class TheirTracker(Tracker):
    name = "theirs"

    @classmethod
    def find(cls, target=None, *, run_id=None):
        Fake.asked += 1
        underway = target is None and Fake.underway
        return cls() if underway or isinstance(target, Fake) else None


class Broken(TheirTracker):
    @classmethod
    def find(cls, target=None, *, run_id=None):
        raise OSError("no server")


@pytest.fixture
def installed(monkeypatch):
    """Installs entry points next to ours: classes by name, or text for a module that is not there."""
    ours = tuple(discovery.entry_points(group=GROUP))
    load = EntryPoint.load
    monkeypatch.setattr(discovery, "_broken", {})

    def install(**classes):
        theirs = [
            EntryPoint(name, f"{what if isinstance(what, str) else name}:X", GROUP) for name, what in classes.items()
        ]
        monkeypatch.setattr(discovery, "entry_points", lambda group: [*theirs, *ours])
        known = {name: what for name, what in classes.items() if not isinstance(what, str)}
        monkeypatch.setattr(EntryPoint, "load", lambda self: known.get(self.name) or load(self))

    return install


def test_by_name():
    assert tracker_class("jsonl") is JsonlTracker
    with pytest.raises(UnknownName, match=r"'wand' given, expected one of jsonl, mlflow, .*, trackio, wandb"):
        tracker_class("wand")


def test_a_tracker_of_another_package_is_asked_after_ours(installed, tmp_path):
    installed(theirs=TheirTracker)
    assert isinstance(tracker_of(Fake()), TheirTracker)
    assert active_trackers() == []
    Fake.underway = True
    try:
        assert [tracker.name for tracker in active_trackers()] == ["theirs"]
    finally:
        Fake.underway = None


def test_a_tracker_that_cannot_be_used_takes_no_other_along(installed, caplog):
    Fake.underway = True
    try:
        installed(broken=Broken, lost="no_such_module", theirs=TheirTracker)
        with caplog.at_level(logging.WARNING):
            assert [tracker.name for tracker in active_trackers()] == ["theirs"]
    finally:
        Fake.underway = None
    assert "the run that is underway gets no diagnostics: OSError: no server" in caplog.text
    assert "tracker lost (no_such_module:X): cannot be loaded, left out: ModuleNotFoundError" in caplog.text


@pytest.mark.parametrize("name", ["tally", "takes", "local", "outside", "pace", ""])
def test_one_whose_attributes_raise_is_left_out_with_its_reason(name, installed, monkeypatch):
    def fails(self):
        raise OSError("no disk")

    monkeypatch.setattr(Fake, "underway", True)
    bad = type("Bad", (TheirTracker,), {name: property(fails)} if name else {"find": lambda *_, **__: 3})
    installed(theirs=bad)
    assert active_trackers() == []
    with pytest.raises(DiagError, match="tracker theirs .*: " + ("OSError: no disk" if name else "TypeError: find")):
        wrap(Fake())


def test_imported_but_not_installed_is_reported(monkeypatch):
    monkeypatch.setattr(discovery, "entry_points", lambda group: ())
    with pytest.raises(DiagError, match="can be imported here, but is not installed; install it with pip"):
        wrap(print)


@pytest.mark.slow
def test_looking_loads_no_tracker():
    code = """
import sys, tracker_diag as td
from tracker_diag.trackers.discovery import active_trackers, tracker_of
td.wrap(lambda metrics, step: None).diag.close()
assert active_trackers() == [] and tracker_of(object()) is None
print(*{'wandb', 'mlflow', 'trackio', 'tensorboard', 'torch', 'matplotlib', 'apprise'} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.slow
def test_what_is_underway_is_found_and_nothing_is_started(tmp_path, mlflow_store, trackio_runs):
    import mlflow
    import trackio
    import wandb
    from wandb.sdk.lib import module

    assert active_trackers() == []
    settings = wandb.Settings(mode="offline", silent=True, x_disable_stats=True, console="off")
    with wandb.init(project="p", dir=tmp_path, settings=settings), mlflow.start_run() as run:
        mine = trackio_runs.start()
        result = {tracker.name: tracker for tracker in active_trackers()}
        assert sorted(result) == ["mlflow", "trackio", "wandb"]
        assert result["mlflow"].address["run"] == run.info.run_id
        assert result["trackio"].address["run"] == mine.id
        assert result["wandb"].address["run"] == wandb.run.id
        mine.finish()  # Trackio itself continues calling it the current one
        assert sorted(tracker.name for tracker in active_trackers()) == ["mlflow", "wandb"]
    trackio.context_vars.current_run.set(None)
    assert active_trackers() == []
    with wandb.init(mode="disabled"):
        assert active_trackers() == []  # which keeps nothing of what it is given
    module.unset_globals()  # the end of such a run leaves it underway


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["torch", "tensorboardX"])
def test_a_writer_of_either_kind_and_what_is_made_of_it(kind, tmp_path):
    if kind == "torch":
        from torch.utils.tensorboard import SummaryWriter
    else:
        from tensorboardX import SummaryWriter

    class Mine(SummaryWriter):
        pass

    with Mine(str(tmp_path)) as writer:
        tracker = tracker_of(writer)
        assert tracker is not None
        assert (tracker.name, tracker.address["folder"]) == ("tensorboard", str(tmp_path))
