"""Numbers of hand-written pages, from committed results. `python docs/generate.py` writes them into these sentences."""

import json
import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
SENTENCES = {
    "../README.md": (
        "CPU, one core | {both} ms: `observe` takes {observe} ms, and the logging call {log} ms |",
        (
            "{device} GPU | {added} ms, `observe` and the logging call together. "
            "For a training step of 0.5 s, this is {percent} % |"
        ),
        "own runs with a harmful fault | the fault was named in {named} of {harmed}, missed or misnamed in {missed} |",
        "own runs without a fault | tracker_diag raised an alert in {alarmed} of {healthy} |",
        "public logs of stable runs | tracker_diag raised an alert in {loud} of {stable} |",
    ),
    "faq.md": ("On one CPU core, `observe` takes {observe} ms and `log` {log} ms",),
    "preflight.md": ("{plans} plans agree within {off} % with what torch allocates",),
}
"""A sentence must be on its page once, with any number in each place."""


def _result(name: str) -> Any:
    return json.loads((DOCS / name).read_text(encoding="utf-8"))


def figures() -> dict[str, str]:
    """Each number by its name in the sentences."""
    faults, gpu = _result("faults.json")["untouched"], _result("gpu.json")
    stable = [labels["stable"] for labels in _result("public_logs.json").values()]
    timings = (DOCS / "performance.md").read_text(encoding="utf-8")
    milliseconds = dict(re.findall(r"^\| (.+?) \| .+? \| ([\d.]+) ms \|", timings, re.MULTILINE))
    ratios = [plan["ratio"] for plan in gpu["memory"].values()]
    return {
        "both": str(sum(round(float(milliseconds[name])) for name in ("observe, by the clock", "log after observe"))),
        "observe": f"{float(milliseconds['observe, by the clock']):.0f}",
        "log": f"{float(milliseconds['log after observe']):.0f}",
        "device": gpu["device"].split()[-1],
        "added": f"{500 * (gpu['step_of_half_a_second_ratio'] - 1):.0f}",
        "percent": f"{100 * gpu['step_of_half_a_second_ratio'] - 100:.0f}",
        "named": str(faults["harmed_named"]),
        "harmed": str(faults["harmed"]),
        "missed": str(faults["harmed"] - faults["harmed_named"]),
        "healthy": str(faults["healthy"]),
        "alarmed": str(faults["healthy_warn"]),
        "stable": str(sum(logs["logs"] for logs in stable)),
        "loud": str(sum(logs["warn"] + logs["error"] for logs in stable)),
        "plans": str(len(ratios)),
        "off": str(math.ceil(100 * max(abs(ratio - 1) for ratio in ratios))),
    }


def filled(page: str) -> str:
    """The page, with the numbers of its sentences."""
    text, values = (DOCS / page).read_text(encoding="utf-8"), figures()
    for sentence in SENTENCES[page]:
        fixed = [re.escape(part).replace(r"\ ", r"\s+") for part in re.split(r"\{\w+\}", sentence)]
        matches = list(re.finditer(r"[\w.,]+".join(f"({part})" for part in fixed), text))
        if len(matches) != 1:
            raise ValueError(f"{page}: {len(matches)} times there, expected once: {sentence}")
        numbers = [*(values[name] for name in re.findall(r"\{(\w+)\}", sentence)), ""]
        new = "".join(part + number for part, number in zip(matches[0].groups(), numbers, strict=True))
        text = text[: matches[0].start()] + new + text[matches[0].end() :]
    return text


PAGES: dict[str, Callable[[], str]] = {page: partial(filled, page) for page in SENTENCES}
