"""Whether a series follows another one: the leader has gained, and what had gained with it has not.

It compares a training reward with what it should measure, such as an evaluation. Each is compared with its own course.
The last level is compared with an earlier one, at the same steps for both. So the answer is about levels: it stays yes
while they stay.
"""

import math
from dataclasses import dataclass

import numpy as np

from tracker_diag.detect.means import BlockMeans
from tracker_diag.detect.noise import noise_of
from tracker_diag.detect.scan import chance
from tracker_diag.stats.arrays import Float64Array

FEWEST = 6
"""Values of the follower from which on the two can be compared: two levels of three."""
PART = 8
"""A level of the follower is the mean of this part of its values, three at least."""
SHORTEST = 3
GAINED = 0.25
"""Part of its range by which the leader has gained since, at least."""
PAID = 0.15
"""The same of what it had gained before, from which on a pace can be measured."""
FOLLOWED = 0.25
"""Part of what the follower would have gained at its earlier pace, up to which it has not followed."""
FLAT = 0.05
"""With a gain below this part of the leader's, a follower in another unit without a pace has not moved."""
MOSTLY = 0.5
"""Part of its range by which the leader has gained, at least, where the follower never had a pace."""
NEARLY = 0.95
"""Part of the widest gap from which an earlier level may be the one at which the two parted."""
ONE_UNIT = 10.0
"""Factor between the largest values of the two up to which they may have one unit."""
ROUNDING = 1e-9
"""Part of the largest value that is no gain but rounding."""
FEW = 2.0
"""By this over n the standard errors are wider with n values: what tells the noise is itself a sample."""


@dataclass(frozen=True)
class Following:
    """Where two series stand; levels in their own units, better ones larger."""

    behind: bool
    before: float
    """The level of the follower when it stopped following; its first level, where it follows."""
    now: float
    """Its last level."""
    step: int
    """The step at which the earlier level ends."""
    expected: float
    """How much of the follower was to be gained since at its earlier pace; 0 where that is not known."""
    leader_before: float
    leader_now: float
    began: int
    """If the follower has fallen since `step`, the first step by which it was as good as at its best; else `step`."""

    def is_over(self, later: "Following") -> bool:
        """Whether they have come together again by `later`: half of the way on either side is enough."""
        follows = later.now - self.before >= self.expected / 2
        return follows or later.leader_now - self.leader_before <= (self.leader_now - self.leader_before) / 2


def following(leader: BlockMeans, follower: BlockMeans) -> Following | None:
    """Whether `follower` has stayed behind while `leader` gained; None with too few values.

    Levels of `follower` are means of an eighth of its values, three at least. Those of `leader` are means over the same
    steps. They begin half an interval before the first of these values, and end half an interval after the last one.
    They have parted if since some earlier level

    - `leader` has gained a quarter of its range beyond its best until then, and more than by chance (detect/scan.py);
    - `follower` has surely gained less than a quarter of what it would have at its pace until then; or it never had a
      pace, and `leader` has gained half of its range. `follower` has then surely gained less than a twentieth of the
      relative gain; in one unit, if it never rose, less than a quarter of the gain.

    A follower that is no lower than its leader, in what may be one unit, is ahead of it: an evaluation without
    exploration is at its ceiling long before the training reward. Falls are a matter of detect/course.py.
    """
    n = len(follower.means)
    if n < FEWEST or len(leader.means) < FEWEST:
        return None
    y, x = np.array(follower.means), np.array(leader.means)
    width = max(SHORTEST, n // PART)
    totals, earlier = np.concatenate([[0.0], np.cumsum(y)]), slice(0, n - 2 * width + 1)
    levels = (totals[width:] - totals[:-width]) / width
    ends = np.array(follower.ends)
    between = ends + np.append(np.diff(ends), 0) / (2 * follower.size)  # half-way to the follower's next value
    at = np.searchsorted(np.array(leader.ends), between, side="right")
    sums = np.concatenate([[0.0], np.cumsum(x)])
    starts = np.concatenate([[0], at])[: n - width + 1]
    stops = np.maximum(at[width - 1 :], starts + 1)
    if stops[-1] > len(x):
        return None
    rewards = (sums[stops] - sums[starts]) / (stops - starts)
    # The largest of n normal values is about √(2 ln n) standard deviations off: there are as many earlier levels.
    sure = math.sqrt(2 * math.log(n)) * (1 + FEW / n)
    # Most evaluations of a solved task are equal, and a single one is far off.
    noise = max(noise_of(y), noise_of(y[-width:], trimmed=False))
    error = sure * noise * math.sqrt(2 / width)
    rows = np.minimum(stops - starts, stops[-1] - starts[-1])
    unsure = chance(x) * np.sqrt(2 / rows)[earlier]
    best = np.maximum.accumulate(rewards)[earlier]
    gained, followed = rewards[-1] - best, levels[-1] - levels[earlier]
    reach = float(np.ptp(rewards))
    has_gained = gained > np.maximum(GAINED * reach, unsure) + ROUNDING * float(np.abs(x).max())
    risen, paid = levels[earlier] - levels[0] - error, best - rewards[0]
    has_pace = (risen > 0) & (paid > np.maximum(PAID * reach, unsure))
    pace = np.divide(risen, paid, out=np.zeros_like(risen), where=has_pace)
    is_behind = has_pace & (followed + error < FOLLOWED * pace * np.maximum(gained, 0))
    relative = np.minimum(np.divide(gained, best, out=np.zeros_like(gained), where=best > 0), 1.0)
    has_one_unit = _has_one_unit(levels, rewards)
    never = has_one_unit and levels[-1] - levels[0] <= error and not has_pace.any()
    no_move = FOLLOWED * gained if never else FLAT * relative * levels[earlier]
    is_flat = ~has_pace & (gained > MOSTLY * reach) & (followed + error < no_move)
    is_ahead = has_one_unit and levels[-1] + error >= rewards[-1]
    behind = has_gained & (is_behind | is_flat) & (not is_ahead)
    when = 0
    if behind.any():
        share = gained / max(reach, 1e-300) - followed / max(float(np.ptp(levels)), 1e-300)
        gaps = np.where(behind, share, -np.inf)
        widest = float(gaps.max())  # below 0 if the follower gained more of its own range
        near = widest - (1 - NEARLY) * abs(widest)
        when = int(np.flatnonzero(gaps >= near)[-1])  # the last level before the gap began to open
    later, began = levels[when:], when
    if levels[-1] + error < later.max():
        began = when + int(np.flatnonzero(later >= later.max() - error / sure)[0])
    return Following(
        bool(behind.any()),
        float(levels[when]),
        float(levels[-1]),
        follower.ends[when + width - 1],
        float(max(pace[when], 0.0) * max(gained[when], 0.0)),
        float(best[when]),
        float(rewards[-1]),
        follower.ends[began + width - 1],
    )


def _has_one_unit(levels: Float64Array, rewards: Float64Array) -> bool:
    """Whether both may be measured in one unit, as returns of one environment are."""
    smaller, larger = sorted(float(np.abs(each).max()) for each in (levels, rewards))
    return larger <= ONE_UNIT * smaller
