"""The launcher of docs/guards.md, with a real training of TRL that a guard stops."""

import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

LAUNCHED = Path(__file__).with_name("launched.py")


@pytest.mark.filterwarnings("ignore")  # of TRL and transformers, about settings of theirs
def test_a_training_that_a_guard_stopped_is_resumed_from_the_verified_checkpoint(monkeypatch):
    made = runpy.run_path(str(LAUNCHED))
    hashes, values = {}, made["train"].__globals__

    class Kept(made["Begun"]):
        def on_save(self, args, state, control, *, model, **_):
            hashes.setdefault(state.global_step, values["hashed"](model.state_dict()))

    monkeypatch.setitem(values, "Begun", Kept)
    starts, reward = made["launched"](0)
    (first, _, stopped), (resume, begun, end) = starts
    assert first is None
    assert stopped < made["STEPS"] == end
    assert begun.step == resume.step < stopped
    assert begun.weights == hashes[resume.step]
    assert reward > 0.8
