"""A resume file: it is taken once, its checkpoint is read again, and its count outlasts a rollback."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tracker_diag.attach import resume
from tracker_diag.attach.resume import FILE, TAKEN, resume_from
from tracker_diag.errors import DiagError
from tracker_diag.guards.checkpoints import Register, of_state
from tracker_diag.guards.decision import Decision, Order


@pytest.fixture(params=["checkpoint-20/model.bin", "step=20.ckpt"])
def saved(request, tmp_path):
    """In a folder, or in a file as Lightning's."""
    file = tmp_path / request.param
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"weights")
    register = Register()
    register.register(file if file.parent == tmp_path else file.parent, 20, [])
    return of_state(register.state_dict()[0])


def leave(checkpoint, why):
    dry = Order("rollback", "", "that of a dry run", dry=True)
    resume.leave(Decision(rollback_to=checkpoint, orders=(dry, Order("rollback", "", why, dry=False))))


def test_it_is_taken_once(saved, tmp_path):
    assert resume_from(tmp_path) is None
    leave(saved, "guard rollback: to step 20")
    assert (again := resume_from(tmp_path)) is not None
    assert (again.path, again.step, again.why, again.times) == (saved.path, 20, "guard rollback: to step 20", 1)
    assert resume_from(tmp_path) is None


def test_training_is_rolled_back_so_often_and_no_more(saved, tmp_path):
    for _ in range(2):
        leave(saved, "why")
        assert resume_from(tmp_path)
    leave(saved, "why")
    with pytest.raises(DiagError, match="rolled back 3 times, expected at most 2"):
        resume_from(tmp_path)
    assert resume_from(tmp_path, most=3).times == 3


@pytest.mark.parametrize("text", ["", "[]", '{"times": null}'])
def test_a_count_that_cannot_be_read_is_one(saved, tmp_path, text):
    (tmp_path / TAKEN).write_text(text)
    leave(saved, "why")
    assert resume_from(tmp_path).times == 2


def test_a_checkpoint_that_is_gone_or_changed_is_refused(saved, tmp_path):
    leave(replace(saved, path=str(tmp_path / "gone")), "why")
    with pytest.raises(DiagError, match=r"gone.*expected the checkpoint of step 20 as it was saved"):
        resume_from(tmp_path)
    leave(saved, "why")
    (file,) = (file for file in (Path(saved.path), Path(saved.path, "model.bin")) if file.is_file())
    file.write_bytes(b"another")
    with pytest.raises(DiagError, match="expected the checkpoint of step 20 as it was saved") as error:
        resume_from(tmp_path)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("text", ["", "[]", json.dumps({"checkpoint": {}, "why": "", "times": 1})])
def test_a_file_that_no_guard_has_left_is_refused(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(DiagError, match="expected what a guard has left"):
        resume_from(tmp_path)
