"""The page of real curves: planted faults that are rightly named, and healthy runs with an alert."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple, get_args

from tracker_diag.report.blocks import bars, heights
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.model import Link
from tracker_diag.runs.diagnose import diagnose

ROOT = Path(__file__).parents[1]
COLUMNS = 48
SEEN = ("tuned", "development")
"""Parts of the planted runs of which single results may be shown."""
TRAINERS = {
    "PPO": "PPO of Stable-Baselines3", "A2C": "A2C of Stable-Baselines3", "GRPO": "GRPO of TRL",
    "GRPO tool": "GRPO of TRL", "one-file PPO": "PPO in one file, under CleanRL's names",
}  # fmt: skip
TASKS = {
    "Brake": "a cart in the wind", "Follow": "a cart that follows a light", "CartPole": "CartPole",
    "Acrobot": "Acrobot", "numbers": "a tiny language model that says numbers",
    "rounded": "a tiny language model that rounds numbers down to tens",
}  # fmt: skip
HEAD = """\
# Real curves

For each [link](triage.md#3-what-broke-first), this page shows a failure as its trainer logged it. If we have a false
alarm, it shows that too. The failures are [planted faults](faults.md). The names of the series are the trainer's own.

Each curve is scaled to its smallest and largest value, which are at its right. A bar is the mean of a few rows. ▼ is
the first step with the fault, and ● is the first alert.

A false alarm is an alert in a healthy run. A run is healthy if nothing was planted, and its reward moved and did not
collapse.
"""


NO_EXAMPLE = """\
A NaN (*numerics*) comes in one
step, and no curve shows it before. In the runs that this page may use, no alert began at the other links.
"""


class Example(NamedTuple):
    """A planted run, the series that show its failure, and what to look for."""

    run: str
    series: tuple[str, ...]
    look_for: str


FAILURES: Mapping[Link, Example] = {
    "environment": Example(
        "PPO, Brake, controls are swapped midway, 0",
        ("rollout/ep_rew_mean", "rollout/ep_len_mean", "train/approx_kl"),
        "Reward and episode length fall at once, and `approx_kl` stays as it was. So the environment has changed, and "
        "not the policy.",
    ),
    "evaluation": Example(
        "PPO, CartPole, evaluation sees other observations, 0",
        ("rollout/ep_rew_mean", "eval/mean_reward"),
        "The reward rises from the start, and the evaluation does not.",
    ),
    "reward": Example(
        "GRPO, numbers, scorer returns 0, 0",
        ("reward", "frac_reward_zero_std", "loss"),
        "Within one step, the reward drops to exactly 0. So in all groups, the rewards no longer differ.",
    ),
    "policy_update": Example(
        "GRPO, numbers, learning rate times 100 midway, 0",
        ("learning_rate", "kl", "reward"),
        "The learning rate jumps, then the KL, and the reward falls to 0.",
    ),
    "critic": Example(
        "PPO, Follow, reward explodes, 0",
        ("train/value_loss", "train/explained_variance", "rollout/ep_rew_mean"),
        "The value loss jumps, and the explained variance drops to 0. The cause is the reward: its size jumps too.",
    ),
    "exploration": Example(
        "one-file PPO, Acrobot, learning rate times 100 midway, 0",
        ("losses/entropy", "charts/learning_rate", "charts/episodic_return"),
        "The entropy falls to 0, and the return to its minimum. The slow fall before is normal: the policy learns.",
    ),
    "outcome": Example(
        "A2C, CartPole, scorer returns 0, 0",
        ("rollout/ep_rew_mean", "train/entropy_loss"),
        "The reward loses what it had gained. It falls slowly, because it is a mean of 100 episodes.",
    ),
}
FALSE_ALARMS: Mapping[Link, Example] = {
    "policy_update": Example(
        "GRPO tool, rounded, healthy, 11",
        ("kl", "reward"),
        "The KL jumps, and the reward dips. Both recover within five steps, and the reward later reaches its best. "
        "Nobody had to act, so we count the alert as false.",
    )
}


def curves_page() -> str:
    """docs/curves.md."""
    sys.path.append(str(ROOT / "tests" / "faults"))
    dataset: Any = import_module("dataset")
    labels: Any = import_module("labels")
    runs = {run.name: run for run in dataset.read_runs() if run.half in SEEN}
    verdicts = json.loads((ROOT / "docs" / "faults.json").read_text(encoding="utf-8"))["runs"]
    links = {rule.id: rule.link for rule in catalog()}
    healthy = [name for name, run in runs.items() if not (run.fault or run.collapsed or labels.idle(run))]
    false = Counter(links[names[0]] for _, names in map(verdicts.get, healthy) if names)
    parts = [f"{HEAD}\nOf {len(healthy)} healthy runs, {sum(false.values())} had a false alarm.\n"]
    for link, example in FAILURES.items():
        parts += [f"## {link.replace('_', ' ').capitalize()}\n", _drawn(runs[example.run], example)]
        parts += [_drawn(runs[FALSE_ALARMS[link].run], FALSE_ALARMS[link])] if link in FALSE_ALARMS else []
    *others, last = (f"*{link}*" for link in get_args(Link) if link not in FAILURES)
    return "\n".join([*parts, f"## Links without an example\n\n{', '.join(others)} and {last}. {NO_EXAMPLE}"])


def _drawn(run: Any, example: Example) -> str:
    """A run with the series of `example`, and where its fault and the alert are."""
    diagnosis = diagnose(run.rows())
    first = diagnosis.summary.first_break
    if first is None or (run.fault and first.rule.id not in run.right):
        raise ValueError(f"{run.name}: {first and first.rule.id} broke first; choose another example")
    low, high = run.steps[0], run.steps[-1]
    alert = diagnosis.notices[0].step
    since = f"from step {run.onset:,}" if run.onset else "from the start"
    planted = f"Planted: {run.fault}, {since}" if run.fault else "Nothing was planted"
    text = (
        f"{TRAINERS[run.trainer]}, {TASKS[run.task]}, steps {low:,} to {high:,}. {planted}. "
        f"First alert: step {alert:,}. Named: [{first.rule.id}](rules/{first.rule.id}.md), *{first.rule.title}*. "
        f"{example.look_for}"
    )
    width = max(map(len, example.series))
    curves = [f"{key:{width}} {_curve(run, key)}" for key in example.series]
    marks = f"{'':{width}} {_marks(run, alert)}"
    return "\n".join([fill(text, 120, break_on_hyphens=False), "", "```", marks, *curves, "```", ""])


def _marks(run: Any, alert: int) -> str:
    """The line above the curves: the first step with the fault, and the alert."""
    low, high = run.steps[0], run.steps[-1]
    marks = [" "] * COLUMNS
    for step, mark in ((alert, "●"), (run.onset, "▼")):
        if step is not None:
            (column,) = heights([[(max(step, low), 0.0)]], low, high, COLUMNS)[0]
            marks[column] = mark
    return "".join(marks).rstrip()


def _curve(run: Any, key: str) -> str:
    """The bars of a series, with its smallest and largest value."""
    values = [
        (step, float(value)) for step, value in zip(run.steps, run.columns[key], strict=True) if value is not None
    ]
    (curve,) = heights([values], run.steps[0], run.steps[-1], COLUMNS)
    numbers = [value for _, value in values]
    return f"{bars(curve, COLUMNS)} {min(numbers):.3g} to {max(numbers):.3g}"


PAGES: dict[str, Callable[[], str]] = {"curves.md": curves_page}
