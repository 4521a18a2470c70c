"""A batch of several turns by verl's own agent loop: its tool, its parser, its masks; the model's words are given."""

import asyncio
import sys
from pathlib import Path

import numpy as np
import torch
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker, DictConfigWrap, ToolListWrap
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.tools.function_tool import FUNCTION_TOOL_REGISTRY, function_tool
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.utils.tracking import Tracking
from verl.workers.rollout.replica import TokenOutput

from tests.integrations.conformance import counted
from tests.integrations.verl.batches import CONFIG, v0_step

sys.path.append(str(Path(__file__).parents[1] / "trl"))
from task import tokenizer

ROWS, PROMPT, RESPONSE = 8, 256, 160
CALL = '<tool_call>\n{"name": "lookup", "arguments": {"key": "42"}}\n</tool_call><|im_end|>'
ANSWER = "07<|im_end|>"


class Engine:
    """In place of the rollout's servers: calls the tool in its first `calls` turns, then answers."""

    def __init__(self, words, calls):
        self.words, self.calls, self.turn = words, calls, 0

    async def generate(self, **given):
        self.turn += 1
        ids = self.words(CALL if self.turn <= self.calls else ANSWER, add_special_tokens=False).input_ids
        return TokenOutput(token_ids=ids, log_probs=[-0.1 * self.turn] * len(ids), extra_fields={"min_global_steps": 0})


@function_tool
def lookup(key: str) -> str:
    """Look up.

    Args:
        key: Key.
    """
    return "value 07"


def rolled_out():
    """What the trainer gets of rollouts of which the odd ones call the tool once or twice."""
    config = OmegaConf.create({
        "actor_rollout_ref": {"rollout": {
            "prompt_length": PROMPT, "response_length": RESPONSE, "full_determinism": False,
            "multi_turn": {
                "max_user_turns": 4, "max_assistant_turns": 4, "max_parallel_calls": 1, "format": "hermes",
                "max_tool_response_length": 256, "tool_response_truncate_side": "middle",
            },
        }},
        "data": {},
    })  # fmt: skip
    words, worker = tokenizer(), object.__new__(AgentLoopWorker)
    worker.config, worker.rollout_config = config, config.actor_rollout_ref.rollout
    worker.tokenizer, worker.processor, worker.mm_processor_kwargs = words, None, {}
    worker.reward_loop_worker_handles, worker.distillation_enabled = None, False

    async def one(calls):
        loop = ToolAgentLoop(
            DictConfigWrap(config), Engine(words, calls), words, None, RLHFDataset, DictConfigWrap(config.data),
            tools=ToolListWrap([FUNCTION_TOOL_REGISTRY["lookup"]]),
        )  # fmt: skip
        asked = [{"role": "user", "content": "get 42"}]
        return await worker._agent_loop_postprocess(await loop.run({}, raw_prompt=asked), False, raw_prompt=asked)

    async def every():
        return [await one(calls=row % 2 * (1 + row % 4 // 2)) for row in range(ROWS)]

    return worker._postprocess(asyncio.run(every()))


def test_turns_of_verls_own_agent_loop_are_sliced_by_what_the_tool_has_said():
    batch = rolled_out()
    mask = batch.batch["response_mask"]
    assert batch.non_tensor_batch["__num_turns__"].tolist() == [2, 4, 2, 6] * 2
    old = batch.batch["rollout_log_probs"] + 0.01
    batch.batch.update({"old_log_probs": old * mask, "ref_log_prob": old, "token_level_rewards": mask * 0.0})
    batch.batch["token_level_scores"] = batch.batch["token_level_rewards"]
    batch.non_tensor_batch["uid"] = np.array([str(row // 4) for row in range(ROWS)], dtype=object)
    tracking = Tracking("agent", "run", ["console"], config=CONFIG)
    v0_step(tracking, 1, batch)
    result = counted(tracking.diag, "mismatch")
    gaps = (mask == 0).cumsum(1) > 0
    assert result["all"] == int(mask.sum())
    assert result["post_tool"] == int((mask.bool() & gaps).sum()) > 0
    assert result["text_only"] == result["all"] - result["post_tool"]
    assert result["turn:2"] > 0
    assert tracking.diag.failures == []
    assert torch.isfinite(old).all()
