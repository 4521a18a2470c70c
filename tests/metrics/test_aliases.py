import math
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from tracker_diag.errors import UnknownName
from tracker_diag.metrics import alias_files, aliases, registry
from tracker_diag.metrics.alias_files import AliasError, file_of
from tracker_diag.metrics.aliases import Mapped, hits, key_map, recognise
from tracker_diag.metrics.keys import of_evaluation
from tracker_diag.runs.diagnose import diagnose

FILES = sorted(alias_files.FOLDER.glob("*.yaml"))
ROWS = sorted((Path(__file__).parent / "rows").glob("*.yaml"))


def row(name):
    """A realistic row of a framework under its own keys, and what it means."""
    result = yaml.safe_load((Path(__file__).parent / "rows" / f"{name}.yaml").read_text())
    return result["framework"], result["logged"], result["canonical"]


@pytest.fixture(params=[file.stem for file in ROWS])
def known(request):
    return row(request.param)


def test_the_trainers_that_the_tool_is_for_are_known():
    expected = (
        "TRL TRL-async verl OpenRLHF prime-rl SkyRL slime NeMo-RL AReaL ROLL open-instruct rLLM SB3 CleanRL RLlib "
        "Lightning skrl rsl_rl Tianshou TorchRL torchforge tinker-cookbook ART PufferLib ms-swift LLaMA-Factory "
        "Axolotl verifiers agent-lightning Sample-Factory torchtune RL4LMs"
    )
    assert set(alias_files.frameworks()) == set(expected.split())
    listed = {file.stem for file in (Path(__file__).parent / "names").glob("*.txt")}
    assert {name.lower() for name in alias_files.frameworks()} == listed


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_file_names_metrics_that_there_are(file):
    loaded = alias_files.load(file)
    assert loaded.framework.lower() == file.stem
    assert all(registry.training(name) for name in loaded.metrics)
    assert loaded.recognise or file.stem == "generic"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_no_key_stands_for_two_metrics(file):
    keys = [key for alias in alias_files.load(file).metrics.values() for key in alias.keys]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_no_key_of_an_evaluation_is_read_as_a_metric_of_training(file):
    loaded = alias_files.load(file)
    exempt = {"open-instruct": "val/"}.get(loaded.framework, "-")  # its val/ is training's
    for name, alias in loaded.metrics.items():
        for key in alias.keys:
            if of_evaluation(key) and not key.startswith(exempt):
                assert name.startswith("eval_"), key


def test_a_row_is_recognised(known):
    framework, logged, _ = known
    assert recognise(logged) == framework


def test_a_row_gets_the_values_that_it_stands_for(known):
    framework, logged, canonical = known
    made = key_map(logged)
    assert made.framework == framework
    assert made.values(logged) == pytest.approx(canonical, rel=1e-6)


def test_each_key_is_either_mapped_or_listed(known):
    _, logged, _ = known
    made = key_map(logged)
    assert [key for key in logged if key not in made.mapped] == list(made.unmapped)
    assert made.covers(logged)
    assert not made.covers(["never/seen"])


def test_a_row_is_no_other_frameworks(known):
    framework, logged, _ = known
    others = [other for other in alias_files.frameworks() if other != framework]
    own = hits(file_of(framework), tuple(logged))
    assert own >= 3
    # verl's clones share some of its names, and what another is made of shares all of them.
    others = [other for other in others if other != file_of(framework).base and file_of(other).base != framework]
    assert all(hits(file_of(other), tuple(logged)) <= own / 3 for other in others)


@pytest.mark.parametrize("framework", ["TRL", "OpenRLHF"])
def test_the_prefix_that_w_and_b_gets_makes_no_difference(framework):
    _, logged, canonical = row(framework.lower())
    bare = {key.removeprefix("train/"): value for key, value in logged.items()}
    prefixed = {f"train/{key}": value for key, value in bare.items() if not key.startswith("eval")}
    training = {name: value for name, value in canonical.items() if not name.startswith("eval_")}
    for keys in (bare, prefixed):
        result = key_map(keys).values(keys)
        assert {name: result[name] for name in training} == pytest.approx(training)


@pytest.mark.parametrize("key", ["eval_reward", "eval/reward"])
def test_the_reward_of_an_evaluation_is_not_the_training_reward(key):
    assert key_map([key], "TRL").values({key: 3.0}) == {"eval_score": 3.0}
    assert key_map([key]).values({key: 3.0}) == {"eval_score": 3.0}


@pytest.mark.parametrize(
    ("older", "newer", "name"),
    [
        ("critic/kl", "actor/reward_kl_penalty", "kl"),
        ("critic/kl_coeff", "actor/reward_kl_penalty_coeff", "kl_coefficient"),
        ("mismatch/mismatch_k3_kl", "rollout_corr/k3_kl", "mismatch_kl"),
        ("rollout_corr/chi2_token", "actor/rollout_corr/chi2_token", "mismatch_chi2"),
        ("perf/max_memory_reserved_gb", "actor/perf/max_memory_reserved_gb", "memory_reserved"),
        ("val/test_score/openai/gsm8k", "val-core/openai/gsm8k/reward/mean@1", "eval_score"),
        ("val-core/openai/gsm8k/acc/mean_at_8", "val-core/openai/gsm8k/acc/mean@8", "eval_score"),
    ],
)
def test_verl_is_known_by_its_older_and_newer_names(older, newer, name):
    for key in (older, newer):
        assert key_map([key], "verl").values({key: 0.5}) == {name: 0.5}


def test_what_was_taken_after_truncation_or_masking_stays_out():
    for framework, key in [
        ("TRL", "sampling/importance_sampling_ratio/max"),
        ("SkyRL", "policy/loss_metrics/is_ratio_min"),
        ("AReaL", "ppo_actor/update/behave_imp_weight/avg"),
        ("NeMo-RL", "train/probs_ratio_max"),
    ]:
        assert key_map([key], framework).unmapped == (key,)
    note = key_map(["rollout_corr/rollout_is_eff_sample_size"], "verl").mapped.popitem()[1]
    assert note.name == "applied_ess"
    assert "truncated first" in file_of("verl").metrics["applied_ess"].note


def test_the_first_key_wins_wherever_it_stands_in_the_row():
    two = {"rollout_corr/kl": 1.0, "rollout_corr/k3_kl": 2.0}
    backwards = dict(reversed(two.items()))
    assert key_map(two, "verl").values(two) == key_map(two, "verl").values(backwards) == {"mismatch_kl": 2.0}


def test_a_row_without_the_first_key_falls_back_on_the_next():
    made = key_map(["rollout/reward_mean", "reward"], "OpenRLHF")
    assert made.values({"reward": 0.2}) == {"reward": 0.2}
    assert made.values({"reward": 0.2, "rollout/reward_mean": math.nan}) == {"reward": 0.2}
    assert made.values({"reward": math.inf}) == {}


def test_own_names_stand_for_themselves_in_every_framework():
    own = [metric.name for metric in registry.TRAINING]
    assert key_map(["kl"], "TRL-async").mapped["kl"].name == "mismatch_kl"  # the only one that has another meaning
    for framework in {None, *alias_files.frameworks()} - {"TRL-async"}:
        mapped = key_map(own, framework).mapped
        assert {key: result.name for key, result in mapped.items()} == {name: name for name in own}
        assert {(result.scale, result.offset) for result in mapped.values()} == {(1.0, 0.0)}


def test_a_name_that_only_looks_canonical_yields_to_the_frameworks_own():
    two = {"mine/reward": 5.0, "critic/score/mean": 0.5}
    assert key_map(two, "verl").values(two) == {"reward": 0.5}
    assert key_map(["mine/reward"], "verl").values(two) == {"reward": 5.0}


def test_what_the_diagnostics_log_is_never_read_back():
    keys = ["diag/policy/all/kl", "diag/reward", "diag/rule/POL001"]
    assert key_map(keys).unmapped == tuple(keys)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("reward", "reward"),
        ("train/losses/clipfrac", "clip_fraction"),
        ("value/clipfrac", None),
        ("train/kl", "kl"),
        ("rollout_correction/kl", None),  # of trainer and sampler
        ("teacher/entropy", None),
        ("train/entropy_loss", None),  # negative in some
        ("mine/reward", "reward"),
        ("train/loss", "loss"),
        ("val/loss", "eval_loss"),
        ("val_loss", "eval_loss"),
        ("optimizer/lr", "learning_rate"),
        ("kl_div", "kl"),
        ("avg_response_len", "response_length"),
        ("rewards/mean", "reward"),
        ("eval_acc", "eval_score"),
        ("critic/loss", None),
        ("critic/lr", None),
        ("critic/value_loss", "value_loss"),
        ("test/mean_reward", "eval_score"),
        ("eval_exact_match", "eval_score"),
        ("eval/pass@8", "eval_score"),
        ("eval/gsm8k/em/mean", "eval_score"),
        ("eval_exact_match_std", None),
        ("eval_rewards/length/mean", None),
        ("Reward", "reward"),
        ("Mean Reward", "reward"),
        ("Critic/Loss", None),
        ("Eval/Reward", "eval_score"),
        ("banana", None),
    ],
)
def test_unknown_frameworks_go_by_well_known_names(key, name):
    made = key_map([key])
    assert made.framework is None
    assert made.mapped.get(key, Mapped("")).name == (name or "")


def test_a_table_without_slashes_has_the_names_of_its_framework():
    """As some exports and databases make of them. Two such names would be those of OpenRLHF."""
    row = {"critic_score_mean": 0.5, "actor_entropy": 0.1, "actor_ppo_kl": 0.01, "response_length_clip_ratio": 0.2,
           "actor_grad_norm": 1.0}  # fmt: skip
    made = key_map(row)
    slashed = {key.replace("_", "/", 1): value for key, value in row.items() if key.startswith("actor_")}
    slashed |= {"critic/score/mean": 0.5, "response_length/clip_ratio": 0.2}
    assert made.framework == "verl"
    assert made.values(row) == key_map(slashed).values(slashed)
    evaluated = {"val-core_gsm8k_acc_mean@1": 0.7, "val-core_gsm8k_acc_std@1": 0.1}
    assert key_map(row | evaluated).values(row | evaluated) == made.values(row) | {"eval_score": 0.7}


def test_a_reward_of_the_users_own_is_read_where_the_trainer_logs_none():
    row = {"progress/batch": 1.0, "progress/done_frac": 0.1, "optim/lr": 1e-5, "reward/mean": 0.5}
    assert key_map(row).framework == "tinker-cookbook"
    assert key_map(row).values(row)["reward"] == 0.5
    assert key_map(row | {"env/all/reward/total": 0.25}).values(row | {"env/all/reward/total": 0.25})["reward"] == 0.25


def test_one_key_alone_names_no_framework_and_the_nearest_ones_are_listed():
    assert recognise(["rollout/ep_rew_mean", "reward"]) is None
    assert aliases.nearest(["rollout/ep_rew_mean", "reward"]) == {"SB3": 1}
    assert recognise(["rollout/ep_rew_mean", "train/n_updates"]) == "SB3"
    assert aliases.nearest(["reward"]) == aliases.nearest([]) == key_map([]).values({}) == {}
    both = ["rollout/ep_rew_mean", "train/n_updates", "charts/SPS", "charts/episodic_return"]
    assert recognise(both) is None
    assert aliases.nearest(both) == {"CleanRL": 2, "SB3": 2}


def test_what_is_made_of_another_is_known_by_two_names_of_its_own():
    of_both = ["num_tokens", "frac_reward_zero_std", "sample/staleness_mean"]
    assert recognise(of_both) == "TRL"
    assert key_map([*of_both, "kl"]).values({"kl": 0.1}) == {"kl": 0.1}
    assert recognise([*of_both, "perf/step_s"]) == "TRL-async"
    assert key_map([*of_both, "perf/step_s", "kl"]).values({"kl": 0.1}) == {"mismatch_kl": 0.1}


def test_the_mean_score_of_a_reward_model_is_no_reward():
    logged = dict.fromkeys(["loss", "accuracy", "margin", "mean_reward", "min_reward", "max_reward", "num_tokens"], 0.5)
    assert key_map(logged).framework == "TRL"
    assert key_map(logged).values(logged) == {"loss": 0.5, "preference_accuracy": 0.5, "reward_margin": 0.5}
    assert key_map(["mean_reward", "min_reward", "max_reward"]).values({"mean_reward": 0.5}) == {"reward": 0.5}


def test_a_framework_can_be_given():
    assert key_map(["train/entropy_loss"], "sb3").framework == "SB3"
    with pytest.raises(UnknownName, match="framework: 'trax' given, expected one of agent-lightning, "):
        key_map(["reward"], "trax")


@pytest.mark.parametrize(
    ("row", "throughput"),
    [
        ({"time/fps": 900.0, "time/iterations": 3.0}, 900.0),  # PPO, A2C
        ({"time/fps": 900.0, "time/episodes": 4.0}, None),  # DQN, SAC: before the first update as well
    ],
)
def test_an_average_since_the_start_is_read_where_updates_came_from_the_first_row_on(row, throughput):
    assert key_map(row, framework="SB3").values(row).get("throughput") == throughput


def test_components_and_tools_keep_their_names():
    made = key_map(["rewards/correct/mean", "rewards/correct"], "TRL")
    assert {result.name for result in made.mapped.values()} == {"reward_component:correct"}
    assert registry.training("reward_component:correct").name == "reward_component"


@pytest.mark.parametrize(
    ("stds", "share", "dead"),
    [((0.3, 0.4), 0.64, 0.0), ((0.5, 0.0), 1.0, 0.5), ((0.0, 0.0), None, 1.0), ((0.5,), None, None)],
)
def test_components_tell_which_dominates_and_which_is_dead(stds, share, dead):
    logged = {f"rewards/{i}/std": std for i, std in enumerate(stds)}
    result = key_map(logged, "TRL").values(logged)
    assert result.get("component_variance_share") == pytest.approx(share)
    assert result.get("dead_component_share") == dead


@pytest.mark.parametrize(
    ("components", "known"),
    [
        (("format_reward", "accuracy_reward"), {"format_reward": 0.0, "verifier_score": 1.0}),
        (("correctness", "tone"), {"verifier_score": 0.0}),
        (("format", "tag_format"), {}),
        (("information", "incorrect_penalty"), {}),
    ],
)
def test_a_component_whose_name_says_what_it_is_paid_for(components, known):
    logged = {f"rewards/{name}/mean": float(i) for i, name in enumerate(components)}
    result = key_map(logged, "TRL").values(logged)
    assert {name: result[name] for name in ("format_reward", "verifier_score") if name in result} == known


@pytest.mark.parametrize(("calls", "entropy"), [((1, 1), math.log(2)), ((3, 0), 0.0), ((0, 0), None), ((2,), None)])
def test_calls_per_tool_tell_the_entropy_of_the_choice(calls, entropy):
    logged = {f"tool_calls:{i}": float(count) for i, count in enumerate(calls)}
    assert key_map(logged).values(logged).get("tool_entropy") == pytest.approx(entropy)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kl:", "kli:", "unknown.yaml:1: metric: 'kli' given, expected one of reward, kl"),
        ("read_at:", "read_in:", "unknown.yaml:2: read_in: no such field"),
        ("scale: 2.0", "times: 2.0", "unknown.yaml:5: metrics.entropy.transform.times: no such field"),
        ("[a/kl]", "[]", "unknown.yaml:4: metrics.kl: Tuple should have at least 1 item"),
        ("kl: [a/kl]", "reward: [a/kl]\n  reward: [b]", "unknown.yaml:5: key 'reward' is there twice"),
        ("[a/kl]", "['{tool}/kl']", "kl: '{tool}/kl' names a member"),
        ("metrics:", "metrics: [", "unknown.yaml:5: expected ',' or ']'"),
    ],
)
def test_a_file_with_a_fault_is_refused_by_name(tmp_path, old, new, message):
    good = (
        "framework: unknown\nread_at: never\nmetrics:\n  kl: [a/kl]\n"
        "  entropy: {keys: [a/h], transform: {scale: 2.0, negate: true, one_minus: true}}\n"
    )
    file = tmp_path / "unknown.yaml"
    file.write_text(good)
    assert alias_files.load(file).metrics["entropy"].transform.line == (2.0, 1.0)
    file.write_text(good.replace(old, new, 1))
    with pytest.raises(AliasError) as error:
        alias_files.load(file)
    assert message in " ".join(str(error.value).split())


def test_files_are_data_of_the_package(tmp_path):
    assert all(file.is_relative_to(Path(alias_files.__file__).parent) for file in FILES)
    copied = shutil.copytree(alias_files.FOLDER, tmp_path / "aliases")
    assert len(list(copied.glob("*.yaml"))) == len(alias_files.frameworks()) + 1


def test_a_row_of_200_keys_costs_a_few_calls_a_key():
    """And no pattern is matched again: what a key means is found once."""
    keys = [*row("verl")[1], *(f"mine/{i}/thing" for i in range(160))]
    logged = dict.fromkeys(keys, 1.0)
    made = key_map(keys)
    made.values(logged)
    calls = []
    sys.setprofile(lambda frame, event, called: calls.append(event) if event in ("call", "c_call") else None)
    try:
        made.values(logged)
    finally:
        sys.setprofile(None)
    assert len(keys) <= len(calls) <= 3 * len(keys)


def test_the_map_of_the_same_keys_is_made_once():
    assert key_map(["reward", "kl"]) is key_map(["reward", "kl", "reward"])


def test_each_of_several_evaluations_has_a_series_of_its_own():
    keys = ["critic/score/mean", "val-core/math/mean@8", "val-core/math/mean_at_8", "val-core/code/mean@8"]
    row = dict(zip(keys, (0.5, 0.4, 0.4, 0.7), strict=True))
    assert key_map(keys, "verl").values(row) == {
        "reward": 0.5,
        "eval_score": 0.4,
        "evaluation:val-core/code/mean@8": 0.7,
    }
    named = key_map(keys, "verl", evaluation="val-core/code/mean@8").values(row)
    assert (named["eval_score"], named["evaluation:val-core/math/mean@8"]) == (0.7, 0.4)
    assert key_map(["eval/a/accuracy", "eval/b/accuracy"]).values({"eval/a/accuracy": 1, "eval/b/accuracy": 2}) == {
        "eval_score": 1,
        "evaluation:eval/b/accuracy": 2,
    }


def test_groups_that_are_all_wrong_or_all_right_teach_nothing():
    row = {"batch/solve_none": 0.3, "batch/solve_all": 0.2, "training/rollout_probs_diff_mean": 0.01}
    assert key_map(row, "verl").values(row)["zero_std_share"] == pytest.approx(0.5)
    counts = {"batch/solve_none": 12.0, "batch/solve_all": 2.0}
    assert "zero_std_share" not in key_map(counts, "verl").values(counts)


def test_an_evaluation_of_the_users_own_is_the_target_where_the_trainer_evaluates_the_reward():
    """The reward may be hacked in the evaluation as well."""
    row = {"train/reward": 0.5, "train/grad_norm": 1.0, "eval/reward": 0.6, "eval_exact_match": 0.3}
    named = key_map(row, "TRL").values(row)
    assert (named["eval_score"], named["evaluation:eval/reward"]) == (0.3, 0.6)
    named = key_map(row, "TRL", evaluation="eval/reward").values(row)
    assert (named["eval_score"], named["evaluation:eval_exact_match"]) == (0.6, 0.3)


@pytest.mark.parametrize("key", ["benchmark/gsm8k", "val-core/math/reward/mean@8", "eval/gsm8k"])
def test_a_key_that_no_file_knows_is_an_evaluation_if_it_is_named(key):
    """Of an own loop no framework is recognised, and any name may be that of its evaluation."""
    keys = key_map(["reward", "eval_score", key], evaluation=key)
    assert keys.values({key: 0.7, "eval_score": 0.4})["eval_score"] == 0.7
    assert key not in keys.unmapped
    assert key in key_map(["reward", key]).unmapped


def test_what_samples_say_of_a_row_goes_before_a_mean_over_earlier_rows():
    """SB3 logs the mean return of the last hundred episodes; between two rows none may have ended."""
    logged = [{"step": step, "rollout/ep_rew_mean": 1.0, "train/n_updates": float(step)} for step in range(1, 7)]
    assert diagnose(logged).series["reward"] == dict.fromkeys(range(1, 7), 1.0)
    both = [row | ({"diag/samples/reward": 5.0} if row["step"] % 2 else {}) for row in logged]
    assert diagnose(both).series["reward"] == {1: 5.0, 3: 5.0, 5: 5.0}
