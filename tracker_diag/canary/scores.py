"""Scores: log-probabilities of given tokens, by a model in this process or by an inference engine."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeAlias

from tracker_diag.errors import require

Sequences: TypeAlias = Sequence[Sequence[int]]
"""Token ids of each sequence."""

Score: TypeAlias = Callable[[Sequences], Sequence[Sequence[float]]]
"""From sequences of n tokens to n − 1 log-probabilities each, in nats: of every token but the first, given those before
it, at temperature 1 and under the weights of now."""


def scores_of_model(model: Any, *, adapter: bool = True) -> Score:
    """By a model of torch whose forward pass takes `input_ids` (1, n) and gives `logits` (1, n, vocabulary).

    Each submodule is in the mode (training or evaluation) afterwards that it was in before. Of a model that is sharded
    over ranks, each rank has to score.

    Args:
        adapter: False scores without the adapters of PEFT, so by the base weights.
    """
    torch = require("torch", "torch")

    def score(sequences: Sequences) -> list[list[float]]:
        learning = [part for part in model.modules() if part.training]
        model.eval()
        try:
            with torch.no_grad(), nullcontext() if adapter else model.disable_adapter():
                return [one_sequence(ids) for ids in sequences]
        finally:
            for part in learning:
                part.training = True

    def one_sequence(ids: Sequence[int]) -> list[float]:
        tokens = torch.tensor([list(ids)], device=next(model.parameters()).device)
        logits = model(input_ids=tokens).logits[0, :-1].float()
        chosen = logits.log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]
        return [float(value) for value in chosen.cpu()]

    return score


def scores_of_vllm(engine: Any, **request: Any) -> Score:
    """By the `LLM` of vLLM. It has to be awake.

    Args:
        request: more arguments of `LLM.generate`, such as `lora_request`, as the rollouts are asked for.
    """
    vllm = require("vllm", "vllm")

    def score(sequences: Sequences) -> list[list[float]]:
        asked = vllm.SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
        prompts = [{"prompt_token_ids": list(ids)} for ids in sequences]
        answers = engine.generate(prompts, asked, use_tqdm=False, **request)
        return [
            [place[token].logprob for token, place in zip(ids[1:], answer.prompt_logprobs[1:], strict=True)]
            for ids, answer in zip(sequences, answers, strict=True)
        ]

    return score


def scores_of_sglang(engine: Any, **request: Any) -> Score:
    """By the `Engine` of SGLang; `request` holds more arguments of `Engine.generate`, such as `lora_path`."""

    def score(sequences: Sequences) -> list[list[float]]:
        asked = {"max_new_tokens": 0, "temperature": 0.0}
        prompts = [list(ids) for ids in sequences]
        answers = engine.generate(
            input_ids=prompts, sampling_params=asked, return_logprob=True, logprob_start_len=0, **request
        )
        return [[place[0] for place in answer["meta_info"]["input_token_logprobs"][1:]] for answer in answers]

    return score
