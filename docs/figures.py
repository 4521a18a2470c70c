"""Numbers of hand-written pages, from committed results. `python docs/generate.py` writes them into these sentences."""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
SENTENCES = {
    "../README.md": (
        "`observe` takes {observe} ms on one CPU core. Your logging call then takes {log} ms longer",
        "On an {device} GPU, a training step of half a second takes {ratio}× as long",
        "We score the rules on {runs} real training runs of our own",
        "We held out {healthy} runs without a fault, and never tuned on them: {alarmed} of them raised an alert",
        "Of {stable} public logs of stable runs, {loud} raised one",
    ),
    "faq.md": ("`observe` takes {observe} ms and `log` {log} ms on one CPU core",),
    "preflight.md": ("{plans} plans agree within {off} % with what torch allocates",),
}
"""A sentence must be on its page once, with any number in each place."""


def _result(name: str) -> Any:
    return json.loads((DOCS / name).read_text(encoding="utf-8"))


def figures() -> dict[str, str]:
    """Each number by its name in the sentences."""
    faults, gpu = _result("faults.json"), _result("gpu.json")
    stable = [labels["stable"] for labels in _result("public_logs.json").values()]
    timings = (DOCS / "performance.md").read_text(encoding="utf-8")
    milliseconds = dict(re.findall(r"^\| (.+?) \| .+? \| ([\d.]+) ms \|", timings, re.MULTILINE))
    ratios = [plan["ratio"] for plan in gpu["memory"].values()]
    return {
        "observe": f"{float(milliseconds['the same, by the clock']):.0f}",
        "log": f"{float(milliseconds['log after it']):.0f}",
        "device": gpu["device"].split()[-1],
        "ratio": f"{gpu['step_of_half_a_second_ratio']:.2f}",
        "runs": str(len(faults["sealed"])),
        "healthy": str(faults["untouched"]["healthy"]),
        "alarmed": str(faults["untouched"]["healthy_warn"]),
        "stable": str(sum(logs["logs"] for logs in stable)),
        "loud": str(sum(logs["warn"] + logs["error"] for logs in stable)),
        "plans": str(len(ratios)),
        "off": f"{100 * max(abs(ratio - 1) for ratio in ratios):.0f}",
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
