"""What gets worse is reported again, and differently from the first time, wherever a person reads it."""

import logging

import pytest

from tracker_diag import wrap
from tracker_diag.testing import example_batch
from tracker_diag.trackers.notify import NOTIFY

pytestmark = pytest.mark.nightly

FIRST = "Token probabilities shift after tool results (POL001 post_tool)"
WORSE = "Now also: Reward has lost what it had gained (POL001 post_tool)"
CHANGED = "Reported at step 96 as a warning (POL001). Now an error: Reward has"
SO_FAR = "Continue? No. "


def reward(step):
    """It rises, and is lost all at once after the tail has begun to grow."""
    return (min(step, 90) if step < 100 else 20) / 100 + 0.01 * (step % 3)


def test_in_wandb_at_a_webhook_and_in_the_log(wandb_offline, receive, monkeypatch, caplog):
    heard = receive()
    monkeypatch.setenv(NOTIFY, heard.url)
    run = wrap(wandb_offline.start())
    for step in range(150):
        run.diag.observe(**example_batch(step))
        run.log({"reward": reward(step)}, step=step)
    run.finish()
    messages = [record["alert"] for record in wandb_offline.records() if record["type"] == "alert"]
    assert [(item["level"], item["title"]) for item in messages] == [("WARN", FIRST), ("ERROR", WORSE)]
    assert [(item["level"], item["title"]) for item in heard.got] == [("warn", FIRST), ("error", WORSE)]
    logged = [item.message for item in caplog.records if item.levelno >= logging.WARNING]
    assert [text.splitlines()[1].strip() for text in logged] == [FIRST, WORSE]
    assert [text.partition(":")[0] for text in logged] == ["Watch", "Stop"]
    assert CHANGED in " ".join(logged[1].split())
    for text in (messages[1]["text"], heard.got[1]["text"]):
        assert CHANGED in text
        assert SO_FAR in text
