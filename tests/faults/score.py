"""Hold tools against the runs of the benchmark.

    python tests/faults/score.py [--page] [--rivals INTERPRETER]

Writes build/faults.json; with --page docs/faults.json and docs/faults.md too. INTERPRETER is one that has rldoctor and
rlwatch; without it their scores on the page stay as they are.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, get_args

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

from dataset import Run, read_runs
from labels import harmed, idle
from plan import Half

from tracker_diag.metrics.aliases import key_map
from tracker_diag.runs.diagnose import diagnose
from tracker_diag.trackers.open import read_run

ROOT = Path(__file__).parents[2]
OUT = ROOT / "build" / "faults.json"
KEPT = ROOT / "docs" / "faults.json"
PAGE = ROOT / "docs" / "faults.md"
SEEN: tuple[Half, ...] = ("tuned", "development")
"""Parts of which single results may be shown, as rules were tuned on them."""
THIN = (40, 20)
"""Rows that are left of a run that is thinned."""
PUBLIC = ROOT / "docs" / "public_logs.json"
FOUND_BY = {
    "rl-doctor": {
        "advantage_collapse": "ADV001 ADV007 REW001 EXP007 REW021",
        "entropy_collapse": "EXP001 EXP007",
        "reward_hacking": "REW010 REW004 EVA002",
        "length_pathology": "REW011 REW019 ENV006 ENV011",
        "clip_saturation": "POL011 POL013",
        "kl_drift": "POL010 POL012 POL013 POL015",
        "gradient_pathology": "NUM001 NUM004 EXP007",
        "reward_composition": "REW015 REW018 REW020",
        "plateau": "OUT001 OUT003 EXP002 EXP008",
    },
    "rlwatch": {
        "entropy_collapse": "EXP001 EXP007",
        "kl_explosion": "POL010 POL012 POL013",
        "reward_hacking": "REW003 REW006 REW010",
        "advantage_variance": "ADV002 NUM001",
        "loss_nan": "NUM003 NUM004",
        "gradient_norm_spike": "NUM001 CRI005",
        "reward_mean_drift": "OUT001 REW004 REW021",
    },
}
"""What the others call it, and which rules of ours say the same; wide, so that no name of theirs is lost."""
RLWATCH = """
import json, logging, sys
logging.disable(logging.CRITICAL)
from rlwatch.config import RLWatchConfig
from rlwatch.detectors import DetectorSuite
suite, found = DetectorSuite(RLWatchConfig()), []
for row in json.load(sys.stdin):
    found += [[a.detector, a.severity] for a in suite.check_step(row.pop("step"), **row)]
json.dump(found, sys.stdout)
"""
"""Said to the interpreter that has rlwatch, which reads no files but its own."""
TO_RLWATCH = {
    "entropy": "entropy", "kl": "kl_divergence", "approx_kl": "kl_divergence", "reward": "reward_mean",
    "reward_std": "reward_std", "advantage_std": "advantage_std", "loss": "loss", "grad_norm": "grad_norm",
}  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """What a tool makes of one run."""

    alarmed: bool
    """Whether it names anything at warning or above."""
    error: bool
    """Whether at its highest severity."""
    names: tuple[str, ...]
    """Rules of this project that its names stand for: first break and second finding, or all names of a rival."""
    alerts: int | None
    """Messages that a person would have got; None where the tool does not tell."""


@dataclass(frozen=True)
class Score:
    """What a tool makes of many runs."""

    faulty: int
    named: int
    """Faulty runs with a right name."""
    harmed: int
    """Faulty runs that end elsewhere than healthy ones, by labels.harmed."""
    harmed_named: int
    collapsed: int
    """Faulty runs in which the reward collapsed."""
    collapsed_alarmed: int
    healthy: int
    """Runs without a fault whose reward did not collapse by itself, and moved."""
    healthy_warn: int
    healthy_error: int
    alerts_per_faulty_run: float | None
    """Median."""


def ours(run: Run, most: int | None = None) -> Verdict:
    """`tracker-diag diagnose` on the run's file."""
    with tempfile.TemporaryDirectory() as folder:
        result = diagnose(read_run(str(written(run, Path(folder), most))))
    severities = {incident.severity for incident in result.summary.incidents}
    loud = [incident for incident in result.summary.incidents if incident.severity != "info"]
    names = [incident.rule.id for incident in loud[0].findings if incident.severity != "info"][:2] if loud else []
    return Verdict(bool(loud), "error" in severities, tuple(names), len(result.notices))


def written(run: Run, folder: Path, most: int | None = None) -> Path:
    """The run as a metrics file."""
    file = folder / "run.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in run.rows(most)) + "\n", encoding="utf-8")
    return file


def score(runs: Sequence[Run], verdicts: Iterable[Verdict], harm: Collection[str]) -> Score:
    """Count; `harm` has the names of the runs in which the fault did harm."""
    judged = list(zip(runs, verdicts, strict=True))
    faulty = [(run, result) for run, result in judged if run.fault]
    healthy = [result for run, result in judged if is_healthy(run)]
    collapsed = [result for run, result in faulty if run.collapsed]
    alerts = [result.alerts for _, result in faulty if result.alerts is not None]
    named = {run.name for run, result in faulty if set(run.right) & set(result.names)}
    hurt = {run.name for run, _ in faulty} & set(harm)
    return Score(
        faulty=len(faulty),
        named=len(named),
        harmed=len(hurt),
        harmed_named=len(hurt & named),
        collapsed=len(collapsed),
        collapsed_alarmed=sum(result.alarmed for result in collapsed),
        healthy=len(healthy),
        healthy_warn=sum(result.alarmed for result in healthy),
        healthy_error=sum(result.error for result in healthy),
        alerts_per_faulty_run=median(alerts) if alerts else None,
    )


def is_healthy(run: Run) -> bool:
    """Whether there is nothing to be reported of it."""
    return not run.fault and not run.collapsed and not idle(run)


def sealed(run: Run, verdict: Verdict) -> str:
    """A fingerprint of a verdict, by which it can be compared without being read."""
    return hashlib.sha256(json.dumps([run.name, *asdict(verdict).values()]).encode()).hexdigest()[:16]


def rl_doctor(interpreter: str, run: Run) -> Verdict:
    """`rl-doctor diagnose` on the run's file."""
    with tempfile.TemporaryDirectory() as folder:
        file = str(written(run, Path(folder)))
        command = [interpreter, "-m", "rl_doctor.cli", "diagnose", file, "--format", "json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    messages = json.loads(done.stdout)["findings"] if done.returncode == 0 else []
    return theirs("rl-doctor", [(item["detector"], item["severity"].lower()) for item in messages])


def rlwatch(interpreter: str, run: Run) -> Verdict:
    """The detectors of rlwatch, row by row, given what our aliases take the run's keys for."""
    rows = run.rows()
    keys = key_map(dict.fromkeys(key for row in rows for key in row if key != "step"))
    given = []
    for row in rows:
        values = keys.values({key: value for key, value in row.items() if key != "step"})
        known = {name: values[ours] for ours, name in TO_RLWATCH.items() if ours in values}
        given.append({"step": row["step"]} | known)
    done = subprocess.run(
        [interpreter, "-c", RLWATCH], input=json.dumps(given), capture_output=True, text=True, check=True
    )
    return theirs("rlwatch", [(detector, severity.lower()) for detector, severity in json.loads(done.stdout)])


def theirs(tool: str, alerts: Sequence[tuple[str, str]]) -> Verdict:
    """What another tool's findings at warning and above stand for."""
    loud = [(name, severity) for name, severity in alerts if severity in {"warning", "critical"}]
    names = [rule for name, _ in loud for rule in FOUND_BY[tool].get(name, "").split()]
    critical = any(severity == "critical" for _, severity in loud)
    return Verdict(bool(loud), critical, tuple(dict.fromkeys(names)), len(loud))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--rivals", metavar="INTERPRETER")
    args = parser.parse_args()
    runs = list(read_runs())
    harm = harmed(runs)
    halves = {half: [run for run in runs if run.half == half] for half in get_args(Half)}
    with ProcessPoolExecutor() as pool:
        verdicts = {half: list(pool.map(ours, source)) for half, source in halves.items()}
        thin = {
            f"{half}_{most}_rows": score(source, list(pool.map(partial(ours, most=most), source)), harm)
            for half, source in halves.items()
            for most in THIN
        }
        rivals = {"rl-doctor": rl_doctor, "rlwatch": rlwatch} if args.rivals else {}
        judged = {name: list(pool.map(partial(tool, args.rivals), runs)) for name, tool in rivals.items()}
    result: dict[str, Any] = {half: asdict(score(source, verdicts[half], harm)) for half, source in halves.items()}
    result |= {name: asdict(item) for name, item in thin.items()}
    before = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    result["rivals"] = {name: asdict(score(runs, source, harm)) for name, source in judged.items()} or before.get(
        "rivals", {}
    )
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for name, item in result.items():
        print(name, item)
    if args.page:
        messages = {
            run.name: verdict for half in SEEN for run, verdict in zip(halves[half], verdicts[half], strict=True)
        }
        result["runs"] = {name: [verdict.alarmed, list(verdict.names)] for name, verdict in messages.items()}
        result["sealed"] = {
            run.name: sealed(run, verdict)
            for half, source in halves.items()
            for run, verdict in zip(source, verdicts[half], strict=True)
        }
        KEPT.write_text(json.dumps(result) + "\n", encoding="utf-8")
        PAGE.write_text(page(result, runs), encoding="utf-8")


def page(result: dict[str, Any], runs: Sequence[Run]) -> str:
    """docs/faults.md."""
    head = (Path(__file__).parent / "page.md").read_text(encoding="utf-8")
    columns = {
        "the half that rules were tuned on": result["tuned"],
        **{f"the same, thinned to {most} rows": result[f"tuned_{most}_rows"] for most in THIN},
        "the development runs, tuned on as well": result["development"],
        **{f"the same runs, thinned to {most} rows": result[f"development_{most}_rows"] for most in THIN},
        "the untouched half": result["untouched"],
        **{f"the untouched half, thinned to {most} rows": result[f"untouched_{most}_rows"] for most in THIN},
    } | {f"{name}, all runs": item for name, item in result["rivals"].items()}
    lines = [
        "| | faulty, rightly named | of those with harm | collapsed, alarmed | healthy, at warn | at error | alerts |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, item in columns.items():
        lines.append(
            f"| {name} | {part(item['named'], item['faulty'])} | {part(item['harmed_named'], item['harmed'])} "
            f"| {part(item['collapsed_alarmed'], item['collapsed'])} "
            f"| {part(item['healthy_warn'], item['healthy'])} | {item['healthy_error']} "
            f"| {item['alerts_per_faulty_run']:g} |"
        )
    table = "\n".join(lines)
    cells = [
        "| fault | trainer, task | right names | named | what was said first |",
        "|---|---|---|---|---|",
    ]
    grouped: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        if run.fault and run.half in SEEN:
            grouped.setdefault((run.fault, run.trainer, run.task), []).append(run)
    for (fault, trainer, task), source in grouped.items():
        output = [result["runs"][run.name][1] for run in source]
        named = sum(bool(set(run.right) & set(names)) for run, names in zip(source, output, strict=True))
        first = "; ".join(" ".join(names) or "–" for names in output)
        right = " ".join(source[0].right)
        cells.append(f"| {fault} | {trainer}, {task} | {right} | {named} of {len(source)} | {first} |")
    healthy = [run for run in runs if run.half in SEEN and is_healthy(run)]
    named_of = {run.name: result["runs"][run.name] for run in healthy}
    false = "\n".join(f"- {name}: {' '.join(names)}" for name, (loud, names) in named_of.items() if loud) or "None."
    public = {
        name: "\n".join(
            ["| label | logs | at warn | at error |", "|---|---|---|---|"]
            + [
                f"| {label} | {source['logs']} | {source['warn']} | {source['error']} |"
                for label, source in labels.items()
            ]
        )
        for name, labels in json.loads(PUBLIC.read_text(encoding="utf-8")).items()
    }
    unstable = ", ".join(run.name for run in runs if not run.fault and run.collapsed) or "none"
    stuck = ", ".join(run.name for run in runs if not run.fault and idle(run)) or "none"
    return head.format(
        table=table, cells="\n".join(cells), false=false, runs=len(runs), unstable=unstable, idle=stuck, **public
    )


def part(some: int, many: int) -> str:
    """A share, with its count."""
    return f"{some} of {many} ({100 * some / many:.0f} %)" if many else "–"


if __name__ == "__main__":
    main()
