"""Make the checkpoint of the tests: a tokenizer of our own, and a model that calls the tool. One or two minutes.

    python tests/integrations/trl/make_checkpoint.py [FOLDER]

The same numbers come out of it each time, on one machine.
"""

import logging
import random
import sys
from pathlib import Path

import torch
from task import CHECKPOINT, NOISE, Lookup, demonstration, prompts, with_templates
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.utils import get_json_schema

STEPS, BATCH, RATE, SMOOTHING = 500, 32, 3e-3, 0.005
MARKS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "</tool_call>"]
IGNORE = -100

_log = logging.getLogger("make_checkpoint")


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """BPE that separates line ends and digits, so that no token spans what the model says and what it does not."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("\n", "isolated"),
            pre_tokenizers.Split(Regex(r"\d"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS[:3]])
    raw.add_tokens([AddedToken(mark, special=False) for mark in MARKS[3:]])
    raw.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=640, special_tokens=MARKS[:3], show_progress=False))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, clean_up_tokenization_spaces=False)
    tokenizer.eos_token, tokenizer.pad_token = MARKS[1:3]
    return with_templates(tokenizer)


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> tuple[list[int], list[int]]:
    """Ids, and labels that leave out all but what the assistant says."""
    ids: list[int] = []
    labels: list[int] = []
    start = "<|im_start|>assistant\n"
    for i, part in enumerate(text.split(start)):
        output, end, rest = part.partition("<|im_end|>") if i else ("", "", part)
        for piece, learned in ((start if i else "", False), (output + end, True), (rest, False)):
            new = tokenizer(piece, add_special_tokens=False)["input_ids"] if piece else []
            ids += new
            labels += new if learned else [IGNORE] * len(new)
    return ids, labels


def main(folder: Path) -> None:
    random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tool = Lookup()
    schema = [get_json_schema(function) for function in tool.tools()]
    rows = prompts(4000, seed=1)
    rng = random.Random(2)

    def text(tokenizer, row, width):
        tool.width = width
        # Values at random: what is to be learned is to copy them, not to know them.
        messages = demonstration(row, tool, f"{rng.randrange(100):02d}")
        return tokenizer.apply_chat_template(messages, tools=schema, tokenize=False)

    plain = with_templates(PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE())))
    corpus = [text(plain, row, rng.random()) for row in rows[:1500]] + [" ".join(NOISE)]
    tokenizer = make_tokenizer(corpus)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, tie_word_embeddings=True, max_position_embeddings=512,
        initializer_range=0.1,  # at the usual 0.02 a model as small as this does not learn to copy
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    _log.info("%d tokens, %d parameters", len(tokenizer), sum(p.numel() for p in model.parameters()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, STEPS, pct_start=0.05)
    for step in range(STEPS):
        chosen = [encode(tokenizer, text(tokenizer, rng.choice(rows), 0.05 * rng.random())) for _ in range(BATCH)]
        width = max(len(ids) for ids, _ in chosen)
        ids = torch.tensor([ids + [tokenizer.pad_token_id] * (width - len(ids)) for ids, _ in chosen])
        labels = torch.tensor([labels + [IGNORE] * (width - len(labels)) for _, labels in chosen])
        logits = model(input_ids=ids).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1), label_smoothing=SMOOTHING
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == STEPS - 1:
            kept = labels[:, 1:] != IGNORE
            hits = (logits.argmax(-1) == labels[:, 1:])[kept].float().mean()
            _log.info("step %d: loss %.4f, %.3f of the tokens right", step, loss.item(), hits.item())
    model.save_pretrained(folder)
    tokenizer.chat_template = tokenizer.response_template = None  # TRL has them
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else CHECKPOINT)
