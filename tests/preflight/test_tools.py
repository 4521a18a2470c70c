"""A tool under load: failures, waits, and what it is called with."""

import asyncio
import threading

import numpy as np
import pytest

import tracker_diag as td
from tracker_diag.preflight.tools import outputs_check, tool_checks


def tool_check(*given):
    return next(iter(tool_checks(*given)))


def test_a_tool_is_called_as_often_as_asked_and_as_many_at_once():
    seen, together = [], threading.Barrier(4)

    def tool(q):
        together.wait(30)  # breaks unless four are there at once
        seen.append(q)

    check = tool_check(tool, [1, 2], 16, 4, 60)
    assert check.status == "pass", check.reason
    assert sorted(seen) == [1] * 8 + [2] * 8
    assert check.values["calls"] == 16
    assert check.values["p50_seconds"] <= check.values["p95_seconds"] <= check.values["max_seconds"]


@pytest.mark.parametrize("given", [{"a": 1, "b": 2}, (1, 2)])
def test_arguments_may_be_named_or_not(given):
    got = []
    assert tool_check(lambda a, b: got.append((a, b)), [given], 3, 2, 30).status == "pass"
    assert got == [(1, 2)] * 3
    assert tool_check(lambda: got.append(None), [], 3, 2, 30).status == "pass"


def test_a_tool_may_be_asynchronous():
    async def tool(q):
        await asyncio.sleep(0)
        if q:
            raise TimeoutError("upstream")

    assert tool_check(tool, [0], 8, 4, 30).status == "pass"
    check = tool_check(tool, [0, 1], 8, 4, 30)
    assert check.status == "fail"
    assert "4 times it raised TimeoutError: upstream" in check.reason


def test_the_failure_that_comes_most_often_is_reported():
    def tool(q):
        raise ValueError("rate limit") if q < 3 else KeyError("x")

    check = tool_check(tool, range(4), 8, 2, 30)
    assert check.values["failure_rate"] == 1
    assert "6 times it raised ValueError: rate limit" in check.reason


def test_a_few_failures_are_borne():
    failing = iter([True] * 2)
    check = tool_check(lambda q: 1 / 0 if next(failing, False) else None, [1], 64, 1, 30)
    assert check.status == "pass"
    assert check.reason.startswith("2 of 64 calls failed")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float32("nan")])
def test_a_reward_that_is_no_number_is_a_failure(value):
    assert f"it gave {value}" in tool_check(lambda: value, [], 4, 2, 30).reason


def test_a_tool_that_hangs_is_left_behind():
    over = threading.Event()
    check = tool_check(lambda q: over.wait() if q else None, [0, 0, 0, 1], 8, 4, 0.2)
    over.set()
    assert check.status == "fail"
    assert check.reason.startswith("2 of 8 calls had not come back after 0.2 s") or check.values["late_share"] > 0.02


def test_no_calls_are_no_verdict():
    for calls, concurrency in ((0, 4), (4, 0)):
        report = td.preflight(tool=lambda: None, calls=calls, concurrency=concurrency)
        assert next(check.status for check in report.checks if check.name == "tool_stress") == "not checked"


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ([{"found": 1}] * 8, "pass"),
        (["a line", "another line"] * 4, "pass"),
        (['{"found": 1}'] * 7 + ['{"error": "away"}'], "2 forms: fields found 7 times; fields error 1 times"),
        (["short"] * 7 + ["long" * 200], "160 times the length of the median"),
        ([1.5], "not checked"),
    ],
)
def test_answers_of_a_tool_have_one_form_and_a_limit(answers, says):
    check = outputs_check(answers)
    assert says in (check.status, check.reason) or says in check.reason
