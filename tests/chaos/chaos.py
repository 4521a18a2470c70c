"""The chaos suite: random programs against real trackers, each played without the diagnostics and with them.

    python tests/chaos/chaos.py --programs 1000 --out docs/chaos.json [--trackers mlflow wandb ...] [--workers 4]

What the user logged has to be the same; what the diagnostics computed has to be in the tracker, after `tracker-diag
flush` where a process died or its server was ill to the end. `--results FOLDER` keeps a line for each program, and a
later run with the same folder plays only those that are missing: the figures are of all of them. A program that fails
is reported with its number: `--programs 1 --first NUMBER --keep FOLDER` plays it again and leaves its files.
"""

import argparse
import gc
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import play  # noqa: E402
from programs import TRACKERS, Program, draw  # noqa: E402

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "TRACKER_DIAG_QUIET": "1", "TRACKER_DIAG_EXIT_TIMEOUT": "3", "WANDB_SILENT": "true",
    "WANDB_ERROR_REPORTING": "false", "GIT_PYTHON_REFRESH": "quiet", "HF_HUB_OFFLINE": "1",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "120", "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "false",
    "MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL": "0.2", "MLFLOW_SYSTEM_METRICS_SAMPLES_BEFORE_LOGGING": "1",
}  # fmt: skip


def check(program: Program, folder: Path, server: "Server | None") -> dict[str, Any]:
    """Play `program` twice; what is wrong, what is missing, and how long the calls took."""
    end = next((i for i, (name, _) in enumerate(program.calls) if name in ("kill", "exit")), None)
    # A process that is killed may lose what its tracker had not written; what it wrote is a part of what it had logged.
    alone = program if end is None else replace(program, calls=program.calls[:end])
    reports, wrong = {}, []
    for name, played in (("alone", alone), ("watched", program)):
        reports[name], problem = _played(played, folder / name, server, may_die=end is not None and name == "watched")
        wrong += problem
    place = folder / "watched"
    flushed = bool(_journals(place))
    wrong += _flush_all(place, server)
    reader = _read(program.tracker, server)
    (before, *_), (after, listed, *latest) = reader(folder / "alone"), reader(place)
    if not (_part(after, before) if end is not None else after == before):
        wrong.append(f"the user's rows: {_difference(before, after)}")
    if end is None and reports["alone"].get("raised") != reports["watched"].get("raised"):
        wrong.append(
            f"the user's calls raised {reports['watched'].get('raised')}, alone {reports['alone'].get('raised')}"
        )
    wrong += [f"ours: {error}" for error in reports["watched"].get("broken", ())]
    computed = play.emitted(place)
    if program.tracker == "tensorboard":
        computed, listed = play.single(computed), play.single(listed)
    there = [listed, *latest]
    due = play.changes(computed) if server else computed  # MLflow gets of a state that stays its first and last value
    missing = {at[0] for at, values in due.items() if not any(values & points.get(at, set()) for points in there)}
    alien = [at for at, values in listed.items() if not values <= computed.get(at, set())]
    health = reports["watched"].get("health", {})
    counted = health.get("dropped_steps", 0) + health.get("interrupted_steps", 0)
    if len(missing) > counted:
        wrong.append(f"ours: steps {sorted(missing)[:10]} of {len({at[0] for at in computed})} are not in the tracker")
    if alien:
        wrong.append(f"ours: values that were never computed, first at {alien[0]}")
    return {
        "wrong": wrong,
        "steps": len({step for step, _ in computed}),
        "lost": len(missing),
        "counted": counted,
        "flushed": flushed,
        "took": {
            "row alone": reports["alone"].get("took", {}).get("row", []),
            **{f"{kind} watched": took for kind, took in reports["watched"].get("took", {}).items()},
        },
    }


def _played(
    program: Program, place: Path, server: "Server | None", *, may_die: bool
) -> tuple[dict[str, Any], list[str]]:
    """What the process of `program` reports, and what was wrong with how it ended."""
    place.mkdir(parents=True)
    status = play.forked(lambda: _play(program, place, place.name == "watched", server), place / "log")
    reports = json.loads((place / "told").read_text()) if (place / "told").exists() else {}
    if status == 0 or (may_die and status in (signal.SIGKILL, 3 << 8)):
        return reports, []
    return reports, [f"{place.name}: the process ended with {status}: {(place / 'log').read_text()[-1500:]}"]


def _journals(place: Path) -> list[Path]:
    return list((place / "journals").glob("*.journal"))


def _flush_all(place: Path, server: "Server | None") -> list[str]:
    """Have `tracker-diag flush` bring what was left; what was wrong with that."""
    if not _journals(place):
        return []
    if server:
        server.befall((place / "run").read_text(), (), stays=False)
    for _ in range(30):
        status = play.forked(lambda: _flush(place, server), place / "log")
        if status or not _journals(place):
            break
        time.sleep(1)  # what the process left behind may still be at it
    if status == 0 and not _journals(place):
        return []
    return [f"flush ended with {status}: {(place / 'log').read_text()[-1500:]}"]


def _play(program: Program, place: Path, watched: bool, server: "Server | None") -> None:
    os.chdir(place)
    os.environ["TRACKER_DIAG_DIR"] = str(place / "journals")
    player = play.PLAYERS[program.tracker](place, program, watched)
    if server and watched:
        server.befall(player.run_id, program.answers, stays=program.stays_ill)
    player.play()


def _flush(place: Path, server: "Server | None") -> None:
    from tracker_diag.cli.app import app

    os.chdir(place)
    app(["flush", str(place / "journals"), *(["--to", server.address] if server else [])])


def _read(tracker: str, server: "Server | None") -> Any:
    if server:
        return lambda place: play.read_mlflow(place, server.store)
    return {"wandb": play.read_wandb, "tensorboard": play.read_tensorboard, "trackio": play.read_trackio}[tracker]


def _part(after: Any, before: Any) -> bool:
    """Whether `after` is what came first of `before`; of MLflow, where each call has arrived, all of the metrics."""
    if isinstance(after, tuple):
        return bool(after[:3] == before[:3])
    left = Counter(map(repr, before))
    left.subtract(map(repr, after))
    return min(left.values(), default=0) >= 0


def _difference(before: Any, after: Any) -> str:
    if isinstance(before, tuple):
        pairs = [(b, a) for b, a in zip(before, after, strict=True) if a != b]
        return f"alone {str(pairs[0][0])[:600]}, with us {str(pairs[0][1])[:600]}"
    gone = [row for row in before if row not in after]
    new = [row for row in after if row not in before]
    return f"gone {gone[:3]}, new {new[:3]}, {len(before)} before, {len(after)} after"


class Server:
    """MLflow's server, and the proxy before it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        import socket

        self.store = folder / "mlflow.db"
        if made := os.environ.get("MIGRATED_MLFLOW"):
            shutil.copyfile(made, self.store)
        with socket.socket() as kept:
            kept.bind(("127.0.0.1", 0))
            port = kept.getsockname()[1]
        command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{self.store}"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
        command += ["--artifacts-destination", str(folder / "artifacts")]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
        environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        server = subprocess.Popen(command, cwd=folder, env=environment, **quiet)
        stack.callback(lambda: (os.killpg(server.pid, signal.SIGKILL), server.wait()))
        until = time.monotonic() + 1200  # of a busy machine
        while True:
            with suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60).close()
                break
            if time.monotonic() > until or server.poll() is not None:
                raise RuntimeError("no MLflow server")
            time.sleep(0.2)
        proxy = subprocess.Popen(
            [sys.executable, str(HERE / "proxy.py"), f"127.0.0.1:{port}"], stdout=subprocess.PIPE, text=True
        )
        stack.callback(lambda: (proxy.kill(), proxy.wait()))
        assert proxy.stdout
        self.address = f"http://127.0.0.1:{int(proxy.stdout.readline())}"

    def befall(self, run: str, answers: tuple[str, ...], *, stays: bool) -> None:
        """What is done to the next requests of ours for `run`."""
        reports = json.dumps({"run": run, "answers": answers, "stays": stays}).encode()
        request = urllib.request.Request(f"{self.address}/chaos", reports, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=60).close()


def work(tracker: str, numbers: Sequence[int], out: Path, keep: Path | None) -> None:
    """Play the programs of `numbers`, a line of JSON each in `out`. No thread is started here, as it forks."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    warnings.simplefilter("ignore")
    os.environ |= ENVIRONMENT
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        os.environ["TRACKIO_DIR"] = str((keep or folder) / "trackio")
        server = None
        if tracker == "mlflow":
            server = Server(folder, stack)
            os.environ["MLFLOW_TRACKING_URI"] = server.address
        _warm(tracker, folder / "warm", server)
        with out.open("a") as lines:
            for number in numbers:
                place = (keep or folder) / f"{tracker}-{number}"
                program = draw(number, tracker)
                try:
                    result = check(program, place, server)
                except Exception as error:  # the suite's own
                    result = {"wrong": [f"the suite itself: {error!r}"]}
                played = f"{datetime.now().astimezone():%Y-%m-%d}"
                lines.write(json.dumps({"number": number, "played": played, "faults": program.faults, **result}) + "\n")
                lines.flush()
                if not keep:
                    shutil.rmtree(place, ignore_errors=True)


def _warm(tracker: str, place: Path, server: "Server | None") -> None:
    """Import, once, what a program has imported when it ends, and load the rules."""
    row = ("loss", "reward")
    calls: list[tuple[str, tuple[Any, ...]]] = [("other", (what, 1)) for what in range(8)]
    calls += [("observe", (1,)), *(("row", (how, dict.fromkeys(row, math.nan), 9, None)) for how in range(4))]
    place.mkdir()

    def play_all() -> None:
        _play(Program(0, tracker, tuple(calls), ()), place, True, server)
        with suppress(SystemExit):
            _flush(place, server)
        _read(tracker, server)(place)
        (place / "modules").write_text("\n".join(sys.modules))

    play.forked(play_all, place / "log")
    for module in (place / "modules").read_text().splitlines():
        with suppress(Exception):  # some only look like modules
            import_module(module)
    import_module("tracker_diag.rules.loader").catalog()
    gc.freeze()


def figures(results: list[dict[str, Any]]) -> dict[str, Any]:
    """What came out for one tracker."""
    took: dict[str, list[float]] = defaultdict(list)
    for result in results:
        for name, times in result.get("took", {}).items():
            took[name] += times
    took = {name: sorted(times) for name, times in sorted(took.items())}

    def at(name: str, share: float) -> float | None:
        return (
            round(1000 * took[name][min(int(share * len(took[name])), len(took[name]) - 1)], 1) if took[name] else None
        )

    by_fault: dict[str, int] = defaultdict(int)
    for result in results:
        for kind in result["faults"] or ("none",):
            by_fault[kind] += 1
    return {
        "played": max(result["played"] for result in results),
        "programs": len(results),
        "with": dict(sorted(by_fault.items())),
        "wrong": sum(bool(result["wrong"]) for result in results),
        "steps": sum(result.get("steps", 0) for result in results),
        "lost": sum(result.get("lost", 0) for result in results),
        "counted": sum(result.get("counted", 0) for result in results),
        "flushed": sum(result.get("flushed", False) for result in results),
        "call_ms": {name: {"p50": at(name, 0.5), "p99": at(name, 0.99), "max": at(name, 1.0)} for name in took},
    }


@contextmanager
def working(arguments: argparse.Namespace, folder: Path) -> Iterator[list[Any]]:
    """Processes that play all programs, each a share of one tracker's."""
    shares = []
    for tracker in arguments.trackers:
        there = {result["number"] for result in _results(folder, tracker)}
        numbers = [n for n in range(arguments.first, arguments.first + arguments.programs) if n not in there]
        parts = filter(None, (numbers[share :: arguments.workers] for share in range(arguments.workers)))
        shares += [(tracker, part, folder / f"{tracker}.jsonl", arguments.keep) for part in parts]
    processes = [get_context("spawn").Process(target=work, args=share) for share in shares]
    for process in processes:
        process.start()
    try:
        yield processes
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _results(folder: Path, tracker: str) -> list[dict[str, Any]]:
    """What was played for `tracker`, a line for each program."""
    file = folder / f"{tracker}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2, help="processes a tracker")
    parser.add_argument("--trackers", nargs="+", choices=TRACKERS, default=list(TRACKERS))
    parser.add_argument("--keep", type=Path, help="folder that keeps the files of each program")
    parser.add_argument("--results", type=Path, help="folder with a line for each program, also of earlier runs")
    parser.add_argument("--out", type=Path, help="the figures, as JSON")
    arguments = parser.parse_args()
    result = {}
    bad = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.results or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with working(arguments, folder) as processes:
            for process in processes:
                process.join()
        for tracker in arguments.trackers:
            results = _results(folder, tracker)
            for program in results:
                for wrong in program["wrong"]:
                    print(f"{tracker} {program['number']} {program['faults']}: {wrong}")
            result[tracker] = figures(results)
            bad += result[tracker]["wrong"] + (len(results) < arguments.programs)
            print(tracker, json.dumps(result[tracker]))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
