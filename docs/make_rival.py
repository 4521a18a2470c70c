"""The living rival, rl-doctor, and this package on the same runs: makes docs/rival.md, which says how to call it.

Training runs are kept in build/rival; those that are there are not made again. Both tools read the same files, and
what counts is what each names at warning or above. No figure is picked.
"""

import json
import re
import runpy
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tracker_diag.demo.grpo import ARMS, train
from tracker_diag.errors import SourceError, require
from tracker_diag.metrics import alias_files
from tracker_diag.runs.diagnose import diagnose
from tracker_diag.trackers.open import read_run

DOCS = Path(__file__).parent
ROOT = DOCS.parent
FOLDER = ROOT / "build" / "rival"
COMMANDS = (
    "python3 -m venv build/rival/venv && build/rival/venv/bin/pip install rldoctor==0.2.0 numpy",
    '.venv/bin/pip install -e ".[sb3]"',
    ".venv/bin/python docs/make_rival.py build/rival/venv/bin/python",
)
SICK_ARMS = {"collapse", "stale-narrow"}
PPO: dict[str, tuple[bool, dict[str, Any]]] = {
    "healthy": (False, {}),
    "learning rate 0.1": (True, {"learning_rate": 0.1}),
    "learning rate 0.03": (True, {"learning_rate": 0.03}),
    "learning rate 1e-7": (True, {"learning_rate": 1e-7}),
}
"""Stable-Baselines3's PPO on CartPole: whether it fails, and the settings that are not the usual ones."""
DUMP = """
import json, sys
from rl_doctor.simulate import SCENARIOS, simulate
runs = {f"{name} {seed}": simulate(name, seed=seed)[0] for name in SCENARIOS for seed in range(3)}
json.dump(runs, sys.stdout)
"""
"""Said to the rival's interpreter: its own scenarios, as a log that it reads."""


@dataclass(frozen=True)
class Log:
    """One run's file."""

    group: str
    name: str
    sick: bool
    file: Path


@dataclass(frozen=True)
class Compared:
    """What both tools name in it at warning or above; None where a tool cannot read it."""

    log: Log
    rival: tuple[str, ...] | None
    ours: tuple[str, ...] | None


def logs(rival: str) -> Iterator[Log]:
    """Every run that is compared."""
    yield from simulated()
    yield from scenarios(rival)
    yield from demo()
    yield from cartpole()
    yield from consoles()


def simulated() -> Iterator[Log]:
    """Our own healthy runs and failures, under TRL's names."""
    tests = SimpleNamespace(**runpy.run_path(str(ROOT / "tests" / "rules" / "failures.py")))
    for algorithm in tests.simulated.ALGORITHMS:
        for seed in range(4):
            run = tests.simulated.healthy(algorithm, np.random.default_rng([seed, *algorithm.encode()]))
            yield written("simulated, healthy", f"{algorithm} {seed}", False, named(run))
    for name in tests.FAILURES:
        yield written("simulated, failing", name, True, named(tests.failed(name, 0)[0]))


def named(run: Any) -> list[dict[str, float]]:
    """Rows of a simulated run under the names of TRL, or our own where TRL has none."""
    trl = names("trl") | {"loss": "loss"}
    rows: list[dict[str, float]] = []
    for at, step in enumerate(run.steps):
        row = {"step": float(step)}
        for name, column in run.series.items():
            if not np.isnan(column[at]):
                row[trl.get(name, str(name))] = float(column[at])
        rows.append(row)
    return rows


def names(framework: str) -> dict[str, str]:
    """What each canonical metric is called in a framework, as far as that is one plain key."""
    metrics = alias_files.load(alias_files.FOLDER / f"{framework}.yaml").metrics
    return {name: alias.keys[0] for name, alias in metrics.items() if not set("*{") & set(alias.keys[0])}


def scenarios(rival: str) -> Iterator[Log]:
    """The rival's own scenarios."""
    output = subprocess.run([rival, "-c", DUMP], capture_output=True, text=True, check=True).stdout  # noqa: S603  the given interpreter
    for name, rows in json.loads(output).items():
        healthy = name.startswith("healthy")
        yield written(f"the rival's, {'healthy' if healthy else 'failing'}", name, not healthy, rows)


def demo() -> Iterator[Log]:
    """The arms of our demo, of which only the metrics are shown, not the tensors."""
    for arm in ARMS:
        if arm not in {"widen", "drift-aware"}:  # benign, or drift: only tensors tell
            sick = arm in SICK_ARMS
            for seed in range(2):
                group = f"demo's agent, {'failing' if sick else 'healthy'}"
                yield written(group, f"{arm} {seed}", sick, trained(arm, seed))


def trained(arm: str, seed: int) -> Iterator[dict[str, float]]:
    """Rows of one arm."""
    return ({"step": step.step} | dict(step.metrics) for step in train(ARMS[arm], seed, 300))


def cartpole() -> Iterator[Log]:
    """PPO of Stable-Baselines3, as its CSV logger writes it."""
    for name, (sick, settings) in PPO.items():
        for seed in range(2):
            folder = FOLDER / "cartpole" / f"{name} {seed}"
            if not (folder / "progress.csv").exists():
                ppo(settings, seed, folder)
            yield Log(f"SB3 PPO, {'failing' if sick else 'healthy'}", f"{name} {seed}", sick, folder / "progress.csv")


def ppo(settings: dict[str, Any], seed: int, folder: Path) -> None:
    """Train once: 80 iterations, about a quarter of a minute."""
    sb3 = require("stable_baselines3", "sb3")
    environments = require("stable_baselines3.common.env_util", "sb3").make_vec_env("CartPole-v1", n_envs=4, seed=seed)
    usual = {"n_steps": 128, "batch_size": 128, "learning_rate": 1e-3}
    model = sb3.PPO("MlpPolicy", environments, seed=seed, device="cpu", **(usual | settings))
    model.set_logger(require("stable_baselines3.common.logger", "sb3").configure(str(folder), ["csv"]))
    model.learn(80 * 4 * 128)


def consoles() -> Iterator[Log]:
    """Three of the runs above, as the consoles of verl and TRL show them."""
    tests = SimpleNamespace(**runpy.run_path(str(ROOT / "tests" / "rules" / "failures.py")))
    for name in ("entropy collapse", "gradient explodes", "aggressive update"):
        run, _ = tests.failed(name, 1)
        keys = {metric: key for metric, key in names("verl").items() if metric in run.series}
        rows = [
            {key: float(run.series[metric][at]) for metric, key in keys.items() if not np.isnan(run.series[metric][at])}
            for at in range(len(run))
        ]
        lines = [
            f"(TaskRunner pid=7) step:{step} - " + " - ".join(f"{key}:{value}" for key, value in row.items())
            for step, row in zip(run.steps, rows, strict=True)
        ]
        yield console(f"verl, {name}", lines)
        # TRL does not print its step, and always its epoch.
        yield console(
            f"TRL, {name}", [str({k: v for k, v in row.items() if k != "step"} | {"epoch": 0.1}) for row in named(run)]
        )


def console(name: str, lines: Iterable[str]) -> Log:
    """A console log of one run that fails."""
    file = FOLDER / "console" / f"{name}.log"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Log("console logs, failing", name, True, file)


def written(
    group: str,
    name: str,
    sick: bool,
    rows: Iterable[Mapping[str, float]],
) -> Log:
    """The metrics file of `rows`; if the file is there, `rows` is not read, as it may be a training run."""
    file = FOLDER / re.sub(r"\W+", "-", group) / f"{name}.jsonl"
    if not (isinstance(rows, Iterator) and file.exists()):
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(row) for row in rows]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Log(group, name, sick, file)


def compare(log: Log, rival: str) -> Compared:
    """Both tools on one file."""
    command = [rival, "-m", "rl_doctor.cli", "diagnose", str(log.file), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  the given interpreter
    theirs = None
    if done.returncode == 0:
        reports = json.loads(done.stdout)["findings"]
        theirs = tuple(report["detector"] for report in reports if report["severity"] in {"WARNING", "CRITICAL"})
    try:
        findings = diagnose(read_run(str(log.file))).summary.findings
    except SourceError:
        return Compared(log, theirs, None)
    loud = [f"{f.rule.id} {f.rule.name}" for f in findings if f.fired is not None and f.rule.severity != "info"]
    return Compared(log, theirs, tuple(dict.fromkeys(loud)))


def page(compared: list[Compared]) -> str:
    """docs/rival.md."""
    text = [
        "# Another tool on the same files",
        "",
        "rl-doctor 0.2.0 (`rldoctor` on the package index) and `tracker-diag diagnose` on the same files, metrics only",
        "and with default settings: what this package is for, slices and tails of tensors, is left out. A run is",
        "alarmed if anything is named at warning or above. To redo it, in about ten minutes:",
        "",
        "```",
        *COMMANDS,
        "```",
        "",
        "| runs | how many | rl-doctor alarms | tracker-diag alarms |",
        "|---|---|---|---|",
    ]
    for group in dict.fromkeys(run.log.group for run in compared):
        runs = [run for run in compared if run.log.group == group]
        rival, ours = ([run.rival for run in runs], [run.ours for run in runs])
        text.append(f"| {group} | {len(runs)} | {counted(rival)} | {counted(ours)} |")
    text += ["", *section("Failing runs that rl-doctor names and tracker-diag does not", missed(compared))]
    text += [
        "A plateau is information only, on purpose, as no log says where the ceiling of a reward is: EXP008 reports",
        "in each of these. rl-doctor alarms about it on healthy runs too, below. A change of the settings of the",
        "evaluation is in no metric at all.",
        "",
    ]
    text += section("Failing runs that tracker-diag names and rl-doctor does not", gained(compared))
    text += section(
        "Failing runs that neither names", [run for run in compared if run.log.sick and not (run.rival or run.ours)]
    )
    text += section(
        "Healthy runs with an alarm", [run for run in compared if not run.log.sick and (run.rival or run.ours)]
    )
    return "\n".join(text).rstrip() + "\n"


def missed(compared: list[Compared]) -> list[Compared]:
    """What only the rival names."""
    return [run for run in compared if run.log.sick and run.rival and not run.ours]


def gained(compared: list[Compared]) -> list[Compared]:
    """What only we name."""
    return [run for run in compared if run.log.sick and run.ours and not run.rival]


def counted(named: list[tuple[str, ...] | None]) -> str:
    """How many alarm, and how many could not be read."""
    unread = sum(names is None for names in named)
    return f"{sum(bool(names) for names in named)}" + (f" ({unread} not read)" if unread else "")


def section(title: str, runs: list[Compared]) -> list[str]:
    """A section with a row for each of `runs`."""
    if not runs:
        return [f"## {title}", "", "None.", ""]
    rows = [f"| {run.log.group}: {run.log.name} | {cell(run.rival)} | {cell(run.ours)} |" for run in runs]
    return [f"## {title}", "", "| run | rl-doctor | tracker-diag |", "|---|---|---|", *rows, ""]


def cell(names: tuple[str, ...] | None) -> str:
    """What was named, in one cell."""
    return "cannot read it" if names is None else ", ".join(names) or "–"


def main() -> None:
    """Make the runs, compare, write the page."""
    if len(sys.argv) != 2:
        raise SystemExit("expected the interpreter that has rldoctor:\n" + "\n".join(COMMANDS))
    compared = [compare(log, sys.argv[1]) for log in logs(sys.argv[1])]
    (DOCS / "rival.md").write_text(page(compared), encoding="utf-8")
    print(f"{len(compared)} runs compared; {len(missed(compared))} are named by rl-doctor alone")


if __name__ == "__main__":
    main()
