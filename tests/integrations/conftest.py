"""Frameworks that cannot be installed next to each other, whose checks run in a process of their own; and the matrix.

A test with the mark `matrix(package, how, setup)` shows that an integration works with the release that is installed:
its row of docs/matrix.json. The release is that of the package's own metadata, in the process of the test; the trackers
are those in which `alerted` has found the alert; `setup` names the processes, where there are several. `make matrix`
keeps the rows; any other run holds them against those.
"""

import inspect
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import ExitStack, closing, contextmanager
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

pytest.register_assert_rewrite("tests.integrations.conformance")

ROOT = Path(__file__).parents[2]
MATRIX = ROOT / "docs" / "matrix.json"
FRAMEWORKS = ROOT / "build" / "frameworks"
OFFLINE = {"OMP_NUM_THREADS": "1", "WANDB_MODE": "offline", "WANDB_API_KEY": "0" * 40, "WANDB_SILENT": "true"}
"""For W&B as frameworks start it, which looks at these once in a process; and small tensors need one thread."""


FIRING = 2
"""As a rule's state is in a tracker."""


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    outcome = yield
    mark = pyfuncitem.get_closest_marker("matrix")
    if mark and mark.args:
        package, how, *setup = mark.args
        reported = dict(pyfuncitem.user_properties)
        row = {"package": package, "version": reported.get("version") or version(package), "how": how,
               "test": pyfuncitem.nodeid, "alerts": sorted(reported.get("alerts", ()))}  # fmt: skip
        row |= ({"setup": setup[0]} if setup else {}) | (
            {"ours": sorted(reported["ours"])} if reported.get("ours") else {}
        )
        if kept := os.environ.get("MATRIX"):
            with Path(kept).open("a") as file:  # one write a line, whichever process
                file.write(json.dumps(row) + "\n")
        else:
            assert row in json.loads(MATRIX.read_text())["tests"], f"not in {MATRIX.name}, run `make matrix`: {row}"
    return outcome


class Alerted:
    """Says in which trackers, and whether at a webhook, one of some rules is firing; these are put into the matrix.

    Attributes:
        project: of Trackio, in which it looks. What else a framework starts by itself is below the test's folder.
        ours: the trackers whose runs the test has started, and not the framework.
    """

    def __init__(self, folder, receiver, request):
        self.project = "".join(c if c.isalnum() else "-" for c in request.node.name)  # as `trackio_runs` has it
        self._folder, self._receiver, self._request = folder, receiver, request
        self.ours = set()

    def __call__(self, *rules, release=None):
        """The places. Of a run in another process `release` is the version of the package there."""
        kinds = (self.wandb, self.mlflow, self.trackio, self.tensorboard, self.jsonl, self.webhook)
        result = {kind.__name__ for kind in kinds if any(kind(rule) for rule in rules)}
        self._request.node.user_properties += [("alerts", result), ("version", release), ("ours", self.ours)]
        return result

    def wandb(self, rule):
        read = self._request.getfixturevalue("read_wandb")
        records = [record for file in self._folder.rglob("run-*.wandb") for record in read(file)]
        return any(
            record["history"]["item"].get(f"diag/rule/{rule}") == FIRING for record in records if "history" in record
        )

    def mlflow(self, rule):
        query = "SELECT MAX(value) FROM metrics WHERE key = ?"
        return any(_only(file, query, f"diag/rule/{rule}") == FIRING for file in self._folder.glob("*.db"))

    def trackio(self, rule):
        file = Path(os.environ["TRACKIO_DIR"], f"{self.project}.db")
        query = "SELECT MAX(json_extract(metrics, ?)) FROM metrics"
        return file.exists() and _only(file, query, f'$."diag/rule/{rule}"') == FIRING

    def tensorboard(self, rule):
        folders = {file.parent for file in self._folder.rglob("diag/events.out.tfevents*")}
        if folders:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        for folder in folders:
            events = EventAccumulator(str(folder))
            events.Reload()
            if (name := f"diag/rule/{rule}") in events.Tags()["scalars"]:
                return FIRING in {event.value for event in events.Scalars(name)}
        return False

    def jsonl(self, rule):
        files = Path(os.environ["TRACKER_DIAG_DIR"]).rglob("findings.jsonl")
        rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return any((row.get("rule"), row.get("state")) == (rule, "firing") for row in rows)

    @property
    def alerts(self):
        """What has come at the webhook."""
        return self._receiver.got

    def webhook(self, rule):
        return any(f"({rule}" in item["title"] for item in self.alerts)


def _only(database, query, name):
    with closing(sqlite3.connect(database)) as store:
        return store.execute(query, (name,)).fetchone()[0]


def _forget_settings():
    """W&B looks once at what its variables say, when its first run in a process begins."""
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()


@pytest.fixture
def alerted(tmp_path, monkeypatch, receive, request):
    state = receive()
    theirs = {"WANDB_CONSOLE": "off", "WANDB_X_DISABLE_STATS": "true", "WANDB_DIR": str(tmp_path)}
    for name, value in {**OFFLINE, **theirs, "TRACKER_DIAG_NOTIFY": state.url}.items():
        monkeypatch.setenv(name, value)
    _forget_settings()
    yield Alerted(tmp_path, state, request)
    _forget_settings()
    if "trackio" in sys.modules and sys.modules["trackio"].context_vars.current_run.get():
        sys.modules["trackio"].finish()


@pytest.fixture
def places(tmp_path, monkeypatch, new_mlflow_store):
    """Where trackers write that a framework starts itself: in the test's folder, as the environment says."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", new_mlflow_store(tmp_path))
    for name in ("TENSORBOARD_DIR", "TENSORBOARD_LOGGING_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "curves"))
    monkeypatch.chdir(tmp_path)
    yield
    while "mlflow" in sys.modules and sys.modules["mlflow"].active_run():  # not every framework ends it
        sys.modules["mlflow"].end_run()


@pytest.fixture
def underway(alerted, mlflow_store, trackio_runs, tmp_path):
    """Runs of trackers for the length of a block, as a person starts them whose trainer starts none of these."""
    import mlflow
    import trackio
    import wandb

    @contextmanager
    def start(*trackers):
        alerted.ours |= set(trackers)
        with ExitStack() as runs:
            if "wandb" in trackers:
                settings = wandb.Settings(mode="offline", silent=True, x_disable_stats=True, console="off")
                wandb.init(project=alerted.project, dir=tmp_path, settings=settings)
                runs.callback(wandb.finish)
            if "trackio" in trackers:
                trackio_runs.start()
                runs.callback(trackio.finish)
            if "mlflow" in trackers:
                runs.enter_context(mlflow.start_run())
            yield

    return start


class Without:
    """Attaches while a module, an attribute or a field of a framework is not there, which is to be reported once.

    It is there again before training begins: the framework itself does without it in some other way, as a later release
    would. What is tried is the list of each integration's own test, all that it touches.
    """

    def __init__(self, monkeypatch):
        self._monkeypatch, self.on = monkeypatch, True

    def __call__(self, owner, name, attach):
        """What `attach()` gives without `owner.name`, or for no owner without the module `name`."""
        with self._monkeypatch.context() as gone:
            if owner is None:
                gone.setitem(sys.modules, name, None)
                parent, _, last = name.rpartition(".")
                if parent:
                    gone.delattr(sys.modules[parent], last, raising=False)
            else:
                gone.delattr(owner, name)
            return attach()

    def during(self, ours, kind, name, error):
        """Reading or setting `name` of an object of `kind` raises `error` while a function of the classes `ours` runs.

        For callbacks, which touch a framework while it trains: it has everything of its own whenever it is its turn.
        Call it before they are made; it raises while `on` is set.
        """
        depth, missing = 0, object()

        def fails(*_):
            raise error

        def wrapped(function):
            @wraps(function)
            def call(*args, **kwargs):
                nonlocal depth
                if depth or not self.on:
                    return function(*args, **kwargs)
                before, depth = vars(kind).get(name, missing), 1
                setattr(kind, name, property(fails, fails, fails))
                try:
                    return function(*args, **kwargs)
                finally:
                    depth = 0
                    if before is missing:
                        delattr(kind, name)
                    else:
                        setattr(kind, name, before)

            return call

        for our in ours:
            for named, function in [*vars(our).items()]:
                if inspect.isfunction(function):
                    self._monkeypatch.setattr(our, named, wrapped(function))

    @staticmethod
    def reported_once(messages):
        """The one message that something is gone; AssertionError if there are none, or several."""
        about = [message for message in messages if "is not a tested version" in message]
        assert len(about) == 1, messages
        return about[0]


@pytest.fixture
def module(monkeypatch):
    """Makes a module with some contents, that can be imported for the length of the test."""

    def make(name, source="", **contents):
        made = ModuleType(name)
        vars(made).update(contents)
        exec(source, vars(made))  # noqa: S102
        monkeypatch.setitem(sys.modules, name, made)
        return made

    return make


@pytest.fixture
def without(monkeypatch):
    return Without(monkeypatch)


@pytest.fixture
def run_checks(tmp_path, migrated_mlflow, request):
    """Runs `<framework>/<file>` for each of `files` with the framework's own modules.

    `stand_ins` are libraries that it imports besides.

    `release` is the folder of another release than that in the framework's own, which still has what all need.
    `own` is whether it has one; else it is installed here.

    """

    def run(
        framework, folders=(), stand_ins=(), plugins="", *, files=("checks.py",), release=None, own=True, **variables
    ):
        path = [tmp_path, ROOT, ROOT / "integrations", Path(__file__).parent, Path(__file__).parent / framework]
        for folder in filter(None, (release, framework if own else "", *folders, "shared" if own else "")):
            assert (FRAMEWORKS / folder).is_dir(), (
                f"{FRAMEWORKS / folder} is missing: make it with `make {(FRAMEWORKS / folder).relative_to(ROOT)}`"
            )
            path.append(FRAMEWORKS / folder)
        installed = tmp_path / "checks-0.dist-info"
        installed.mkdir()
        (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: checks\nVersion: 0\n")
        (installed / "entry_points.txt").write_text(plugins)
        marks = ["-m", "matrix"] if request.config.option.markexpr == "matrix" else []
        command = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "-p", "stand_ins", "-p", "no:cacheprovider"]
        command += ["--timeout=900", *marks, *(str(Path(__file__).parent / framework / file) for file in files)]
        here = {"PYTHONPATH": os.pathsep.join(map(str, path)), "STAND_INS": " ".join(stand_ins)}
        here["RAY_worker_niceness"] = "0"  # 15 by default: next to other tests its workers would hardly ever run
        done = subprocess.run(
            command, env=os.environ | OFFLINE | variables | here, cwd=ROOT, capture_output=True, text=True, check=False
        )
        nothing = done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED and marks
        assert done.returncode == 0 or nothing, done.stdout[-20000:] + done.stderr[-5000:]

    return run
