"""A stress test of a tool: many calls at once, with a limit of time; and whether its answers have one form."""

import asyncio
import inspect
import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from tracker_diag.preflight.check import Check, Flaw, judged, unchecked
from tracker_diag.preflight.limits import described

NAME, OUTPUTS = "tool_stress", "tool_outputs"
FAILURES = 0.05
"""Share of failed calls that is too much: ENV001."""
LATE = 0.02
"""Share of calls without an answer in time that is too much: ENV008."""

FEWEST_ANSWERS = 8
"""Answers below which there is no verdict on their form."""
LONGEST_ANSWER = 20.0
"""How many times as long as the median the longest answer may be: a choice."""

GIVE_KINDS = "give tool=..., and tool_arguments=... of as many kinds as training will ask"
GIVE = "give tool=..., a function, and tool_arguments=..., a list of what to call it with"


def tool_checks(
    tool: Callable[..., Any],
    tool_arguments: Sequence[Any] = (),
    calls: int = 64,
    concurrency: int = 16,
    seconds: float = 30.0,
) -> Iterator[Check]:
    """Call `tool` `calls` times, `concurrency` at once, in `seconds` altogether; and look at what it answers.

    A call fails if it raises, or gives a number that is NaN or infinite. What has not come back in time is late; its
    thread is left behind, as in `limits.within`.

    Args:
        tool: a function, or an asynchronous one.
        tool_arguments: what to call it with, in turn: a mapping of names, a tuple, or a single value; nothing if empty.
    """
    if calls < 1 or concurrency < 1:
        yield unchecked(NAME, f"{calls} calls, {concurrency} at once", "give calls and concurrency of 1 at least")
        return
    number, lock = count(), threading.Lock()
    took: dict[int, float] = {}
    wrong: dict[int, str] = {}
    answers: list[Any] = []
    until = time.monotonic() + seconds

    def work() -> None:
        while True:
            with lock:
                i = next(number)
            began = time.monotonic()
            if i >= calls or began > until:
                return
            answer, failure = _answer(tool, tool_arguments[i % len(tool_arguments)] if tool_arguments else ())
            if failure:
                wrong[i] = failure
            else:
                answers.append(answer)
            took[i] = time.monotonic() - began

    n = min(concurrency, calls)
    threads = [threading.Thread(target=work, name="tracker_diag preflight tool", daemon=True) for _ in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    done, failures = dict(took), dict(wrong)  # threads that are left behind may write more
    yield _verdict([*done.values()], [*failures.values()], calls, n, seconds)
    yield outputs_check([*answers])


def _answer(tool: Callable[..., Any], given: Any) -> tuple[Any, str]:
    """What one call gave, and what went wrong; empty if nothing did."""
    try:
        if isinstance(given, Mapping):
            result = tool(**given)
        else:
            result = tool(*given) if isinstance(given, tuple) else tool(given)
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result))
    except Exception as error:  # noqa: BLE001  # that is what the test is about
        return None, described(error)
    if isinstance(result, float | np.floating) and not math.isfinite(result):
        return result, f"gave {result}"
    return result, ""


async def _awaited(result: Any) -> Any:
    return await result


def _verdict(took: list[float], wrong: list[str], calls: int, concurrency: int, seconds: float) -> Check:
    late = calls - len(took)
    rate, share = len(wrong) / calls, late / calls
    values = {"calls": float(calls), "failure_rate": rate, "late_share": share}
    reason = f"{len(wrong)} of {calls} calls failed, {concurrency} at once"
    if took:
        p50, p95, most = map(float, np.quantile(took, [0.5, 0.95, 1.0]))
        values |= {"p50_seconds": p50, "p95_seconds": p95, "max_seconds": most}
        reason += f"; they took {p50:.2g} s in the median, {p95:.2g} s at p95, {most:.2g} s at most"
    most_often, times = next(iter(Counter(wrong).most_common(1)), ("", 0))
    workers = "give the tool a time-out of its own and more workers, or the trainer fewer episodes at once"
    habits = "fix the tool, or its limits of rate and connections, before any training: failures become habits"
    flaws: list[Flaw] = [
        (share > LATE, f"{late} of {calls} calls had not come back after {seconds:g} s; {reason}", workers),
        (rate > FAILURES, f"{reason}; {times} times it {most_often}", habits),
    ]
    return judged(NAME, reason, flaws, **values)


def outputs_check(answers: Sequence[Any]) -> Check:
    """Whether all `answers` of a tool have the same form and fields, and none is far longer than the median."""
    if len(answers) < FEWEST_ANSWERS:
        return unchecked(OUTPUTS, f"{len(answers)} answers", GIVE_KINDS)
    forms = Counter(map(_form, answers))
    lengths = np.array([len(str(answer)) for answer in answers], float)
    longest = float(lengths.max() / max(np.median(lengths), 1.0))
    named = "; ".join(f"{form} {times} times" for form, times in forms.most_common(4))
    reason = f"{len(answers)} answers have {len(forms)} forms: {named}"
    same = "let it answer with the same fields each time, an error too; what varies in form is new to the policy"
    cut = "cut its answers at a limit, or have it give the part that was asked for"
    flaws: list[Flaw] = [
        (len(forms) > 1, reason, same),
        (longest > LONGEST_ANSWER, f"its longest answer has {longest:.0f} times the length of the median", cut),
    ]
    good = f"all {len(answers)} answers are {next(iter(forms))}"
    return judged(OUTPUTS, good, flaws, forms=len(forms), longest=longest)


def _form(answer: Any) -> str:
    """Its kind, and of a mapping or of JSON text with one the names of its fields."""
    if isinstance(answer, str):
        try:
            answer = json.loads(answer)
        except (ValueError, RecursionError):
            return "text"
    if isinstance(answer, dict):
        return f"fields {', '.join(sorted(map(str, answer))) or 'none'}"
    return "a number" if isinstance(answer, int | float) else type(answer).__name__
