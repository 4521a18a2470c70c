"""From a trainer's own keys to canonical names: the map of one run's keys."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from tracker_diag.metrics import registry
from tracker_diag.metrics.alias_files import GENERIC, Aliases, alias_files, file_of, frameworks, plain
from tracker_diag.metrics.families import derived
from tracker_diag.metrics.keys import by_reward, by_words, canonical, of_evaluation, same_kind
from tracker_diag.stats.once import once

TARGET, EVALUATION = "eval_score", "evaluation"
"""The evaluation that counts, and any other one."""
DISTINCTIVE = 2
"""Keys by which a framework is known that a run must have: one alone may be a name of the user's own."""


@dataclass(frozen=True)
class Mapped:
    """What one own key means."""

    name: str
    """Canonical name; of one tool or component, `name:member`."""
    scale: float = 1.0
    offset: float = 0.0
    """The canonical value is scale · value + offset."""
    rank: int = 0
    """Among the keys of one canonical name in one row the lowest rank wins."""
    needs_key: str = ""
    """Own key that the row must have as well."""
    running: bool = False
    """Whether it is a mean over earlier rows as well."""


@dataclass(frozen=True)
class KeyMap:
    """What the keys of one run stand for; make it once per set of keys."""

    framework: str | None
    mapped: dict[str, Mapped]
    unmapped: tuple[str, ...]
    algorithm: registry.Algorithm | None = None
    """The one that alone logs some of the keys."""

    @once
    def _keys(self) -> frozenset[str]:
        return frozenset((*self.mapped, *self.unmapped))

    def covers(self, keys: Iterable[str]) -> bool:
        """Whether all of `keys` were there when the map was made; if not, make a new map with them."""
        return self._keys.issuperset(keys)

    def values(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Canonical values of one row. If a value is not finite, the next key counts, or none."""
        values: dict[str, float] = {}
        ranks: dict[str, int] = {}
        for key, value in metrics.items():
            mapped = self.mapped.get(key)
            if mapped is None or not math.isfinite(value) or ranks.get(mapped.name, mapped.rank + 1) <= mapped.rank:
                continue
            if mapped.needs_key and mapped.needs_key not in metrics:
                continue
            values[mapped.name] = mapped.scale * value + mapped.offset
            ranks[mapped.name] = mapped.rank
        return derived(values) if self._has_more else values

    @once
    def names(self) -> frozenset[str]:
        """Canonical names that keys have."""
        return frozenset(mapped.name for mapped in self.mapped.values())

    @once
    def running(self) -> frozenset[str]:
        """Those of `names` that are means over earlier rows as well."""
        return frozenset(mapped.name for mapped in self.mapped.values() if mapped.running)

    @once
    def _has_more(self) -> bool:
        return any(":" in name or name == "solved_none_share" for name in self.names)


def nearest(keys: Iterable[str]) -> dict[str, int]:
    """The frameworks by whose distinctive names most `keys` go, each with how many; empty where none has any."""
    keys = tuple(keys)
    counts = {file.framework: hits(file, keys) for file in alias_files().values()}
    most = max(counts.values())
    return {framework: count for framework, count in counts.items() if count == most > 0}


def recognise(keys: Iterable[str]) -> str | None:
    """The framework that `keys` are of; None below two keys by which it is known, or where two have as many."""
    best = nearest(keys)
    return next(iter(best)) if len(best) == 1 and max(best.values()) >= DISTINCTIVE else None


def key_map(keys: Iterable[str], framework: str | None = None, evaluation: str = "") -> KeyMap:
    """What `keys` stand for, in `framework` if given, else in the one that they are recognised as.

    Of several evaluations one is `eval_score`: the key `evaluation`, else one that is no mean reward, in the order of
    the framework's table. The others are `evaluation:<key>`.

    Raises:
        UnknownName: there are no aliases for `framework`.

    >>> key_map(["train/entropy_loss", "rollout/ep_rew_mean"]).values({"train/entropy_loss": -1.5})
    {'entropy': 1.5}
    """
    return _key_map(tuple(dict.fromkeys(keys)), framework, evaluation)


def why_not(key: str, framework: str) -> str:
    """Why `key` is not read in `framework`, as its file says it; empty where the file does not know it."""
    return _matcher(framework).why_not(key)


def known_keys(keys: Iterable[str]) -> set[str]:
    """Those of `keys` that may be read: by the names of any framework, as the diagnostics' own, or next to another."""
    keys = tuple(dict.fromkeys(keys))
    read = {key for key in keys if key.startswith(registry.PREFIX)}
    for framework in (GENERIC, *frameworks()):
        for key, mapped in _key_map(keys, framework).mapped.items():
            read |= {key, mapped.needs_key}
    return read.intersection(keys)


@lru_cache(maxsize=64)
def _key_map(keys: tuple[str, ...], framework: str | None, evaluation: str = "") -> KeyMap:
    framework = framework or recognise(keys)
    matcher = _matcher(framework or GENERIC)
    mapped: dict[str, Mapped] = {}
    for key in keys:
        if not key.startswith(registry.PREFIX) and (match := matcher.find(key, len(mapped))):
            mapped[key] = match
    if framework and "reward" not in {metric.name for metric in mapped.values()}:  # the user may log one
        rest = {key: _matcher(GENERIC).find(key, 0) for key in keys if key not in mapped and not matcher.why_not(key)}
        mapped |= {key: metric for key, metric in rest.items() if metric and metric.name == "reward"}
    if evaluation in keys:  # who names it knows that it is one
        mapped[evaluation] = replace(mapped.get(evaluation, Mapped(TARGET)), name=TARGET)
    mapped |= _evaluations(mapped, evaluation)
    unmapped = tuple(key for key in keys if key not in mapped)
    forms, own = _forms(keys, matcher.file), matcher.file.algorithms.items()
    algorithm = next((algorithm for algorithm, own_keys in own if not forms.keys().isdisjoint(own_keys)), None)
    return KeyMap(framework and matcher.file.framework, mapped, unmapped, algorithm)


def _evaluations(mapped: Mapping[str, Mapped], evaluation: str) -> dict[str, Mapped]:
    """The keys of `mapped` that are evaluations, each with its own name where there are several.

    The target does not score by the reward, if one of them does not: a hack raises the reward there as well.
    Two names of one evaluation, as of a file and of a tracker, are the same but for their separators.
    """
    scores = {key: alias for key, alias in mapped.items() if alias.name == TARGET}
    names = sorted(scores, key=lambda key: (key != evaluation, by_reward(key), scores[key].rank))
    first = plain(names[0]) if names else ""
    return {
        key: scores[key] if plain(key) == first else replace(scores[key], name=f"{EVALUATION}:{key}") for key in names
    }


class _Matcher:
    """One file's keys, ready to be looked up."""

    def __init__(self, file: Aliases) -> None:
        self.file = file
        self._exact: dict[str, tuple[str, int]] = {}
        patterns = [(pattern, "", 0, why) for pattern, why in file.ignore.items()]
        for name, alias in file.metrics.items():
            for place, key in enumerate(alias.keys):
                if "*" in key or "{" in key:
                    patterns.append((key, name, place, ""))
                else:
                    self._exact.setdefault(key, (name, place))
        patterns.sort(key=lambda pattern: len(re.sub(r"\*|\{\w+\}", "", pattern[0])), reverse=True)
        self._patterns = [(_compiled(pattern), name, place, why) for pattern, name, place, why in patterns]
        """With the canonical name of each, empty if it is ignored; patterns with most literal letters first."""

    def find(self, key: str, order: int) -> Mapped | None:
        """What `key` means; `order`, its place in the run, decides between keys of one pattern.

        Where no framework is known, capitals and blanks do not count: `Mean Reward` is `mean_reward`.
        """
        return self._find(key.lower().replace(" ", "_") if self.file.framework == GENERIC else key, order)

    def _find(self, key: str, order: int) -> Mapped | None:
        forms = tuple(_forms((key,), self.file))
        if canonical(key) == key and key not in self._exact:
            return Mapped(key, rank=-1)
        for form in forms:
            if form in self._exact:
                name, place = self._exact[form]
                if not self.file.any_prefix or same_kind(name, key.removesuffix(form).rstrip("/")):
                    return self._mapped(name, place, order)
        for pattern, name, place, _ in self._patterns:
            for form in forms:
                if match := pattern.fullmatch(form):
                    member = match.groupdict().get("member")
                    if name or not of_evaluation(key):
                        return self._mapped(name, place, order, f"{name}:{member}" if member else "") if name else None
                    break  # what is no evaluation of the trainer's own may be one of the user's
        if self.file.framework != GENERIC and of_evaluation(key):
            # An evaluation is often the user's own, whatever the trainer.
            well_known = _matcher(GENERIC).find(key, order)
            return well_known and replace(well_known, rank=_LAST + well_known.rank)
        own = by_words(key)
        return Mapped(own, rank=_LAST + order) if own else None

    def why_not(self, key: str) -> str:
        """What the file says of a key that it ignores; empty where it reads it, or does not know it."""
        forms = _forms((key,), self.file)
        return next((why for pattern, _, _, why in self._patterns if any(map(pattern.fullmatch, forms))), "")

    def _mapped(self, name: str, place: int, order: int, member: str = "") -> Mapped:
        alias = self.file.metrics[name]
        scale, offset = alias.transform.line
        return Mapped(member or name, scale, offset, place * _STEP + order, alias.needs_key, alias.running)


_STEP = 1_000_000
_LAST = 1_000 * _STEP
"""Ranks: first the place in the file, then the place in the run; last what only looks canonical."""


def _forms(keys: Iterable[str], file: Aliases) -> Mapping[str, None]:
    """`keys` as they are, and as the trainer may have named them, before a tracker put a prefix to them."""
    forms = dict[str, None]()
    for key in keys:
        forms[key] = None
        forms |= dict.fromkeys(key[len(prefix) :] for prefix in file.prefixes if key.startswith(prefix))
        if "/" not in key and (whole := file.with_slashes(key)):
            forms[whole] = None
        if file.any_prefix and not of_evaluation(key):
            parts = key.split("/")
            forms |= dict.fromkeys("/".join(parts[start:]) for start in range(1, len(parts)))
    return forms


def hits(file: Aliases, keys: tuple[str, ...]) -> int:
    """How many of the keys by which `file`'s framework is known are among `keys`.

    Those of its base count as well, once there are enough of its own: else it is the base itself.
    """
    forms = _forms(keys, file)
    own = sum(any(map(_compiled(key).fullmatch, forms)) if "*" in key else key in forms for key in file.recognise)
    if not file.base:
        return own
    return own + hits(file_of(file.base), keys) if own >= DISTINCTIVE else 0


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """`pattern` as a regular expression: `*` within a part, `**` across parts, `{tool}` within one, kept."""
    wild = {"**": ".+", "*": "[^/]*"}
    pieces = re.split(r"(\*\*|\*|\{\w+\})", pattern)
    return re.compile("".join(wild.get(p, "(?P<member>[^/]+)" if p.startswith("{") else re.escape(p)) for p in pieces))


@cache
def _matcher(framework: str) -> _Matcher:
    return _Matcher(file_of(framework))
