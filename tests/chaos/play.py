"""Plays a program in a process of its own, with the diagnostics or without; reads back what is in the tracker."""

import atexit
import json
import math
import os
import resource
import signal
import sqlite3
import subprocess
import threading
import time
import traceback
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from programs import Program

OURS = "diag"


class Player:
    """Makes the calls of a program; what its own calls raised, and how long they took, is kept.

    A tracker's part is: `target`, which is wrapped; `row`, `other` and `finish`, the user's own calls; `run_id`.
    """

    def __init__(self, folder: Path, program: Program, watched: bool) -> None:
        self.folder, self.program, self.watched = folder, program, watched
        self.raised: list[str] = []
        self.took: dict[str, list[float]] = {"row": [], "observe": [], "ours": []}
        self.broken: list[str] = []
        self.begin()
        self.diag: Any = None
        if watched:
            import tracker_diag as td

            run = td.wrap(self.target, also=[_emitted(folder / "emitted")])
            self.diag = run.diag
        (folder / "run").write_text(self.run_id)

    target: Any
    run_id = ""

    def begin(self) -> None: ...
    def row(self, how: int, data: dict[str, Any], step: int | None, commit: bool | None) -> None: ...
    def other(self, what: int, n: int) -> None: ...
    def finish(self) -> None: ...

    def play(self) -> None:
        for name, given in self.program.calls:
            before = time.perf_counter()
            if name in ("row", "other"):
                try:
                    getattr(self, name)(*given)
                except Exception as error:  # whatever it is, it is the same without us
                    self.raised.append(f"{name}{given[:1]} {type(error).__name__}")
            elif self.watched or name in ("kill", "exit", "disk"):
                getattr(self, f"do_{name}")(*given)
            if name in self.took:
                self.took[name].append(time.perf_counter() - before)
        self.end()

    def end(self) -> None:
        # The disk has room again: what the trackers start at the end would have to write to a full one too.
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        try:
            self.finish()
        except Exception as error:  # as on a full disk
            self.raised.append(f"finish {type(error).__name__}")
        if self.diag is not None:
            self.ours_is_whole(self.diag.close)
        self.keep()

    def keep(self) -> None:
        shown = {"raised": self.raised, "took": self.took, "broken": self.broken}
        if self.diag is not None:
            shown |= {"health": dict(self.diag.health), "failures": list(self.diag.failures)}
        with _room():
            (self.folder / "told").write_text(json.dumps(shown))

    def do_observe(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        new = rng.normal(-1, 0.2, (6, 16))
        model = np.ones((6, 16), bool)
        model[:3, 6:9] = False
        response = np.ones((6, 16), bool)
        self.ours_is_whole(
            lambda: self.diag.observe(
                logprobs=new,
                old_logprobs=new + 0.05 * rng.normal(size=new.shape),
                response_mask=response,
                model_mask=model,
            )
        )

    def do_ours(self, data: dict[str, float], step: int) -> None:
        self.ours_is_whole(lambda: self.diag.log(data, step))

    def ours_is_whole(self, call: Callable[[], object]) -> None:
        """Nothing of ours raises in here."""
        try:
            call()
        except Exception as error:  # that is the finding
            self.broken.append(repr(error))

    def do_rebaseline(self) -> None:
        self.ours_is_whole(lambda: self.diag.rebaseline("chaos"))

    def do_interrupt(self, after: float, seed: int) -> None:
        """Ctrl-C somewhere in an observation, or just after it."""

        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, stop)
        try:
            signal.setitimer(signal.ITIMER_REAL, max(after, 1e-6))
            self.do_observe(seed)
            time.sleep(0.02)
        except KeyboardInterrupt:
            pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def do_alarm(self) -> None:
        """Signals from here on, each of which interrupts what waits."""
        signal.signal(signal.SIGALRM, lambda *_: sum(range(100)))
        signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)

    def do_clock(self, seconds: float) -> None:
        """The clock is set."""
        plain = time.time
        time.time = lambda: plain() + seconds

    def do_thread(self, seed: int) -> None:
        """Another thread reads and saves meanwhile."""

        def save() -> None:
            for _ in range(20):
                self.ours_is_whole(self.diag.state_dict)
                self.ours_is_whole(self.diag.summary)
                time.sleep(0.001 * (seed % 3))

        threading.Thread(target=save, daemon=True).start()

    def do_disk(self, size: int) -> None:
        """No file of this process grows beyond `size` bytes from here on, until the run ends."""
        terminal = os.open(os.devnull, os.O_WRONLY)  # what is printed goes to no file
        os.dup2(terminal, 1)
        os.dup2(terminal, 2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def do_fork(self) -> None:
        """A child, as a data loader has one, that uses what it has inherited, and ends."""
        child = os.fork()
        if not child:
            signal.alarm(20)  # one that hangs is ended by it
            with suppress(Exception):
                self.do_observe(1)
                self.do_ours({"loss": 0.5}, 1_000_000)
                self.diag.close()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            self.broken.append(f"a forked child ended with {status}")

    def do_kill(self) -> None:
        self.keep()
        os.kill(os.getpid(), signal.SIGKILL)

    def do_exit(self) -> None:
        self.keep()
        os._exit(3)


class Mlflow(Player):
    def begin(self) -> None:
        import mlflow

        self.mlflow, self.client = mlflow, mlflow.MlflowClient()
        self.target = mlflow
        self.run_id = mlflow.start_run(log_system_metrics=self.program.seed % 4 == 0).info.run_id

    def row(self, how: int, data: dict[str, Any], step: int | None, commit: bool | None) -> None:  # W&B's
        match how:
            case 0:
                self.mlflow.log_metrics(data, step=step)
            case 1:
                for key, value in data.items():
                    self.mlflow.log_metric(key, value, step=step)
            case 2:
                now = int(time.time() * 1000)
                metrics = [self.mlflow.entities.Metric(key, value, now, step or 0) for key, value in data.items()]
                self.client.log_batch(self.run_id, metrics=metrics)
            case _:
                self.mlflow.log_metrics(data, step=step, synchronous=False).wait()

    def other(self, what: int, n: int) -> None:
        match what:
            case 0:
                self.mlflow.log_param(f"p{n}", n)
            case 1:
                self.mlflow.set_tag(f"t{n}", "x")
            case 2:
                with self.mlflow.start_run(nested=True):
                    self.mlflow.log_metric("inner", n)
            case 3:
                self.mlflow.log_param("p", n)  # refused if it was another before
            case 4:
                self.mlflow.log_metric("a b/" + "c" * 300, n)  # refused: too long
            case 5:
                self.fit(n)
            case 6:
                later = [self.mlflow.log_metric("later", n, step=step, synchronous=False) for step in range(5)]
                for operation in later:
                    operation.wait()
            case _:
                self.mlflow.log_text("text", f"{n}.txt")

    def fit(self, n: int) -> None:
        """Train something whose library logs by itself."""
        from sklearn.linear_model import LinearRegression

        self.mlflow.sklearn.autolog(log_models=False, silent=True)
        try:
            LinearRegression().fit(np.arange(8.0)[:, None], np.arange(8.0) * n)
        finally:
            self.mlflow.sklearn.autolog(disable=True)

    def finish(self) -> None:
        self.mlflow.flush_async_logging()
        self.mlflow.end_run()


class Wandb(Player):
    def begin(self) -> None:
        import wandb

        self.wandb = wandb
        settings = wandb.Settings(mode="offline", silent=True, x_disable_stats=True, x_disable_meta=True, console="off",
                                  sweep_id="sweep" if self.program.seed % 4 == 0 else None)  # fmt: skip
        self.target = self.run = wandb.init(project="chaos", dir=self.folder, settings=settings)
        self.run_id = self.run.id

    def row(self, how: int, data: dict[str, Any], step: int | None, commit: bool | None) -> None:
        data = {"nested": data} if how == 3 else data
        (self.wandb.log if how == 1 else self.run.log)(data, step=step, commit=commit)

    def other(self, what: int, n: int) -> None:
        match what:
            case 0:
                self.run.define_metric("train/*", step_metric="train/global_step")
            case 1:
                self.run.config.update({"a": n}, allow_val_change=True)
            case 2:
                self.run.summary["best"] = n
            case 3:
                self.run.log({"h": self.wandb.Histogram([1.0, 2.0, n])})
            case 4:
                self.run.log([n])  # refused: no mapping
            case _:
                self.run.log({"said": f"text {n}"}, commit=False)

    def finish(self) -> None:
        self.run.finish()


class TensorBoard(Player):
    def begin(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.target = self.writer = SummaryWriter(str(self.folder / "tb"))

    def row(self, how: int, data: dict[str, Any], step: int | None, commit: bool | None) -> None:  # W&B's
        if how == 1:
            self.writer.add_scalars("group", {key.replace("/", "_"): value for key, value in data.items()}, step)
            return
        for key, value in data.items():
            self.writer.add_scalar(key, value, step)

    def other(self, what: int, n: int) -> None:
        match what:
            case 0:
                self.writer.add_text("said", "text", n)
            case 1:
                self.writer.add_histogram("h", np.arange(5.0) + n, n)
            case 2:
                self.writer.flush()
            case 3:
                self.writer.add_scalar("bad", "no number", n)  # refused
            case 4:
                self.writer.add_hparams({"lr": 0.1, "n": n}, {"hparam/score": n}, run_name=f"hparams-{n}")
            case _:
                self.writer.add_scalar("other", n, n)

    def finish(self) -> None:
        self.writer.close()


class Trackio(Player):
    def begin(self) -> None:
        import trackio

        self.trackio = trackio
        name = "watched" if self.watched else "alone"
        self.target = self.run = trackio.init(
            project=self.folder.parent.name, name=name, auto_log_cpu=False, auto_log_gpu=False
        )
        self.run_id = name

    def row(self, how: int, data: dict[str, Any], step: int | None, commit: bool | None) -> None:  # W&B's
        (self.trackio.log if how % 2 else self.run.log)(dict(data), step=step)

    def other(self, what: int, n: int) -> None:
        match what:
            case 0:
                self.run.log({"said": f"text {n}"})
            case 1:
                self.run.log({"nested": {"a": n}})
            case _:
                self.run.log({"other": n})

    def finish(self) -> None:
        self.run.finish()


PLAYERS: dict[str, type[Player]] = {
    "mlflow": Mlflow,
    "wandb": Wandb,
    "tensorboard": TensorBoard,
    "trackio": Trackio,
}

Points = dict[tuple[int, str], set[str]]
"""Values, as text, by step and key."""


def forked(call: Callable[[], object], log: Path, within: float = 900.0) -> int | None:
    """The status of a child that makes `call`; None if it had to be ended after so many seconds."""
    child = os.fork()
    if not child:
        with log.open("a") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
            os.setpgid(0, 0)
            atexit._clear()  # noqa: SLF001  # the parent tidies up what is the parent's
            for item in list(weakref.finalize._registry):  # noqa: SLF001  # the parent's too
                item.atexit = False
            code = 1
            try:
                call()
                code = 0
            except SystemExit as error:
                code = error.code if isinstance(error.code, int) else 1
            except BaseException:  # it is reported in the log
                traceback.print_exc()
            finally:
                with suppress(BaseException):
                    atexit._run_exitfuncs()  # noqa: SLF001  # as where a process ends by itself
                out.flush()
                os._exit(code)
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.005)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


@contextmanager
def _room() -> Iterator[None]:
    """What the suite itself writes has no limit."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (before[1], before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _emitted(folder: Path) -> Any:
    """What the diagnostics compute, in a file that no limit of this process's files is for."""
    from tracker_diag.trackers.files.write import JsonlTracker

    class Emitted(JsonlTracker):
        def write(self, step: int, entries: Any, at: float) -> None:
            with _room():
                super().write(step, entries, at)

    return Emitted(folder)


def emitted(folder: Path) -> Points:
    """What the diagnostics computed, as they wrote it next to the tracker; a line that breaks off is none."""
    result: Points = defaultdict(set)
    file = folder / "emitted" / "metrics.jsonl"
    for line in file.read_text().splitlines() if file.exists() else ():
        with suppress(ValueError):
            row = json.loads(line)
            for key, value in row.items():
                if key.startswith("diag/"):
                    result[row["step"], key].add(_text(value))
    return result


def changes(points: Points) -> Points:
    """`points`, in their order, without values of a state that repeat the one before."""
    from tracker_diag.trackers.mlflow.write import STATES

    before: dict[str, set[str]] = {}
    result: Points = {}
    for (step, key), values in points.items():
        if not key.startswith(STATES) or not values <= before.get(key, set()):
            result[step, key] = values
        before[key] = values
    return result


def _text(value: Any) -> str:
    return repr(float(value))


def single(points: Points) -> Points:
    """As a file of single precision gives them back."""
    with np.errstate(over="ignore"):
        return {at: {_text(np.float32(float(value))) for value in values} for at, values in points.items()}


def read_mlflow(folder: Path, store: Path) -> tuple[Any, Points]:
    """What the user logged, in order, and what we did: from the server's own database."""
    run_id = (folder / "run").read_text()
    result: Points = defaultdict(set)
    mine: dict[str, list[Any]] = defaultdict(list)
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True, timeout=60)) as db:
        query = "SELECT key, step, value, is_nan FROM metrics WHERE run_uuid = ? ORDER BY key, timestamp, step, value"
        for key, step, value, is_nan in db.execute(query, (run_id,)):
            text = "nan" if is_nan else _text(math.copysign(math.inf, value) if abs(value) > 1e308 else value)
            if key.startswith("diag/"):
                result[step, key].add(text)
            elif not key.startswith("system/"):  # which no two processes have the same
                mine[key].append((step, text))
        params = db.execute("SELECT key, value FROM params WHERE run_uuid = ?", (run_id,)).fetchall()
        tags = db.execute("SELECT key, value FROM tags WHERE run_uuid = ?", (run_id,)).fetchall()
        status = db.execute("SELECT status FROM runs WHERE run_uuid = ?", (run_id,)).fetchall()
    own = sorted(tag for tag in tags if not tag[0].startswith(("diag", "mlflow.")))
    return ({key: sorted(points) for key, points in sorted(mine.items())}, sorted(params), own, status), result


def read_wandb(folder: Path) -> tuple[Any, Points, Points]:
    from wandb.util import get_core_path

    run_id = (folder / "run").read_text()
    result: Points = defaultdict(set)
    rows: list[Any] = []
    summary: dict[str, Any] = {}
    for file in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        command = [get_core_path(), "leet", "inspect", "--no-observability", "--json", "--run-file", file, file.parent]
        wording = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        for record in map(json.loads, wording.splitlines()):
            if record["type"] == "summary" and file.stem == f"run-{run_id}":
                summary |= record["summary"].get("update", {})
            if record["type"] != "history":
                continue
            row = record["history"]["item"]
            ours = {key: value for key, value in row.items() if key.startswith("diag/")}
            _add(result, ours)
            if file.stem == f"run-{run_id}":
                own = {key: _plain(value) for key, value in row.items() if key not in ours and key[0] != "_"}
                if own:
                    rows.append((row["_step"], own))
    latest: Points = defaultdict(set)  # next to the last step's, what earlier steps had and it has not
    _add(latest, {key: value for key, value in summary.items() if key.startswith("diag/")})
    return rows, result, latest


def _add(result: Points, ours: dict[str, Any]) -> None:
    if "diag/step" in ours:
        for key, value in ours.items():
            if isinstance(value, int | float | str) and key != "diag/step":
                with suppress(ValueError):
                    result[int(ours["diag/step"]), key].add(_text(value))


def _plain(value: Any) -> Any:
    return {k: v for k, v in value.items() if k not in ("path", "sha256")} if isinstance(value, dict) else repr(value)


def read_tensorboard(folder: Path) -> tuple[Any, Points]:
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    result: Points = defaultdict(set)
    rows: list[Any] = []
    for file in sorted((folder / "tb").rglob("*tfevents*")):
        place = file.parent.relative_to(folder / "tb").as_posix()
        for event in LegacyEventFileLoader(str(file)).Load():
            for value in event.summary.value:
                if place.split("/")[0] == OURS:
                    if place == OURS and value.WhichOneof("value") == "simple_value":  # charts repeat some
                        result[event.step, value.tag].add(_text(value.simple_value))
                else:
                    kind = value.WhichOneof("value")
                    number = repr(value.simple_value) if kind == "simple_value" else kind
                    rows.append((place, value.tag, event.step, number))
    return sorted(rows), result


def read_trackio(folder: Path) -> tuple[Any, Points]:
    import trackio.utils

    result: Points = defaultdict(set)
    rows: list[Any] = []
    file = Path(trackio.utils.TRACKIO_DIR) / f"{folder.parent.name}.db"
    if not file.exists():  # nothing was logged
        return rows, result
    query = "SELECT step, metrics FROM metrics WHERE run_name = ? ORDER BY id"
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=60)) as db:
        for step, text in db.execute(query, ((folder / "run").read_text(),)):
            row = json.loads(text)
            ours = {key: value for key, value in row.items() if key.startswith("diag/")}
            for key, value in ours.items():
                if isinstance(value, int | float | str):
                    with suppress(ValueError):
                        result[step, key].add(_text(value))
            if own := {key: repr(value) for key, value in row.items() if key not in ours}:
                rows.append((step, own))
    return rows, result
