"""Settings of a run by shell pattern, for the signals that look at them."""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from tracker_diag.metrics.reasons import Reason, Why, reason


def matching(config: Mapping[str, object], patterns: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    """The settings whose dotted name, or its last part, matches; those of the first pattern first."""
    for pattern in patterns:
        for key, value in config.items():
            if fnmatchcase(key, pattern) or fnmatchcase(key.rsplit(".", 1)[-1], pattern):
                yield key, value


def no_setting(keys: tuple[str, ...]) -> Reason:
    """Why a signal over `keys` is unknown."""
    more = f" or {len(keys) - 2} like them" if len(keys) > 2 else ""
    return reason(Why.NO_SETTING, keys=", ".join(keys[:2]) + more)
