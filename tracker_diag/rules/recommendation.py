"""Go on or stop: what the findings of a run say to that, and the last step that is known to be good."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from tracker_diag.rules.findings import Finding
from tracker_diag.rules.incidents import DAMAGE, Incident
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.signals.collapse import Collapse
from tracker_diag.rules.signals.gain import Gain


@dataclass(frozen=True)
class Recommendation:
    """Whether a run in which something broke is to go on."""

    go_on: bool
    last_good_step: int | None
    """The step to go back to, at the latest; None where the run may go on, or none is known."""
    says: str
    """The answer in one sentence, with what it rests on."""

    def to_json(self) -> dict[str, object]:
        """As `tracker-diag diagnose --json` prints it."""
        return asdict(self)


def recommend(
    found: Sequence[Incident], best: Sequence[Reading], *, goes_on: bool = False, stopped: bool = False
) -> Recommendation | None:
    """What is to be done with the run; None where nothing at warn or above was found.

    Args:
        best: of each outcome its last level, and its best one as baseline with the step.
        goes_on: whether the run has not ended. A level is the mean of a tenth of it, so that the best one, and with
            it the last good step, may be another one when there are more steps.
        stopped: whether a guard has stopped the training, so that it is not to go on as it is though no harm is seen.
    """
    loud = [one for one in found if one.severity != "info"]
    firing = [one for of in loud for one in of.findings if one.state == "firing" and one.severity != "info"]
    good = [*_good(firing, best)]
    if good and loud:
        step, why = min(good)
        so_far = "so far " if goes_on else ""
        says = (
            f"No. Last good step {so_far}{step} ({why}); mend the cause, then go on from a checkpoint at or before it"
        )
        begun = min((one.onset for one in firing if one.rule.link != DAMAGE), default=step + 1)
        return Recommendation(False, step, f"{says}; what broke first began at step {begun}" if begun <= step else says)
    if harm := next((one for one in firing if one.rule.link == DAMAGE or one.severity == "error"), None):
        return Recommendation(
            False, None, f"No. {harm.rule.title}, and no step is known to be better: mend it, begin anew"
        )
    if not firing:
        over = max((one.resolved for of in loud for one in of.findings if one.resolved is not None), default=None)
        passed = f"Yes. What was found is not detected any more since step {over}"
        return None if over is None else Recommendation(True, None, passed)
    answer = "Not before the cause is mended, as a guard stopped it" if stopped else "Yes, for now"
    if sinks := next((one for one in best if one.series != "loss" and one.onset is not None), None):
        low = f"{sinks.series} is {sinks.value:.3g} since step {sinks.onset}, {sinks.baseline:.3g} at its best"
        return Recommendation(not stopped, None, f"{answer}. But {low}{'; look again soon' if goes_on else ''}")
    if seen := [one.series for one in best if one.series != "loss"]:
        show = "shows" if len(seen) == 1 else "show"
        return Recommendation(not stopped, None, f"{answer}. {' and '.join(seen[:2])} {show} no harm")
    blind = "But no reward and no evaluation could be judged: harm would not be seen"
    return Recommendation(not stopped, None, f"{answer}. {blind}")


def _good(firing: Sequence[Finding], best: Sequence[Reading]) -> Iterator[tuple[int, str]]:
    """For each harm of which a good step is known: the last one, and what it was good by."""
    levels = {one.series: one for one in best if one.series != "loss"}
    for one in firing:
        if one.rule.link != DAMAGE and one.severity != "error":
            continue
        fell = [r for r in one.evidence if r.holds and isinstance(one.rule.signals.get(r.signal), Collapse)]
        if fell:
            yield from (_best(levels.get(reading.series, reading)) for reading in fell if reading.at is not None)
        elif one.onset > 1 and not any(isinstance(signal, Gain) for signal in one.rule.signals.values()):
            yield one.onset - 1, f"the last before {one.rule.id} began"
    yield from (_best(one) for one in levels.values() if one.holds and one.at is not None)


def _best(reading: Reading) -> tuple[int, str]:
    return reading.at or 0, f"{reading.series} {reading.baseline:.3g}, its best"
