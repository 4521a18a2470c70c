"""`tracker-diag preflight` on real files: what it finds, its exit codes, and files that cannot be used."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tracker_diag.cli.app import app


def run(*arguments):
    return CliRunner().invoke(app, ["preflight", *map(str, arguments)])


def checks(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code in (0, 1), result.output
    results = json.loads(result.stdout)
    assert results["passed"] is (result.exit_code == 0)
    return {item["check"]: item for item in results["checks"]}


@pytest.fixture
def table(tmp_path):
    """Writes a token table of one step: eight sequences with a prompt, a tool's answer and an end token."""

    def write(**changed):
        rng = np.random.default_rng(0)
        n, width = 8, 24
        position = np.tile(np.arange(width), n)
        model = (position >= 6) & ~((position >= 12) & (position < 15))
        trainer = rng.uniform(-3, -0.1, n * width)
        ids = np.where(position == width - 1, 2, rng.integers(10, 99, n * width))
        columns = {
            "step": np.zeros(n * width, int), "sequence": np.repeat(np.arange(n), width), "position": position,
            "is_model": model, "in_loss": model, "old_logprob": trainer, "token_id": ids,
            "rollout_logprob": trainer - 0.02 * rng.normal(size=n * width),
            "logprob_again": trainer - 0.02 * rng.normal(size=n * width),
        }  # fmt: skip
        columns = {name: value for name, value in (columns | changed).items() if value is not None}
        file = tmp_path / f"tokens-{len([*tmp_path.iterdir()])}.parquet"
        pq.write_table(pa.table(columns), file)
        return file

    return write


TABLE_CHECKS = (
    "mask_prompt",
    "mask_tools",
    "mask_coverage",
    "mask_end",
    "batch_form",
    "sampler_step0",
)


def test_a_token_table_is_audited(table):
    results = checks("--tokens", table(), "--eos-id", 2)
    assert {results[name]["status"] for name in TABLE_CHECKS} == {"pass"}
    everything = np.ones(8 * 24, bool)
    results = checks("--tokens", table(in_loss=everything), "--eos-id", 2)
    assert {name for name in TABLE_CHECKS if results[name]["status"] == "fail"} == {"mask_prompt", "mask_tools"}
    results = checks("--tokens", table(in_loss=None, logprob_again=None))
    assert results["mask_tools"]["status"] == "not checked"
    assert results["sampler_step0"]["status"] == "pass"


def test_a_table_for_preflight_is_replayed_as_any_other(table):
    result = CliRunner().invoke(app, ["replay", str(table()), "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["run"]["steps"] == 1


def test_samples_settings_and_memory_come_from_files(tmp_path):
    samples = tmp_path / "samples.jsonl"
    rows = [
        {"reward": i % 2, "group": f"p{i // 4}", "success": i % 2, "return": i, "value": i + 0.5} for i in range(40)
    ]
    samples.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    config = tmp_path / "config.yaml"
    config.write_text("eval: {temperature: 0}\n")
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100, "model_type": "x"}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    (tmp_path / "memory.yaml").write_text("device_gib: 24\nactor: config.json\nlength: 64\n")
    results = checks("--samples", samples, "--config", config, "--memory", tmp_path / "memory.yaml")
    passing = ("reward_histogram", "reward_sign", "reward_groups", "critic_fit", "memory")
    assert {results[name]["status"] for name in passing} == {"pass"}
    assert results["evaluation_complete"]["status"] == "fail"


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module in the working directory, with what an environment needs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_for_preflight.py").write_text(
        "import gymnasium\n"
        "def make(): return gymnasium.make('CartPole-v1')\n"
        "def lean(seen): return int(seen[2] + seen[3] > 0)\n"
        "def broken(): raise OSError('no server')\n"
        "number = 3\n"
    )
    return "mine_for_preflight"


@pytest.mark.nightly
def test_functions_are_named_by_their_module(module):
    results = checks("--env", f"{module}:make", "--policy", f"{module}:lean", "--tool", f"{module}:broken")
    assert results["env_api"]["status"] == results["expert_beats_random"]["status"] == "pass"
    assert "raised OSError: no server" in results["tool_stress"]["reason"]


def test_the_terminal_says_it_and_the_exit_code_as_well(tmp_path):
    (tmp_path / "m.yaml").write_text("{device_gib: 8, actor: 7.0e9}")
    result = run("--memory", tmp_path / "m.yaml")
    assert result.exit_code == 1
    assert result.stdout.startswith("tracker_diag: preflight: 1 failed, 0 passed, 25 not checked")
    (tmp_path / "m.yaml").write_text("{device_gib: 800, actor: 7000000000}")
    assert run("--memory", tmp_path / "m.yaml").exit_code == 0


BAD = {
    "an empty file of samples": ("--samples", "s.jsonl", "", "no samples; expected one JSON object a line"),
    "blank lines": ("--samples", "s.jsonl", "\n\n", "no samples"),
    "no JSON": ("--samples", "s.jsonl", '{"reward": 1}\n{"rew', "s.jsonl:2: no JSON"),
    "a list": ("--samples", "s.jsonl", "[1]", "s.jsonl:1: list given, expected a JSON object"),
    "unknown fields": ("--samples", "s.jsonl", '{"rewards": 1}', "did you mean reward?"),
    "a field that is missing once": ("--samples", "s.jsonl", '{"reward": 1}\n{}', "s.jsonl:2: no field reward"),
    "text for a number": ("--samples", "s.jsonl", '{"reward": "1"}', "s.jsonl:1: reward: '1' given, expected a number"),
    "bytes": ("--samples", "s.jsonl", "\ud800\n", "s.jsonl:1: no JSON object"),
    "empty settings": ("--config", "c.yaml", "", "c.yaml:1: nothing given, expected settings by name"),
    "settings in a list": ("--config", "c.yaml", "- a", "c.yaml:1: list given"),
    "no YAML": ("--config", "c.yaml", "a: [", "c.yaml:"),
    "an object of Python": ("--config", "c.yaml", "a: !!python/object:os.system {}", "c.yaml:1:"),
    "an empty plan": ("--memory", "m.yaml", "", "m.yaml:1: nothing given"),
    "half a plan": ("--memory", "m.yaml", "actor: 7.0e9", "memory: device_gib: Field required"),
    "a model that is not there": ("--memory", "m.yaml", "{device_gib: 8, actor: none.json}", "none.json"),
    "no Parquet": ("--tokens", "t.parquet", "hello", "t.parquet: no Parquet file"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_cannot_be_used_ends_with_one_line(tmp_path, name):
    option, file, content, message = BAD[name]
    (tmp_path / file).write_bytes(content.encode("utf-8", "surrogatepass"))
    result = run(option, tmp_path / file)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_what_is_not_there_ends_with_one_line(tmp_path, module, table):
    for arguments, message in (
        ((), "nothing given, expected at least one of --tokens"),
        (("--policy", f"{module}:lean"), "nothing given"),
        (("--samples", tmp_path / "none.jsonl"), "No such file"),
        (("--config", tmp_path / "none.yaml"), "cannot be read"),
        (("--tokens", tmp_path / "none.parquet"), "No such file"),
        (("--tokens", table(token_id=np.linspace(0, 1, 192))), "column token_id: double given, expected integer"),
        (("--tokens", table(in_loss=pa.array([None] * 192, pa.bool_()))), "column in_loss: 192 nulls, expected none"),
        (("--env", "make"), "--env: 'make' given, expected module:function"),
        (("--env", "no_such_module:make"), "raised ModuleNotFoundError"),
        (("--env", f"{module}:absent"), "raised AttributeError"),
        (("--tool", f"{module}:number"), f"{module}:number is int, expected a function or a class"),
    ):
        result = run(*arguments)
        assert result.exit_code == 2, arguments
        assert message in result.stderr
        assert len(result.stderr.splitlines()) == 1
