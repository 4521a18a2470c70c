"""Writes docs/matrix.md: `make matrix` runs the tests and then this on what they have shown.

    python docs/make_matrix.py [RESULTS]

RESULTS has a line of JSON for each test with the mark `matrix` that has passed; docs/matrix.json keeps them. Without it
the page is made anew from what is kept there and in docs/released.json, which tests/integrations/released.py writes.
"""

import json
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
KEPT, RELEASED = DOCS / "matrix.json", DOCS / "released.json"

TRACKERS = {
    "wandb": "W&B", "mlflow": "MLflow", "trackio": "Trackio", "tensorboard": "TensorBoard", "jsonl": "files",
    "webhook": "webhook",
}  # fmt: skip

INTEGRATIONS = {"accelerate": "transformers", "ray": "rllib", "stable-baselines3": "sb3"}
"""Of a package whose integration has another name."""

ELSEWHERE = {(True, "jsonl"): "²"}
"""Why a cell of a row with several processes, or with one, has no test of its own. Any other has one."""

HEAD = """\
# Framework, version, tracker

`make matrix` makes this page from what the tests show. A test plants a fault in a run of the framework. Then it looks
for the alert in the tracker's own file or database, or at a webhook on its machine. The version is from the
package's metadata in the process of the test. The alert is of a rule of the catalogue. In the trackers of TRL with one
process, it is of a rule of the test.

- **real**: the framework trains, on a CPU.
- *made*: it needs GPUs to train. So the test gives its modules tensors in their documented layout. In a Ray job these
  are its own workers, in processes that Ray has started. Model and optimiser are replaced, and only the workers'
  tensors have the fault.
- ¹: the framework starts no run of that tracker. So the test starts it in the framework's process, as a person would.
- ²: files are written only if there is no tracker, by the same process. The row of that release with one process shows
  it.

*files* are JSON Lines. W&B runs are offline.
"""

SOURCES = """\
## Released sources that no index has

From `python tests/integrations/released.py CLONES`. It is no part of the tests, as it needs the clones. It runs the
release's own loss on a CPU, without our hooks and with them, on the same tensors. Those are made log-probabilities
(prime-rl, verl) or logits (slime). For NeMo-RL and ROLL it runs two of their workers in a Ray job, on a small model.
What they have sent equals what a single process sees of all tokens. *Same*: loss and gradients are the same to the bit.
*Alert*: where the planted tail was reported. The second time MLflow, Trackio and TensorBoard cannot be imported, or no
longer where the framework itself begins with them. The integrations have changed since these runs, on 2026-11-26.
"""


def integration(package: str) -> str:
    """The integration that `package` is watched by."""
    return INTEGRATIONS.get(package, package)


def page(tests: list[dict[str, Any]], released: dict[str, Any]) -> str:
    """docs/matrix.md."""
    rows = sorted({_place(test) for test in tests}, key=lambda row: (row[0], _numbers(row[1]), row[2]))
    lines = [HEAD, _row(["framework", "version", "processes", *TRACKERS.values()])]
    lines.append(_row(["---"] * (3 + len(TRACKERS))))
    for row in rows:
        own = [test for test in tests if _place(test) == row]
        package, version, setup = row
        cells = [_cell(tracker, own) or ELSEWHERE[bool(setup), tracker] for tracker in TRACKERS]
        lines.append(_row([f"[{package}](integrations.md#{integration(package)})", version, setup or "1", *cells]))
    lines += ["", "The tests of each:", ""]
    for package in dict.fromkeys(row[0] for row in rows):
        names = sorted({test["test"].partition("[")[0] for test in tests if test["package"] == package})
        lines += [f"- {package}: {'; '.join(f'`{name}`' for name in names)}"]
    return "\n".join([*lines, "", *_sources(released), ""])


def _sources(released: dict[str, Any]) -> list[str]:
    runs: list[dict[str, Any]] = released["runs"]
    lines = [SOURCES, _row(["framework", "release", "with the three", "without", "its own modules that ran"])]
    lines.append(_row(["---"] * 5))
    for first, second in zip(runs[::2], runs[1::2], strict=True):
        ran = ", ".join(f"`{name}`" for name in first.get("ran", []))
        cells = [first["framework"], first["release"], _verdict(first), _verdict(second), ran]
        lines.append(_row(cells))
    stand_ins = "; ".join(f"{name}: {', '.join(names)}" for name, names in released["stand_ins"].items())
    lines += ["", "What they import and is not here is a stand-in that does nothing:", f"{stand_ins}. For slime the"]
    lines += [
        "parallel state and the cross-entropy of Megatron are ours, for one process; the trainer, its optimiser and"
    ]
    lines += ["the engine do not run. For NeMo-RL, whose DTensor worker trains, and for ROLL model and optimiser are"]
    lines += ["stand-ins, and for ROLL the strategy that calls them."]
    return lines


def _verdict(run: dict[str, Any]) -> str:
    if "failed" in run:
        return f"failed: {run['failed']}"
    alerts = ", ".join(TRACKERS[name] for name in run["alerts"]) or "none"
    failures = f"; failures: {len(run['failures'])}" if run["failures"] else ""
    return f"{'same' if run['same'] else 'not the same'}, {run['steps']} steps; alert: {alerts}{failures}"


def _place(test: dict[str, Any]) -> tuple[str, str, str]:
    """The row that `test` belongs to: package, version, and the processes where there are several."""
    return test["package"], test["version"], test.get("setup", "")


def _cell(tracker: str, tests: list[dict[str, Any]]) -> str:
    """What `tests` have shown of `tracker`; nothing if no alert was found in it."""
    shown = [test for test in tests if tracker in test["alerts"]]
    if not shown:
        return ""
    how = "**real**" if any(test["how"] == "run for real" for test in shown) else "*made*"
    return how + ("¹" if all(tracker in test.get("ours", ()) for test in shown) else "")


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]


def main(results: str | None = None) -> None:
    """Keep `results`, if there are any, and write the page."""
    if results:
        rows = [json.loads(line) for line in Path(results).read_text().splitlines()]
        rows.sort(key=lambda row: (row["package"], _numbers(row["version"]), row["test"]))
        KEPT.write_text(json.dumps({"tests": rows}, indent=1) + "\n")
    (DOCS / "matrix.md").write_text(page(json.loads(KEPT.read_text())["tests"], json.loads(RELEASED.read_text())))


if __name__ == "__main__":
    main(*sys.argv[1:])
