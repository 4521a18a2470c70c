"""Diagnose: a finished run's metrics through the very same rules, and what each finding has cost since its onset."""

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any, TypeVar

from tracker_diag.detect.growth import USUAL, GrowthSettings
from tracker_diag.errors import SourceError, UnknownName, require
from tracker_diag.metrics.alias_files import frameworks
from tracker_diag.metrics.aliases import EVALUATION, TARGET, KeyMap, nearest
from tracker_diag.metrics.registry import Algorithm
from tracker_diag.report.curves import chosen
from tracker_diag.report.html import shown
from tracker_diag.rules.acknowledged import SETTING
from tracker_diag.rules.alerts import Notice
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.incidents import never_rose
from tracker_diag.rules.judge import Judge, judge_steps
from tracker_diag.rules.loader import Own, in_force
from tracker_diag.rules.logged import LiveFinding, inputs_of, is_ours, live_findings
from tracker_diag.rules.triage import Summary
from tracker_diag.trackers.finished import FinishedRun, Progress
from tracker_diag.trackers.open import Source, read_run
from tracker_diag.trackers.rows import in_fewer

T = TypeVar("T")

LONG = 16_384
"""Rows of a finished run that are judged one by one; a longer one is judged in at most `JUDGED`."""
JUDGED = 4_096

RUNTIME = ("train_runtime", "train/train_runtime")
"""Seconds of the whole training, which the trainers of Hugging Face log with their last row."""


@dataclass(frozen=True)
class Cost:
    """What a run has spent since the onset of a finding."""

    steps: int
    seconds: float | None
    """Wall time, where the source knows it, or the run has logged how long its steps take."""

    def __str__(self) -> str:
        if self.seconds is None:
            return f"{self.steps:,} steps"
        units = ((3600, "h", 1), (60, "min", 0), (1, "s", 0))
        size, unit, digits = next((scale for scale in units if self.seconds >= scale[0]), units[-1])
        return f"{self.steps:,} steps, {self.seconds / size:.{digits}f} {unit}"


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """A finished run, read and judged."""

    run: FinishedRun
    summary: Summary
    keys: KeyMap
    algorithm: Algorithm | None
    series: dict[str, dict[int, float]]
    """Canonical metrics by step, and statistics of slices where the run has them."""
    live: tuple[LiveFinding, ...] = ()
    """What the diagnostics said while the run was underway, if they watched it."""
    notices: tuple[Notice, ...] = ()
    """The alerts that a person would have got, step by step."""

    def __str__(self) -> str:
        return str(self.summary)

    __repr__ = __str__

    def _repr_html_(self) -> str | None:
        return shown(self.summary)

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame`: a row for each step, a column for each series under its canonical name.

        Raises:
            MissingExtra: pandas is not installed.
        """
        return require("pandas", "pandas").DataFrame(self.series).rename_axis("step").sort_index()

    def to_json(self) -> dict[str, Any]:
        """The JSON of `tracker-diag diagnose --json`: that of the summary, with costs, keys and notes."""
        document: dict[str, Any] = self.summary.to_json()
        for printed, finding in zip(document["findings"], self.summary.findings, strict=True):
            printed["cost"] = asdict(self.cost(finding))
        mapped = {key: metric.name for key, metric in self.keys.mapped.items()}
        document["keys"] = {
            "framework": self.keys.framework,
            "nearest": {} if self.keys.framework else nearest((*self.keys.mapped, *self.keys.unmapped)),
            "mapped": mapped,
            "unmapped": list(self.keys.unmapped),
        }
        live = [asdict(live_finding) for live_finding in self.live]
        return document | {"algorithm": self.algorithm, "notes": list(self.run.notes), "live": live}

    def cost(self, finding: Finding) -> Cost:
        """What was spent from the finding's onset to its end, or to that of the run."""
        begin = (self.summary.first_step or 0) if never_rose(finding) else finding.onset
        end = finding.resolved if finding.resolved is not None else (self.summary.last_step or 0)
        steps = max(0, end - begin)
        known = [step for step in self.run.seconds if begin <= step <= end]
        return Cost(steps, self.run.seconds[max(known)] - self.run.seconds[min(known)] if len(known) > 1 else None)


def diagnose(
    run: FinishedRun | Source,
    *,
    rules: Own = (),
    catalog: bool = True,
    framework: str | None = None,
    algorithm: Algorithm | None = None,
    evaluation: str = "",
    acknowledged: Mapping[str, str] | None = None,
    since: int | None = None,
    expected_runs_between_false_alarms: float = USUAL,
    underway: bool = False,
    so_far: "SoFar | None" = None,
    progress: Progress | None = None,
) -> Diagnosis:
    """Hold the catalogue, and `rules` of your own with it, against a finished run's metrics, from step `since` on.

    `run` is what `read_run` gives or takes: a path, a source, a data frame or a list of rows. `rules`, `catalog` and
    the dial are as in `Monitor`.
    `evaluation` is the key of the evaluation that counts, where the run logs several; by default one
    that is no mean reward, in the order of the framework's table.
    `acknowledged` has the rules whose incidents you know of, each with the reason. So does a setting or tag
    `diag.acknowledged.RULE` of the run. These incidents stay listed; advice and `level` leave them out.
    `underway`: more rows will come. The run is judged as a `Monitor` would judge it, and not by its length.
    `so_far` is kept by you from look to look at a run that is underway: rows that were judged are not judged again.
    A finished run of more than `LONG` rows is judged in fewer, and its summary says so.
    `progress` is given the share of the rows that is judged.

    Raises:
        RuleError: a rule that cannot be used.
        SourceError: `run` cannot be read, or has ended and none of its metrics is known.
        UnknownName: there are no aliases for `framework`, a rule of `acknowledged` is not in force, or the log has no
            `evaluation`.
    """
    if framework is not None and framework.lower() not in {name.lower() for name in frameworks()}:
        raise UnknownName("framework", framework, frameworks())
    chosen_rules = in_force(rules, with_catalog=catalog)
    if unknown := set(acknowledged or ()) - {rule.id for rule in chosen_rules}:
        raise UnknownName("acknowledged rule", min(unknown), tuple(rule.id for rule in chosen_rules))
    run = run if isinstance(run, FinishedRun) else read_run(run)
    rows = {step: row for step, row in run.rows.items() if since is None or step >= since}
    thinned = not underway and len(rows) > LONG
    judged = in_fewer(rows, JUDGED) if thinned else rows
    settings = GrowthSettings() if underway else GrowthSettings.for_run(len(judged))
    settings = settings.dialled(expected_runs_between_false_alarms)
    known = {f"{SETTING}{rule}": reason for rule, reason in (acknowledged or {}).items()}
    logged = dict.fromkeys(key for row in rows.values() for key in row)
    so_far = so_far or SoFar()
    new = so_far.new(run, judged, logged)
    if so_far.judge is None:
        so_far.judge = Judge(
            chosen_rules, settings, config={**run.config, **known}, algorithm=algorithm,
            framework=framework or run.framework, evaluation=evaluation, quantum=run.quantum,
        )  # fmt: skip
        so_far.judge.know(key for key in logged if not is_ours(key))
    judge = so_far.judge
    if evaluation and evaluation not in logged:
        ours = {key: next(iter(judge.keys.values({key: 0.0})), "") for key in logged}
        there = [key for key, name in ours.items() if name.partition(":")[0] in (TARGET, EVALUATION)]
        there += [key for key, name in ours.items() if not name and not is_ours(key)]  # any other key may be named too
        raise UnknownName("evaluation", evaluation, tuple(there) or ("none, as the log has no evaluation",))
    so_far.include(*judge_steps(judge, _counted(inputs_of(new), len(new), progress)))
    series, notices = dict(so_far.series), so_far.notices
    if logged and not (series or underway or judge.engine.findings):
        names = ", ".join(judge.keys.unmapped[:5])
        do = "name its framework (--framework), or its evaluation (--evaluation)"
        raise SourceError(f"{run.source}: none of its metrics is known here (it has {names}); {do}")
    steps = list(rows)
    first, last = (steps[0], steps[-1]) if steps else (None, None)
    summary = judge.summary(run.source, len(steps), first, last)
    thin = f"the log is long: its {len(rows):,} rows are judged as {len(judged):,}, each a mean of neighbours"
    log = (*run.caveats, *([thin] if thinned else ()), *_by_construction(judge.keys, rows, series))
    curves = {name: series[name] for name in chosen(summary, series)}
    summary = replace(summary, log=log, curves=curves, over=run.ended is not None)
    seconds = run.seconds or elapsed(rows, series.get("step_seconds", {}))
    run = replace(run, seconds=seconds, notes=(*run.notes, *_idle(series.get("grad_norm", {}))))
    live = tuple(live_findings(rows, run.findings))
    return Diagnosis(run, summary, judge.keys, judge.algorithm, series, live, tuple(notices))


class SoFar:
    """The rows of a run that were judged so far, with their findings. A row that has not changed is judged once."""

    def __init__(self) -> None:
        self.judge: Judge | None = None
        self.series: dict[str, dict[int, float]] = {}
        self.notices: list[Notice] = []
        self._about: list[object] = []
        self._seen: list[int] = []

    def new(
        self, run: FinishedRun, rows: dict[int, dict[str, float]], keys: Collection[str]
    ) -> dict[int, dict[str, float]]:
        """The `rows` that are to be judged: all, unless they begin with those that were, and `keys` are no new ones.

        Where the diagnostics in the run have logged, rows say what is of all rows: they are judged together.
        """
        about: list[object] = [run.config, run.framework, run.quantum]
        rows_here = [hash((step, *row, array("d", row.values()).tobytes())) for step, row in rows.items()]
        same = self.judge is not None and self.judge.keys.covers(keys) and not any(map(is_ours, keys))
        if not same or about != self._about or rows_here[: len(self._seen)] != self._seen:
            self.judge, self.series, self.notices, self._seen = None, {}, [], []
        new = dict(islice(rows.items(), len(self._seen), None))
        self._about, self._seen = about, rows_here
        return new

    def include(self, series: Mapping[str, Mapping[int, float]], notices: list[Notice]) -> None:
        """Take in what further rows have come to."""
        for name, values in series.items():
            self.series[name] = {**self.series.get(name, {}), **values}
        self.notices = [*self.notices, *notices]


def _counted(inputs: Iterable[T], n: int, progress: Progress | None) -> Iterator[T]:
    """The same `inputs`, which are `n`; now and then `progress` is given the share that has gone by."""
    for at, it in enumerate(inputs):
        if progress and at % 256 == 0:
            progress(at / n)
        yield it


def elapsed(rows: Mapping[int, Mapping[str, float]], step_seconds: Mapping[int, float]) -> dict[int, float]:
    """Wall time since the first of `rows`: from the time of a step as logged, else from the sum at the end."""
    ends = [row[key] for row in rows.values() for key in RUNTIME if key in row]
    mean = ends[-1] / max(rows) if ends and max(rows) > 0 else None
    a_step = next(iter(step_seconds.values()), mean)
    if a_step is None:
        return {}
    times: dict[int, float] = {}
    passed, before = 0.0, next(iter(rows))
    for step in rows:
        a_step = step_seconds.get(step, a_step)
        passed += a_step * (step - before)
        times[step], before = passed, step
    return times


def _idle(grad_norm: Mapping[int, float]) -> Iterator[str]:
    """Steps that were paid for and moved nothing, which no rule tells while they come one by one."""
    zeros = [step for step, value in grad_norm.items() if value == 0]
    if zeros:
        yield f"the gradient norm is exactly 0 in {len(zeros)} of {len(grad_norm)} rows, first at step {zeros[0]}"


def _by_construction(
    keys: KeyMap, rows: Mapping[int, Mapping[str, float]], series: Mapping[str, Mapping[int, float]]
) -> Iterator[str]:
    """What says nothing by construction: an entropy of exactly 0 in each row, and a loss of 0 in TRL's GRPO.

    With one update per batch the ratio is 1, and the advantages of a group add up to 0. So the value of the loss is 0,
    but for the KL term; its gradient is not. Where the gradient is 0 as well, nothing is said.
    """
    entropies = [key for key, metric in keys.mapped.items() if metric.name == "entropy"]
    if "entropy" not in series and any(row.get(key) == 0 for row in rows.values() for key in entropies):
        yield "the entropy is exactly 0 in every row: the trainer does not measure it, and no rule reads it"
    loss, gradient = series.get("loss", {}), series.get("grad_norm", {})
    if keys.framework != "TRL" or not {"loss", "reward", "reward_std"} <= series.keys():
        return
    zeros = [step for step, value in loss.items() if value == 0 and gradient.get(step, 0.0) > 0]
    if len(zeros) > 1:
        yield (
            f"the loss is exactly 0 in {len(zeros)} of {len(loss)} rows, while the gradient is not: with one update "
            "per batch the loss of GRPO is 0 by construction, but for its KL term. It is cosmetic; look at the reward"
        )
