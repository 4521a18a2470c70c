"""A new rule to start from: a small one that is sound, cases that it passes, and the schema for an editor."""

import json
import re
from pathlib import Path

from tracker_diag.errors import RuleError
from tracker_diag.rules.loader import in_force, load_rules
from tracker_diag.rules.model import Rule

SCHEMA = "rule.schema.json"
"""Name of the file with the JSON Schema; rule files point to it."""
VERSION = 1
"""Of the form of a rule file, in its schema."""

EXAMPLE = "ACM001"

RULE = """\
# yaml-language-server: $schema=rule.schema.json
id: ACM001
title: Reward is low  # heads the alert; up to 44 characters
# What to look at. A series is a metric that the trainer logs, by its canonical name (docs/metrics.md), or a statistic
# of a slice: post_tool/p95, with `pairs: [policy]` below. Other verbs: above, grows, rises, falls, thrives, …
signals:
  reward_low: reward below 0.1
# The ways in which it holds; any of them is enough: {all: [reward_low], needs: [kl], unless: [kl_high]}.
when:
  - reward_low
# One sentence, without its full stop: of a signal there are value, baseline, ratio, n and series.
summary: "reward is {reward_low.value:.3g}"

# All else may be left out. These are the defaults.
# link: policy_update      # or environment, evaluation, reward, advantage, critic, exploration, freshness, …
# severity: warn           # info: in the table only; error: the run is likely wasted, for `status: stable`
# for_steps: 1             # steps that it must hold before the rule fires; one without it takes 3 back
# keep_firing_steps: 10    # steps that it must fail before that is over
# description: Detects …   # what it sees, for `tracker-diag rules show ACM001`
# rationale: …             # why that is bad
# remedy: [What to do first., What then.]
# false_positives: [When it fires and nothing is wrong.]
"""

CASES = """\
# What the rule must do, over series from step 0 on: `a` is one value, `axn` n + 1 of them, `a+bxn` rises by b.
# `tracker-diag rules test` holds it against them.
- name: fires at the first step that is too low
  rule: ACM001
  series: {reward: "0.5x19 0.05x9"}
  firing: 20
- name: keeps silent when the reward is only just enough
  rule: ACM001
  series: {reward: "0.5x19 0.11x9"}
  firing: never
  state: healthy
- name: cannot see without a reward, and says so
  rule: ACM001
  series: {kl: "0.1x29"}
  firing: never
  state: unknown
"""


def schema() -> str:
    """The JSON Schema of a rule file. If a field had to go or to change its meaning, VERSION would rise."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "version": VERSION}
    return json.dumps(head | Rule.model_json_schema(), indent=1, ensure_ascii=False) + "\n"


def write_new(rule_id: str, folder: Path) -> list[Path]:
    """Write a rule `rule_id` into `folder`, its cases into `tests` in there, and the schema; the files written.

    Raises:
        RuleError: the id is none or taken, or a file is there already; nothing is written then.
    """
    if not re.fullmatch(r"[A-Z]{2,4}\d{3}", rule_id):
        raise RuleError(f"id: {rule_id!r} given, expected two to four capitals and three digits, as in {EXAMPLE}")
    beside = load_rules(folder) if any(folder.glob("*.y*ml")) else ()
    for rule in in_force(beside):
        if rule.id == rule_id:
            raise RuleError(f"id: {rule_id} is already in {rule.where}; take another one")
    new = {folder / f"{rule_id}.yaml": RULE, folder / "tests" / f"{rule_id}.yaml": CASES}
    for file in new:
        if file.exists():
            raise RuleError(f"{file}:1: is there already; take another id, or remove it")
    try:
        (folder / "tests").mkdir(parents=True, exist_ok=True)
        for file, text in new.items():
            file.write_text(text.replace(EXAMPLE, rule_id), encoding="utf-8")
        (folder / SCHEMA).write_text(schema(), encoding="utf-8")  # that of this version, whichever was there
    except OSError as error:
        raise RuleError(f"{folder}:1: cannot be written to: {error}; expected a folder, or a place for one") from error
    return [*new, folder / SCHEMA]
