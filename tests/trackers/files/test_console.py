import math
from dataclasses import replace

import pytest

from tracker_diag import diagnose
from tracker_diag.errors import SourceError
from tracker_diag.trackers.files.console import read_console


def run_of(tmp_path, text):
    file = tmp_path / "train.log"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_console(file, "it")


VERL = (
    "2026-01-01 10:00:00,000 INFO worker.py:1 -- Started a local Ray instance.\n"
    "\x1b[36m(TaskRunner pid=71)\x1b[0m {'actor_rollout_ref': {'actor': {'clip_ratio': 0.2, 'loss': 1.0},\n"
    "\x1b[36m(TaskRunner pid=71)\x1b[0m step:0 - val-core/openai/gsm8k/reward/mean@1:0.25\n"
    "Training Progress:   0%|          | 0/105 [00:00<?, ?it/s]\r"
    "\x1b[36m(TaskRunner pid=71)\x1b[0m step:1 - actor/entropy:0.4 - actor/kl_loss:1e-05 - actor/pg_loss:-0.5"
    " - perf/mfu:np.float64(0.1) - critic/rewards/min:nan - actor/grad_norm:inf"
    "\x1b[32m [repeated 2x across cluster]\x1b[0m\n"
    "(WorkerDict pid=9) saved step: 1\n"
    "(TaskRunner pid=71) step:2 - actor/entropy:np.float32(0.3) - actor/kl_loss:tensor(0.02) - note:warm\n"
)  # fmt: skip


def test_verl(tmp_path):
    run = run_of(tmp_path, VERL)
    assert repr(run.rows) == repr(
        {
            0: {"val-core/openai/gsm8k/reward/mean@1": 0.25},
            1: {
                "actor/entropy": 0.4, "actor/kl_loss": 1e-05, "actor/pg_loss": -0.5, "perf/mfu": 0.1,
                "critic/rewards/min": math.nan, "actor/grad_norm": math.inf,
            },
            2: {"actor/entropy": 0.3, "actor/kl_loss": 0.02},
        }
    )  # fmt: skip
    assert run.notes == ()


def test_verl_that_breaks_off_in_a_number(tmp_path):
    run = run_of(tmp_path, VERL + "step:3 - actor/entropy:0.25 - actor/kl_loss:0.0")
    assert run.rows[3] == {"actor/entropy": 0.25}
    assert run.notes == ("the last line, 7, breaks off; its last number was left out",)


def test_verl_that_rounds(tmp_path):
    run = run_of(tmp_path, "step:1 - actor/kl_loss:0.000 - actor/lr:0.000 - critic/score/mean:0.508\n" * 2)
    assert run.rows == {1: {"actor/kl_loss": 0.0, "actor/lr": 0.0, "critic/score/mean": 0.508}}
    assert run.notes == ("the log rounds to three decimals: what is small, as a learning rate or a KL, reads as 0",)
    assert run.quantum == 0.001


@pytest.mark.slow
def test_a_printed_zero_is_no_zero(tmp_path):
    """A policy that learns, with an entropy, a KL and a learning rate that three decimals cannot show."""
    rows = "step:{} - actor/entropy:0.000 - actor/ppo_kl:0.000 - actor/lr:0.000 - actor/grad_norm:2.06{}\n"
    run = run_of(tmp_path, "".join(rows.format(step, step % 10) for step in range(1, 61)))
    summary = diagnose(run).summary
    assert not [item for item in summary.findings if item.rule.id == "EXP007"]
    (why,) = summary.blind["EXP007"]
    assert "in steps of 0.001, too coarse to tell" in str(why)
    exact = diagnose(replace(run, quantum=0.0)).summary
    assert exact.first_break.rule.id == "EXP007"


def trl(steps, every, *, bar=True, text=str):
    """What TRL prints with its progress bar; transformers 5 prints the numbers as strings."""
    out = "Map: 100%|##########| 7473/7473 [00:01<00:00, 6000 examples/s]\n{'temperature': 1.0, 'top_p': 0.9}\n"
    for step in range(1, steps + 1):
        if bar:
            out += f"\r{step:3d}%|#         | {step}/{steps} [00:10<10:00,  2.00s/it]"
        if step % every == 0:
            out += (
                f"\r{{'loss': {text(0.5)}, 'grad_norm': {text(0.0)}, 'reward': {text(step)}, 'epoch': {text(0.1)}}}\n"
            )
        if step % 40 == 0:
            out += "\r 50%|#####     | 1/2 [00:00<00:00]\r100%|##########| 2/2 [00:00<00:00]"
            out += f"{{'eval_loss': {text(0.7)}, 'epoch': {text(0.1)}}}\n"
    return out + "{'train_runtime': 12.5, 'train_loss': 0.1, 'epoch': 1.0}\n"


@pytest.mark.parametrize("text", [str, lambda value: f"'{value}'", lambda value: f"np.float64({value})"])
def test_trl_counts_its_steps_by_the_progress_bar(tmp_path, text):
    run = run_of(tmp_path, trl(100, 10, text=text))
    assert list(run.rows) == list(range(10, 101, 10))
    assert run.rows[30] == {"loss": 0.5, "grad_norm": 0.0, "reward": 30.0, "epoch": 0.1}
    assert run.rows[40]["eval_loss"] == 0.7
    assert run.rows[100]["train_runtime"] == 12.5
    assert "a row every 10 steps, as the progress bar shows" in run.notes[0]


def test_trl_without_a_bar(tmp_path):
    run = run_of(tmp_path, trl(50, 10, bar=False))
    assert list(run.rows) == [1, 2, 3, 4, 5]
    assert "they were counted, a step a row" in run.notes[0]


def test_rows_that_say_their_step_nan_and_a_row_that_breaks_off(tmp_path):
    text = "{'loss': nan, 'step': 5}\n{'loss': inf, 'global_step': 7} {'loss': 1.0, 'step': 8}\n{'loss': 0.1, 'rew"
    run = run_of(tmp_path, text)
    assert repr(run.rows) == "{5: {'loss': nan}, 7: {'loss': inf}, 8: {'loss': 1.0}}"
    assert run.notes == ("rows that break off, left out: 1, first line 3",)


@pytest.mark.parametrize(
    "text",
    [
        "config dump\nNotImplementedError: reward\n",
        b"\xff\xfe\x00garbage\n",
        "{'temperature': 1.0}\nstep: 12 is here\nstep:12 - done\n",
    ],
)
def test_a_log_without_a_step_says_so(tmp_path, text):
    with pytest.raises(SourceError, match=r"no metrics in \d+ lines, expected steps of verl"):
        run_of(tmp_path, text)


def dictionaries(*epochs):
    return "".join(f"{{'loss': {0.1 + at}, 'reward': 0.5, 'epoch': {epoch}}}\n" for at, epoch in enumerate(epochs))


@pytest.mark.parametrize(
    "warning",
    [
        "Tried to log to step 5 that is less than the current step 10. Steps must be monotonically increasing, so ...",
        "Step must only increase in log calls.  Step 5 < 10; dropping {'loss': 9.0}.",
        "(User provided step: 5 is less than current step: 10. Dropping entry: {'loss': 9.0, '_timestamp': 1.5}).",
    ],
)
def test_rows_that_wandb_dropped_are_counted_and_not_read(tmp_path, warning):
    warned = f"\x1b[34m\x1b[1mwandb\x1b[0m: \x1b[33mWARNING\x1b[0m {warning}\n"
    run = run_of(tmp_path, dictionaries(0.1, 0.2) + warned + dictionaries(0.3) + warned)
    assert len(run.rows) == 3
    (caveat,) = run.caveats
    assert caveat.startswith(
        "W&B dropped 2 rows, by its own warnings in this log, first: step 5 came after step 10, line 3; "
    )


def test_rows_that_wandb_dropped_on_several_ranks_of_verl(tmp_path):
    wording = "Tried to log to step 1 that is less than the current step 2. [repeated 3x across cluster]"
    warned = f"(pid=7) wandb: WARNING {wording}\n"
    assert run_of(tmp_path, VERL + warned).caveats[0].startswith("W&B dropped 3 rows, ")


def test_trainings_that_follow_each_other_in_one_log(tmp_path):
    run = run_of(tmp_path, dictionaries(0.5, 1.0, 0.5, 1.0, 0.5))
    assert list(run.rows) == [1, 2, 3, 4, 5]
    assert run.caveats == ("the epoch falls at row 3, 5: 3 phases, all rows are kept and counted on",)


def test_verl_that_begins_again(tmp_path):
    lines = [f"step:{step} - actor/entropy:{0.5 + 0.001 * row}\n" for row, step in enumerate([*range(20), *range(20)])]
    run = run_of(tmp_path, "".join(lines))
    assert len(run.rows) == 40
    assert run.caveats[0].startswith("the step counter begins again: 2 phases")


def test_a_row_that_a_terminal_has_broken_into_lines_is_one(tmp_path):
    rows = "".join(f"{{'loss': 0.5, 'completions/mean_length': {n}.0, 'reward': 0.25}}\n" for n in range(10, 13))
    wide = "\n".join(line[at : at + 20] for line in rows.splitlines() for at in range(0, len(line), 20)) + "\n"
    assert run_of(tmp_path, wide) == run_of(tmp_path, rows)
    broken = run_of(tmp_path, wide.replace("\n5}", "", 1))
    assert [row["completions/mean_length"] for row in broken.rows.values()] == [11.0, 12.0]
    assert "rows that break off, left out: 1, first line 1" in broken.notes
