"""What follows from several metrics of one row: of all tools, of all components of the reward, of all groups."""

import math
import re
from collections.abc import Mapping

# A word of the name begins so: "information" is no format, and "incorrect" not what a check is glad of.
_FORMAT = re.compile(r"(?<![a-z])format", re.IGNORECASE)
_CHECKED = re.compile(r"(?<![a-z])(correct|accura|solved|verif|exact_match|pass_rate)", re.IGNORECASE)


def members(values: Mapping[str, float], name: str) -> dict[str, float]:
    """The values of `name:<member>`, by member."""
    return {key[len(name) + 1 :]: value for key, value in values.items() if key.startswith(f"{name}:")}


def derived(values: dict[str, float]) -> dict[str, float]:
    """`values` with what several of them say together, where the trainer has not logged it itself.

    - `tool_entropy`: entropy in nat of the choice among tools, from `tool_calls:<tool>`.
    - `component_variance_share` and `dead_component_share`: from `reward_component_std:<component>`, two or more.
      The components' weights are not known here; TRL logs them before weighting.
    - `format_reward` and `verifier_score`: the one `reward_component:<component>` whose name says so.
    - `zero_std_share`: groups that are all wrong or all right, `solved_none_share` and `solved_all_share`.
    """
    calls = [max(count, 0.0) for count in members(values, "tool_calls").values()]
    if len(calls) > 1 and (total := sum(calls)) > 0:
        shares = [count / total for count in calls if count > 0]
        values.setdefault("tool_entropy", -sum(share * math.log(share) for share in shares) + 0.0)
        values.setdefault("tool_calls", total)
    variances = [std * std for std in members(values, "reward_component_std").values()]
    if len(variances) > 1:
        values.setdefault("dead_component_share", sum(variance == 0 for variance in variances) / len(variances))
        if (total := sum(variances)) > 0:
            values.setdefault("component_variance_share", max(variances) / total)
    components = members(values, "reward_component")
    for name, words in (("format_reward", _FORMAT), ("verifier_score", _CHECKED)):
        named = [value for component, value in components.items() if words.search(component)]
        if len(named) == 1:
            values.setdefault(name, named[0])
    same = values.get("solved_none_share", math.nan) + values.get("solved_all_share", math.nan)
    if same <= 1:  # else they are counts
        values.setdefault("zero_std_share", same)
    return values
