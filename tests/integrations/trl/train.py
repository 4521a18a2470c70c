"""Real runs of TRL's trainers on the checkpoint, each in a process of its own: python train.py SCENARIO FOLDER.

What the test looks at is written to FOLDER/result-<rank>.json. The tests have zygote.py fork these processes.
"""

import contextlib
import hashlib
import json
import logging
import os
import random
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

import torch
import trl
from datasets import Dataset
from task import CHECKPOINT, Lookup, judge, prompts, tokenizer, value_of
from tracker_diag_trl import attach
from transformers import PrinterCallback, Qwen2ForCausalLM, Qwen2ForSequenceClassification, TrainerCallback, set_seed
from transformers.integrations import MLflowCallback

from tracker_diag import AllReduce, Guard, Monitor, Rule
from tracker_diag.detect.cusum import CusumSettings
from tracker_diag.detect.growth import GrowthSettings
from tracker_diag.rules.algorithm import algorithm_of
from tracker_diag.tensors.state import unpack
from tracker_diag.testing import CapturingTracker

SMALL = {"per_device_train_batch_size": 16, "max_steps": 4, "num_iterations": 2, "beta": 0.02}


class Tapped(trl.GRPOTrainer):
    """GRPO that also counts its tokens itself, in plain torch, to hold the diagnostics against."""

    def __init__(self, *args, **kwargs):
        self.calls = []
        super().__init__(*args, **kwargs)

    def _get_per_token_logps_and_entropies(self, model, *args, **kwargs):
        out = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        self.last, self.values = out[0].detach(), len(out)
        return out

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        with torch.no_grad():
            response = inputs["completion_mask"] == 1
            mine = response & (inputs.get("tool_mask", torch.ones_like(response)) == 1)
            post = mine & ((response & ~mine).cumsum(1) > 0)
            old = inputs.get("old_per_token_logps", self.last)
            reference = inputs.get("ref_per_token_logps", self.last)
            moved = {"policy": (self.last - old)[mine], "reference": (self.last - reference)[mine]}
        if torch.is_grad_enabled():  # not an evaluation
            call = {"step": self.state.global_step, "keys": sorted(inputs), "tokens": int(mine.sum())}
            call |= {"post": int(post.sum()), "empty": int((~response.any(1)).sum())}
            self.calls.append(call | {pair: max(r.abs().tolist(), default=0.0) for pair, r in moved.items()})
        return loss


class Widening(TrainerCallback):
    """Widens what the tool says, from step `start` to `end`; and keeps what is logged."""

    def __init__(self, tool, start, end, width):
        self.tool, self.start, self.end, self.width = tool, start, end, width
        self.rows = []

    def on_step_begin(self, args, state, control, **kwargs):
        share = (state.global_step - self.start) / max(self.end - self.start, 1)
        self.tool.width = self.width * min(1.0, max(0.0, share))

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.rows.append({"step": state.global_step, **logs})


def grpo(folder, *, kind=Tapped, widening=(0, 1, 0.0), tools=True, more=None, **settings):
    """A GRPOTrainer with the tool; `settings` are those of its config, `more` goes to the trainer itself."""
    set_seed(0)
    tool = Lookup()
    model = Qwen2ForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    model.config._name_or_path = str(CHECKPOINT)  # from where the reference is read again
    given = {"reward_funcs": judge(errs=0.35), "train_dataset": Dataset.from_list(prompts(2000, tool_share=0.85))}
    given |= {"tools": tool.tools()} if tools else {}
    trainer = kind(
        model,
        args=trl.GRPOConfig(**(common(folder) | {
            "per_device_train_batch_size": 32, "num_generations": 4, "steps_per_generation": 1,
            "max_completion_length": 64, "max_tool_calling_iterations": 1, "learning_rate": 1e-4,
        } | settings)),
        processing_class=tokenizer(),
        callbacks=[Widening(tool, *widening)],
        **(given | (more or {})),
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    return trainer


def common(folder):
    """Settings of every trainer here."""
    return {
        "output_dir": str(folder), "lr_scheduler_type": "constant", "logging_steps": 1, "report_to": [],
        "save_strategy": "no", "bf16": False, "gradient_checkpointing": False, "use_cpu": True,
        "disable_tqdm": True, "seed": 0,
    }  # fmt: skip


def rows(trainer):
    """What the trainer itself has logged."""
    return [row for one in trainer.callback_handler.callbacks if isinstance(one, Widening) for row in one.rows]


def weights(trainer):
    """A hash of all weights, bit by bit."""
    found = hashlib.sha256()
    for one in trainer.model.state_dict().values():
        found.update(one.cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def watched(trainer, **given):
    """Attach, train, and tell what came of it."""
    with warnings_of_ours() as said:
        monitor = attach(trainer, **given)
        kept = CapturingTracker()
        monitor.add(kept)
        began = time.perf_counter()
        trainer.train()
    summary = kept.summary.to_json()
    return {
        "seconds": time.perf_counter() - began,
        "said": said,
        "findings": summary["findings"],
        "blind": {one["rule"]: one["reason"] for one in summary["blind"]},
        "healthy": summary["healthy"],
        "metrics": kept.own,
        "own": rows(trainer),
        "scalars": {step: kept.scalars(step) for step in kept.records},
        "slices": [
            dict(zip(table.columns, row, strict=True))
            for table in kept.tables
            if table.name == "diag/slices"
            for row in table.rows
        ],
        "health": dict(monitor.health),
        "failures": monitor.failures,
        "sources": [one.source for one in monitor.trackers if one.source],
        "algorithm": algorithm_of(monitor.config),
        "calls": getattr(trainer, "calls", []),
    }


@contextlib.contextmanager
def warnings_of_ours():
    """The messages that tracker_diag logs meanwhile."""
    said, logger = [], logging.getLogger("tracker_diag")
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logger.addHandler(handler)
    yield said
    logger.removeHandler(handler)


def mlflow_rows(uri, experiment):
    """Tags, and all values of all metrics, of the only run of `experiment`."""
    import mlflow

    client = mlflow.MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    values = {
        key: [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, key)]
        for key in run.data.metrics
    }
    artifacts = [one.path for one in client.list_artifacts(run.info.run_id, "diag")]
    return {"tags": run.data.tags, "metrics": values, "status": run.info.status, "artifacts": artifacts}


def in_mlflow(folder, name, run):
    """What `run()` gives, and what is then in MLflow, on a database of its own."""
    import mlflow

    uri = f"sqlite:///{folder / name}.db"
    if made := os.environ.get("MIGRATED_MLFLOW"):  # by the tests
        shutil.copyfile(made, folder / f"{name}.db")
    mlflow.set_tracking_uri(uri)
    os.environ["MLFLOW_EXPERIMENT_NAME"] = name
    result = run()
    return result | {"mlflow": mlflow_rows(uri, name)}


def widening(folder):
    """The same run twice: in one the tool's answers widen, in the other they stay as they are."""

    def run(width):
        trainer = grpo(folder, widening=(75, 95, width), num_iterations=4, beta=0.02, max_steps=120)
        # With `report_to` TRL would also write each of its timings, five in a step: a quarter of the run's time.
        trainer.add_callback(MLflowCallback)
        return watched(trainer)

    return {name: in_mlflow(folder, name, lambda w=w: run(w)) for name, w in (("widens", 1.0), ("stays", 0.0))}


def user_rows(folder):
    """A run with and without us, to see that what the trainer logs is the same."""

    def plain():
        trainer = grpo(folder, **SMALL, report_to=["mlflow"])
        trainer.train()
        return {"own": rows(trainer), "weights": weights(trainer)}

    def with_us():
        trainer = grpo(folder, **SMALL, report_to=["mlflow"])
        return watched(trainer) | {"weights": weights(trainer)}

    return {"plain": in_mlflow(folder, "plain", plain), "with_us": in_mlflow(folder, "with_us", with_us)}


def settings(folder):
    """Short runs with various settings."""
    from peft import LoraConfig

    class Changed(Tapped):
        """As a TRL might be in which the loss takes its inputs under another name."""

        def _compute_loss(self, model, batch):
            return super()._compute_loss(model, batch)

    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    accumulated = {"gradient_accumulation_steps": 2, "steps_per_generation": 2}
    spread = {"gradient_accumulation_steps": 1, "steps_per_generation": 2, "num_iterations": 1}
    return {
        "defaults": watched(grpo(folder, per_device_train_batch_size=16, max_steps=3)),
        "no_tools": watched(grpo(folder, tools=False, **SMALL)),
        "accumulated": watched(grpo(folder, **SMALL | accumulated)),
        "spread": watched(grpo(folder, **SMALL | spread)),
        "sequence": watched(grpo(folder, **SMALL, importance_sampling_level="sequence", epsilon=3e-4)),
        "truncated": watched(grpo(folder, **SMALL, mask_truncated_completions=True, max_completion_length=6)),
        "peft": watched(grpo(folder, **SMALL, more={"peft_config": lora})),
        "evaluated": watched(
            grpo(folder, **SMALL, eval_strategy="steps", eval_steps=2, per_device_eval_batch_size=8,
                 more={"eval_dataset": Dataset.from_list(prompts(8, seed=3))})
        ),
        "changed": watched(grpo(folder, kind=Changed, **SMALL)),
    }  # fmt: skip


def resumed(folder):
    """A run that ends at its sixth step, and two that go on from there: one with our state, one without it."""

    def run(to, folder, **more):
        trainer = grpo(folder, **SMALL | {"max_steps": to, "save_strategy": "steps", "save_steps": 3})
        # A reference period that begins before the checkpoint and goes on after it.
        quick = GrowthSettings(short=CusumSettings(burn_in=2, baseline=8, block=4))
        with warnings_of_ours() as said:
            monitor = attach(trainer, monitor=Monitor(settings=quick))
            trainer.train(**more)
        window = monitor.state_dict()["windows"]["reference"]
        summary = monitor.summary()
        return {
            "said": said,
            "failures": monitor.failures,
            "steps": [summary.first_step, summary.last_step, summary.steps],
            "with_signal": window["with_signal"],
            "reference_steps": window["reference_steps"],
            "reference_tokens": int(unpack(window["baseline"]["context"][1]).sum()),
            "in_window": len(window["recent"]),
            "calls": trainer.calls,
        }

    result = {"first": run(6, folder), "second": run(12, folder, resume_from_checkpoint=True)}
    for file in folder.glob("checkpoint-6/tracker_diag_*.json"):
        file.unlink()
    return result | {"without": run(12, folder, resume_from_checkpoint=str(folder / "checkpoint-6"))}


def rollout(folder):
    """A rollout function: it puts in what an environment says, and gives log-probabilities as an engine would."""
    counted = Counter()
    env = tokenizer()("<|im_end|>\n<|im_start|>user\nvalue 42\n<|im_start|>assistant\n")["input_ids"]

    def roll(messages, trainer):
        words = trainer.processing_class
        text = [words.apply_chat_template(one, tokenize=False, add_generation_prompt=True) for one in messages]
        given = words(text, return_tensors="pt", padding=True, padding_side="left")
        with torch.no_grad():
            said = trainer.model.generate(**given, max_new_tokens=8, min_new_tokens=8, do_sample=True)[:, -8:]
            between = torch.tensor([env] * len(text))
            ids = torch.cat([given["input_ids"], said, between, said[:, :4]], 1)
            mask = torch.cat([given["attention_mask"], torch.ones_like(ids[:, given["input_ids"].shape[1] :])], 1)
            n = 12 + len(env)
            scores = trainer.model(input_ids=ids, attention_mask=mask).logits[:, -n - 1 : -1].log_softmax(-1)
        logprobs = scores.gather(2, ids[:, -n:, None])[..., 0]
        noise = torch.randn(logprobs.shape, generator=torch.Generator().manual_seed(counted["generations"]))
        logprobs = logprobs + 0.02 * noise
        is_model = torch.ones(n, dtype=torch.long)
        is_model[8 : 8 + len(env)] = 0
        logprobs = logprobs * is_model
        logprobs[::4, 3] = float("nan")  # as where vLLM could not score
        counted.update(generations=1, model=len(text) * 12, post=len(text) * 4, unscored=len(text[::4]))
        prompt_ids = [row[m == 1].tolist() for row, m in zip(given["input_ids"], given["attention_mask"], strict=True)]
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": ids[:, -n:].tolist(),
            "logprobs": logprobs.tolist(),
            "env_mask": [is_model.tolist()] * len(text),
        }

    result = {}
    for name, beside in (("old_kept", {"num_iterations": 2}), ("on_policy", {"num_iterations": 1, "beta": 0.0})):
        counted.clear()
        made = grpo(folder, tools=False, more={"rollout_func": roll}, **SMALL | beside)
        result[name] = watched(made) | {"counted": dict(counted)}
    return result


def others(folder):
    """Four steps of each trainer without ratios of tokens, as it is and with us."""
    from trl.experimental import a2po, cpo, gmpo, online_dpo, orpo, sdpo, tpo

    pair = {"prompt": "get 4", "chosen": " 07", "rejected": " 70"}
    pairs = [pair | {"prompt": f"get {i}"} for i in range(32)]
    labelled = [{"prompt": p["prompt"], "completion": p["chosen"], "label": i % 2 == 0} for i, p in enumerate(pairs)]

    def paid(completions, **_):
        return [0.01 * len(str(said)) for said in completions]

    asked, scored = [{"prompt": row["prompt"]} for row in prompts(32)], {"reward_funcs": paid}
    short = {"max_completion_length": 8}
    trainers = {
        "sft": (trl.SFTTrainer, trl.SFTConfig, [{"text": "get 4 07"} for _ in range(32)], {}, {}),
        "dpo": (trl.DPOTrainer, trl.DPOConfig, pairs, {}, {}),
        "kto": (trl.KTOTrainer, trl.KTOConfig, labelled, {}, {}),
        "orpo": (orpo.ORPOTrainer, orpo.ORPOConfig, pairs, {}, {}),
        "cpo": (cpo.CPOTrainer, cpo.CPOConfig, pairs, {}, {}),
        "tpo": (tpo.TPOTrainer, tpo.TPOConfig, [row | {"reference": row["chosen"]} for row in pairs], {}, {}),
        "rloo": (trl.RLOOTrainer, trl.RLOOConfig, prompts(32), short, scored),
        "gmpo": (gmpo.GMPOTrainer, gmpo.GMPOConfig, prompts(32), short | {"num_iterations": 2}, scored),
        "a2po": (a2po.A2POTrainer, a2po.A2POConfig, prompts(32), short, scored),
        "sdpo": (sdpo.SDPOTrainer, sdpo.SDPOConfig, [row | {"privileged_context": "07"} for row in prompts(32)],
                 short, scored),
        "online_dpo": (online_dpo.OnlineDPOTrainer, online_dpo.OnlineDPOConfig, asked, {"max_new_tokens": 8}, scored),
        "distillation": (trl.DistillationTrainer, trl.DistillationConfig, asked, short, {"teacher_model": _model}),
    }  # fmt: skip

    def made(kind, config, data, settings, more):
        set_seed(0)
        args = config(**common(folder) | {"max_steps": 4, "per_device_train_batch_size": 8} | settings)
        given = {name: value() if value is _model else value for name, value in more.items()}
        data = Dataset.from_list(data)
        return kind(model=_model(), args=args, train_dataset=data, processing_class=tokenizer(), **given)

    def both(of):
        plain, ours = made(*of), made(*of)
        set_seed(1)
        plain.train()
        set_seed(1)
        seen = watched(ours)
        history = [[_untimed(row) for row in one.state.log_history] for one in (plain, ours)]
        return seen | {"same": weights(plain) == weights(ours) and json.dumps(history[0]) == json.dumps(history[1])}

    return {name: both(of) for name, of in trainers.items()}


def _model():
    model = Qwen2ForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    model.config._name_or_path = str(CHECKPOINT)
    return model


def _untimed(row):
    timed = ("time", "per_second", "tok/s")
    return {name: value for name, value in row.items() if not any(part in name for part in timed)}


def reward_model(folder):
    """A reward model, as it should be and with chosen and rejected swapped from step 70 on."""

    class InOrder(trl.RewardTrainer):
        def _get_train_sampler(self, *args, **kwargs):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    def run(swapped_from):
        set_seed(0)
        model = Qwen2ForSequenceClassification.from_pretrained(CHECKPOINT, num_labels=1, dtype=torch.float32)
        model.config._name_or_path = str(CHECKPOINT)
        chosen = [f" value {i % 10} amber cedar" for i in range(125 * 8)]
        rejected = [f" value {(i + 3) % 10} delta north" for i in range(125 * 8)]
        at = swapped_from * 8
        pairs = zip(chosen[:at] + rejected[at:], rejected[:at] + chosen[at:], strict=True)
        data = [{"prompt": f"get {i % 50}", "chosen": a, "rejected": b} for i, (a, b) in enumerate(pairs)]
        args = trl.RewardConfig(
            **common(folder) | {"max_steps": 125, "per_device_train_batch_size": 8, "learning_rate": 3e-4}
        )
        return watched(InOrder(model, args=args, train_dataset=Dataset.from_list(data), processing_class=tokenizer()))

    return {"healthy": run(125), "swapped": run(70)}


def again(folder):
    """A run, an evaluation after it, and a second run of the same trainer."""
    evaluated = {"per_device_eval_batch_size": 8}
    trainer = grpo(folder, **SMALL | evaluated, more={"eval_dataset": Dataset.from_list(prompts(8, seed=3))})
    first = attach(trainer)
    ours = trainer.callback_handler.callbacks[0]
    trainer.train()
    trainer.evaluate()
    calls = [len(trainer.calls)]
    trainer.train()
    second = ours.monitor
    return {
        "calls": [calls[0], len(trainer.calls) - calls[0]],
        "same": first is second,
        "steps": [one.summary().steps for one in (first, second)],
        "slices": [[row[:2] for row in one.slices_table().rows] for one in (first, second)],
        "health": [dict(one.health) for one in (first, second)],
    }


def guarded(folder):
    """GRPO with a KL coefficient; from its second step on the entropy is "too high", as a rule of the test has it."""
    entropy = {"kind": "threshold", "series": {"metric": "entropy"}, "above": 0.0}
    high = Rule(id="ACM001", title="Entropy", signals={"high": entropy}, when=["high"], for_steps=2, summary="high")
    on = {"rules": ("ACM001",)}
    guards = [
        Guard(do="kl_cap", on=on, act=True, bounds=(0.05, 0.4), target=1e-9),
        Guard(do="scale_lr", on=on, act=True, bounds=(0.25, 0.25)),
        Guard(do="refresh_reference", on=on, act=True),
        Guard(do="save_state", on=on, act=True),
    ]
    trainer = grpo(folder, **SMALL | {"max_steps": 6})
    monitor = Monitor(rules=[high], catalog=False, guards=guards)
    attach(trainer, monitor=monitor)
    betas = []

    class Betas(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            betas.append(trainer.beta)

    trainer.add_callback(Betas())
    trainer.train()
    register = monitor.guards.checkpoints.table().rows
    return {
        "betas": betas, "after": trainer.beta, "events": monitor.events, "failures": monitor.failures,
        "saved": [row[0] for row in register], "rows": [row for row in rows(trainer) if "loss" in row],
    }  # fmt: skip


def environment(folder):
    """An environment for each rollout, whose method is the tool and which gives the reward."""
    met = Counter()

    class Desk:
        """Keeps count of how often it was asked."""

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

    made = grpo(folder, tools=False, more={"environment_factory": Desk}, **SMALL)
    return watched(made) | {"met": dict(met)}


def faults(folder):
    """The same short run, healthy and with a fault planted in what it is rewarded by or in its tool."""

    def wordy(completions, **_):
        """Pays for length, whatever is said."""
        return [min(len(said[-1].get("content") or "") / 40, 1.0) for said in completions]

    def right(completions, answer, **_):
        return judge(errs=0.0)(completions, answer)

    def nothing(completions, **_):
        """A scorer that does not find the answer, whatever it is."""
        return [0.0 for _ in completions]

    def run(paid, steps, breaks=False):
        luck = random.Random(0)

        def lookup(key: str) -> str:
            """Look up.

            Args:
                key: Key.
            """
            if breaks and luck.random() < 0.5:
                raise ConnectionError("the index is away")
            return f"value {value_of(key)}"

        rewards = [wordy, right, nothing]
        weights = [float(one is paid) for one in rewards]
        quick = {"per_device_train_batch_size": 16, "learning_rate": 1e-3}
        more = {"reward_funcs": rewards, "tools": [lookup]}
        trainer = grpo(folder, tools=False, more=more, max_steps=steps, reward_weights=weights, **quick)
        return watched(trainer, correct="right")

    return {
        "healthy": run(right, 40),
        "tool": run(right, 20, breaks=True),
        "zero": run(nothing, 20),
        "length": run(wordy, 75),
    }


def ppo(folder):
    """PPO of a release that has it still; its loop calls no callback between the start and the first log."""
    from transformers import Qwen2Config
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    set_seed(0)
    words = tokenizer()
    config = Qwen2Config.from_pretrained(CHECKPOINT, num_labels=1, pad_token_id=words.pad_token_id)
    policy, reference = (Qwen2ForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32) for _ in range(2))
    data = [{"input_ids": words(f"get {number}")["input_ids"]} for number in range(16)]
    settings = {"per_device_train_batch_size": 8, "total_episodes": 24, "num_ppo_epochs": 2, "response_length": 8}
    trainer = PPOTrainer(
        PPOConfig(**common(folder) | settings | {"report_to": ["mlflow"], "num_sample_generations": 0}),
        words,
        model=policy,
        ref_model=reference,
        reward_model=Qwen2ForSequenceClassification(config),
        value_model=Qwen2ForSequenceClassification(config),
        train_dataset=Dataset.from_list(data),
    )
    return in_mlflow(folder, "ppo", lambda: watched(trainer))


def ranks(folder):
    """One of several processes that train together."""
    return watched(grpo(folder, **SMALL, ddp_backend="gloo"))


def broken_tool_ranks(folder):
    """One of two processes that train together, into every tracker; in the second one alone the tool is broken."""
    first = os.environ["RANK"] == "0"

    def lookup(key: str) -> str:
        """Look up.

        Args:
            key: Key.
        """
        if not first:
            raise ConnectionError("the index is away")
        return f"value {value_of(key)}"

    kept = {"report_to": ["mlflow", "tensorboard", "trackio", "wandb"], "project": os.environ["PROJECT"]}
    quick = {"per_device_train_batch_size": 4, "max_steps": 6, "ddp_backend": "gloo"}
    return watched(grpo(folder, tools=False, more={"tools": [lookup]}, **kept | quick))


def guarded_ranks(folder):
    """One of two processes that train together; the first alone finds its entropy too high, from step 2 on."""
    limit = 0.0 if os.environ["RANK"] == "0" else 1e9
    entropy = {"kind": "threshold", "series": {"metric": "entropy"}, "above": limit}
    high = Rule(id="ACM001", title="Entropy", signals={"high": entropy}, when=["high"], for_steps=2, summary="high")
    actions = ({"do": "scale_lr", "bounds": (0.25, 0.25), "hold": 1}, {"do": "stop_update", "hold": 2})
    guards = [Guard(act=True, **one) for one in actions]
    trainer = grpo(folder, **SMALL | {"max_steps": 6}, ddp_backend="gloo")
    monitor = Monitor(rules=[high], catalog=False, guards=guards, ranks=AllReduce())
    attach(trainer, monitor=monitor)
    hashes, asked, decide = {}, [], monitor.decide

    class Hashes(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            hashes[state.global_step] = weights(trainer)

    def decided(can):
        decision = decide(can)
        asked.append([decision.stop, decision.lr_factor, *decision.reasons])
        return decision

    monitor.decide = decided
    trainer.add_callback(Hashes())
    trainer.train()
    found = [one for one in monitor.summary().findings if one.fired is not None]
    return {"weights": hashes, "asked": asked, "found": len(found), "failures": monitor.failures}


def version(folder):
    """Short runs of whatever TRL comes first on the path; in their second halves a scorer overpays.

    The first has no tracker, the second has all of them: W&B's run is underway until the process ends.
    """
    import inspect
    from importlib.metadata import version as release

    takes = {
        name: list(inspect.signature(getattr(trl.GRPOTrainer, name)).parameters)
        for name in ("_compute_loss", "_get_per_token_logps_and_entropies")
    }
    # Before 1.9 TRL does not take our chat template for one with tools.
    tools = tuple(map(int, trl.__version__.split(".")[:2])) >= (1, 9)

    def overpays(completions, trainer_state, **_):
        return [20.0 * (trainer_state.global_step >= 2) for _ in completions]  # to all, so that no advantage changes

    more = {"reward_funcs": [judge(errs=0.35), overpays]}
    kept = {"report_to": ["mlflow", "tensorboard", "trackio", "wandb"], "project": os.environ["PROJECT"]}
    untracked = watched(grpo(folder, tools=False, more=more, **SMALL))["sources"]
    trainer = grpo(folder, tools=tools, more=more, **SMALL | kept)
    return watched(trainer) | {"untracked": untracked} | {
        "version": release("trl"), "file": trl.__file__, "takes": takes, "tools": tools, "values": trainer.values
    }  # fmt: skip


def main(scenario, folder):
    torch.set_num_threads(1)
    outcome = globals()[scenario](folder)
    (folder / f"result-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(outcome, default=str))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
