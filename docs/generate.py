"""Writes the generated pages, and the JSON Schema of a rule: `python docs/generate.py`.

A test holds them against what this would write.
"""

import json
import re
import runpy
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from pydantic import TypeAdapter

from tracker_diag.metrics.alias_files import file_of, frameworks
from tracker_diag.metrics.own import BY_INTEGRATION, HEALTH, OWN, SAMPLED
from tracker_diag.metrics.registry import TRAINING, Metric
from tracker_diag.metrics.statistics import MIN_SEQUENCES, MIN_TOKENS, STATISTICS, STEP_TOKENS
from tracker_diag.rules.model import SCHEMA, schema
from tracker_diag.rules.signals import AnySignal
from tracker_diag.rules.signals.base import Signal

DATA: TypeAdapter[Signal] = TypeAdapter(AnySignal)
DOCS = Path(__file__).parent
CASES = DOCS.parent / "tests" / "rules"
INTEGRATION = runpy.run_path(str(DOCS / "make_matrix.py"))["integration"]
"""The integration that a package is watched by."""


def metrics_page() -> str:
    """docs/metrics.md, from the registry."""
    return "\n".join(
        [
            "# Metrics",
            "",
            "This page lists what tracker_diag measures. `make docs` makes it from `tracker_diag/metrics`.",
            "",
            "## Statistics of a slice",
            "",
            "The tracker gets each statistic as `diag/<pair>/<slice>/<stat>`, for the slices in the last column. If",
            "only rules read a statistic, this column is empty. The table `diag/slices` has all statistics over a",
            "window for every slice, also by turn, tool, environment and more. The window is the last 8 steps, unless",
            "you pass `window=`. The histograms of |log-ratio| are `diag/<pair>/<slice>/hist`.",
            "",
            f"Most statistics need {MIN_TOKENS} tokens. A quantile q needs 20/(1 − q), if that is more. `p95_step` and",
            f"`excess_step` are of the last step, and need {STEP_TOKENS} tokens. Statistics of sequences need",
            f"{MIN_SEQUENCES} sequences. `tail_stretch` needs 2,000 tokens.",
            "",
            "| pair | log-ratio |",
            "|---|---|",
            "| `policy` | logprobs − old_logprobs |",
            "| `mismatch` | old_logprobs − rollout_logprobs |",
            "| `reference` | logprobs − ref_logprobs |",
            "",
            "| slice | tokens |",
            "|---|---|",
            "| `text_only` | model tokens before any tool result of their sequence |",
            "| `post_tool` | model tokens after a tool result |",
            "| `all` | all model tokens, also those whose place is not known |",
            "",
            *_statistics(),
            "## Health of the diagnostics",
            "",
            "Failures of tracker_diag itself are counted here and never raise into training. A key is logged from its",
            "first count on.",
            "",
            *_table(HEALTH, "diag/health/"),
            "## State",
            "",
            *_table(OWN, "diag/"),
            "## Your metrics that the rules read",
            "",
            f"Rules read them under the names of {len(frameworks())} frameworks (`tracker_diag/metrics/aliases`),",
            "or by the last part of a name.",
            "",
            *_table(TRAINING, ""),
            "## What `samples` counts",
            "",
            "They are logged as `diag/samples/<name>` if you pass the columns. Those of one tool, component or",
            "environment are `diag/samples/<name>:<member>`. If your trainer logs the same metric itself, rules read",
            "the trainer's, unless that is a mean over earlier steps too. The histogram of the rewards is",
            "`diag/samples/reward/hist`.",
            "",
            "| metric | columns |",
            "|---|---|",
            *[f"| `{name}` | {columns} |" for name, columns in SAMPLED.items()],
            *[f"| `{name}` | none: {framework} measures it |" for name, framework in BY_INTEGRATION.items()],
            "",
            "[The canary](canary.md) logs `diag/canary/<name>`.",
            "",
        ]
    )


TITLES = {"mlflow": "MLflow", "wandb": "W&B", "tensorboard": "TensorBoard", "trackio": "Trackio"}
FAULTS = {
    "alarm": "a timer's signal every 3 ms",
    "clock": "the clock is set, by 5 s or a day",
    "disk": "no file may grow beyond a limit of 0 to 20 kB",
    "exit": "`os._exit` at any call",
    "fork": "a fork that uses the diagnostics",
    "interrupt": "Ctrl-C within an observation",
    "kill": "SIGKILL at any call",
    "none": "no fault",
    "rebaseline": "a new baseline",
    "server": "errors 400 to 503, HTML pages, cut connections, lost and late answers",
    "thread": "another thread reads and saves the state",
}


CHAOS = """\
# Random programs

`make nightly` makes random training scripts of 3 to 18 calls of the tracker and of the diagnostics. Steps rise, jump,
go backwards or are missing. Values are NaN or infinite. The tracker refuses some calls. Each script runs twice against
the real tracker, without the diagnostics and with them. In each script, up to two of the faults below happen. If a
journal is left, `tracker-diag flush` runs. Then we read the user's values from the tracker's own file or database. They
must be the same with and without the diagnostics. If the script was killed, some may be missing. The values of the
diagnostics must be there, under their steps.
"""
CALLS = {
    "row alone": "a call of the user's, without tracker_diag",
    "row watched": "with tracker_diag",
    "observe watched": "`observe`",
    "ours watched": "`diag.log`",
}


def chaos_page() -> str:
    """docs/chaos.md, from the figures of `make nightly`."""
    by_tracker = json.loads((DOCS / "chaos.json").read_text())
    rows: list[tuple[str, list[object]]] = [
        ("played on", [figures["played"] for figures in by_tracker.values()]),
        ("programs", [figures["programs"] for figures in by_tracker.values()]),
        ("programs with any error", [figures["wrong"] for figures in by_tracker.values()]),
        ("steps of the diagnostics", [figures["steps"] for figures in by_tracker.values()]),
        ("lost steps of the diagnostics", [figures["lost"] for figures in by_tracker.values()]),
        ("steps that were counted as lost, or as interrupted", [figures["counted"] for figures in by_tracker.values()]),
        ("programs that left a journal for `flush`", [figures["flushed"] for figures in by_tracker.values()]),
    ]
    for name, title in CALLS.items():
        times = [figures["call_ms"][name].values() for figures in by_tracker.values()]
        rows.append((f"{title}: p50, p99 and longest, ms", [", ".join(map(str, quantiles)) for quantiles in times]))
    befell = [
        (title, [figures["with"].get(fault, 0) for figures in by_tracker.values()]) for fault, title in FAULTS.items()
    ]
    titles = [TITLES[name] for name in by_tracker]
    return "\n".join(
        [
            CHAOS,
            *_rows(titles, rows),
            "",
            "Times are from one busy machine with two cores and several programs at once. They include first calls,",
            "which load the tracker. The next table counts programs with each fault.",
            "",
            *_rows(titles, befell),
            "",
            *_soak(json.loads((DOCS / "soak.json").read_text())),
        ]
    )


SOAK = {
    "step_ms": "a step in the training thread, ms of CPU time",
    "all_threads_ms": "a step in all threads, ms of CPU time",
    "memory_mib": "memory, MiB",
    "journals_mib": "journals, MiB",
    "wandb_mib": "W&B's files, MiB",
    "mlflow_mib": "MLflow's database, MiB",
    "trackio_mib": "Trackio's database, MiB",
    "tensorboard_mib": "TensorBoard's files, MiB",
    "jsonl_mib": "the plain files, MiB",
}


def _soak(figures: list[dict[str, Any]]) -> list[str]:
    """The part on a long run, from what `tests/chaos/soak.py` has written."""
    parts = [part for part in figures if "steps" in part]
    shown = [parts[i] for i in sorted({n * (len(parts) - 1) // 4 for n in range(5)})]
    rows = [(title, [part[name] for part in shown]) for name, title in SOAK.items()]
    reached = parts[-1]["steps"]
    short = "" if "health" in figures[-1] else f" These numbers are from the first {reached:,} steps."
    return [
        "## A long run",
        "",
        "`make nightly` also logs 100,000 steps to W&B, MLflow, Trackio, TensorBoard and plain files at once. It fails",
        "if memory, the time of a step or the size of the journals grows. Each tracker's files may grow, but not by",
        f"more and more per step.{short}",
        "",
        *_rows([f"at step {part['steps']:,}" for part in shown], rows),
        "",
    ]


def _rows(titles: list[str], rows: Iterable[tuple[str, list[Any]]]) -> list[str]:
    """A table with a column for each of `titles`."""
    lines = [f"| | {' | '.join(titles)} |", "|---|" + "---|" * len(titles)]
    return [*lines, *(f"| {title} | {' | '.join(map(str, cells))} |" for title, cells in rows)]


ALERTS = """\
# Alerts on simulated runs

`make alerts` simulates 200 runs of each kind{so_far}.
Each step passes tensors to `Monitor.observe` and metrics to `Monitor.log`, with all rules. A batch is 64 sequences of
44 tokens, half of them with a tool result in their middle. We draw the log-ratio of each token from a normal
distribution, with a standard deviation of 0.05. In each slice, this deviation varies from step to step by 10 %, as an
AR(.8). The author of the rules wrote these runs too. They measure delays and false alarms under such noise. They do not
measure whether real failures look like this.

We stop a run at the first rule that fires and is not a part of another finding. The seeds are 50,000 and above. We
developed the rules on other seeds. Two earlier studies led to changes. On seeds from 20,000, POL017 alarmed in 3 of
200 runs of "one step of five ×2.5, always". Now bursts count as new from 1.5 times those of the baseline, not 1.35. On
seeds from 40,000, rules alarmed in 3 of 123 runs of "waves of ×1.8". Now a crest within the baseline counts as a crest,
and POL016 waits for ten steps, not six. A rule without a record raises no alarm. So we ran five kinds again, once
these rules had a new one.

## Failures

Each failure begins at step 120. The failure that follows a phase of learning begins at step 200. *Found*: a rule at
warn or above fires after the failure began. *Rightly named*: the first rule that fires is the right one, on the right
slice, tool or environment. Delays are those of the runs that were found.

| | found | rightly named | too early | median delay, steps | 90th percentile | other first names |
|---|---|---|---|---|---|---|
"""


def alerts_page() -> str:
    """docs/alerts.md, from the figures of `make alerts`."""
    rows = json.loads((DOCS / "alerts.json").read_text())
    failures, healthy = ([row for row in rows if ("found" in row) is ill] for ill in (True, False))
    ill, sound = (min(row["runs"] for row in kind) for kind in (failures, healthy))
    so_far = "" if ill == sound == 200 else f" (so far {ill} of each failure, {sound} or more of each healthy kind)"
    lines = [
        f"| {row['name']} | {row['found']} of {row['runs']} | {row['named']} | {row['early']} | {row['delay'] or 0:g} "
        f"| {row['late'] or 0:g} | {', '.join(row['else']) or '–'} |"
        for row in failures
    ]
    return "\n".join(
        [
            ALERTS.format(so_far=so_far) + "\n".join(lines),
            "",
            "## Healthy runs",
            "",
            "*Alarmed*: a rule at warn or above has fired at any step.",
            "",
            "| | alarmed | by |",
            "|---|---|---|",
            *(f"| {r['name']} | {r['alarmed']} of {r['runs']} | {', '.join(r['by']) or '–'} |" for r in healthy),
            "",
        ]
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _table(metrics: tuple[Metric, ...], prefix: str) -> list[str]:
    rows = [f"| `{prefix}{m.name}` | {m.unit} | {_cell(m.meaning)} | {m.worse} |" for m in metrics]
    return ["| name | unit | meaning | worse |", "|---|---|---|---|", *rows, ""]


def _statistics() -> list[str]:
    """The table of statistics, with the slices of which each goes to the tracker."""
    header, line, *rows = _table(tuple(STATISTICS.values()), "diag/<pair>/<slice>/")
    logged = [
        ", ".join(
            (*statistic.logged, *(() if statistic.of_reference or not statistic.logged else ("not of reference",)))
        )
        for statistic in STATISTICS.values()
    ]
    return [
        f"{header} logged for |",
        f"{line}---|",
        *(f"{row} {slices} |" for row, slices in zip(rows, logged, strict=False)),
        "",
    ]


def about(package: ModuleType) -> dict[str, str]:
    """What the `about.yaml` of an integration says: how its tests go about it, how to install it, and more."""
    text: dict[str, str] = yaml.safe_load((Path(str(package.__file__)).parent / "about.yaml").read_text())
    return text


def integrations_page() -> str:
    """docs/integrations.md, from what each package says of itself."""
    packages = {
        entry.name: import_module(entry.value)
        for entry in sorted(entry_points(group="tracker_diag.integrations"), key=lambda entry: entry.name)
    }
    lines = [
        "# Integrations",
        "",
        "`make docs` makes this page from `integrations/`. `tracker-diag integrations` shows the versions",
        "that you have, and what each integration sees. [The matrix](matrix.md) lists versions, processes and the",
        "trackers in which a test found the alert.",
        "",
        "| how it is tested | meaning |",
        "|---|---|",
        "| run for real | the tests train with it |",
        "| real modules, made tensors | training needs GPUs. So the tests run its own code on made-up tensors |",
        "| signatures only | we could not install it. Tests compare our hooks with its public source, at a commit |",
        "| by a command | outside the tests, we ran its own loss with our hooks |",
        "",
        "Each function of a trainer that we hook is checked. If one has changed, a warning says so once, that part is",
        "off, and training continues.",
        "",
        "By default, diagnostics go to every run of W&B, MLflow and Trackio that is underway. Alerts go to the log and",
        "to each address in `TRACKER_DIAG_NOTIFY`. If no run is underway, the diagnostics go to a folder of JSON Lines",
        "in `TRACKER_DIAG_DIR`, or `.tracker_diag`, which `tracker-diag diagnose` reads. One line says where. `attach`",
        "returns a `Monitor`, which other pages call `run.diag`. A callback has it as `callback.monitor`.",
        "",
        "| trainer | tested versions | how |",
        "|---|---|---|",
        *(f"| [{name}](#{name}) | {package.TESTED} | {about(package)['how']} |" for name, package in packages.items()),
        "",
    ]
    for name, package in packages.items():
        lines += [f"## {name}", "", *_dedented(package.__doc__ or ""), ""]
        own = about(package)
        own |= {"versions": _released(name) or package.TESTED, "tested": "; also: ".join([own["how"], *_setups(name)])}
        lines += ["| | |", "|---|---|", *(f"| {what} | {_cell(own[what])} |" for what in ABOUT), ""]
        lines += ["| what | how we read it |", "|---|---|"]
        lines += [f"| {what} | {_cell(how)} |" for what, how in package.SEES.items()]
        lines.append("")
    return "\n".join([*lines, *_logs()])


def _logs() -> list[str]:
    """The frameworks whose logs are read by their own names."""
    files = [file_of(name) for name in frameworks()]
    return [
        "## Logs by their own names",
        "",
        "`tracker-diag diagnose` and `watch` read the metrics of these frameworks by their own names. A log must have",
        "two distinctive names; otherwise pass `--framework` to `diagnose`.",
        "`tracker-diag integrations --names FRAMEWORK` lists the names that are read, and why others are not.",
        "",
        "| framework | names of | metrics |",
        "|---|---|---|",
        *(f"| {file.framework} | {file.read_at} | {len(file.metrics)} |" for file in files),
        "",
    ]


def llms_page() -> str:
    """docs/llms.txt: the pages of the site for language models, each with its title and first sentence."""
    nav = yaml.safe_load((DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    lines = [
        "# tracker_diag",
        "",
        "> Diagnoses runs of reinforcement learning inside W&B, MLflow, Trackio or TensorBoard.",
    ]
    for part in nav:
        heading, files = next(iter(part.items())) if isinstance(part, dict) else ("Home", [part])
        lines += ["", f"## {heading}", ""]
        for file in files:
            page = PAGES[file]() if file in PAGES else (DOCS / file).read_text(encoding="utf-8")
            title = page.partition("\n")[0].removeprefix("# ")
            lines.append(
                f"- [{title}]({file.replace('README', 'index').removesuffix('md')}html): {_first_sentence(page)}"
            )
    return "\n".join([*lines, ""])


def _first_sentence(page: str) -> str:
    """The first sentence of a page that is neither code, a heading nor about its making."""
    prose = re.sub(r"(?ms)^```.*?^```$|^#.*?$|\*\*|!?\[|\]\([^)]*\)", "", page)
    sentences = re.split(r"(?<=[.?])\s", " ".join(prose.split()))
    return next(sentence for sentence in sentences if not sentence.startswith("Made "))


ABOUT = ("install", "edit", "switch off", "processes", "versions", "tested")
"""What is said of each integration, in this order."""


def _shown(name: str) -> list[dict[str, str]]:
    """What tests have shown of an integration."""
    rows: list[dict[str, str]] = json.loads((DOCS / "matrix.json").read_text())["tests"]
    return [row for row in rows if INTEGRATION(row["package"]) == name]


def _setups(name: str) -> list[str]:
    """The several processes that a test has found the alert with."""
    return sorted({row["setup"] for row in _shown(name) if "setup" in row})


def _released(name: str) -> str:
    """Oldest and newest release that a test has found the alert with, by package; nothing where none has."""
    by_package: dict[str, set[str]] = {}
    for row in _shown(name):
        by_package.setdefault(row["package"], set()).add(row["version"])
    ranges: list[str] = []
    for package, versions in sorted(by_package.items()):
        first, *others = sorted(versions, key=lambda version: [int(part) for part in version.split(".")])
        ranges.append(f"{package} {first}" + (f" to {others[-1]}, {len(versions)} releases" if others else ""))
    return "; ".join(ranges)


def _dedented(docstring: str) -> list[str]:
    """A docstring's lines, its indented parts as code."""
    lines: list[str] = []
    code = False
    for line in docstring.strip().splitlines():
        indented = line.startswith("    ") or (code and not line)
        if indented != code:
            if code:
                lines.pop()  # the empty line before the text continues
            lines += ["```", ""] if code else ["```"]
            code = indented
        lines.append(line.removeprefix("    "))
    return [*lines, "```"] if code else lines


PAGES: dict[str, Callable[[], str]] = {
    "alerts.md": alerts_page,
    "chaos.md": chaos_page,
    "integrations.md": integrations_page,
    "llms.txt": llms_page,
    "metrics.md": metrics_page,
    f"../tracker_diag/rules/{SCHEMA}": schema,
    **runpy.run_path(str(DOCS / "rule_pages.py"))["PAGES"],
    **runpy.run_path(str(DOCS / "schemas.py"))["PAGES"],
    **runpy.run_path(str(DOCS / "curves.py"))["PAGES"],
    **runpy.run_path(str(DOCS / "figures.py"))["PAGES"],
    **runpy.run_path(str(DOCS / "make_guards.py"))["PAGES"],
}


def main() -> None:
    """Write all pages."""
    for name, page in PAGES.items():
        (DOCS / name).parent.mkdir(exist_ok=True)
        (DOCS / name).write_text(page())


if __name__ == "__main__":
    main()
