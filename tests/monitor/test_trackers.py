"""What arrives in real trackers of the sequences behind a tail: the planted one, and ids and text only as asked."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest

import tracker_diag as td
from tracker_diag.testing import EXAMPLE_FAULT, example_batch

pytestmark = pytest.mark.nightly

SECRET = 4_242_424_242
WORD = "hunter2"
TEXT = 71
"""A token that the decoder knows: the far one."""
FORMS = (str(SECRET).encode(), struct.pack("<q", SECRET), struct.pack("<d", SECRET), WORD.encode())


def batch(step):
    """The example's batch, with one token far off in sequence 5 at position 17 once the tail grows."""
    given = example_batch(step)
    if step > EXAMPLE_FAULT:
        given["logprobs"][5, 17] = given["old_logprobs"][5, 17] - 6
    ids = np.full((64, 24), SECRET)
    ids[5, 17] = TEXT
    return given | {"tool": ["search" if i < 32 else "" for i in range(64)], "token_ids": ids}


def decode(ids):
    return "".join(f" {WORD}" if item == TEXT else " word" for item in ids)


def train(run, log):
    for step in range(100):
        run.diag.observe(**batch(step))
        log({"reward": 0.5}, step)
    run.diag.close()
    assert run.diag.failures == []


def written(*places):
    """All bytes of all files in `places`."""
    files = [file for place in places for file in (place, *place.rglob("*")) if file.is_file()]
    return b"".join(file.read_bytes() for file in files)


@pytest.fixture(params=["mlflow", "wandb", "tensorboard", "trackio"])
def tracker(request, tmp_path):
    """Trains with a tracker, wrapped with the options given; gives the table's rows, the report, and where all is."""
    if request.param == "mlflow":
        request.getfixturevalue("mlflow_store")
        import mlflow

        def of_mlflow(**options):
            with mlflow.start_run() as active:
                train(td.wrap(mlflow, **options), lambda metrics, step: mlflow.log_metrics(metrics, step=step))
            run_id = active.info.run_id
            load = f"runs:/{run_id}/diag/"
            table = json.loads(mlflow.artifacts.load_text(f"{load}worst_sequences.json"))
            assert len(mlflow.load_table("diag/worst_sequences.json", run_ids=[active.info.run_id])) == len(
                table["data"]
            )
            rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
            return rows, mlflow.artifacts.load_text(f"{load}report.html"), [tmp_path]

        return of_mlflow
    if request.param == "wandb":
        runs = request.getfixturevalue("wandb_offline")

        def of_wandb(**options):
            with td.wrap(runs.start(), **options) as run:
                train(run, lambda metrics, step: run.log(metrics, step=step))
            files = sorted(tmp_path.rglob("media/table/diag/worst_sequences*.json"))
            assert len(files) == 2  # at the alert, and at the end
            table = json.loads(files[-1].read_text())
            return [dict(zip(table["columns"], row, strict=True)) for row in table["data"]], None, [tmp_path]

        return of_wandb
    if request.param == "tensorboard":
        writer = request.getfixturevalue("tmp_path") / "runs"

        def of_tensorboard(**options):
            from torch.utils.tensorboard import SummaryWriter

            with td.wrap(SummaryWriter(writer), **options) as run:
                train(run, lambda metrics, step: run.add_scalar("reward", metrics["reward"], step))
            return None, None, [tmp_path]

        return of_tensorboard
    runs = request.getfixturevalue("trackio_runs")

    def of_trackio(**options):
        import trackio

        run = td.wrap(runs.start(), **options)
        train(run, lambda metrics, step: run.log(metrics, step=step))
        trackio.finish()
        result = [row["diag/worst_sequences"] for _, row in runs.rows() if "diag/worst_sequences" in row]
        return result[-1]["_value"], None, list(Path(trackio.utils.TRACKIO_DIR).rglob(f"*{runs.project}*"))

    return of_trackio


def test_the_planted_sequence_is_named_and_neither_ids_nor_text_are_anywhere(tracker, journals):
    rows, report, places = tracker()
    everything = written(*places, journals)
    assert b"worst_sequences" in everything
    assert not [form for form in FORMS if form in everything]
    if rows is not None:
        first = {name: rows[0][name] for name in ("pair", "slice", "tool", "sequence", "position", "moment")}
        assert first == {
            "pair": "policy", "slice": "post_tool", "tool": "search", "sequence": 5, "position": 17, "moment": "worst",
        }  # fmt: skip
        assert rows[0]["log_ratio"] == pytest.approx(-6)
        assert "«█»" in rows[0]["excerpt"]
    if report is not None:
        assert 'sequence 5</strong> <span class="faint">the worst step · after tool search · ' in report
        assert "largest log-ratio -6 at position 17 of 24" in report
        assert 'class="said"' not in report


def test_with_a_decoder_the_text_is_there_and_ids_are_not(tracker, journals):
    rows, report, places = tracker(decode=decode)
    everything = written(*places, journals)
    assert WORD.encode() in everything
    assert not [form for form in FORMS[:-1] if form in everything]
    if rows is not None:
        assert f"« {WORD}»" in rows[0]["excerpt"]
        assert "[ word word word word]" in rows[0]["excerpt"]
    if report is not None:
        assert f' largest" title="position 17: -6"> {WORD}</span>' in report
