"""docs/coverage.md: 52 rows, and in each a command, which runs on files that are made here."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tracker_diag.cli.app import app

ROOT = Path(__file__).parents[2]
ROWS = re.findall(
    r"^\| ([^|]*) \| ([^|]*) \| (yes|partly|no) \| (?:`([^`]*)`)? ?\| ?([^|]*)\|$",
    (ROOT / "docs" / "coverage.md").read_text(),
    re.MULTILINE,
)
TRAINED = ("tracker-diag demo", "python examples/")
"""How commands begin that train, which other tests run."""

FUNCTIONS = """
import gymnasium


def make():
    return gymnasium.make("CartPole-v1")


def policy(seen):
    return int(seen[2] + 0.3 * seen[3] > 0)


def function():
    return {"found": 4}
"""


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files that commands of the page name, by that name."""
    made, rng = tmp_path_factory.mktemp("coverage"), np.random.default_rng(0)
    solved = rng.random(64) < 0.5
    samples = [
        {"prompt": f"add {i // 8}", "completion": f"it is {i}", "reward": float(right), "reward_before": float(right),
         "success": float(right), "group": i // 8, "length": int(rng.integers(20, 90)), "return": float(i), "value": i}
        for i, right in enumerate(solved)
    ]  # fmt: skip
    pairs = [
        {"prompt": f"{i}", "chosen": f"four {i}", "rejected": f"five of {i}", "chosen_score": rng.normal(1),
         "rejected_score": rng.normal()} for i in range(60)
    ]  # fmt: skip
    call = {"id": "1", "function": {"name": "search", "arguments": "{}"}}
    chat = [
        {"role": "user", "content": "find"}, {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "4"}, {"role": "assistant", "content": "4"},
    ]  # fmt: skip
    texts = {
        "RUN": lines({"step": i, "reward": 0.5 + i / 100, "kl": 0.01, "entropy": 0.5} for i in range(40)),
        "SOURCE": lines({"step": i, "messages": chat, "reward": 1.0} for i in range(8)),
        "SAMPLES.jsonl": lines(samples), "PAIRS.jsonl": lines(pairs),
        "EVALUATION.jsonl": lines({"prompt": f"subtract {i}"} for i in range(20)),
        "CONFIG.yaml": "num_generations: 8\nbeta: 0.01\nper_device_train_batch_size: 8\nepsilon: 0.2\n",
        "MEMORY.yaml": "device_gib: 80\nactor: 1.5e9\n", "module.py": FUNCTIONS,
    }  # fmt: skip
    for name, text in texts.items():
        (made / name).write_text(text)
    tokens = {name: rng.normal(-1, 0.1, 400) for name in ("logprob", "old_logprob")}
    places = {"step": np.zeros(400, int), "sequence": np.arange(400) // 20, "position": np.arange(400) % 20}
    pq.write_table(pa.table(places | tokens | {"is_model": np.arange(400) % 20 > 4}), made / "TOKENS.parquet")
    return made


def test_each_row_is_answered_by_a_command():
    assert len(ROWS) == 52
    assert [asked for _, asked, state, command, _ in ROWS if state != "yes" or not command] == []


@pytest.mark.slow
def test_the_commands_run(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TRACKER_DIAG_DIR", str(folder))
    for command in sorted({command for *_, command, _ in ROWS}):
        program, *arguments = shlex.split(command)
        if command.startswith(TRAINED):
            assert program == "tracker-diag" or (ROOT / arguments[0]).exists()
        elif program == "tracker-diag":
            shown = CliRunner().invoke(app, arguments)
            assert shown.exit_code in (0, 1), (command, shown.output)
            assert isinstance(shown.exception, SystemExit | None), command
            assert shown.output.strip()
        else:
            exec(arguments[1], {"help": lambda thing: thing.__doc__.strip()})  # noqa: S102  # of our own page
