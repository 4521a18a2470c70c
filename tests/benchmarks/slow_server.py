"""What a slow server costs the training thread: observe and log with a tracker behind it, and without any.

    python tests/benchmarks/slow_server.py [--steps 600] [--rounds 3]

Every request takes half a second longer than the real MLflow server does. A step is 50 ms of matrix products. Each
arm runs in a process of its own, in turn, the first 5 steps left out; the figures are of all rounds together.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

SLOWER = 0.5
WARM = 5
SIZE, WIDTH = 64, 512


class Slow(BaseHTTPRequestHandler):
    """Hands requests on, later."""

    protocol_version = "HTTP/1.1"

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        time.sleep(SLOWER)
        there = HTTPConnection(os.environ["SLOW_TARGET"], timeout=120)
        there.request(self.command, self.path, body, {"Content-Type": self.headers.get("Content-Type") or ""})
        answer = there.getresponse()
        data = answer.read()
        there.close()
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815  # names that http.server asks for

    def log_message(self, *_: object) -> None:
        pass


def work(arm: str) -> None:
    """Train, and print how long each step's `observe` and `log` took, in ms."""
    import tracker_diag as td

    steps = int(os.environ["SLOW_STEPS"])
    os.environ |= {"TRACKER_DIAG_QUIET": "1", "TRACKER_DIAG_EXIT_TIMEOUT": "5"}
    import mlflow
    import torch  # noqa: F401  # in both arms: with it in the process the sketch is counted in another way

    from tracker_diag.trackers.mlflow.write import MlflowTracker

    trackers: list[Any] = []
    if arm == "MLflow":
        mlflow.set_tracking_uri(os.environ["SLOW_SERVER"])
        trackers = [MlflowTracker(mlflow.MlflowClient(), mlflow.start_run().info.run_id)]
    rng, took = np.random.default_rng(0), []
    model = np.ones((SIZE, WIDTH), bool)
    model[: SIZE // 2, WIDTH // 2 : WIDTH // 2 + 32] = False
    response = np.ones_like(model)
    weights = rng.normal(size=(600, 600))
    with td.Monitor(trackers) as monitor:
        for step in range(steps):
            new = -1 - rng.gamma(2, 0.5, model.shape)
            old = new + 0.05 * rng.normal(size=model.shape)
            until = time.perf_counter() + 0.05
            while time.perf_counter() < until:
                weights @ weights
            begun = time.perf_counter()
            monitor.observe(logprobs=new, old_logprobs=old, response_mask=response, model_mask=model)
            monitor.log({"reward": 0.5, "loss": 0.1}, step)
            took.append(1000 * (time.perf_counter() - begun))
    sys.stdout.write(json.dumps(took[WARM:]) + "\n")


@contextmanager
def slow_server(folder: Path) -> Iterator[str]:
    """The address of a real server behind one that is slow."""
    with ExitStack() as stack:
        ports = []
        for _ in range(2):
            with socket.socket() as kept:
                kept.bind(("127.0.0.1", 0))
                ports.append(kept.getsockname()[1])
        command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
        command += ["--artifacts-destination", str(folder / "artifacts"), "--port", str(ports[0]), "--workers", "1"]
        started = [subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)]
        stack.callback(lambda: [(item.terminate(), item.wait()) for item in started])
        environment = os.environ | {"SLOW_TARGET": f"127.0.0.1:{ports[0]}"}
        started.append(subprocess.Popen([sys.executable, __file__, "--proxy", str(ports[1])], env=environment))
        address = f"http://127.0.0.1:{ports[1]}"
        for item in (f"http://127.0.0.1:{ports[0]}", address):
            for _ in range(600):
                with suppress(OSError):
                    urllib.request.urlopen(f"{item}/health", timeout=60).close()
                    break
                time.sleep(0.2)
        yield address


def measure(steps: int, rounds: int) -> dict[str, dict[str, float]]:
    """p50, p99 and the longest, in ms, by arm."""
    took: dict[str, list[float]] = {"no tracker": [], "MLflow": []}
    with tempfile.TemporaryDirectory() as folder, slow_server(Path(folder)) as address:
        environment = os.environ | {"SLOW_SERVER": address, "SLOW_STEPS": str(steps), "OMP_NUM_THREADS": "1"}
        for _ in range(rounds):
            for arm in took:
                command = [sys.executable, "-W", "ignore", __file__, "--arm", arm]
                done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=True)
                took[arm] += next(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    return {
        arm: {"p50": round(float(np.quantile(t, 0.5)), 2), "p99": round(float(np.quantile(t, 0.99)), 2),
              "max": round(max(t), 2), "steps": len(t)} for arm, t in took.items()
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    parser.add_argument("--proxy", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.proxy:
        ThreadingHTTPServer(("127.0.0.1", given.proxy), Slow).serve_forever()
    elif given.arm:
        work(given.arm)
    else:
        sys.stdout.write(json.dumps(measure(given.steps, given.rounds), indent=1) + "\n")


if __name__ == "__main__":
    main()
