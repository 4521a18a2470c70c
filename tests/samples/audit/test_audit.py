"""The audit finds each planted hack in a made data set, and nothing in a clean one."""

import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from tracker_diag import audit
from tracker_diag.cli.app import app
from tracker_diag.errors import SourceError
from tracker_diag.samples.audit.shown import page

pytestmark = pytest.mark.slow

made = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("made.py"))))


@pytest.fixture
def audited(tmp_path):
    def write(name, rows):
        file = tmp_path / name
        file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        return file

    def audited(samples, evaluation=None):
        return audit(write("samples.jsonl", samples), evaluation and write("eval.jsonl", evaluation))

    audited.write = write
    return audited


@pytest.mark.by_day("0")
@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_found_in_a_clean_set(audited, seed):
    results = audited(made.clean(seed), made.evaluation(seed + 50))
    assert (results.findings, results.blind, results.notes) == ([], {}, ())
    assert results.prompts.different == made.GROUPS
    assert results.agreement["success"].low > 0.8


@pytest.mark.by_day("repetition", "judge-bias")
@pytest.mark.parametrize("name", made.FAULTS)
def test_each_planted_fault_is_found_and_nothing_else(audited, name):
    samples = made.clean()
    made.FAULTS[name](samples)
    results = audited(samples)
    assert {finding.name for finding in results.findings} == {name.partition(" ")[0]}


def test_evaluation_prompts_in_the_training_set_are_named_whole_and_in_part(audited):
    samples, evaluation = made.clean(), made.evaluation()
    evaluation[3]["question"] = samples[80]["prompt"].replace(" ", "  ").upper()
    evaluation[7]["question"] = f"Please: {samples[160]['prompt']} Thank you!"
    results = audited(samples, evaluation)
    assert [(hit.row, hit.training, hit.exact) for hit in results.prompts.overlap] == [(3, 80, True), (7, 160, False)]
    (finding,) = results.findings
    assert (finding.name, finding.severity) == ("contamination", "error")
    assert "2 of 50 evaluation prompts are in the training set: 1 whole, 1 by 8 to 13 words" in finding.summary


def test_a_reward_that_is_turned_round_within_each_group_is_found(audited):
    """Over all samples it rises with the label, as groups with more right answers are paid more."""
    samples = made.clean()
    for sample in samples:
        group = [other["success"] for other in samples if other["group"] == sample["group"]]
        sample["reward"] = 10 * sum(group) / len(group) - sample["success"]
    (finding,) = [it for it in audited(samples).findings if it.name == "reward-sign-confusion"]
    assert finding.summary.startswith("of two answers the better one has more reward in 0%")


def test_missing_columns_are_said_and_stop_nothing(audited):
    results = audited([{"reward": float(i % 7)} for i in range(100)])
    assert results.findings == []
    assert set(results.blind) >= {"labels", "length", "refusal", "format", "judge", "dead components"}
    assert results.blind["labels"] == "no success, correct, verifier or human"
    with pytest.raises(SourceError, match=r"no reward: its records have score; expected a number under `reward`"):
        audited([{"score": 1}])


def test_a_part_that_was_not_asked_everywhere_is_normal(audited):
    samples = made.clean()
    for sample in samples:
        sample["components"]["safety"] = sample["components"]["safety"] or float("nan")
    results = audited(samples)
    (safety,) = (part for part in results.components if part.name == "safety")
    assert (results.notes, safety.n) == ((), sum(sample["components"]["safety"] > 0 for sample in samples))


def test_lines_and_values_that_cannot_be_read_are_counted(audited):
    samples = made.clean()
    samples[5]["reward"], samples[6]["reward"], samples[7]["calls"] = "high", float("nan"), "none"
    samples[8]["calls"] = [{"name": "search", "arguments": '{"q": '}, {"arguments": {}}]
    results = audited([*samples[:100], '{"reward": ', "[1]", *samples[100:]])
    assert results.samples.n == made.N
    notes = " ".join(results.notes)
    for output in ("left out: 2, first", "samples.jsonl:101", "values of reward that are no numbers, left out: 1",
                 "values of calls that are no numbers, left out: 2"):  # fmt: skip
        assert output in notes


def test_an_empty_file_and_one_that_is_not_there_are_refused(audited, tmp_path):
    with pytest.raises(SourceError, match="no sample in it"):
        audited([])
    with pytest.raises(SourceError, match="No such file"):
        audit(tmp_path / "none.jsonl")


def test_samples_with_steps_are_judged_by_the_rules(audited):
    samples = [{**item, "step": step, "group": item["group"]} for step in range(2) for item in made.clean()[:64]]
    results = audited(samples)
    assert results.prompts.different == 16
    assert results.summary.steps == 2


def test_a_megabyte_and_binary_in_a_text(audited):
    samples = made.clean()
    samples[0]["completion"] = "go on \0\x1b[31m" * 100_000
    results = audited(samples)
    assert "\x1b" not in page(results)


def test_parquet_is_read_as_json_lines_are(audited, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    samples = made.clean()
    pq.write_table(pa.Table.from_pylist(samples), tmp_path / "samples.parquet")
    assert audit(tmp_path / "samples.parquet").to_json() | {"source": ""} == audited(samples).to_json() | {"source": ""}
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(SourceError, match="cannot be read"):
        audit(tmp_path / "broken.parquet")


def test_the_command_says_it_on_the_screen_as_json_and_as_a_page(audited, tmp_path):
    samples, evaluation = made.clean(), made.evaluation()
    made.length(samples)
    samples[0]["completion"] = "<script>alert(1)</script>"
    evaluation[0]["question"] = samples[0]["prompt"]
    command = ["audit", str(audited.write("s.jsonl", samples)), "--eval", str(audited.write("e.jsonl", evaluation))]
    html = tmp_path / "audit.html"
    result = CliRunner().invoke(app, [*command, "--html", str(html)], env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    for output in ("512 samples of 64 prompts: 2 found", "Long answers are paid for their length (REW011)", "search"):
        assert output in result.stdout
    text = html.read_text()
    assert "<script>" not in text
    assert text.count('class="bars"') == 4, "the reward and its three parts"
    results = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert [item["rule"] for item in results["findings"]] == [None, "REW011"]
    assert {item["kind"] for item in results["reading"]} >= {"highest", "lowest", "random"}
    refused = CliRunner().invoke(app, ["audit", str(tmp_path / "none.jsonl")])
    assert (refused.exit_code, len(refused.stderr.splitlines())) == (2, 1)
    refused = CliRunner().invoke(app, [*command, "--html", str(tmp_path / "none" / "x.html")])
    assert refused.exit_code == 2


def preferences(n=300, *, pays_length, tells, seed=0):
    """Pairs as a reward model has scored them; of two in three the chosen answer is the longer one."""
    rng = np.random.default_rng(seed)
    pairs = []
    for i in range(n):
        long, short = (
            " ".join(map(str, rng.integers(0, 999, rng.integers(*source)))) for source in ((40, 60), (10, 30))
        )
        chosen, rejected = (long, short) if i % 3 else (short, long)
        scores = rng.normal(0, 1, 2) + [tells, 0] + pays_length * np.array([len(chosen), len(rejected)])
        pair = {"prompt": f"question {i}", "chosen": chosen, "rejected": rejected}
        pairs.append(pair | {"chosen_score": scores[0], "rejected_score": scores[1]})
    return pairs


def test_a_reward_model_is_judged_on_pairs_with_lengths_balanced(audited):
    good = audited(preferences(pays_length=0.0, tells=2.0))
    assert (good.findings, good.label, good.samples.n) == ([], "success", 600)
    assert good.pairs["all"].low > 0.85
    counts = audited(preferences(pays_length=0.1, tells=0.5))
    assert counts.pairs["all"].value == pytest.approx(2 / 3, abs=0.05)  # as often as the longer answer is chosen
    assert counts.pairs["balanced"].value == pytest.approx(0.5, abs=0.05)
    assert {finding.name for finding in counts.findings} == {"length-inflation"}
    blind = audited(preferences(pays_length=0.0, tells=0.0))
    assert "uncorrelated-proxy" in {finding.name for finding in blind.findings}
    assert set(counts.to_json()["pairs"]) == {"all", "balanced", "longer", "shorter"}
