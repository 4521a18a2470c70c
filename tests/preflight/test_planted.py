"""Preflight finds every mistake that is planted, names it, and lets clean set-ups pass."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

import tracker_diag as td

made = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("mistakes.py"))))
clean, MISTAKES = made.clean.clean, made.MISTAKES


def failures(report):
    return {check.name for check in report.with_status("fail")}


def test_there_are_as_many_as_promised():
    assert len(MISTAKES) >= 20
    assert len(clean()) == 8


@pytest.mark.by_day("corridor", "GRPO in TRL", "tools and memory")
@pytest.mark.slow
@pytest.mark.parametrize("name", clean())
def test_a_clean_set_up_passes(name):
    report = td.preflight(**clean()[name])
    assert failures(report) == set(), str(report)
    assert report.exit_code == 0
    looked_for = {mistake.finds for mistake in MISTAKES.values() if mistake.base == name}
    assert looked_for <= {check.name for check in report.with_status("pass")}


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_found(name):
    mistake = MISTAKES[name]
    report = td.preflight(**clean()[mistake.base] | mistake.change)
    assert mistake.finds in failures(report), str(report)
    assert report.exit_code == 1
    assert all(check.do for check in report.with_status("fail"))
