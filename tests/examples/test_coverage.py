"""docs/coverage.md: 52 rows, and in each a command, which runs on files that are made here and prints what it says."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.examples.test_examples import EXPECTED
from tracker_diag.cli.app import app

ROOT = Path(__file__).parents[2]
ROWS = re.findall(
    r"^\| ([^|]*) \| ([^|]*) \| `([^`]*)` \| ([^|]*) \| ?([^|]*)\|$",
    (ROOT / "docs" / "coverage.md").read_text(),
    re.MULTILINE,
)
EXAMPLE, STUDY, DEMO = "python examples/", "python docs/make_guards.py", "tracker-diag demo"
"""How commands begin that train. test_examples.py runs the examples, and tests/demo the demo."""

FUNCTIONS = """
import gymnasium


def make():
    return gymnasium.make("CartPole-v1")


def policy(seen):
    return int(seen[2] + 0.3 * seen[3] > 0)


def function():
    return {"found": 4}


def losses():
    return [2.0 * 0.8 ** update for update in range(20)]


def evaluate():
    return 0.5
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
    call = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "search", "arguments": "{}"}}]}
    chat = [
        {"role": "user", "content": "find"},
        call, {"role": "tool", "tool_call_id": "1", "content": '{"error": "away"}'},
        call, {"role": "tool", "tool_call_id": "1", "content": "4"}, {"role": "assistant", "content": "4"},
    ]  # fmt: skip
    texts = {
        "RUN": lines(
            {"step": i, "reward": 0.3 + i / 200 + rng.normal(0, 0.01), "eval_score": 0.5 - max(i - 40, 0) / 200,
             "completions/mean_length": 100 + 3 * i, "kl": 0.01, "entropy": 0.5} for i in range(100)
        ),
        "BROKEN": lines(
            {"step": i, "reward": 0.7 - max(i - 60, 0) / 150 + rng.normal(0, 0.01),
             "kl": 0.01 + max(i - 70, 0) / 50, "completions/mean_length": 100, "tools/call_frequency": 1.0,
             "tools/failure_frequency": 0.02 + 0.5 * (i > 50)} for i in range(120)
        ),
        "ORPO": lines(
            {"step": i, "loss": 0.9 + i / 400, "nll_loss": 0.7, "log_odds_ratio": -0.6 - i / 200, "logps/chosen": -40.0,
             "rewards/margins": 0.1 - i / 200, "rewards/accuracies": 0.6 - i / 300} for i in range(80)
        ),
        "SOURCE": lines({"step": i, "messages": chat, "reward": 1.0} for i in range(8)),
        "SAMPLES.jsonl": lines(samples), "PAIRS.jsonl": lines(pairs),
        "EVALUATION.jsonl": lines({"prompt": f"add {i}"} for i in range(20)),
        "CONFIG.yaml": "num_generations: 8\nbeta: 0.01\nper_device_train_batch_size: 8\nepsilon: 0.2\n",
        "MEMORY.yaml": "device_gib: 24\nactor: 7e9\n", "module.py": FUNCTIONS,
    }  # fmt: skip
    for name, text in texts.items():
        (made / name).write_text(text)
    at, places = np.arange(4000), ("step", "sequence", "position")
    tokens = dict(zip(places, (at // 400, at // 20, at % 20), strict=True)) | {"is_model": at % 20 > 4}
    tokens |= {name: rng.normal(-1, 0.1, 4000) for name in ("logprob", "old_logprob")}
    pq.write_table(pa.table(tokens), made / "TOKENS.parquet")
    return made


def words_of(command):
    """What `command` is to print, in each row that has it."""
    return {word for row in ROWS if row[2] == command for word in row[3].split("; ")}


def test_each_row_is_answered_by_a_command():
    assert len(ROWS) == 52
    assert [asked for _, asked, command, printed, _ in ROWS if not (command and printed.strip())] == []


@pytest.mark.slow
def test_the_commands_run_and_print_what_the_page_says(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TRACKER_DIAG_DIR", str(folder))
    for part in ("tracker_diag", "tests"):
        (folder / part).symlink_to(ROOT / part)
    for command in dict.fromkeys(row[2] for row in ROWS):
        output = ""
        if command.startswith((STUDY, DEMO)):
            continue
        for part in command.split(" && "):
            program, *arguments = shlex.split(part)
            if command.startswith(EXAMPLE):
                output += EXPECTED[command.removeprefix(EXAMPLE)]
            elif program == "tracker-diag":
                shown = CliRunner().invoke(app, arguments)
                assert shown.exit_code in (0, 1), (part, shown.output)
                assert isinstance(shown.exception, SystemExit | None), part
                output += shown.output
            else:
                monkeypatch.syspath_prepend(folder)
                exec(arguments[1], {})  # noqa: S102  # of our own page
                output += capsys.readouterr().out
            if "--html" in arguments:
                output += (folder / arguments[-1]).read_text()
        for word in words_of(command):
            assert word in " ".join(output.split()), (command, word, output)


@pytest.mark.nightly
@pytest.mark.parametrize("command", sorted({row[2] for row in ROWS if row[2].startswith(STUDY)}))
def test_a_command_of_the_study_makes_the_runs_that_are_missing_and_prints_what_the_page_says(tmp_path, command):
    script, option, only = shlex.split(command)[1:]
    runs = json.loads((ROOT / "docs" / "guards.json").read_text())
    missing = [
        run for run in runs if run["seed"] == 0 and run["case"].startswith(only)
        and any(word in f"{run['case']} {run['guard']}" for word in words_of(command))
    ]  # fmt: skip
    (kept := tmp_path / "kept.jsonl").write_text(lines(run for run in runs if run not in missing))
    given = [sys.executable, "-W", "ignore", ROOT / script, option, only, "--kept", kept]
    done = subprocess.run(given, capture_output=True, text=True, check=True)
    assert missing
    assert len(kept.read_text().splitlines()) == len(runs)
    assert all(word in done.stdout for word in words_of(command))
