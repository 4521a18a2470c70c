"""PPO of TRL 1.9, whose loop calls no callback between the start and the first log; `test_trl.py` runs this with it."""

from datasets import Dataset
from task import CHECKPOINT, tokenizer
from train import common, model, watched
from transformers import Qwen2Config, Qwen2ForSequenceClassification, set_seed
from trl.experimental.ppo import PPOConfig, PPOTrainer

from tracker_diag.rules.algorithm import algorithm_of


def test_ppo_is_seen_by_what_it_logs_and_reported_of_in_its_tracker(tmp_path, mlflow_store):
    import mlflow

    set_seed(0)
    words = tokenizer()
    config = Qwen2Config.from_pretrained(CHECKPOINT, num_labels=1, pad_token_id=words.pad_token_id)
    data = [{"input_ids": words(f"get {number}")["input_ids"]} for number in range(16)]
    settings = {"per_device_train_batch_size": 8, "total_episodes": 24, "num_ppo_epochs": 2, "response_length": 8}
    settings |= {"report_to": ["mlflow"], "num_sample_generations": 0}
    trainer = PPOTrainer(
        PPOConfig(**common(tmp_path) | settings), words, model=model(), ref_model=model(),
        reward_model=Qwen2ForSequenceClassification(config), value_model=Qwen2ForSequenceClassification(config),
        train_dataset=Dataset.from_list(data),
    )  # fmt: skip
    run = watched(trainer)
    assert run.monitor.failures == []
    assert algorithm_of(run.monitor.config) == "ppo"
    assert {"objective/kl", "policy/approxkl_avg", "loss/value_avg"} <= set(run.kept.own[3])
    blind = {item["reason"] for item in run.kept.summary.to_json()["blind"]}
    assert "no series response_length" in blind  # so this is how it would be said
    assert not {f"no series {name}" for name in ("kl", "entropy", "value_loss")} & blind
    (search_run,) = mlflow.search_runs(search_all_experiments=True, output_format="list")
    assert search_run.data.tags["diag.alert.state"] in {"ok", "warn", "error"}
