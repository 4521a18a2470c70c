"""Count what each rule's alarms are worth on fresh runs: writes tracker_diag/rules/record.json.

    python tests/faults/record.py [--door build/alerts.jsonl] [--public CLONES] [--first-seed N] [--runs N]
                                  [--rules ID ...] [--jobs N]

Trains the fresh runs of plan.py and tool_plan.py that build/fresh does not have, half an hour on 16 cores, and judges
them with the rules of this checkout. `--runs` takes only the first runs of plan.py. `--door` has the runs of
tests/benchmarks/door.py, as it keeps them; `--public` the clones that public_logs.py reads. No rule may have changed
between those runs and this command. Give other seeds whenever a rule was changed after a look at these runs. With
`--rules`, these rules get a new record, and all others keep theirs. Trained are the runs with a fault that one of them
names, and the healthy runs whose logs have the inputs of one of them. If one of them reads tensors, give `--door` too.
On these runs, all other measured rules are as loud as they are: together with them, they may alarm in 1 % of
the healthy ones.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parent))

import door
import make
import plan
import tool_plan
import tool_runs
from calls import Kept
from dataset import Run
from labels import labelled
from public_logs import LISTS, listed, log_of
from score import is_healthy, written

from tracker_diag.rules.incidents import connected
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.record import ALARMED, FILE, Record, Records, hash_of, records, tier_of
from tracker_diag.rules.triage import Summary
from tracker_diag.runs.diagnose import diagnose
from tracker_diag.trackers.open import read_run

PATHOLOGY: dict[str, tuple[str, ...]] = {"stable": (), "collapsed": ("OUT001",)}
"""Rules that name what a public log with that label shows. Of other labels the truth is not known."""

FRESH = Path(__file__).parents[2] / "build" / "fresh"


@dataclass(frozen=True)
class Judged:
    """What the rules made of one run."""

    place: str
    """Its trainer and task, or its kind at the door."""
    right: tuple[str, ...]
    """Rules that name its fault; none of a healthy run."""
    loud: frozenset[str]
    """Rules that were part of an incident above info, and above info themselves."""
    blind: frozenset[str]


def judged(run: Run) -> Judged:
    with tempfile.TemporaryDirectory() as folder:
        return judged_file(written(run, Path(folder)), _place(run), tuple(run.right))


def judged_file(file: Path, place: str, right: tuple[str, ...]) -> Judged:
    """What the rules make of a metrics file."""
    return verdict(diagnose(read_run(str(file))).summary, place, right)


def verdict(summary: Summary, place: str, right: tuple[str, ...]) -> Judged:
    """What the rules have found, candidates as loud as any."""
    together = connected([finding.moved(unproven=False) for finding in summary.findings])
    incidents = [incident for incident in together if incident.severity != "info"]
    loud = {finding.rule.id for incident in incidents for finding in incident.findings if finding.severity != "info"}
    # A rule of another algorithm is in none of these, and saw nothing either.
    judged = {*summary.healthy, *summary.explained, *(finding.rule.id for finding in summary.findings)}
    blind = {rule.id for rule in catalog() if rule.id not in judged or rule.id in summary.blind}
    return Judged(place, right, frozenset(loud), frozenset(blind))


def _place(run: Run) -> str:
    return f"{run.trainer}, {run.task}"


def trained(first_seed: int, most: int | None, rules: Collection[str], jobs: int | None) -> list[Run]:
    """The fresh runs that are faulty or healthy, trained where they are not there.

    Args:
        rules: they name the faults. Healthy runs are left out where the first one like them has the inputs of none.
    """
    planned = [run for run in plan.fresh(first_seed)[:most] if not run.fault or run.fault.right.intersection(rules)]
    first = {_logs(run): run for run in reversed(planned) if not run.fault}
    with ProcessPoolExecutor(jobs) as pool:
        verdicts = pool.map(judged, _made(list(first.values()), pool))
        seen = {logs for logs, run in zip(first, verdicts, strict=True) if not run.blind.issuperset(rules)}
        runs = labelled(_made([run for run in planned if run.fault or _logs(run) in seen], pool))
    return [run for run in runs if run.fault or is_healthy(run)]


def _logs(run: plan.Planned) -> tuple[str, str, bool]:
    """Healthy runs for which this is equal have the same columns."""
    return run.trainer, run.task, run.evaluated


def _made(planned: Sequence[plan.Planned], pool: ProcessPoolExecutor) -> list[Run]:
    FRESH.mkdir(parents=True, exist_ok=True)
    files = [(run, FRESH / f"{run.name.replace('/', '-')}.json") for run in planned]
    left = {pool.submit(make.made, run): file for run, file in files if not file.exists()}
    for done in as_completed(left):
        left[done].write_text(done.result().model_dump_json(), encoding="utf-8")
    return [Run.model_validate_json(file.read_text(encoding="utf-8")) for _, file in files]


def with_tools(
    first_seed: int, rules: Collection[str], jobs: int | None, folder: Path = tool_runs.FOLDER
) -> list[Judged]:
    """The same of agents with tools, judged."""
    from tool_policy import warm

    folder.mkdir(parents=True, exist_ok=True)
    of_algorithms = [rule.algorithms for rule in catalog() if rule.id in rules]
    runs = [
        run
        for run in tool_plan.planned(first_seed)
        if any(not names or run.algorithm.lower() in names for names in of_algorithms)
        and (not run.kind or set(run.kind.right.split()).intersection(rules))
    ]
    for task in dict.fromkeys(run.task for run in runs):
        warm(task, skilled=True, folder=folder)
    with ProcessPoolExecutor(jobs) as pool:
        files = list(pool.map(tool_runs.made, runs, [folder] * len(runs)))
        labels = labelled([tool_runs.rows_of(file) for file in files])
        kept = [(run, file) for run, file in zip(labels, files, strict=True) if run.fault or is_healthy(run)]
        return list(pool.map(judged_calls, *zip(*kept, strict=True))) if kept else []


def judged_calls(run: Run, file: Path) -> Judged:
    return verdict(Kept(file).judged(), _place(run), tuple(run.right))


def at_the_door(file: Path) -> Iterator[Judged]:
    """Runs with tensors."""
    kinds = {kind.name: kind for kind in (*door.FAILURES, *door.HEALTHY)}
    for line in file.read_text(encoding="utf-8").splitlines():
        name, _, result, *_ = json.loads(line)
        yield Judged(name, kinds[name].rules, frozenset(result["loud"]), frozenset(result["blind"]))


def published(clones: Path) -> Iterator[Judged]:
    """Public logs, stable ones as healthy, and collapsed ones."""
    for name in LISTS:
        for repository, commit, path, label in listed(name):
            if label in PATHOLOGY:
                with log_of(clones, repository, commit, path) as file:
                    yield judged_file(file, repository, PATHOLOGY[label])


def counted(runs: list[Judged]) -> dict[str, Record]:
    """The record of each rule that some run has the inputs of."""
    records: dict[str, Record] = {}
    for rule in catalog():
        seeing = [run for run in runs if rule.id not in run.blind or rule.id in run.loud]
        faulty = [run for run in seeing if rule.id in run.right]
        hits = [run for run in faulty if rule.id in run.loud]
        healthy = [run for run in seeing if not run.right]
        if faulty or healthy:
            records[rule.id] = Record(
                hash_of(rule),
                len(hits),
                len(faulty),
                len({run.place for run in hits}),
                sum(rule.id in run.loud for run in healthy),
                len(healthy),
            )
    return records


def _false_for_true(record: Record) -> float:
    return (record.false_alarms / record.healthy) / (record.hits / record.faulty)


def demoted(
    corpora: Mapping[str, Sequence[Judged]], records: Mapping[str, Record], others: Collection[str] = ()
) -> tuple[str, ...]:
    """Measured rules that must be silent, so that all loud ones alarm in at most 1 % of each corpus's healthy runs.

    The rule with the most false alarms for its true findings goes first, both as shares of the runs that it could see.

    Args:
        others: rules that are loud too, and stay so; their records are of other runs.
    """
    healthy = {name: [run.loud for run in corpus if not run.right] for name, corpus in corpora.items()}
    heard = {rule for rule, record in records.items() if not record.needs}.union(others)
    silent: list[str] = []
    while above := [
        runs for runs in healthy.values() if sum(bool(loud & heard) for loud in runs) > ALARMED * len(runs)
    ]:
        alarming = heard.intersection(chain.from_iterable(chain.from_iterable(above))).difference(others)
        if not alarming:
            break
        weakest = max(alarming, key=lambda rule: (_false_for_true(records[rule]), rule))
        heard.remove(weakest)
        silent.append(weakest)
    return tuple(sorted(silent))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--door", type=Path)
    parser.add_argument("--public", type=Path)
    parser.add_argument("--first-seed", type=int, default=900_001)
    parser.add_argument("--runs", type=int, help="the first of plan.py; all by default")
    parser.add_argument("--rules", nargs="+", help="that get a new record; all by default", metavar="ID")
    parser.add_argument("--jobs", type=int, help="processes; as many as there are cores by default")
    arguments = parser.parse_args()
    rules = arguments.rules or [rule.id for rule in catalog()]
    of_tensors = [rule.id for rule in catalog() if rule.id in rules and any(not ref.metric for ref in rule.series())]
    if arguments.rules and of_tensors and not arguments.door:
        parser.error(f"{', '.join(of_tensors)}: these rules read tensors; give --door, so that runs with tensors count")
    runs = trained(arguments.first_seed, arguments.runs, rules, arguments.jobs)
    with ProcessPoolExecutor(arguments.jobs) as pool:
        planted = list(pool.map(judged, runs))
    planted += with_tools(arguments.first_seed, rules, arguments.jobs)
    tensors = list(at_the_door(arguments.door)) if arguments.door else []
    public = list(published(arguments.public)) if arguments.public else []
    new = counted([*planted, *tensors, *public])
    corpora = {"trainings": f"{_corpus(planted, 'trainings')}, seeds from {arguments.first_seed:,}"}
    if tensors:
        corpora["tensors"] = _corpus(tensors, "runs of drawn tensors through the monitor")
    if public:
        corpora["public"] = _corpus(public, "public logs")
    if arguments.rules:
        chosen, what = sorted(arguments.rules), "; ".join(corpora.values())
        left = {key: [name for name in key.split(", ") if name not in chosen] for key in records().corpora}
        kept = {", ".join(names): records().corpora[key] for key, names in left.items() if names}
        corpora = kept | {", ".join(chosen): what}
        new = {name: new[name] for name in chosen if name in new}
    others = {rule.id for rule in catalog() if arguments.rules and rule.id not in rules and tier_of(rule) == "measured"}
    # Public logs are not made after a rule's last change, so they silence no rule.
    silent = demoted({"trainings": planted, "tensors": tensors}, new, others)
    heard = {name for name, record in new.items() if not record.needs}.difference(silent).union(others)
    for name, corpus in {"trainings": planted, "tensors": tensors, "public": public}.items():
        if healthy := [run.loud & heard for run in corpus if not run.right]:
            many = sum(map(bool, healthy))
            print(f"{name}: {many} of {len(healthy)} healthy runs alarmed", Counter(chain(*healthy)))
    if arguments.rules:
        silent = tuple(sorted({*silent, *set(records().demoted).difference(new)}))
        new = records().rules | new
    today = datetime.now(UTC).date().isoformat()
    write(Records(format=1, made=today, corpora=corpora, demoted=silent, rules=new))


def _corpus(runs: list[Judged], what: str) -> str:
    return f"{sum(bool(run.right) for run in runs)} faulty and {sum(not run.right for run in runs)} healthy {what}"


def write(content: Records) -> None:
    rules = {name: asdict(record) for name, record in content.rules.items()}
    head = json.dumps(content.model_dump(exclude={"rules"}))[:-1]
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(record)}" for name, record in rules.items())
    FILE.write_text(f'{head}, "rules": {{\n{lines}\n}}}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
