"""The evaluation's protocol: whether all that fixes it is in the configuration, and in the tracker."""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from tracker_diag.errors import DiagError
from tracker_diag.metrics.yaml_files import YamlFile
from tracker_diag.preflight.check import Check, failed, passed, unchecked

NAMES = COMPLETE, SAVED = "evaluation_complete", "evaluation_saved"

FILE = Path(__file__).parent / "evaluation.yaml"

GIVE = "give config=..., with the evaluation's settings under eval"


class Setting(BaseModel):
    """A setting of an evaluation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    names: tuple[str, ...]
    with_tools: bool = False
    """Whether only an agent with tools needs it."""

    def keys(self, config: Mapping[str, object]) -> list[str]:
        """The keys of `config` that hold it, with a value."""
        known = (key for key, value in config.items() if value is not None)
        return [key for key in known if any(fnmatchcase(key.lower(), pattern) for pattern in self.names)]


@cache
def protocol() -> dict[str, Setting]:
    """The settings that fix an evaluation, by name."""
    settings = YamlFile.read(FILE, DiagError).data["settings"]
    return {name: Setting.model_validate(given) for name, given in settings.items()}


def evaluation_checks(
    config: Mapping[str, object], saved: Mapping[str, object] | None = None, tool: object = None
) -> Iterator[Check]:
    """Whether `config`, by dotted name, has the whole protocol, and whether `saved`, the tracker's, has the same.

    Args:
        tool: any tool of the agent; without a tool its settings are not needed.
    """
    needed = {name: setting.keys(config) for name, setting in protocol().items() if tool or not setting.with_tools}
    missing = [name for name, keys in needed.items() if not keys]
    if len(missing) == len(needed):
        do = f"write {', '.join(missing)} into the run's configuration under eval, e.g. eval.temperature"
        yield failed(COMPLETE, "the configuration has no setting of an evaluation", do)
    elif missing:
        do = "write them into the run's configuration under eval; a score without them can be compared with nothing"
        yield failed(COMPLETE, f"the evaluation's settings lack {', '.join(missing)}", do, missing=len(missing))
    else:
        yield passed(COMPLETE, f"{', '.join(needed)} are fixed")
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
