"""TRL for real: training runs on the CPU, with a model that calls a tool. Each scenario of train.py runs once."""

import contextlib
import json
import multiprocessing
import os
import signal
import socket
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from tracker_diag.guards.control import kl_coefficient
from tracker_diag.metrics.aliases import key_map, why_not
from tracker_diag.stats.tails import NO_SIGNAL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1000)]

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
VERSIONS = sorted(path for path in (ROOT / "build" / "trl").glob("*") if (path / "trl").is_dir())
"""Older releases, which `make` puts there."""

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "TOKENIZERS_PARALLELISM": "false",
}  # fmt: skip
"""Of every run, beside what the test has."""

TIMES = ("step_time", "train_runtime", "train_samples_per_second", "train_steps_per_second", "profiling/")
"""What no two runs have in common."""


class Zygote:
    """A process that has imported what takes long, and that forks one for each run of a scenario: zygote.py."""

    def __init__(self, folder):
        self._log = folder / "log"
        (self._any_release, first), (self._installed, second) = multiprocessing.Pipe(), multiprocessing.Pipe()
        paths = os.pathsep.join(map(str, (ROOT / "integrations", ROOT)))
        with self._log.open("w") as log, first, second:
            theirs = [first.fileno(), second.fileno()]
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", HERE / "zygote.py", *map(str, theirs)],
                env=os.environ | ENVIRONMENT | {"PYTHONPATH": paths},
                stdout=log,
                stderr=log,
                pass_fds=theirs,
                start_new_session=True,
            )

    def run(self, scenario, folder, *, release=None, ranks=({},)):
        """What came out of `scenario` on each of `ranks`, told apart by variables of their environment."""
        asked = self._any_release if release else self._installed
        outputs = [folder / f"output-{rank}" for rank in range(len(ranks))]
        given = {"scenario": scenario, "folder": folder, "path": [str(release)] if release else []}
        runs = [
            given | {"output": output, "environment": os.environ | ENVIRONMENT | rank}
            for output, rank in zip(outputs, ranks, strict=True)
        ]
        try:
            asked.send(runs)
            codes = asked.recv() if asked.poll(900) else self.stop()
        except (EOFError, OSError):  # it is no more
            codes = None
        said = [file.read_text()[-4000:] for file in (self._log, *outputs) if file.exists()]
        assert codes == [0] * len(outputs), "\n".join(said)
        return [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(len(ranks))]

    def stop(self):
        """And what it has forked."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@pytest.fixture(scope="module")
def zygote(tmp_path_factory):
    one = Zygote(tmp_path_factory.mktemp("zygote"))
    yield one
    one.stop()


@pytest.fixture(scope="module")
def result(tmp_path_factory, zygote, migrated_mlflow):
    """What came out of a scenario, which runs when it is first asked for."""
    known = {}

    def get(scenario):
        if scenario not in known:
            (known[scenario],) = zygote.run(scenario, tmp_path_factory.mktemp(scenario))
        return known[scenario]

    return get


def counts(run, pair):
    """Tokens of each slice of `pair`, as the diagnostics have counted them."""
    return {row["slice"]: row["count"] for row in run["slices"] if row["pair"] == pair}


def tokens_with_signal(runs, pair, kind="tokens"):
    """Tokens of the steps in which a ratio of `pair` is not 1 on some rank, as the trainers have counted them.

    The first update has the reference's own weights, and the first of each generation those that have sampled it.
    """
    calls = [call for run in runs for call in run["calls"]]
    steps = {call["step"] for call in calls if call[pair] > NO_SIGNAL}
    assert steps, f"no step has a signal of {pair}"
    return sum(call[kind] for call in calls if call["step"] in steps)


def is_sound(run):
    broken = {kind: n for kind, n in run["health"].items() if n and kind not in ("masked_sequences", "unscored_tokens")}
    assert not broken, run["failures"]


def test_a_tool_that_widens_raises_the_finding_on_post_tool_in_mlflow(result):
    run = result("widening")["widens"]
    is_sound(run)
    fired = {one["rule"]: one for one in run["findings"] if one["fired"] is not None}
    assert fired["POL002"]["slice"] == "post_tool"
    assert fired["POL002"]["onset"] >= 75  # that is when it begins to widen
    told = run["mlflow"]
    # Drift from the reference is a note, until something else does harm: the reward of so small a run may never rise.
    severities = {one["severity"] for one in run["findings"] if one["fired"] is not None}
    if severities == {"info"}:
        assert told["tags"]["diag.alert.state"] == "ok"
    else:
        assert told["tags"]["diag.alert.state"] in ("warn", "error")
        assert told["tags"]["diag.first_break"].startswith(("POL002 on post_tool", "POL015", "OUT003"))
    assert {"diag/findings.json", "diag/report.html"} <= set(told["artifacts"])
    assert told["metrics"]["diag/rule/POL002"][-1][1] == 2  # firing
    for pair in ("policy", "reference"):
        post, text = (dict(told["metrics"][f"diag/{pair}/{name}/p95"]) for name in ("post_tool", "text_only"))
        assert statistics.median(post[step] for step in post if step > 105) > 10 * max(
            statistics.median(values[step] for step in values if a <= step < b)
            for values, a, b in ((post, 0, 75), (text, 0, 75), (text, 105, 121))
        )
    assert told["status"] == "FINISHED"  # the trainer's own doing


def test_a_tool_that_stays_as_it_is_raises_nothing_there(result):
    run = result("widening")["stays"]
    is_sound(run)
    assert not [one for one in run["findings"] if one["fired"] is not None and one["slice"] == "post_tool"]
    assert len(run["mlflow"]["metrics"]["diag/policy/post_tool/p95"]) > 60  # and it has been looked at


@pytest.mark.nightly
def test_the_trainers_own_rows_are_the_same_with_and_without(result):
    plain, ours = (result("user_rows")[name] for name in ("plain", "with_us"))
    is_sound(ours)

    def untimed(row):
        return {key: value for key, value in row.items() if not key.startswith(TIMES)}

    assert [untimed(row) for row in plain["own"]] == [untimed(row) for row in ours["own"]]
    assert plain["weights"] == ours["weights"]
    before, after = plain["mlflow"]["metrics"], ours["mlflow"]["metrics"]
    assert {key for key in after if not key.startswith("diag/")} == set(before)
    for key in before:
        rows, same = ([tuple(row) for row in metrics[key]] for metrics in (after, before))
        if key.startswith(TIMES):
            rows, same = ([step for step, _ in values] for values in (rows, same))
        assert set(rows) == set(same)  # of two equal rows within a millisecond MLflow keeps one
    assert [key for key in after if key.startswith("diag/reference/post_tool/")]


def test_with_the_usual_settings_it_says_that_there_is_no_signal_and_how_to_get_one(result):
    run = result("settings")["defaults"]
    is_sound(run)
    (said,) = run["said"]
    assert said.startswith("no signal")
    assert all(word in said for word in ("num_iterations", "beta", "use_vllm"))
    assert "no signal" in run["blind"]["POL001"]
    about_ratios = {"POL001", "POL002", "POL003", "POL004", "POL005", "POL006"}
    assert about_ratios <= set(run["blind"])
    assert not about_ratios & set(run["healthy"])


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["no_tools", "accumulated", "spread", "sequence", "peft", "evaluated"])
def test_every_token_of_every_micro_batch_is_counted_in_its_slice(result, name):
    run = result("settings")[name]
    is_sound(run)
    assert run["said"] == []
    for pair in ("reference", "policy"):
        counted = counts(run, pair)
        assert counted["all"] == tokens_with_signal([run], pair)
        assert counted["post_tool"] == tokens_with_signal([run], pair, "post")
    assert (counts(run, "policy")["post_tool"] > 0) == (name != "no_tools")


@pytest.mark.nightly
def test_the_algorithm_is_told_by_the_level_of_the_ratio(result):
    runs = result("settings")
    assert runs["sequence"]["algorithm"] == "gspo"
    assert runs["peft"]["algorithm"] == "grpo"


def test_completions_that_are_masked_are_counted(result):
    run = result("settings")["truncated"]
    is_sound(run)
    rows = sum(call["empty"] for call in run["calls"])
    assert rows == 2 * run["health"]["masked_sequences"] > 0  # each generation is trained on twice


def test_a_hook_that_does_not_fit_is_told_once_and_training_goes_on(result):
    run = result("settings")["changed"]
    is_sound(run)
    (said,) = run["said"]
    assert "_compute_loss" in said
    assert "takes no inputs" in said
    assert run["slices"] == []
    assert [row["step"] for row in run["own"] if "loss" in row] == [1, 2, 3, 4]
    assert run["metrics"]["4"]["loss"] == run["own"][3]["loss"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["old_kept", "on_policy"])
def test_the_samplers_ratio_of_a_rollout_function(result, name):
    run = result("rollout")[name]
    is_sound(run)
    counted, found = run["counted"], counts(run, "mismatch")
    assert run["health"]["unscored_tokens"] == counted["unscored"]
    assert found["all"] == counted["model"] - counted["unscored"]
    assert found["post_tool"] == counted["post"]
    tail = next(row["p95"] for row in run["slices"] if row["pair"] == "mismatch" and row["slice"] == "all")
    if tail is not None:  # with enough tokens: 0.02 was put in
        assert 0.03 < tail < 0.05


def test_a_resumed_run_goes_on_with_its_baseline(result):
    first, second, without = (result("resumed")[name] for name in ("first", "second", "without"))
    assert first["failures"] == second["failures"] == without["failures"] == []
    assert (first["steps"], second["steps"], without["steps"]) == ([1, 6, 6], [1, 12, 12], [7, 12, 6])
    assert second["calls"][0]["step"] == 6
    tokens = {call["step"] + 1: call["tokens"] for run in (first, second) for call in run["calls"]}
    signal = {run["steps"][0]: run["with_signal"] for run in (first, without)}
    assert second["with_signal"] == signal[1] + signal[7]
    begins = 13 - second["with_signal"] + 2  # the first updates leave no trace; then two steps of burn-in
    assert second["reference_steps"] >= 8
    assert 0 < first["reference_steps"] < second["reference_steps"]
    period = range(begins, begins + second["reference_steps"])
    assert second["reference_tokens"] == sum(tokens[step] for step in period)
    assert (second["in_window"], without["in_window"]) == (8, without["with_signal"])
    assert any("begin anew" in one for one in without["said"])
    assert not any("begin anew" in one for one in second["said"])


@pytest.mark.nightly
def test_other_trainers_are_seen_by_what_they_log_and_train_as_without_us(result):
    runs = result("others")
    known = {"sft": "sft", "dpo": "dpo", "kto": "dpo", "orpo": "dpo", "rloo": "grpo", "online_dpo": "dpo"}
    assert {name: runs[name]["algorithm"] for name in known} == known
    assert [name for name, run in runs.items() if not run["same"]] == []
    for name, run in runs.items():
        is_sound(run)
        assert (run["slices"] == []) == (name != "gmpo")
        names = {key for row in run["metrics"].values() for key in row}
        assert [key for key in key_map(names, "TRL").unmapped if not why_not(key, "TRL")] == []
        assert {"loss", "grad_norm", "train_runtime"} <= set(run["metrics"]["4"])


@pytest.mark.nightly
def test_swapped_labels_of_a_reward_model_are_named_and_a_drift_of_its_mean_score_is_not(result):
    runs = result("reward_model")
    for run in runs.values():
        is_sound(run)
        assert run["algorithm"] == "dpo"
    loud = {name: {one["rule"] for one in run["findings"] if one["severity"] != "info" and one["fired"] is not None}
            for name, run in runs.items()}  # fmt: skip
    assert not loud["healthy"]
    assert "REW004" in loud["swapped"]


PLANTED = {"tool": ("ENV001", "tool:lookup"), "zero": ("REW001", "all"), "length": ("REW010", "all")}
"""The rule that names each planted fault, and the slice."""


@pytest.mark.nightly
@pytest.mark.matrix("trl", "run for real")
@pytest.mark.parametrize("fault", PLANTED)
def test_a_fault_in_tool_or_reward_is_named_and_the_healthy_twin_is_not(result, fault, record_property):
    def fired(run):
        return {(one["rule"], one["slice"]) for one in run["findings"] if one["fired"] is not None}

    run, healthy = (result("faults")[name] for name in (fault, "healthy"))
    is_sound(run)
    is_sound(healthy)
    rule, on = PLANTED[fault]
    assert (rule, on) in fired(run)
    assert rule not in {name for name, _ in fired(healthy)}
    assert rule not in healthy["blind"]
    (folder,) = run["sources"]  # with report_to=[] there is no tracker
    rows = [json.loads(line) for line in (Path(folder) / "findings.jsonl").read_text().splitlines()]
    assert (rule, on, "firing") in {(row.get("rule"), row.get("slice"), row.get("state")) for row in rows}
    record_property("alerts", ["jsonl"])


@pytest.mark.nightly
def test_samples_are_what_the_trainer_logs_itself(result):
    run = result("faults")["tool"]
    calls = 0
    for row in run["own"][:-1]:
        ours = run["scalars"][str(row["step"])]
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


def test_an_environments_answers_are_tool_results(tmp_path, zygote):
    (run,) = zygote.run("environment", tmp_path)
    is_sound(run)
    assert run["said"] == []
    assert run["met"]["asked"] > 0
    assert counts(run, "reference")["post_tool"] == tokens_with_signal([run], "reference", "post") > 0
    assert counts(run, "reference")["all"] == tokens_with_signal([run], "reference")
    assert "rewards/Desk/mean" in run["metrics"]["1"]


def test_a_trainer_that_trains_again_has_a_second_run(tmp_path, zygote):
    (run,) = zygote.run("again", tmp_path)
    assert not run["same"]
    assert run["steps"] == [4, 4]
    assert run["calls"][0] == run["calls"][1] > 0
    assert run["slices"][0] == run["slices"][1]
    assert ["policy", "post_tool"] in run["slices"][1]
    assert not any(count for health in run["health"] for count in health.values())


@pytest.mark.nightly
def test_ppo_is_seen_by_what_it_logs_and_told_of_in_its_tracker(tmp_path, zygote, migrated_mlflow):
    (release,) = (path for path in VERSIONS if path.name == "1.9.0")
    (run,) = zygote.run("ppo", tmp_path, release=release)
    is_sound(run)
    assert run["algorithm"] == "ppo"
    assert {"objective/kl", "policy/approxkl_avg", "loss/value_avg"} <= set(run["metrics"]["3"])
    assert "no series response_length" in run["blind"].values()  # so this is how it would be said
    assert not {f"no series {name}" for name in ("kl", "entropy", "value_loss")} & set(run["blind"].values())
    assert run["mlflow"]["tags"]["diag.alert.state"] in {"ok", "warn", "error"}
    assert "diag/findings.json" in run["mlflow"]["artifacts"]


def test_guards_raise_the_coefficient_save_and_say_what_is_out_of_reach(tmp_path, zygote):
    (done,) = zygote.run("guarded", tmp_path)
    assert done["failures"] == []
    expected = [0.02, 0.02, 0.05]
    for row in done["rows"][2:5]:
        expected.append(kl_coefficient(expected[-1], row["kl"], 1e-9, (0.05, 0.4)))
    assert done["betas"] == expected
    assert max(expected) == 0.1
    assert done["after"] == 0.02
    assert done["saved"] == [2]
    assert len({row["learning_rate"] for row in done["rows"]}) == 1  # as the trainer itself has it
    told = [event for step, event in done["events"] if step == 2]
    assert told[0].startswith("guard kl_cap: coefficient 0.05; for ACM001")
    assert any("guard refresh_reference: not done, not within reach of this trainer" in event for event in told)


@pytest.fixture
def two_ranks():
    """Variables of each of two processes that find each other, at a port that no other server of the test has."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        free_port = server.getsockname()[1]
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port)}
    return [world | {"RANK": rank, "LOCAL_RANK": rank} for rank in ("0", "1")]


def test_every_process_does_what_the_first_one_decides_though_it_found_nothing_itself(tmp_path, zygote, two_ranks):
    first, second = zygote.run("guarded_ranks", tmp_path, ranks=two_ranks)
    assert first["failures"] == second["failures"] == []
    assert (first["found"], second["found"]) == (1, 0)
    assert first["asked"] == second["asked"]
    # Asked after each row, of which the last sums the training up; what is decided holds from the next step on.
    decided = [["update", 0.25], ["update", 1.0]]
    assert [one[:2] for one in first["asked"]] == [[None, 1.0], *decided, *[[None, 1.0]] * 4]
    assert first["weights"] == second["weights"]
    weights = first["weights"]
    assert [weights[str(step)] == weights[str(step - 1)] for step in range(2, 7)] == [False, True, True, False, False]


def test_several_processes_are_counted_together(tmp_path, zygote, two_ranks):
    first, second = zygote.run("ranks", tmp_path, ranks=two_ranks)
    for run in (first, second):
        is_sound(run)
    assert counts(first, "reference") == counts(second, "reference")
    assert counts(first, "reference")["all"] == tokens_with_signal((first, second), "reference")
    assert first["calls"] != second["calls"]


@pytest.mark.nightly
def test_there_are_older_releases_to_test_against():
    assert len(VERSIONS) >= 3, "none in build/trl: run the tests through make, which downloads them"


OVERPAID = """\
{id: ACM001, title: Overpaid, summary: "{high.value:.3g}", when: [high],
 signals: {high: {kind: threshold, series: {metric: reward}, above: 10.0}}}
"""


@pytest.mark.matrix("trl", "run for real")
@pytest.mark.parametrize(
    "path",
    [pytest.param(None, id="installed"), *(pytest.param(p, id=p.name, marks=pytest.mark.nightly) for p in VERSIONS)],
)
def test_the_private_functions_are_as_we_know_them_and_every_tracker_is_told_in(
    path, tmp_path, zygote, new_mlflow_store, alerted
):
    places = {"MLFLOW_TRACKING_URI": new_mlflow_store(tmp_path), "TENSORBOARD_LOGGING_DIR": str(tmp_path / "curves")}
    (tmp_path / "ACM001.yaml").write_text(OVERPAID)
    places |= {"TRACKER_DIAG_RULES": str(tmp_path), "PROJECT": alerted.project}
    (run,) = zygote.run("version", tmp_path, release=path, ranks=[places])
    assert path is None or run["file"].startswith(str(path))
    assert path is None or run["version"] == path.name
    trackers = {"mlflow", "tensorboard", "trackio", "wandb"}
    assert alerted("ACM001", release=run["version"]) == {*trackers, "jsonl", "webhook"}
    assert len(run["sources"]) == len(trackers)  # so the files are those of the run without
    assert [Path(file).exists() for file in run["untracked"]] == [True]
    assert run["takes"]["_compute_loss"][:3] == ["self", "model", "inputs"]
    assert run["takes"]["_get_per_token_logps_and_entropies"][:2] == ["self", "model"]
    assert run["values"] in (2, 3)  # what the latter returns
    keys = {"completion_ids", "completion_mask", "advantages", "old_per_token_logps", "ref_per_token_logps"}
    for call in run["calls"]:
        assert keys | ({"tool_mask"} if run["tools"] else set()) <= set(call["keys"])
    is_sound(run)
    assert run["said"] == []  # Trackio has printed it
    for pair in ("reference", "policy"):
        assert counts(run, pair)["all"] == tokens_with_signal([run], pair)
    assert (counts(run, "policy")["post_tool"] > 0) == run["tools"]
