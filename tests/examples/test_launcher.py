"""The launcher of docs/guards-frameworks.md, as docs/guards_trl.py measures it: TRL's training, which a guard stops."""

import hashlib
import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

STUDY = Path(__file__).parents[2] / "docs" / "guards_trl.py"


def hashed(model):
    """SHA-256 of all weights, by name."""
    total = hashlib.sha256()
    for _, weights in sorted(model.state_dict().items()):
        total.update(weights.contiguous().numpy().tobytes())
    return total.hexdigest()


@pytest.mark.filterwarnings("ignore")  # of TRL and transformers, about settings of theirs
def test_a_training_that_a_guard_stopped_is_resumed_from_the_verified_checkpoint(monkeypatch):
    study = runpy.run_path(str(STUDY))
    saved, begun, ended = {}, [], []

    class Kept(study["_Updates"]):
        def on_train_begin(self, args, state, control, *, model, **_):
            begun.append((state.global_step, hashed(model)))

        def on_save(self, args, state, control, *, model, **_):
            saved.setdefault(state.global_step, hashed(model))

        def on_train_end(self, args, state, control, **_):
            ended.append(state.global_step)

    monkeypatch.setitem(study["run"].__globals__, "_Updates", Kept)
    fault, _ = study["CASES"]["TRL, with a launcher"]
    made = study["run"](fault, study["GUARDS"]["rollback by a launcher"], 0)
    (first, _), (step, weights) = begun
    assert (first, ended[1]) == (0, study["STEPS"])
    assert 0 < step < ended[0] < study["STEPS"]
    assert weights == saved[step]
    assert made["reward"] > 0.8
