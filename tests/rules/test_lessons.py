"""What real runs have taught, each as a run under a framework's own names: what must be named, and what must not."""

import json
import math

import numpy as np
import pytest

from tracker_diag import Monitor
from tracker_diag.runs.diagnose import diagnose
from tracker_diag.trackers.finished import FinishedRun
from tracker_diag.trackers.open import read_run

pytestmark = pytest.mark.slow


def noise(rng, n, phi=0.8):
    """(n,) AR(1) of standard deviation 1."""
    z = rng.normal(size=n)
    for t in range(1, n):
        z[t] = phi * z[t - 1] + math.sqrt(1 - phi**2) * z[t]
    return z


@pytest.fixture
def columns(rng):
    """A healthy GRPO run of 300 steps under TRL's names: its KL begins at 0, its reward takes off late."""
    t = np.arange(300)
    learnt = 1 / (1 + np.exp(-(t - 120) / 25))
    return {
        "reward": 0.15 + 0.5 * learnt + 0.02 * noise(rng, 300),
        "reward_std": 0.35 * np.exp(0.06 * noise(rng, 300)),
        "frac_reward_zero_std": 0.25 + 0.03 * noise(rng, 300),
        "kl": 0.05 * (1 - np.exp(-t / 80)) * np.exp(0.15 * noise(rng, 300)),
        "entropy": (0.8 - 0.3 * learnt) * np.exp(0.04 * noise(rng, 300)),
        "loss": 0.01 * noise(rng, 300),
        "grad_norm": 0.4 * np.exp(0.2 * noise(rng, 300)),
        "learning_rate": np.full(300, 1e-6),
        "completions/mean_length": 300 * (1 + 0.2 * learnt) * np.exp(0.05 * noise(rng, 300)),
    }


def rows(columns):
    return {
        step: {name: float(values[step]) for name, values in columns.items()}
        for step in range(len(next(iter(columns.values()))))
    }


def diagnosed(columns, **config):
    return diagnose(FinishedRun("a run", rows(columns), config, {}, ()))


def fired(result):
    """Each rule that fired, with its severity."""
    return {item.rule.id: item.full_severity for item in result.summary.findings if item.fired is not None}


def loud(result):
    return {rule for rule, severity in fired(result).items() if severity != "info"}


def test_a_healthy_run_with_a_late_take_off_and_a_kl_that_begins_at_0_raises_nothing(columns):
    """A baseline of the run's own start, looked at from both sides, alarms on either."""
    result = diagnosed(columns)
    assert columns["kl"][0] == 0
    assert columns["reward"][-20:].mean() > 3 * columns["reward"][:20].mean()
    assert loud(result) == set()
    assert {"NUM001", "POL010", "ADV001"} <= {*result.summary.healthy}  # they could see


def test_rows_of_an_evaluation_on_another_cadence_are_padding(columns, tmp_path):
    columns["eval_reward"] = np.where(np.arange(300) % 25 == 0, 0.3, np.nan)
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps({"step": step} | row) + "\n" for step, row in rows(columns).items()))
    result = diagnose(read_run(str(file)))
    assert "NUM004" in result.summary.healthy
    assert len(result.series["eval_score"]) == 12


def test_a_metric_that_turns_nan_is_no_padding(columns, tmp_path):
    columns["loss"] = np.where(np.arange(300) >= 200, np.nan, columns["loss"])
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps({"step": step} | row) + "\n" for step, row in rows(columns).items()))
    result = diagnose(read_run(str(file)))
    assert (result.summary.first_break.rule.id, result.summary.first_break.onset) == ("NUM004", 200)


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "rule"), [("grad_norm", "NUM001"), ("kl", "POL010")])
def test_a_spike_is_large_as_well_as_unlikely(columns, name, rule):
    """Of a tight series a tenth more is fifty deviations; it is no spike. Ten times as much, for a while, is one."""
    rng = np.random.default_rng(5)
    level = {"grad_norm": 0.5, "kl": 0.05}[name]
    tight = level * (1 + 0.002 * rng.normal(size=300))
    tight[200:206] *= 1.1
    columns[name] = tight
    assert loud(diagnosed(columns)) == set()
    tight[200:206] *= 10
    columns[name] = tight
    assert rule in loud(diagnosed(columns))


def test_a_task_that_is_solved_at_once_with_a_policy_that_is_sure_of_it_raises_nothing():
    """A small maze: within a tenth of the run each episode succeeds, and the entropy falls to nothing after that."""
    t = np.arange(80)
    solved = {
        "charts/episodic_return": np.minimum(0.06 * 1.5**t, 1.0),
        "losses/entropy": 0.0015 + 1.38 / (1 + np.exp((t - 9) / 2.5)),
        "losses/approx_kl": 0.01 * np.exp(-t / 5) + 1e-7,
        "losses/clipfrac": np.where(t < 30, 0.1 * np.exp(-t / 8), 0.0),
        "losses/explained_variance": np.where(t < 20, t / 40, 0.5),
        "losses/value_loss": 0.02 * np.exp(-t / 10) + 1e-4,
    }
    result = diagnosed(solved)
    assert {"EXP001", "EXP007"} <= fired(result).keys()  # as notes
    assert loud(result) == set()
    stuck = diagnosed(solved | {"charts/episodic_return": np.full(80, 0.06) + 0.01 * np.sin(t)})
    assert "EXP001" in loud(stuck)


def test_returns_that_are_mostly_noise_leave_the_critic_nothing_to_explain(rng):
    t = np.arange(60)
    bandit = {
        "rollout/ep_rew_mean": 1.5 + 3 * (1 - np.exp(-t / 8)) + 0.3 * rng.normal(size=60),
        "train/explained_variance": 0.01 * rng.normal(size=60),
        "train/value_loss": 7 + 0.5 * rng.normal(size=60),
        "train/entropy_loss": -1.3 + 0.8 * (1 - np.exp(-t / 20)),
        "train/policy_gradient_loss": 0.01 * rng.normal(size=60),
    }
    assert "CRI001" in fired(diagnosed(bandit))
    assert loud(diagnosed(bandit)) == set()
    bandit["rollout/ep_rew_mean"] = 1.5 + 0.3 * rng.normal(size=60)
    assert "CRI001" in loud(diagnosed(bandit))


def test_a_kl_of_0_throughout_is_no_pinned_policy(columns):
    columns["kl"] = np.zeros(300)
    columns["reward"] = 0.3 + 0.02 * noise(np.random.default_rng(1), 300)
    assert "POL015" not in fired(diagnosed(columns, beta=0.04))
    columns["kl"] = np.full(300, 1e-4)  # a term that is there, and holds
    assert "POL015" in fired(diagnosed(columns, beta=0.04))


def test_an_evaluations_reward_is_not_the_training_reward(columns):
    columns["eval_reward"] = np.where(np.arange(300) % 25 == 0, 9.0, np.nan)
    result = diagnosed(columns)
    assert result.keys.mapped["eval_reward"].name == "eval_score"
    assert max(result.series["reward"].values()) < 1
    del columns["reward"]
    assert "reward" not in diagnosed(columns).series


def test_an_evaluation_of_ones_own_is_read_in_a_known_framework(columns):
    columns["eval/accuracy"] = np.where(np.arange(300) % 25 == 0, 0.4, np.nan)
    result = diagnosed(columns)
    assert result.keys.framework == "TRL"
    assert set(result.series["eval_score"].values()) == {0.4}
    columns["eval_reward"] = columns["eval/accuracy"] + 0.1  # the trainer's own may be hacked as the reward is
    series = diagnosed(columns).series
    assert [set(series[name].values()) for name in ("eval_score", "evaluation:eval_reward")] == [{0.4}, {0.5}]


def test_gradient_norms_of_exactly_0_are_counted(columns):
    columns["grad_norm"][180:240] = 0.0
    result = diagnosed(columns)
    assert "ADV007" in loud(result)
    (finding,) = [item for item in result.summary.findings if item.rule.id == "ADV007"]
    assert (finding.onset, finding.resolved is not None) == (180, True)
    assert "exactly 0" in finding.summary


def test_single_zeros_of_the_gradient_norm_are_no_illness_but_are_reported(columns):
    columns["grad_norm"][10::30] = 0.0
    result = diagnosed(columns)
    assert loud(result) == set()
    assert result.run.notes == ("the gradient norm is exactly 0 in 10 of 300 rows, first at step 10",)


@pytest.mark.nightly
def test_the_same_metric_under_the_names_of_another_version(columns):
    """A run that inflates its responses, under the key of TRL 0.15 and that of later versions."""
    columns["completions/mean_length"] *= 1 + 2 * np.clip((np.arange(300) - 150) / 60, 0, 1)
    columns["reward"] -= 0.1 * np.clip((np.arange(300) - 150) / 60, 0, 1)
    later = diagnosed(columns)
    columns["completion_length"] = columns.pop("completions/mean_length")
    before = diagnosed(columns)
    assert before.keys.framework == later.keys.framework == "TRL"
    assert before.series == later.series
    assert [(f.rule.id, f.onset, f.fired) for f in before.summary.findings] == [
        (f.rule.id, f.onset, f.fired) for f in later.summary.findings
    ]
    assert "completion_length" not in before.keys.unmapped


def test_a_length_that_changes_its_name_in_the_middle_is_one_series(columns):
    """As where a run is resumed with a newer version."""
    length = columns.pop("completions/mean_length")
    columns["completion_length"] = np.where(np.arange(300) < 150, length, np.nan)
    columns["completions/mean_length"] = np.where(np.arange(300) >= 150, length, np.nan)
    sparse = {step: {k: v for k, v in row.items() if not math.isnan(v)} for step, row in rows(columns).items()}
    result = diagnose(FinishedRun("a run", sparse, {}, {}, ()))
    assert list(result.series["response_length"].values()) == pytest.approx(length)
    assert loud(result) == set()


@pytest.mark.by_day("20-79")
@pytest.mark.parametrize(("onset", "reported"), [(20, 79), (200, 208)])
def test_a_fall_in_the_first_rows_of_a_long_run_is_reported_once_a_fifth_is_over(onset, reported):
    """Of few rows nobody knows the noise, and a long run that is fine again by then has lost nothing."""
    rng = np.random.default_rng(0)
    reward = np.where(np.arange(400) < onset, 0.8, 0.2) + 0.02 * noise(rng, 400)
    (collapse,) = [item for item in diagnosed({"reward": reward}).summary.findings if item.rule.id == "OUT001"]
    assert collapse.onset == pytest.approx(onset, abs=6)  # the level that it reports is a mean
    assert collapse.fired == reported
    back = np.where(np.abs(np.arange(400) - 35) < 15, 0.2, 0.8) + 0.02 * noise(rng, 400)
    assert "OUT001" not in fired(diagnosed({"reward": back}))


def test_an_evaluation_that_only_goes_up_and_down_has_not_risen_with_the_reward():
    rng = np.random.default_rng(1)
    reward = -100 + 97 * (1 - np.exp(-np.arange(160) / 12)) + 0.3 * rng.normal(size=160)
    evaluation = np.where(np.arange(160) % 4 == 3, -50 + 12 * rng.normal(size=160), np.nan)
    messages = {"rollout/ep_rew_mean": reward, "eval/mean_reward": evaluation, "train/clip_range": np.full(160, 0.2)}

    def judged():
        sparse = {step: {k: v for k, v in row.items() if not math.isnan(v)} for step, row in rows(messages).items()}
        return diagnose(FinishedRun("a run", sparse, {}, {}, ()))

    assert loud(judged()) == {"EVA002"}
    messages["eval/mean_reward"] += reward
    assert loud(judged()) == set()


def test_what_waits_for_a_part_of_the_run_says_for_which():
    monitor = Monitor()
    monitor.expect(rows=400)
    for step in range(30):
        monitor.log({"reward": 0.5 + 0.01 * (step % 3)}, step)
    blind = monitor.close().blind
    assert [str(why) for why in blind["OUT001"]] == ["30 of 80 steps"]
    assert [str(why) for why in blind["OUT003"]] == ["30 of 360 steps"]
