"""The same healthy run and the same collapse under every framework's names: silent, and named."""

import numpy as np
import pytest

from tracker_diag.metrics import alias_files, aliases
from tracker_diag.metrics.alias_files import file_of
from tracker_diag.metrics.aliases import key_map
from tracker_diag.runs.diagnose import diagnose

FRAMEWORKS = alias_files.frameworks()
ROWS, ONSET = 120, 60
LEVELS = {
    "reward": 0.6, "success_rate": 0.6, "eval_score": 0.6, "entropy": 0.8, "loss": 0.5, "eval_loss": 0.6,
    "grad_norm": 0.5, "learning_rate": 1e-4, "approx_kl": 0.01, "mismatch_kl": 0.002, "clip_fraction": 0.1,
    "response_length": 300.0, "episode_length": 200.0, "value_loss": 0.2, "explained_variance": 0.8,
}  # fmt: skip
RISING = ("reward", "success_rate", "eval_score")
COLLAPSED = {"reward": 0.05, "success_rate": 0.05, "eval_score": 0.05, "loss": 5.0, "eval_loss": 5.0, "grad_norm": 50.0}


def canonical(*, collapses):
    """Rows by canonical name: outcomes rise to their level with 3 % of noise, or collapse within ten rows."""
    noise = np.random.default_rng(0).normal(1.0, 0.03, (ROWS, len(LEVELS)))
    for at in range(ROWS):
        gone = min(max(at - ONSET, 0) / 10, 1.0) if collapses else 0.0
        begun = {
            name: level * (1 - 0.6 * np.exp(-at / 25)) if name in RISING else level for name, level in LEVELS.items()
        }
        levels = {name: level + gone * (COLLAPSED.get(name, level) - level) for name, level in begun.items()}
        yield {name: level * noise[at, i] for i, (name, level) in enumerate(levels.items()) if name != "learning_rate"}


def concrete(pattern):
    return pattern.replace("**", "some/task").replace("*", "8")


def own_keys(framework):
    """Of each canonical name a key of the framework's own, and what has to stand next to them."""
    file = file_of(framework)
    keys = {
        name: concrete(next(key for key in alias.keys if "{" not in key))
        for name, alias in file.metrics.items()
        if name in LEVELS and any("{" not in key for key in alias.keys)
    }
    others = {concrete(key) for key in file.recognise}
    others |= {concrete(key) for key in file_of(file.base).recognise} if file.base else set()
    return keys, [key for key in others if key not in key_map(others, framework).mapped]


def translated(framework, rows):
    """`rows` as the framework itself would log them."""
    file, (keys, others) = file_of(framework), own_keys(framework)
    for step, row in enumerate(rows):
        own = dict.fromkeys(others, 1.0)
        for name, key in keys.items():
            if name in row:
                slope, intercept = file.metrics[name].transform.line
                own[key] = (row[name] - intercept) / slope
        yield {"step": step, **own}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_logged_under_its_names_is_read_as_what_it_is(framework):
    rows = list(canonical(collapses=False))[:2]
    for logged, meant in zip(translated(framework, rows), rows, strict=True):
        result = key_map(logged).values(logged)
        assert {"reward", "loss"} & result.keys()
        assert {name: result[name] for name in result if name in LEVELS} == pytest.approx(
            {name: meant[name] for name in result if name in LEVELS}
        )
    assert aliases.recognise(logged) == framework


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_collapse_is_named_and_a_healthy_run_is_silent(framework):
    healthy, collapsed = (
        diagnose(list(translated(framework, canonical(collapses=collapses)))) for collapses in (False, True)
    )
    assert healthy.keys.framework == collapsed.keys.framework == framework
    assert [finding.rule.id for finding in healthy.summary.findings if finding.full_severity != "info"] == []
    loud = {finding.rule.id for finding in collapsed.summary.findings if finding.full_severity != "info"}
    assert loud
    if "reward" in collapsed.keys.names:
        assert "OUT001" in loud
