"""The evaluation's protocol: whether all that fixes it is in the configuration, and in the tracker."""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from tracker_diag.errors import DiagError
from tracker_diag.metrics.yaml_files import YamlFile
from tracker_diag.preflight.check import Check, Flaw, failed, judged, passed, unchecked

NAMES = COMPLETE, SAVED = "evaluation_complete", "evaluation_saved"

FILE = Path(__file__).parent / "evaluation.yaml"

GIVE = "give config=..., with the evaluation's settings under eval"


@cache
def protocol() -> dict[str, dict[str, Any]]:
    """The settings that fix an evaluation, by name: the patterns of their keys, and whether a tool needs them."""
    settings: dict[str, dict[str, Any]] = YamlFile.load(FILE, DiagError).data["settings"]
    return settings


def evaluation_checks(
    config: Mapping[str, object], saved: Mapping[str, object] | None = None, tool: object = None
) -> Iterator[Check]:
    """Whether `config`, by dotted name, has the whole protocol, and whether `saved`, the tracker's, has the same.

    Args:
        tool: any tool of the agent; without a tool its settings are not needed.
    """
    asked = {name: setting["names"] for name, setting in protocol().items() if tool or not setting.get("with_tools")}
    known = [key for key, value in config.items() if value is not None]
    needed = {
        name: [key for key in known if any(fnmatchcase(key.lower(), pattern) for pattern in patterns)]
        for name, patterns in asked.items()
    }
    missing = [name for name, keys in needed.items() if not keys]
    lacking = ", ".join(missing)
    every = f"write {lacking} into the run's configuration under eval, e.g. eval.temperature"
    some = "write them into the run's configuration under eval; a score without them can be compared with nothing"
    flaws: list[Flaw] = [
        (len(missing) == len(needed), "the configuration has no setting of an evaluation", every),
        (missing, f"the evaluation's settings lack {lacking}", some),
    ]
    yield judged(COMPLETE, f"{', '.join(needed)} are fixed", flaws, missing=len(missing))
    wanted = {key: config[key] for keys in needed.values() for key in keys}
    if saved is None:
        yield unchecked(SAVED, "no run was given", "give run=..., what td.wrap returned")
    elif not wanted:
        yield unchecked(SAVED, "no setting of an evaluation to look for", GIVE)
    else:
        yield _saved(wanted, saved)


def _saved(wanted: Mapping[str, object], saved: Mapping[str, object]) -> Check:
    if missing := [key for key in wanted if key not in saved]:
        do = "log the configuration to the tracker: wandb.init(config=...), mlflow.log_params(...)"
        return failed(SAVED, f"the tracker does not have {', '.join(missing)}", do, missing=len(missing))
    if other := [key for key, value in wanted.items() if str(saved[key]) != str(value)]:
        first = other[0]
        reason = f"{first} is {wanted[first]!r} here and {saved[first]!r} in the tracker"
        return failed(SAVED, reason, "log what is used, and use what is logged", differing=len(other))
    return passed(SAVED, f"the tracker has all {len(wanted)} of its settings")
