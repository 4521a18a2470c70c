"""TRL for real: training runs on the CPU, with a model that calls a tool."""

import json
import os
import random
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.integrations.conformance import same
from tracker_diag.errors import SourceError
from tracker_diag.guards.control import kl_coefficient
from tracker_diag.metrics.aliases import key_map, why_not
from tracker_diag.rules.algorithm import algorithm_of
from tracker_diag.stats.tails import NO_SIGNAL
from tracker_diag.trackers.files.records import read_records
from tracker_diag.trackers.tokens.log import TokenLog

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1000),
    pytest.mark.filterwarnings("ignore::Warning"),  # TRL's and datasets' own; ours are no warnings of Python
]

HERE = Path(__file__).parent
TRACKERS = ["mlflow", "tensorboard", "trackio", "wandb"]


def counts(table, pair, column="count"):
    """Tokens of each slice of `pair`, as the diagnostics have counted them, or another column."""
    rows = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    return {row["slice"]: row[column] for row in rows if row["pair"] == pair}


def tokens_with_signal(calls, pair, kind="tokens"):
    """Tokens of the steps in which a ratio of `pair` is not 1 on some rank, as the trainers have counted them.

    The first update has the reference's own weights, and the first of each generation those that have sampled it.
    """
    steps = {call["step"] for call in calls if call[pair] > NO_SIGNAL}
    assert steps, f"no step has a signal of {pair}"
    return sum(call[kind] for call in calls if call["step"] in steps)


def counts_every_token(run):
    """Whether the slices of both pairs have all tokens of the steps with a signal."""
    health = run.monitor.health
    assert health["integration_errors"] == health["rejected_batches"] == 0, run.monitor.failures
    table, calls = run.monitor.slices_table(), run.trainer.calls
    for pair in ("reference", "policy"):
        counted = counts(table, pair)
        assert counted["all"] == tokens_with_signal(calls, pair)
        assert counted["post_tool"] == tokens_with_signal(calls, pair, "post")
    return counts(table, "policy")["post_tool"]


def about_us(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "tracker_diag"]


@pytest.mark.nightly
def test_a_tool_that_widens_raises_the_finding_on_post_tool_in_mlflow(tmp_path, mlflow_store, monkeypatch):
    import mlflow
    from train import grpo, watched
    from transformers.integrations import MLflowCallback

    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "widens")
    trainer = grpo(tmp_path, widening=(75, 95, 1.0), num_iterations=4, beta=0.02, max_steps=120)
    # With `report_to` TRL would also write each of its timings, five in a step: a quarter of the run's time.
    trainer.add_callback(MLflowCallback)
    run = watched(trainer)
    assert run.monitor.failures == []
    onsets = {it.rule.id: it.onset for it in run.kept.summary.findings if it.slice == "post_tool" and it.fired}
    assert "POL002" in onsets
    assert min(onsets.values()) >= 75  # that is when it begins to widen
    (logged,) = mlflow.search_runs(experiment_names=["widens"], output_format="list")
    assert logged.info.status == "FINISHED"  # the trainer's own doing
    client = mlflow.MlflowClient()
    paths = {it.path for it in client.list_artifacts(logged.info.run_id, "diag")}
    assert {"diag/findings.json", "diag/report.html"} <= paths

    def history(key):
        return {it.step: it.value for it in client.get_metric_history(logged.info.run_id, key)}

    assert [*history("diag/rule/POL002").values()][-1] == 2  # firing
    for pair in ("policy", "reference"):
        post, text = (history(f"diag/{pair}/{name}/p95") for name in ("post_tool", "text_only"))
        assert statistics.median(post[step] for step in post if step > 105) > 10 * max(
            statistics.median(values[step] for step in values if a <= step < b)
            for values, a, b in ((post, 0, 75), (text, 0, 75), (text, 105, 121))
        )


def test_with_the_usual_settings_it_says_that_there_is_no_signal_and_how_to_get_one(tmp_path, caplog):
    from train import grpo, watched

    run = watched(grpo(tmp_path, per_device_train_batch_size=16, max_steps=3))
    (message,) = about_us(caplog)
    assert message.startswith("no signal")
    assert all(word in message for word in ("num_iterations", "beta", "use_vllm"))
    summary = run.kept.summary.to_json()
    blind = {rule["rule"]: rule["reason"] for rule in summary["blind"]}
    assert "no signal" in blind["POL001"]
    about_ratios = {"POL001", "POL002", "POL003", "POL004", "POL005", "POL006"}
    assert about_ratios <= set(blind)
    assert not about_ratios & set(summary["healthy"])


SETTINGS = {
    "no_tools": {"tools": False},
    "accumulated": {"gradient_accumulation_steps": 2, "steps_per_generation": 2},
    "spread": {"gradient_accumulation_steps": 1, "steps_per_generation": 2, "num_iterations": 1},
    "sequence": {"importance_sampling_level": "sequence", "epsilon": 3e-4},
    "evaluated": {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 8},
    "peft": {},
    "gmpo": {"epsilon": 0.4},
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", SETTINGS)
def test_every_token_of_every_micro_batch_is_counted_in_its_slice(tmp_path, caplog, name):
    from datasets import Dataset
    from peft import LoraConfig
    from task import prompts
    from train import SMALL, Tapped, grpo, watched
    from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

    class TappedGMPO(Tapped, GMPOTrainer):
        """GMPO, whose tokens are counted too."""

    kinds = {"kind": TappedGMPO, "config": GMPOConfig} if name == "gmpo" else {}
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    more = {"peft": {"peft_config": lora}, "evaluated": {"eval_dataset": Dataset.from_list(prompts(8, seed=3))}}
    run = watched(grpo(tmp_path, more=more.get(name), **kinds, **SMALL | SETTINGS[name]))
    if name == "gmpo":  # whose limits are those of the log-ratio
        assert run.monitor.clip == pytest.approx((0.32968, 0.49182), abs=1e-5)
    assert (counts_every_token(run) > 0) == (name != "no_tools")
    assert algorithm_of(run.monitor.config) == ("gspo" if name == "sequence" else "grpo")
    assert about_us(caplog) == []


def test_completions_that_are_masked_are_counted(tmp_path):
    from train import SMALL, grpo, watched

    run = watched(grpo(tmp_path, **SMALL, mask_truncated_completions=True, max_completion_length=6))
    rows = sum(call["empty"] for call in run.trainer.calls)
    assert rows == 2 * run.monitor.health["masked_sequences"] > 0  # each generation is trained on twice


@pytest.mark.nightly
@pytest.mark.parametrize("settings", [{"num_iterations": 2}, {"num_iterations": 1, "beta": 0.0}], ids=str)
def test_the_samplers_ratio_of_a_rollout_function(tmp_path, settings):
    """It puts in what an environment says, and gives log-probabilities as an engine would."""
    import torch
    from task import tokenizer
    from train import SMALL, grpo, watched

    counted = Counter()
    env = tokenizer()("<|im_end|>\n<|im_start|>user\nvalue 42\n<|im_start|>assistant\n")["input_ids"]
    n = 12 + len(env)

    def roll(messages, trainer):
        words = trainer.processing_class
        text = [words.apply_chat_template(message, tokenize=False, add_generation_prompt=True) for message in messages]
        given = words(text, return_tensors="pt", padding=True, padding_side="left")
        with torch.no_grad():
            sampled = trainer.model.generate(**given, max_new_tokens=8, min_new_tokens=8, do_sample=True)[:, -8:]
            ids = torch.cat([given["input_ids"], sampled, torch.tensor([env] * len(text)), sampled[:, :4]], 1)
            mask = torch.cat([given["attention_mask"], torch.ones_like(ids[:, -n:])], 1)
            scores = trainer.model(input_ids=ids, attention_mask=mask).logits[:, -n - 1 : -1].log_softmax(-1)
        is_model = torch.ones(n, dtype=torch.long)
        is_model[8 : 8 + len(env)] = 0
        noise = torch.randn(scores.shape[:2], generator=torch.Generator().manual_seed(counted["generations"]))
        logprobs = (scores.gather(2, ids[:, -n:, None])[..., 0] + 0.02 * noise) * is_model
        logprobs[::4, 3] = float("nan")  # as where vLLM could not score
        counted.update(generations=1, model=len(text) * 12, post=len(text) * 4, unscored=len(text[::4]))
        rows = zip(given["input_ids"], given["attention_mask"], strict=True)
        return {"prompt_ids": [row[kept == 1].tolist() for row, kept in rows], "logprobs": logprobs.tolist(),
                "completion_ids": ids[:, -n:].tolist(), "env_mask": [is_model.tolist()] * len(text)}  # fmt: skip

    run = watched(grpo(tmp_path, tools=False, more={"rollout_func": roll}, **SMALL | settings))
    tokens = counts(run.monitor.slices_table(), "mismatch")
    assert run.monitor.health["unscored_tokens"] == counted["unscored"]
    assert tokens["all"] == counted["model"] - counted["unscored"]
    assert tokens["post_tool"] == counted["post"]


def test_a_resumed_run_continues_with_its_state(tmp_path, caplog):
    from train import SMALL, grpo, watched

    def run(to, **resumed):
        trainer = grpo(tmp_path, **SMALL | {"max_steps": to, "save_strategy": "steps", "save_steps": 2})
        trainer_train = trainer.train
        trainer.train = lambda: trainer_train(**resumed)
        summary = watched(trainer).monitor.summary()
        return summary.first_step, summary.last_step, summary.steps

    assert run(2) == (1, 2, 2)
    assert run(4, resume_from_checkpoint=True) == (1, 4, 4)
    assert "start over" not in caplog.text
    for file in tmp_path.glob("checkpoint-2/tracker_diag_*.json"):
        file.unlink()
    assert run(4, resume_from_checkpoint=str(tmp_path / "checkpoint-2")) == (3, 4, 2)
    assert "start over" in caplog.text


def others():
    """By name: trainer, settings, data, settings of its own, what else it takes, of those without ratios of tokens."""
    import trl
    from task import prompts
    from trl.experimental import a2po, cpo, gkd, gmpo, iw_opd, online_dpo, orpo, sdft, sdpo, tpo

    pairs = [{"prompt": f"get {i}", "chosen": " 07", "rejected": " 70"} for i in range(32)]
    labelled = [{"prompt": p["prompt"], "completion": p["chosen"], "label": i % 2 == 0} for i, p in enumerate(pairs)]
    asked = [{"prompt": row["prompt"]} for row in prompts(32)]
    scored = {"reward_funcs": lambda completions, **_: [0.01 * len(str(completion)) for completion in completions]}
    short, long = ({"max_completion_length": most} for most in (8, 16))
    again, fed_back = {"num_iterations": 2}, {"include_environment_feedback": True}
    unsolved = {"success_reward_threshold": 99.0}
    dialogues = [{"messages": [*row["prompt"], {"role": "assistant", "content": "07"}]} for row in prompts(32)]
    hinted = [row | {"privileged_context": "07"} for row in prompts(32)]
    teacher = {"teacher_model": taught}
    return {
        "sft": (trl.SFTTrainer, trl.SFTConfig, [{"text": "get 4 07"} for _ in range(32)], {}, {}),
        "dpo": (trl.DPOTrainer, trl.DPOConfig, pairs, {}, {}),
        "kto": (trl.KTOTrainer, trl.KTOConfig, labelled, {}, {}),
        "orpo": (orpo.ORPOTrainer, orpo.ORPOConfig, pairs, {}, {}),
        "cpo": (cpo.CPOTrainer, cpo.CPOConfig, pairs, {}, {}),
        "tpo": (tpo.TPOTrainer, tpo.TPOConfig, [row | {"reference": row["chosen"]} for row in pairs], {}, {}),
        "rloo": (trl.RLOOTrainer, trl.RLOOConfig, prompts(32), short, scored),
        "gmpo": (gmpo.GMPOTrainer, gmpo.GMPOConfig, prompts(32), short | again, scored),
        "a2po": (compared(a2po.A2POTrainer), a2po.A2POConfig, prompts(32), long, scored),
        "sdpo": (compared(sdpo.SDPOTrainer), sdpo.SDPOConfig, hinted, long | again | fed_back, scored),
        "sdpo, unsolved": (sdpo.SDPOTrainer, sdpo.SDPOConfig, hinted, short | unsolved, scored),
        "sdft": (compared(sdft.SDFTTrainer), sdft.SDFTConfig, hinted, long | again, {}),
        "gkd": (compared(gkd.GKDTrainer), gkd.GKDConfig, dialogues, {"max_new_tokens": 16, "lmbda": 1.0}, teacher),
        "iw_opd": (compared(iw_opd.IWOPDTrainer), iw_opd.IWOPDConfig, dialogues, long, teacher),
        "online_dpo": (online_dpo.OnlineDPOTrainer, online_dpo.OnlineDPOConfig, asked, {"max_new_tokens": 8}, scored),
        "distillation": (trl.DistillationTrainer, trl.DistillationConfig, asked, short, teacher),
        "reward": (trl.RewardTrainer, trl.RewardConfig, pairs, {}, {"model": scorer}),
    }  # fmt: skip


def taught():
    """The checkpoint as a teacher, which knows a little else."""
    import torch
    from train import model

    teacher = model()
    with torch.no_grad():
        teacher.lm_head.weight.mul_(1.1)
    return teacher


def scorer():
    """The checkpoint as a reward model."""
    import torch
    from task import CHECKPOINT
    from transformers import Qwen2ForSequenceClassification

    model = Qwen2ForSequenceClassification.from_pretrained(CHECKPOINT, num_labels=1, dtype=torch.float32)
    model.config._name_or_path = str(CHECKPOINT)
    return model


def compared(kind):
    """`kind` that compares policy and teacher or reference itself, in plain torch, to hold the diagnostics against."""
    import torch

    class Compared(kind):
        def __init__(self, *args, **kwargs):
            self.calls = []
            super().__init__(*args, **kwargs)

        def compute_loss(self, model, inputs, *args, **kwargs):
            loss = super().compute_loss(model, inputs, *args, **kwargs)
            if "labels" in inputs:
                read = dict.fromkeys(("", "teacher_"), (inputs["input_ids"], inputs["attention_mask"]))
                labels = inputs["labels"][:, 1:]
            elif "logits_to_keep" in inputs:
                read = dict.fromkeys(("", "teacher_"), (inputs["input_ids"], inputs["attention_mask"]))
                ids, mask = (values[:, -inputs["logits_to_keep"] :] for values in read[""])
                labels = ids.where(mask == 1, -100)
            else:
                rows = inputs.get("self_distillation_mask", torch.ones(1))
                labels = inputs["completion_ids"].where(inputs["completion_mask"] * rows[:, None] == 1, -100)
                ids, mask = (torch.cat([inputs[f"prompt_{x}"], inputs[f"completion_{x}"]], 1) for x in ("ids", "mask"))
                read = {"": (ids, mask), "teacher_": (inputs["teacher_input_ids"], inputs["teacher_attention_mask"])}
            mine, ids = labels != -100, labels.clamp(min=0)[..., None]

            def log_probabilities(policy, name):
                tokens, mask = read[name]
                logits = policy(input_ids=tokens, attention_mask=mask).logits[:, -ids.shape[1] - 1 : -1]
                return logits.log_softmax(-1).gather(2, ids)[..., 0][mine]

            with torch.no_grad():
                known = self.ref_model if "ref_logps" in inputs else self.teacher_model
                student, teacher = log_probabilities(model, ""), log_probabilities(known, "teacher_")
            old = inputs.get("old_per_token_logps")
            moved = {"reference": student - teacher, "policy": student - (student if old is None else old[mine])}
            call = {"step": self.state.global_step, "tokens": len(student), "log_ratios": moved["reference"].double()}
            self.calls.append(call | {pair: float(r.abs().max()) for pair, r in moved.items()})
            return loss

    return Compared


def compares_every_token(run):
    """Whether the reference has all tokens of the steps with a signal, and their KL by plain torch."""
    import torch

    calls, table = run.trainer.calls, run.monitor.slices_table()
    assert counts(table, "reference")["all"] == tokens_with_signal(calls, "reference") >= 200
    if any(call["policy"] > NO_SIGNAL for call in calls):
        assert counts(table, "policy")["all"] == tokens_with_signal(calls, "policy")
    r = torch.cat([call["log_ratios"] for call in calls if call["reference"] > NO_SIGNAL])
    kl = float((torch.expm1(-r) + r).mean())
    assert counts(table, "reference", "k3")["all"] == pytest.approx(kl, rel=1e-5)


ALGORITHMS = {"sft": "sft", "dpo": "dpo", "kto": "dpo", "orpo": "dpo", "rloo": "grpo", "online_dpo": "dpo"}
OTHERS = ("reward", "cpo", "tpo", "gmpo", "a2po", "sdpo", "sdpo, unsolved", "sdft", "gkd", "iw_opd", "distillation")


@pytest.mark.nightly
@pytest.mark.parametrize("name", [*ALGORITHMS, *OTHERS])
def test_another_trainer_is_seen_by_what_it_logs_and_trains_as_without_us(tmp_path, caplog, name):
    from datasets import Dataset
    from task import tokenizer
    from train import common, model, watched, weights
    from transformers import set_seed

    kind, config, data, settings, more = others()[name]
    timed = ("time", "per_second", "tok/s")

    def made():
        set_seed(0)
        args = config(**common(tmp_path) | {"max_steps": 4, "per_device_train_batch_size": 8} | settings)
        given = {key: value() if key.endswith("model") else value for key, value in more.items()}
        given = {"model": model(), "train_dataset": Dataset.from_list(data), "processing_class": tokenizer()} | given
        return kind(args=args, **given)

    def outcome(trainer):
        history = [{key: value for key, value in row.items() if not any(part in key for part in timed)}
                   for row in trainer.state.log_history]  # fmt: skip
        return weights(trainer), json.dumps(history)

    plain, ours = made(), made()
    set_seed(1)
    plain.train()
    set_seed(1)
    run = watched(ours)
    assert outcome(ours) == outcome(plain)
    assert run.monitor.failures == []
    assert not [message for message in about_us(caplog) if "is not a tested version" in message]
    assert name not in ALGORITHMS or algorithm_of(run.monitor.config) == ALGORITHMS[name]
    assert bool(run.monitor.slices_table().rows) == (name in {"gmpo", "gkd", "sdft", "sdpo", "a2po", "iw_opd"})
    if hasattr(ours, "calls"):
        compares_every_token(run)
    names = {key for row in run.kept.own.values() for key in row}
    assert [key for key in key_map(names, "TRL").unmapped if not why_not(key, "TRL")] == []
    assert {"loss", "grad_norm", "train_runtime"} <= set(run.kept.own[4])


@pytest.mark.nightly
@pytest.mark.parametrize("swapped", [False, True])
def test_swapped_labels_of_a_reward_model_are_named_and_a_drift_of_its_mean_score_is_not(tmp_path, swapped):
    import torch
    import trl
    from datasets import Dataset
    from task import tokenizer
    from train import common, watched
    from transformers import set_seed

    class InOrder(trl.RewardTrainer):
        def _get_train_sampler(self, *args, **kwargs):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    set_seed(0)
    model = scorer()
    texts = [(f" value {i % 10} amber cedar", f" value {(i + 3) % 10} delta north") for i in range(125 * 8)]
    pairs = [both[::-1] if swapped and i >= 70 * 8 else both for i, both in enumerate(texts)]
    data = [{"prompt": f"get {i % 50}", "chosen": a, "rejected": b} for i, (a, b) in enumerate(pairs)]
    quick = {"max_steps": 125, "per_device_train_batch_size": 8, "learning_rate": 3e-4}
    args = trl.RewardConfig(**common(tmp_path) | quick)
    run = watched(InOrder(model, args=args, train_dataset=Dataset.from_list(data), processing_class=tokenizer()))
    assert run.monitor.failures == []
    assert algorithm_of(run.monitor.config) == "dpo"
    findings = run.kept.summary.findings
    loud = {finding.rule.id for finding in findings if finding.full_severity != "info" and finding.fired is not None}
    assert "REW004" in loud if swapped else not loud


def faulty(folder, fault):
    """A short run with a fault in what it is rewarded by or in its tool."""
    from task import judge, value_of
    from train import grpo, watched

    def wordy(completions, **_):
        """Pays for length, whatever is said."""
        return [min(len(messages[-1].get("content") or "") / 40, 1.0) for messages in completions]

    def right(completions, answer, **_):
        return judge(errs=0.0)(completions, answer)

    def nothing(completions, **_):
        """A scorer that does not find the answer, whatever it is."""
        return [0.0 for _ in completions]

    luck = random.Random(0)

    def lookup(key: str) -> str:
        """Look up.

        Args:
            key: Key.
        """
        if fault == "tool" and luck.random() < 0.5:
            raise ConnectionError("the index is away")
        return f"value {value_of(key)}"

    paid = {"zero": nothing, "length": wordy}.get(fault, right)
    steps = {"healthy": 40, "length": 75}.get(fault, 20)
    rewards = [wordy, right, nothing]
    more = {"reward_funcs": rewards, "tools": [lookup]}
    quick = {"per_device_train_batch_size": 16, "learning_rate": 1e-3, "max_steps": steps}
    trainer = grpo(
        folder, tools=False, more=more, reward_weights=[float(function is paid) for function in rewards], **quick
    )
    return watched(trainer, correct="right")


PLANTED = {"tool": ("ENV001", "tool:lookup"), "zero": ("REW001", "all"), "length": ("REW010", "all")}
"""The rule that names each planted fault, and the slice."""


@pytest.mark.nightly
@pytest.mark.matrix("trl", "run for real")
@pytest.mark.parametrize("fault", PLANTED)
def test_a_fault_in_tool_or_reward_is_named_and_the_healthy_twin_is_not(tmp_path, fault, record_property):
    run = faulty(tmp_path, fault)
    assert run.monitor.failures == []
    assert PLANTED[fault] in run.fired
    (folder,) = (
        tracker.source for tracker in run.monitor.trackers if tracker.source
    )  # with report_to=[] there is no tracker
    rows = [json.loads(line) for line in (Path(folder) / "findings.jsonl").read_text().splitlines()]
    assert PLANTED[fault] in {(row.get("rule"), row.get("slice")) for row in rows if row.get("state") == "firing"}
    record_property("alerts", ["jsonl"])


@pytest.mark.nightly
def test_a_healthy_run_has_none_of_these_faults_and_could_have_seen_them(tmp_path):
    run = faulty(tmp_path, "healthy")
    rules = {rule for rule, _ in PLANTED.values()}
    assert not rules & {rule for rule, _ in run.fired}
    assert not rules & {rule["rule"] for rule in run.kept.summary.to_json()["blind"]}


@pytest.mark.nightly
def test_samples_are_what_the_trainer_logs_itself(tmp_path):
    from train import logged

    run, calls = faulty(tmp_path, "tool"), 0
    for row in logged(run.trainer):
        ours = run.kept.scalars(row["step"])
        theirs = {
            "reward": row["reward"], "response_length": row["completions/mean_length"],
            "truncated_share": row["completions/clipped_ratio"], "tool_failure_rate": row["tools/failure_frequency"],
            "tool_calls": row["tools/call_frequency"], "reward_component:wordy": row["rewards/wordy/mean"],
            "success_rate": row["rewards/right/mean"],
        }  # fmt: skip
        for name, value in theirs.items():
            assert ours[f"diag/samples/{name}"] == pytest.approx(value, abs=1e-6), name
        calls += ours["diag/samples/tool_calls"]
    assert calls > 0


def test_an_environments_answers_are_tool_results(tmp_path, caplog):
    from task import value_of
    from train import SMALL, grpo, watched

    met = Counter()

    class Desk:
        """Of each rollout; its method is the tool, and it gives the reward."""

        def reset(self, **row):
            self.asked = 0

        def lookup(self, key: str) -> str:
            """Look up.

            Args:
                key: Key.
            """
            self.asked += 1
            met["asked"] += 1
            return f"value {value_of(key)}"

        def get_reward(self) -> float:
            return float(self.asked == 1)

    run = watched(grpo(tmp_path, tools=False, more={"environment_factory": Desk}, **SMALL | {"max_steps": 2}))
    assert about_us(caplog) == []
    assert met["asked"] > 0
    assert counts_every_token(run) > 0
    assert "rewards/Desk/mean" in run.kept.own[1]


def test_guards_raise_the_coefficient_save_and_say_what_is_out_of_reach(tmp_path):
    from tracker_diag_trl import attach
    from train import SMALL, entropy_above, grpo, logged
    from transformers import TrainerCallback

    from tracker_diag import Guard, Monitor

    own = {"kl_cap": {"bounds": (0.05, 0.4), "target": 1e-9}, "scale_lr": {"bounds": (0.25, 0.25)}}
    guards = [Guard(do=do, on={"rules": ("ACM001",)}, act=True, **own.get(do, {}))
              for do in ("kl_cap", "scale_lr", "refresh_reference", "save_state")]  # fmt: skip
    trainer, betas = grpo(tmp_path, **SMALL | {"max_steps": 6}), []
    monitor = attach(trainer, monitor=Monitor(rules=[entropy_above(0.0)], catalog=False, guards=guards))

    class Betas(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            betas.append(trainer.beta)

    trainer.add_callback(Betas())
    trainer.train()
    assert monitor.failures == []
    rows, expected = logged(trainer), [0.02, 0.02, 0.05]
    for row in rows[2:5]:
        expected.append(kl_coefficient(expected[-1], row["kl"], 1e-9, (0.05, 0.4)))
    assert (betas, max(expected), trainer.beta) == (expected, 0.1, 0.02)
    assert [row[0] for row in monitor.guards.checkpoints.table().rows] == [2]
    assert len({row["learning_rate"] for row in rows}) == 1  # as the trainer itself has it
    texts = [event for step, event in monitor.events if step == 2]
    assert texts[0].startswith("guard kl_cap: coefficient 0.05; for ACM001")
    assert any("guard refresh_reference: not done, not within reach of this trainer" in event for event in texts)


OVERPAID = """\
{id: ACM001, title: Overpaid, summary: "{high.value:.3g}", when: [high],
 signals: {high: {kind: threshold, series: {metric: reward}, above: 10.0}}}
"""


@pytest.mark.matrix("trl", "run for real")
def test_findings_reach_every_tracker(tmp_path, places, alerted, monkeypatch, caplog):
    """In the second halves of two short runs a scorer overpays. The first run has no tracker, the second has all."""
    import trl
    import wandb
    from task import judge
    from train import SMALL, grpo, watched

    (tmp_path / "ACM001.yaml").write_text(OVERPAID)
    monkeypatch.setenv("TRACKER_DIAG_RULES", str(tmp_path))
    # Before 1.9 TRL does not take our chat template for one with tools.
    tools = tuple(map(int, trl.__version__.split(".")[:2])) >= (1, 9)

    def overpays(completions, trainer_state, **_):
        return [20.0 * (trainer_state.global_step >= 2) for _ in completions]  # to all, so that no advantage changes

    more = {"reward_funcs": [judge(errs=0.35), overpays]}
    untracked = watched(grpo(tmp_path, tools=False, more=more, **SMALL))
    kept = {"report_to": TRACKERS, "project": alerted.project}
    run = watched(grpo(tmp_path, tools=tools, more=more, **SMALL | kept))
    wandb.finish()
    assert alerted("ACM001") == {*TRACKERS, "jsonl", "webhook"}
    sources = [[tracker.source for tracker in each.monitor.trackers if tracker.source] for each in (untracked, run)]
    assert len(sources[1]) == len(TRACKERS)  # so the files are those of the run without
    assert [Path(file).exists() for file in sources[0]] == [True]
    assert run.trainer.values in (2, 3)  # what log-probabilities come with
    keys = {"completion_ids", "completion_mask", "advantages", "old_per_token_logps", "ref_per_token_logps"}
    for call in run.trainer.calls:
        assert keys | ({"tool_mask"} if tools else set()) <= set(call["keys"])
    assert (counts_every_token(run) > 0) == tools
    messages = [text for text in about_us(caplog) if "ACM001" not in text and not text.startswith("tracker_errors")]
    assert messages == []  # but the alert, and that a tracker was slow on a busy machine


@pytest.mark.nightly
@pytest.mark.matrix
@pytest.mark.parametrize("release", ["0.29", "1.9", "1.14"])
def test_findings_reach_every_tracker_with_an_earlier_release(run_checks, release):
    run_checks("trl", files=["test_trl.py::test_findings_reach_every_tracker"], release=f"trl-{release}", own=False)


@pytest.mark.nightly
def test_ppo_is_seen_by_what_it_logs(run_checks):
    """Of the last release that has it."""
    run_checks("trl", files=["ppo.py"], release="trl-1.9", own=False)


@pytest.fixture
def two_processes(tmp_path, places, alerted):
    """What a scenario of train.py gives in each of two processes.

    Fresh ones: of forks the first one to end removes the folder in which W&B keeps media for all of them.
    """
    paths = os.pathsep.join(map(str, (HERE.parents[2] / "integrations", HERE.parents[2])))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", HERE / "train.py"]
    environment = os.environ | {"PYTHONPATH": paths, "PROJECT": alerted.project, "PYTHONWARNINGS": "ignore"}

    def run(scenario):
        done = subprocess.run(
            [*command, scenario, tmp_path], cwd=tmp_path, capture_output=True, text=True, check=False, env=environment
        )
        assert done.returncode == 0, done.stderr[-8000:]
        results = [json.loads((tmp_path / f"result-{rank}.json").read_text()) for rank in range(2)]
        assert [result["failed_of_ours"] for result in results] == [0, 0]
        return results

    return run


@pytest.mark.nightly
@pytest.mark.matrix("trl", "run for real", "2 processes of torchrun")
def test_a_tool_that_is_broken_on_the_second_rank_alone_is_reported_in_every_tracker(two_processes, alerted):
    first, _ = two_processes("broken")
    assert ["ENV001", "all"] in first["fired"]
    assert 0.2 < statistics.median(first["failed"]) < 0.8  # of the calls of both: its own do not fail
    assert alerted("ENV001") == {*TRACKERS, "webhook"}
    assert [alert["title"] for alert in alerted.alerts].count("Tool calls fail (ENV001)") == 1  # by one process


@pytest.mark.nightly
def test_several_processes_are_counted_together_and_the_slower_one_is_seen(two_processes):
    first, second = two_processes("counts")
    assert max(filter(None, first["slower"])) > 1.5
    assert same(first["slices"], second["slices"])
    assert first["calls"] != second["calls"]
    total = next(row["count"] for row in first["slices"] if (row["pair"], row["slice"]) == ("reference", "all"))
    assert total == tokens_with_signal([*first["calls"], *second["calls"]], "reference")


@pytest.mark.nightly
def test_of_two_processes_that_tell_no_tensors_the_slower_one_is_seen(two_processes):
    first, _ = two_processes("slower")
    assert max(filter(None, first["slower"])) > 1.5


@pytest.mark.nightly
def test_every_process_does_what_the_first_one_decides_though_it_found_nothing_itself(two_processes):
    """Asked after each row, of which the last sums the training up; what is decided holds from the next step on."""
    first, second = two_processes("guards")
    assert (first["found"], second["found"]) == (1, 0)
    decided = [["update", 0.25], ["update", 1.0]]
    assert [decision[:2] for decision in first["asked"]] == [[None, 1.0], *decided, *[[None, 1.0]] * 4]
    assert first["asked"] == second["asked"]
    weights = first["weights"]
    assert weights == second["weights"]
    assert [weights[str(step)] == weights[str(step - 1)] for step in range(2, 7)] == [False, True, True, False, False]


def test_completions_that_trl_writes_are_samples_and_a_replay_points_to_audit(tmp_path):
    from train import grpo

    trainer = grpo(tmp_path, max_steps=1, log_completions=True)
    trainer.train()
    (file,) = (tmp_path / "completions").iterdir()
    samples, _ = read_records(file)
    assert [sample["reward"] for sample in samples] == list(trainer._logs["rewards"]["right"])
    with pytest.raises(SourceError, match=r"no log-probabilities, .*`tracker-diag audit` looks at texts and rewards"):
        TokenLog(file)
