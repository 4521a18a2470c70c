"""The context record: what a run can be repeated from, and what of it nobody has said.

Versions and code are looked up here; seed, data and evaluation are among the run's settings, where every tracker has
them already. Whatever names a secret is starred.
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tracker_diag.scrub import STARS, is_secret, learnt
from tracker_diag.trackers.discovery import watchable

FILE = "context.json"

PACKAGES = (
    "tracker-diag", "torch", "numpy", "transformers", "trl", "verl", "openrlhf", "skyrl", "areal", "prime-rl",
    "nemo-rl", "stable-baselines3", "lightning", "pytorch-lightning", "ray", "accelerate", "peft", "deepspeed",
    "vllm", "sglang", "flash-attn", "tokenizers", "datasets", "gymnasium", "tensorboard",
)  # fmt: skip
"""Distributions whose version may change what a run does, next to those of trackers."""

SEED = ("seed", "random_seed", "train_seed", "data_seed", "env_seed", "general_seed")
DATA = (
    "data_splits", "splits", "dataset", "dataset_name", "train_dataset", "eval_dataset", "dataset_train_split",
    "dataset_test_split", "train_files", "val_files", "prompt_data", "train_data", "eval_data", "dataset_mixer_list",
)  # fmt: skip
EVALUATION = ("evaluation_command", "eval_command", "eval_cmd", "evaluation")
"""Last parts of the names of settings, in lower case, that say it; the first of each list is the one to give."""

PATIENCE = 2.0
"""Seconds that git may take."""
LONGEST = 2000
"""Characters of a setting that are kept."""


@dataclass(frozen=True)
class Code:
    """The revision that is run."""

    commit: str
    """The commit's hash."""
    dirty: bool
    """Whether tracked files differ from it."""


@dataclass(frozen=True)
class Context:
    """The record. Secrets are starred in it already."""

    config: Mapping[str, object]
    """Settings by dotted name."""
    seed: Mapping[str, object]
    data: Mapping[str, object]
    evaluation: Mapping[str, object]
    """Of the settings, those that say seeds, data splits and how the run is evaluated."""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    code: Code | None = None

    @property
    def missing(self) -> tuple[str, ...]:
        """What the record lacks, each with what to do; empty where it is complete."""
        lacks = {
            "settings": not self.config,
            "the seed (setting `seed`)": not self.seed,
            "the data splits (`data_splits`)": not self.data,
            "the evaluation command (`evaluation_command`)": not self.evaluation,
            "the code's revision (no git commit found)": self.code is None,
            "versions": not self.versions,
        }
        return tuple(what for what, lacking in lacks.items() if lacking)

    def to_json(self) -> dict[str, Any]:
        """The JSON of `diag/context.json`."""
        return {**asdict(self), "missing": list(self.missing)}

    @classmethod
    def of_json(cls, text: str) -> "Context":
        """The record that was kept as `text`.

        Raises:
            ValueError: it is something else.
        """
        try:
            kept = json.loads(text)
            code = kept["code"] and Code(str(kept["code"]["commit"]), bool(kept["code"]["dirty"]))
            parts = {name: dict(kept[name]) for name in ("config", "seed", "data", "evaluation", "versions")}
        except (TypeError, LookupError) as error:
            raise ValueError(f"a context record lacks {error}") from error
        return cls(**parts, code=code)


def context_of(
    config: Mapping[str, object], versions: Mapping[str, str] | None = None, code: Code | None = None
) -> Context:
    """The record of a run with these settings.

    Args:
        config: by dotted name, with any secrets in them.
        versions: of packages by name; left out where the run is not this process.
        code: what is run, where that is known.
    """
    hidden = {
        name: STARS if is_secret(name) and value and not isinstance(value, int | float) else _plain(value)
        for name, value in learnt(config).items()
    }

    def named(names: tuple[str, ...]) -> dict[str, object]:
        return {
            name: value
            for name, value in hidden.items()
            if name.lower().replace("/", ".").rsplit(".", 1)[-1] in names and value not in (None, "")
        }

    return Context(hidden, named(SEED), named(DATA), named(EVALUATION), dict(versions or {}), code)


def _plain(value: object) -> object:
    """`value` as JSON takes it."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)  # NaN and infinity are no JSON
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return str(value)[:LONGEST]


def versions_here() -> dict[str, str]:
    """Python, the system, and the packages that matter, as far as they are installed; CUDA where torch is loaded."""
    versions = {"python": platform.python_version(), "system": platform.platform(terse=True)}
    for name in (*PACKAGES, *(kind.library for kind in watchable())):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:  # noqa: PERF203  # one of many
            continue
    cuda = getattr(getattr(sys.modules.get("torch"), "version", None), "cuda", None)
    return versions | ({"cuda": str(cuda)} if cuda else {})


def code_here() -> Code | None:
    """The commit of the running program, or else of the working directory; None if git knows none."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return (_code_in(Path(main).absolute().parent) if main else None) or _code_in(Path())


def _code_in(place: Path) -> Code | None:
    ask = ["git", "-C", str(place), "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    quiet = os.environ | {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    try:
        status = subprocess.run(ask, capture_output=True, text=True, timeout=PATIENCE, env=quiet, check=True)  # noqa: S603  # ours
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    lines = status.stdout.splitlines()
    commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), "(initial)")
    return None if commit == "(initial)" else Code(commit, any(not line.startswith("#") for line in lines))
