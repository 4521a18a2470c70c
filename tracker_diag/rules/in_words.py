"""The conditions of a rule as a person reads them: `entropy < 0.3` and `entropy` falls 3× in 100 values."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from tracker_diag.metrics.registry import training
from tracker_diag.metrics.series import ANY
from tracker_diag.rules.conditions import Way, Ways, signals_of
from tracker_diag.rules.model import Rule
from tracker_diag.rules.nodes import SeriesRef
from tracker_diag.rules.signals import AnySignal
from tracker_diag.rules.signals.base import Signal

_Data = Mapping[str, Any]
_DATA: TypeAdapter[Signal] = TypeAdapter(AnySignal)

NON_FINITE = {
    "any": "a metric or a log-ratio is NaN or infinite",
    "update": "a metric of the update, or a log-ratio, is NaN or infinite",
    "beside_gradient": "one of these other than the gradient is NaN or infinite",
    "gradient": "the gradient is NaN or infinite",
    "rest": "another metric is NaN or infinite",
}
LONG_AGO = 1_000_000
"""Steps from which on "in the last N steps" means "before"."""
ORDINALS = ("", "second ", "third ", "fourth ", "fifth ")
NO_CHANGE = 1e-6
"""A change in a series' own unit that only says that there is one."""


SLICES = {
    "all": "all tokens",
    "post_tool": "tokens after a tool result",
    "text_only": "tokens before any tool result",
    "policy_lag:0": "tokens of policy lag 0",
    "tool:*": "the tokens after each tool",
    "env:*": "the tokens of each environment",
}
EACH = {"tool:*": "each tool", "env:*": "each environment", "eval:*": "each evaluation"}


class WayInWords(NamedTuple):
    """One way in which a rule fires."""

    holds: list[str]
    """Each must hold."""
    unless: list[str]
    """None may hold."""
    asked: list[str]
    """What must be logged, or must not be. What `holds` reads in any case is left out."""


def conditions(rule: Rule) -> Ways:
    """The ways in which `rule` fires. A predicate that alone makes it fire is spelt out."""
    only, *others = rule.when
    if others or len(only.all) != 1 or only.needs or only.without or only.unless:
        return rule.when
    (part,) = only.all
    return rule.predicates.get(part, rule.when) if isinstance(part, str) else rule.when


def ways(rule: Rule) -> list[WayInWords]:
    """When `rule` fires: each of its `conditions` is enough."""
    return [_in_parts(rule, way) for way in conditions(rule)]


def fires(rule: Rule) -> list[str]:
    """When `rule` fires, a sentence for each way."""
    return [_way(rule, way) for way in rule.when]


def spared(rule: Rule) -> str:
    """When a finding of `rule` is only a note; empty where it never is."""
    if all(way.unless and not (way.all or way.needs or way.without) for way in rule.harmless):
        unless = [signal_in_words(rule, name) for way in rule.harmless for name in way.unless]
        return f"unless {' or '.join(unless)}" if unless else ""
    return "if " + "; or if ".join(_way(rule, way) for way in rule.harmless)


def parts(rule: Rule) -> Iterator[tuple[str, str]]:
    """The predicates that its ways name in italics, each with when it holds."""
    for name, ways in rule.predicates.items():
        yield _name(name), "; or ".join(_way(rule, way) for way in ways)


def shown(rule: Rule) -> list[str]:
    """Signals that it shows as evidence, and that decide nothing."""
    decide = signals_of((*rule.when, *rule.harmless), rule.predicates)
    return list(dict.fromkeys(signal_in_words(rule, name) for name in rule.signals if name not in decide))


def places(rule: Rule) -> str:
    """A sentence on the pairs and slices that it checks; empty for a rule of the whole run."""
    if not rule.pairs:
        each = [EACH[name] for name in rule.slices if name in ANY]
        whole = ["the whole run"] * ("all" in rule.slices)
        return f"It checks {_and([*whole, *each])} separately." if each else ""
    own = any(ref.stat and ref.slice is None for ref in rule.series())
    slices = [SLICES[name] for name in rule.slices] if own else []
    pairs = [f"`{pair}`" for pair in rule.pairs]
    on = f", on {_and(slices)}" if slices else ""
    separately = ", each separately" if len(pairs) > 1 or len(slices) > 1 else ""
    return f"It checks the {'pairs' if len(pairs) > 1 else 'pair'} {_and(pairs)}{on}{separately}."


def _and(items: list[str]) -> str:
    *first, last = items
    return f"{', '.join(first)} and {last}" if first else last


def _name(predicate: str) -> str:
    return f"*{predicate.replace('_', ' ')}*"


def _way(rule: Rule, way: Way) -> str:
    holds, unless, asked = _in_parts(rule, way)
    text = " and ".join(holds)
    if unless:
        text += f"{', but not if ' if text else 'not: '}{' or '.join(unless)}"
    return text + (f"; only if {' and '.join(asked)}" if asked else "")


def _in_parts(rule: Rule, way: Way) -> WayInWords:
    signals = [rule.signals[part] for part in way.all if isinstance(part, str) and part in rule.signals]
    read = [ref for signal in signals for ref in signal.refs()]
    asked = [f"`{name}` is logged" for name in way.needs if SeriesRef.parse(name) not in read]
    asked += [f"`{name}` is not logged" for name in way.without]
    holds = [_part(rule, part if isinstance(part, str) else part.any) for part in way.all]
    return WayInWords(holds, [signal_in_words(rule, name) for name in way.unless], asked)


def _part(rule: Rule, part: str | tuple[str, ...]) -> str:
    if isinstance(part, str):
        return signal_in_words(rule, part)
    return f"({' or '.join(signal_in_words(rule, name) for name in part)})"


def signal_in_words(rule: Rule, name: str) -> str:
    """The signal called `name`; of a predicate its name."""
    if name in rule.predicates:
        return _name(name)
    signal = rule.signals[name]
    return _phrase(_DATA.dump_python(signal, exclude_none=True, mode="json") | {"kind": getattr(signal, "kind", "")})


def _phrase(data: _Data) -> str:
    return PHRASES[data["kind"]](data)


def _ref(ref: _Data) -> str:
    return "/".join(str(ref[part]) for part in ("pair", "slice", "stat", "metric") if part in ref)


def _series(data: _Data) -> str:
    over = f" ÷ {_ref(data['relative_to'])}" if "relative_to" in data else ""
    return f"`{_ref(data['series'])}{over}`"


def _limit(limit: Any) -> str:
    """A limit, or one for each algorithm: the usual one, and those that differ."""
    if not isinstance(limit, Mapping):
        return f"{limit:g}"
    usual = limit["other"]
    others = ", ".join(f"{algorithm}: {value:g}" for algorithm, value in limit.items() if value != usual)
    return f"{usual:g}" + (f" ({others})" if others else "")


def _beyond(data: _Data) -> str:
    return f"> {_limit(data['above'])}" if "above" in data else f"< {_limit(data['below'])}"


def _threshold(data: _Data) -> str:
    return f"{_series(data)[:-1]} {_beyond(data)}`"


def _ratio(data: _Data) -> str:
    divisor = (
        f"the {ORDINALS[data['largest'] - 1]}largest value of its baseline" if "largest" in data else "its baseline"
    )
    return f"{_series(data)} {_beyond(data)}× {divisor}"


def _size(data: _Data) -> str:
    if "factor" in data:
        return f" {data['factor']:g}×"
    return f" by {data['change']:g}" if data.get("change", 0) > NO_CHANGE else ""


def _verb(data: _Data, rising: str, falling: str) -> str:
    return falling if data["direction"] == "falling" else rising


def _growth(data: _Data) -> str:
    how = [f"each step above {data['each']:g}× its baseline"] if "each" in data else []
    how += ["beyond earlier waves"] if data["anew"] else []
    return f"{_series(data)} {_verb(data, 'grows', 'shrinks')}{_size(data)}" + (f" ({', '.join(how)})" if how else "")


def _trend(data: _Data) -> str:
    return f"{_series(data)} {_verb(data, 'rises', 'falls')}{_size(data)} in {data['steps']} values"


def _spike(data: _Data) -> str:
    above = f", to more than {data['above']:g}" if "above" in data else ""
    ever = ", further than ever before" if data["ever"] else ""
    far = f"from the last {data['steps']} values, by {data['z']:g} robust deviations"
    return f"{_series(data)} {_verb(data, 'jumps', 'drops')}{_size(data)} {far}{above}{ever}"


def _often(data: _Data) -> str:
    count, separate = data["count"], "separate " if data["anew"] else ""
    times = "at least once" if count == 1 else f"{count} {separate}times"
    return f"({_phrase(data['signal'])}, {times} in the last {data['steps']:,} values)"


def _correlation(data: _Data) -> str:
    two = f"`{_ref(data['series'])}` and `{_ref(data['other'])}`"
    return f"the correlation of {two} over {data['steps']} values is {_beyond(data)}"


def _collapse(data: _Data) -> str:
    lost = f"has lost {data['lost'] * 100:g} % of its gain" if data["lost"] else "has clearly fallen from its best"
    return f"{_series(data)} {lost}"


def _gain(data: _Data) -> str:
    metric = data["series"].get("metric")
    better = "fallen" if metric and training(metric).worse == "higher" else "risen"
    if data["never"]:
        return f"{_series(data)} has never {better}"
    return f"{_series(data)} has {'surely ' * data['sure']}{better} over the run"


def _fired(data: _Data) -> str:
    when = "before" if data["steps"] >= LONG_AGO else f"in the last {data['steps']} steps"
    rules, several = ", ".join(data["rules"]), "one" if data["count"] == 1 else str(data["count"])
    return f"{rules} fired {when}" if len(data["rules"]) == 1 else f"{several} of these fired {when}: {rules}"


def _setting(data: _Data) -> str:
    first, *others = data["keys"]
    return f"`{first}`{' or another such setting' if others else ''}"


def _config_is(data: _Data) -> str:
    *values, last = dict.fromkeys(f"{value}".lower().removesuffix(".0") for value in data["values"])
    return f"{_setting(data)} is {', '.join(values)}{' or ' if values else ''}{last}"


def _in_range(data: _Data) -> str:
    sign = "above" if "above" in data else "below"
    ends = f"from the lowest `{_ref(data['lowest'])}` to the highest `{_ref(data['highest'])}` so far"
    return f"the mean of the last 8 {_series(data)} is {sign} {data[sign] * 100:g} % of the range {ends}"


PHRASES: Mapping[str, Callable[[_Data], str]] = {
    "threshold": _threshold,
    "baseline_ratio": _ratio,
    "growth": _growth,
    "trend": _trend,
    "spike": _spike,
    "stuck": lambda data: f"{_series(data)} stays within {data['within']:g} for {data['steps']} values",
    "often": _often,
    "correlation": _correlation,
    "collapse": _collapse,
    "gain": _gain,
    "left_behind": lambda data: f"{_series(data)} stays behind `{_ref(data['other'])}`",
    "fired": _fired,
    "config_changed": lambda data: f"{_setting(data)} has changed",
    "config_is": _config_is,
    "in_range": _in_range,
    "out_of_range": lambda data: f"{_series(data)} is off by {data['ranges']:g} times its whole range so far",
    "non_finite": lambda data: NON_FINITE[data["which"]] + (f" after {data['after']} steps" if data["after"] else ""),
    "missing_rank": lambda data: f"a rank has not reported for {data['steps']} steps",
}
"""Of each kind of signal."""
