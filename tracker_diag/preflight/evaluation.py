"""The evaluation's protocol: whether all that fixes it is written down, and stands in the tracker."""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from tracker_diag.errors import DiagError
from tracker_diag.metrics.yaml_files import YamlFile
from tracker_diag.preflight.check import Check, failed, passed, unchecked

COMPLETE = "evaluation_complete"
SAVED = "evaluation_saved"

FILE = Path(__file__).parent / "evaluation.yaml"

GIVE = "give config=..., with the evaluation's settings under eval"


class Setting(BaseModel):
    """One setting of an evaluation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    names: tuple[str, ...]
    with_tools: bool = False
    """Whether only an agent with tools needs it."""


class Protocol(BaseModel):
    """All that fixes an evaluation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    settings: dict[str, Setting]


@cache
def protocol() -> Protocol:
    """What the data file says."""
    return Protocol.model_validate(YamlFile.read(FILE, DiagError).data)


def evaluation_checks(
    config: Mapping[str, object], saved: Mapping[str, object] | None, *, tools: bool
) -> Iterator[Check]:
    """Whether `config`, by dotted name, has the whole protocol, and whether `saved`, the tracker's, has the same.

    Args:
        tools: whether the agent has tools.
    """
    needed = {name: one for name, one in protocol().settings.items() if tools or not one.with_tools}
    found = {name: _found(one, config) for name, one in needed.items()}
    missing = [name for name, keys in found.items() if not keys]
    if len(missing) == len(needed):
        do = f"write {', '.join(missing)} into the run's configuration under eval, e.g. eval.temperature"
        yield failed(COMPLETE, "no setting of an evaluation stands in the configuration", do)
    elif missing:
        do = "write them into the run's configuration under eval; a score without them can be compared with nothing"
        yield failed(COMPLETE, f"the evaluation's settings lack {', '.join(missing)}", do, missing=len(missing))
    else:
        yield passed(COMPLETE, f"{', '.join(needed)} are fixed")
    keys = [key for of in found.values() for key in of]
    if saved is None:
        yield unchecked(SAVED, "no run was given", "give run=..., what td.wrap returned")
    elif not keys:
        yield unchecked(SAVED, "no setting of an evaluation to look for", GIVE)
    else:
        yield _saved({key: config[key] for key in keys}, saved)


def _found(setting: Setting, config: Mapping[str, object]) -> list[str]:
    """The keys of `config` that say it, with a value."""
    return [
        key
        for key, value in config.items()
        if value is not None and any(fnmatchcase(key.lower(), pattern) for pattern in setting.names)
    ]


def _saved(wanted: Mapping[str, object], saved: Mapping[str, object]) -> Check:
    missing = [key for key in wanted if key not in saved]
    if missing:
        do = "log the configuration to the tracker: wandb.init(config=...), mlflow.log_params(...)"
        return failed(SAVED, f"the tracker does not have {', '.join(missing)}", do, missing=len(missing))
    other = [key for key, value in wanted.items() if str(saved[key]) != str(value)]
    if other:
        first = other[0]
        told = f"{first} is {wanted[first]!r} here and {saved[first]!r} in the tracker"
        return failed(SAVED, told, "log what is used, and use what is logged", differing=len(other))
    return passed(SAVED, f"the tracker has all {len(wanted)} of its settings")
