"""Run the losses of released sources that no index has, on the CPU: as they are, and with our hooks.

    git clone https://github.com/PrimeIntellect-ai/prime-rl CLONES/PrimeIntellect-ai+prime-rl
    git clone https://github.com/THUDM/slime CLONES/THUDM+slime
    git clone https://github.com/verl-project/verl CLONES/verl-project+verl
    git clone https://github.com/NVIDIA-NeMo/RL CLONES/NVIDIA-NeMo+RL
    git clone https://github.com/alibaba/ROLL CLONES/alibaba+ROLL
    make build/frameworks/released build/frameworks/verl build/frameworks/shared
    python tests/integrations/released.py CLONES [FRAMEWORK | FRAMEWORK@RELEASE ...]

Each release in a process of its own: `<framework>/source.py` calls the loss as the trainer does, with made tensors
whose tail widens after a tool result; for NeMo-RL and ROLL in the workers of a Ray job. The first time MLflow, Trackio
and TensorBoard can be imported and an MLflow run is underway; the second time none of the three can be imported.

Writes docs/released.json, where rows of what is not asked for stay; docs/matrix.md has it from there.
"""

import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
KEPT = ROOT / "docs" / "released.json"

SOURCES = {
    "prime_rl": (
        "PrimeIntellect-ai+prime-rl",
        ("v0.6.0", "v0.7.0", "v0.8.0", "559b447"),
        ("src", "packages/prime-rl-configs/src"),
        ("openai", "prime_cli", "verifiers", "wandb_gql", "wandb_graphql", "zmq"),
    ),
    "slime": (
        "THUDM+slime",
        ("v0.2.1", "v0.2.2", "v0.2.3", "v0.2.4", "v0.3.0", "v0.3.1", "624b824"),
        (".",),
        ("megatron", "ray", "sglang", "sglang_router"),
    ),
    "verl": (
        "verl-project+verl",
        ("v0.7.0", "v0.7.1", "v0.8.0", "v0.9.0"),
        (".",),
        ("transformers.AutoModelForVision2Seq",),
    ),
    "nemo_rl": (
        "NVIDIA-NeMo+RL",
        ("v0.7.0", "7ea279a"),
        (".",),
        ("prometheus_client", "pynvml", "soundfile", "swanlab"),
    ),
    "roll": (
        "alibaba+ROLL",
        ("8eb27cc",),
        (".",),
        ("imageio", "json_repair", "more_itertools", "opentelemetry.exporter.otlp.proto.grpc", "peft", "pybase64"),
    ),
}
"""Clone, releases, what of it is on the path, and what it imports that is not here and its loss does not reach.

For slime the parallel state of Megatron is reached: `slime/source.py` has it for a single process.
"""

ABSENT = ("mlflow", "tensorboard", "trackio")
"""Trackers that are missing the second time. W&B is imported by the sources themselves."""

PACKAGE = {"nemo_rl": ["nemo_rl"], "roll": ["roll"]}
"""What of a clone is looked at, where that is not all; its largest files may be missing."""

IMPORTED = dict.fromkeys(("verl", "nemo_rl", "roll"), ("verl", "shared"))
"""Folders of build/frameworks behind the sources on the path, with what these import; a release of verl in one of them
is not looked at, as that of the sources comes first."""

RULE = "POL001"


def start_run() -> None:
    """An MLflow run, where there is to be one."""
    if os.environ["BACKENDS"] == "1":
        import mlflow

        mlflow.start_run()


def keep(monitor: object, modules: Iterable[str], *, same: bool) -> None:
    """Write what `run` reads, at the end of a source.

    Args:
        modules: those of the source that are its own, if they have been imported from there.
        same: whether losses and gradients are as without us.
    """
    files = {name: str(getattr(sys.modules.get(name), "__file__", "")) for name in modules}
    result = {
        "steps": monitor.summary().steps,
        "same": same,
        "failures": [str(failure) for failure in monitor.failures],
        "ran": [name for name, file in files.items() if file.startswith(sys.argv[1])],
    }
    Path(sys.argv[2]).write_text(json.dumps(result))


def compare(losses: Callable, hook: str, modules: Iterable[str]) -> None:
    """Call `losses` without us, then with `hook` in each worker: a digest and the monitor."""
    plain, _ = losses(None)
    start_run()
    hooked, monitor = losses(hook)
    monitor.close()
    keep(monitor, modules, same=plain == hooked)


@contextmanager
def job(kind: type, world: int, *given: object, hook: str | None) -> Iterator[list]:
    """A Ray job with `world` actors, made from rank, a free port and `given`; `hook` is called in each process."""
    import ray

    setting = {"runtime_env": {"worker_process_setup_hook": hook}} if hook else {}
    with socket.create_server(("127.0.0.1", 0)) as server:
        os.environ["RAY_JOB_CONFIG_JSON_ENV_VAR"] = json.dumps(setting)
        ray.init(num_cpus=world + 1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        port = server.getsockname()[1]
    yield [ray.remote(num_cpus=1)(kind).remote(rank, port, *given) for rank in range(world)]
    ray.shutdown()


class Messages:
    """Counts what comes of the workers, from now on."""

    def __init__(self) -> None:
        from tracker_diag.attach.workers import Workers

        self._come, self._due, receive = [], 0, Workers.receive

        def received(workers: Workers, message: bytes) -> None:
            receive(workers, message)
            self._come.append(message)

        Workers.receive = received

    def wait(self, actors: list, each: int = 1) -> None:
        """Until what `actors` have sent is here, `each` a worker since the last time."""
        import ray

        ray.get([actor.seen.remote() for actor in actors])
        self._due, end = self._due + each * len(actors), time.monotonic() + 120
        while len(self._come) < self._due:
            if time.monotonic() > end:
                raise TimeoutError(f"{len(self._come)} of {self._due} messages have come")
            time.sleep(0.005)


def pair(monitor: object, name: str) -> dict[tuple[str, str], object]:
    """All that is known of a ratio pair, by slice and statistic; to nine digits, as sums depend on their order."""
    table = monitor.slices_table()
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    return {
        (row["slice"], part): float(f"{value:.9g}") if isinstance(value, float) else value
        for row in rows if row["pair"] == name for part, value in row.items()
    }  # fmt: skip


def places_of(folder: Path) -> list[str]:
    """Where the rule fired."""
    results = []
    with closing(sqlite3.connect(folder / "mlflow.db")) as store:
        highest = "SELECT MAX(value) FROM metrics WHERE key = ?"
        if store.execute(highest, (f"diag/rule/{RULE}",)).fetchone()[0] == 2:
            results.append("mlflow")
    for file in folder.rglob("findings.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        if any((row.get("rule"), row.get("state")) == (RULE, "firing") for row in rows):
            results.append("jsonl")
    return results


def run(framework, source: Path, store: Path, *, backends: bool):
    """What came of one release."""
    _, _, paths, stand_ins = SOURCES[framework]
    built = ROOT / "build" / "frameworks"
    own = [ROOT, ROOT / "integrations", HERE, built / "released"]
    imported = [built / path for path in IMPORTED.get(framework, ())]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        shutil.copyfile(store, folder / "mlflow.db")
        environment = {
            "PYTHONPATH": os.pathsep.join(map(str, [*own, *(source / path for path in paths), *imported])),
            "STAND_INS": " ".join(stand_ins), "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1",
            "WANDB_MODE": "disabled",
            "TRACKER_DIAG_DIR": str(folder / "files"), "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
            "BACKENDS": str(int(backends)), "RAY_worker_niceness": "0", "TRACKER_DIAG_EXIT_TIMEOUT": "120",
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-W", "ignore", HERE / framework / "source.py", source, "result.json"],
            cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            return {"failed": done.stderr.strip().splitlines()[-1], "alerts": []}, done.stderr
        return json.loads((folder / "result.json").read_text()) | {"alerts": places_of(folder)}, ""


def main() -> None:
    known = [(framework, release) for framework, (_, releases, *_) in SOURCES.items() for release in releases]
    asked = [item for item in known if not sys.argv[2:] or {item[0], "@".join(item)} & {*sys.argv[2:]}]
    kept_rows = json.loads(KEPT.read_text())["runs"] if KEPT.exists() else []
    rows = [row for row in kept_rows if (row["framework"], row["release"]) in {*known} - {*asked}]
    with tempfile.TemporaryDirectory() as made:
        store = Path(made) / "mlflow.db"
        code = "import mlflow; mlflow.MlflowClient().search_experiments()"
        uri = {"MLFLOW_TRACKING_URI": f"sqlite:///{store}"}
        subprocess.run([sys.executable, "-c", code], env=os.environ | uri, check=True, capture_output=True)
        for framework, release in asked:
            clone = SOURCES[framework][0]
            source = Path(made) / f"{framework}-{release}"
            source.mkdir()
            archive = ["git", "-C", str(Path(sys.argv[1]) / clone), "archive", release, *PACKAGE.get(framework, ())]
            packed = subprocess.run(archive, check=True, capture_output=True).stdout
            subprocess.run(["tar", "-x", "-C", str(source)], input=packed, check=True)
            for backends in (True, False):
                results, output = run(framework, source, store, backends=backends)
                rows.append({"framework": framework, "release": release, "backends": backends, **results})
                sys.stdout.write(f"{rows[-1]} {output}\n")
    rows.sort(key=lambda row: known.index((row["framework"], row["release"])))
    kept = {"stand_ins": {name: part[3] for name, part in SOURCES.items()}, "absent": ABSENT, "runs": rows}
    KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
