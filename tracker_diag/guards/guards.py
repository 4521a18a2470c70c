"""Guards: holds each policy against the incidents of the run, once a step, and says what is to be done.

log:     dry runs say what they would do; what is held continues or is released
decide:  guards that act are asked, overruled ones drop out, all ranks do the same or nothing
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tracker_diag.guards import control
from tracker_diag.guards.agreement import Agreement
from tracker_diag.guards.checkpoints import Check, Register
from tracker_diag.guards.decision import Decision, Order, Value, Wish, decided, overruled, smallest, strength
from tracker_diag.guards.memory import Limits, Memory
from tracker_diag.guards.policy import ACTIONS, HELD, Action, Guard, Guarded, On, guards_of
from tracker_diag.health import Health
from tracker_diag.metrics.series import SeriesKey
from tracker_diag.records import Scalar, Table
from tracker_diag.rules.findings import Identity, identity
from tracker_diag.rules.incidents import Incident
from tracker_diag.rules.judge import Judge
from tracker_diag.tensors.ranks import Ranks

__all__ = ["ACTIONS", "Action", "Decision", "Guarded", "Guards"]

UNASKED = 5
"""Steps after which a warning says that a guard that acts is never asked."""

FAILURES = 3
"""If the ranks disagree on an action so many times in a row, no guard proposes it any more."""

LOUD = On()
"""Incidents at warn or above."""


class Guards:
    """The policies of one run, and its register of checkpoints.

    Args:
        own: as `Monitor` takes them.
        rules: ids of those that the run is held against.
        ranks: where there are several processes; the first one's word counts.
    """

    def __init__(self, own: Guarded, rules: Collection[str], health: Health, ranks: Ranks | None) -> None:
        self.guards = guards_of(own, rules)
        self.checkpoints = Register()
        self._each = [(guard, Memory()) for guard in self.guards]
        self._limits = Limits()
        self._health, self._ranks = health, ranks
        self._agreement = Agreement(ranks, self.checkpoints, health) if ranks else None
        self._failures: Counter[Action] = Counter()
        """Times in a row that the ranks have not agreed on an action."""
        self._fresh = False
        """Whether the rules have judged the step that is underway."""
        self._seen: list[tuple[Identity, str, str]] = []
        """Findings that have fired, as they were when incidents were last made of them."""
        self._firing: Sequence[Incident] = ()
        """The incidents that are ongoing."""
        self._last: dict[str, float] = {}
        """The last value of each series that a number depends on."""
        self.stopped = ""
        """Why a guard stopped training; empty if none did."""
        self._unasked = 0
        """Steps on which a guard that acts was due; negative once it has been asked, or a warning was given."""

    @property
    def alone(self) -> bool:
        """Whether this process decides without others."""
        return self._ranks is None

    @property
    def _leads(self) -> bool:
        return self._ranks is None or self._ranks.leads

    def step(self, step: int, series: Mapping[SeriesKey, Scalar], run: Judge, *, fresh: bool) -> list[str]:
        """Take in a step and what has come of it so far; what dry-runs would do, and what is let go.

        Args:
            fresh: whether the rules have judged this step; else no guard acts on it.
        """
        texts, self._fresh = list[str](), fresh
        with self._health.guard("internal_errors"):
            for error in self.checkpoints.errors():
                self._health.record("checkpoint_errors", error)
                if self._health.counts["checkpoint_errors"] > 1:  # each is of another file
                    self._health.warn([f"checkpoint_errors: {error}"])
            if self.guards or self.checkpoints:
                self._last |= control.remembered(series)
                firing = self._incidents(run)
                texts = [text for guard, memory in self._each for text in self._held(guard, memory, step, firing)]
                dry = [self._wish(guard, memory, step, firing) for guard, memory in self._each if not guard.act]
                texts += [wish.order.why for wish in dry if wish]
                texts += self._reported_unasked(step, firing)
        return texts

    def decide(self, step: int, run: Judge, can: Collection[Action]) -> tuple[Decision, list[str]]:
        """What to do now, the same on every rank, and the messages about it.

        Args:
            can: what the caller can do.
        """
        if not self.guards:  # on every rank, or on none
            return Decision(), []
        before, self._unasked = self._accounts(), -1
        decision, texts, agreed = Decision(), list[str](), not self._leads
        if self._leads and self._fresh:
            with self._health.guard("internal_errors"):
                decision, texts = self._decided(step, self._incidents(run), can)
                agreed = True
        if self._agreement:
            proposal = {"decision": decision.state_dict(), "accounts": self._accounts()} if agreed else None
            reached = self._agreement.reach(step, proposal if self._leads else None, acts=bool(decision))
            agreed = reached is not None
            if reached and not self._leads:
                decision = Decision.of_state(reached["decision"])
                self._load(reached["accounts"])
        does = {order.do for order in decision.orders if not order.dry}
        if not agreed:  # what is not done is not taken for done
            self._load(before)
            self._failures.update(does)
            never = [do for do in does if self._failures[do] == FAILURES]
            return Decision(), [f"guard {do}: no agreement {FAILURES} times in a row; off for this run" for do in never]
        for do in does:
            del self._failures[do]
        if decision and self._leads:
            self._limits.keep({key: (memory.times, memory.last) for key, memory in self._acting()}, self._health)
        if decision.stop == "training":  # kept for who writes down how the run ended
            self.stopped = next(order.why for order in decision.orders if order.do == "stop_training" and not order.dry)
        return decision, texts

    def _acting(self) -> list[tuple[str, Memory]]:
        return [(guard.model_dump_json(), memory) for guard, memory in self._each if guard.act]

    def forget(self) -> None:
        """A step begins: what the rules have said of the last one is not fresh any more."""
        self._fresh = False

    @property
    def caveats(self) -> tuple[str, ...]:
        """What a verdict on the run is not to leave out."""
        return (f"the training was stopped by {self.stopped}",) if self.stopped else ()

    def checkpoint(self, path: Path, step: int, run: Judge) -> None:
        """Register the checkpoint at `path`, of `step`; on the rank that decides alone."""
        if self._leads:
            self.saved_in(path)
            loud = [incident for incident in self._incidents(run) if LOUD.holds(incident)]
            self.checkpoints.register(path, step, [incident.id for incident in loud])
            for incident in loud:  # it may be of an earlier step
                self.checkpoints.taint(incident.good_until + 1, incident.id)

    def saved_in(self, path: Path) -> None:
        """A checkpoint is at `path`: what outlives a rollback is kept next to it."""
        self._limits.places.add(str(path.absolute().parent))

    def tables(self) -> tuple[Table, ...]:
        """The register, where there is news of it."""
        return (self.checkpoints.table(),) if self.checkpoints.changed else ()

    def close(self) -> tuple[Table, ...]:
        """The table of all checkpoints, for the end of the run; nothing if there are none."""
        return (self.checkpoints.table(),) if self.checkpoints else ()

    def state_dict(self) -> dict[str, Any]:
        """Limits, what has been dealt with, and the register, in JSON values."""
        checkpoints = self.checkpoints.state_dict()
        return {"accounts": self._accounts(), "checkpoints": checkpoints, "limits": self._limits.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken; guards that are new since then start over.

        How often a guard has acted is never taken back: the state may be that of a checkpoint it went back to.
        """
        counted = [(memory, memory.times, memory.last) for _, memory in self._each]
        self._load(state["accounts"])
        self._limits.load_state_dict(state["limits"])
        for memory, times, last in counted:
            memory.raise_to(times, last)
        self.checkpoints.load_state_dict(state["checkpoints"])
        self._seen = []

    def _accounts(self) -> dict[str, Any]:
        kept = [[guard.model_dump_json(), memory.state_dict()] for guard, memory in self._each]
        return {"guards": kept, "last": dict(self._last)}

    def _load(self, accounts: Mapping[str, Any]) -> None:
        kept = dict(accounts["guards"])
        for guard, memory in self._each:
            if (state := kept.get(guard.model_dump_json())) is not None:
                memory.load_state_dict(state)
        self._last = dict(accounts["last"])

    def _incidents(self, run: Judge) -> Sequence[Incident]:
        """Those that are ongoing; their changes are recorded."""
        findings = run.findings
        fired = [finding for finding in findings if finding.fired is not None]
        seen: list[tuple[Identity, str, str]] = [
            (identity(finding), finding.state, finding.severity) for finding in fired
        ]
        if seen != self._seen:
            self._seen, there = seen, {identity(finding) for finding in findings}
            self._firing = [incident for incident in run.incidents if incident.state == "firing"]
            for _, memory in self._each:
                memory.follow(self._firing, there)
            for incident in self._firing:
                if LOUD.holds(incident):
                    self.checkpoints.taint(incident.good_until + 1, incident.id)
        return self._firing

    def _held(self, guard: Guard, memory: Memory, step: int, firing: Sequence[Incident]) -> list[str]:
        """Continue what `guard` holds, or release it, and report that."""
        if memory.since is None:
            return []
        there = [incident for incident in firing if guard.on.holds(incident)]
        for incident in there:  # what has come since is dealt with by that, too
            memory.meet(incident, incident.severity)
        if guard.target is not None:
            kl = next((self._last[key] for key in control.KL if key in self._last), None)
            memory.value = control.kl_coefficient(memory.value, kl, guard.target, guard.within)
        if there and step - memory.since < guard.hold:
            return []
        why = f"held for {step - memory.since} steps" if there else "the incident is over"
        memory.since = None
        return [f"guard {guard.do}{_mode(guard)}: ended, {why}"]

    def _hindrance(self, do: Action, can: Collection[Action]) -> str:
        """Why `do` is recommended and not done; empty where it can be."""
        if self._agreement and not self._agreement.possible:
            return "the ranks share no collective to agree by"
        return "" if do in can else "not within reach of this trainer"

    def _decided(self, step: int, firing: Sequence[Incident], can: Collection[Action]) -> tuple[Decision, list[str]]:
        """What guards that act want, what others give way to first; and what is new of that."""
        wishes, texts = list[Wish](), list[str]()
        acting = [pair for pair in self._each if pair[0].act and self._failures[pair[0].do] < FAILURES]
        for guard, memory in sorted(acting, key=lambda pair: -strength(pair[0].do)):
            above = overruled(guard.do, [wish.order.do for wish in wishes if not wish.order.dry])
            if memory.since is not None:
                known = [incident for incident in firing if guard.on.holds(incident)]
                wishes += [self._going_on(guard, memory, known)] if known and above is None else []
                continue
            undone = f"gives way to {above}" if above else self._hindrance(guard.do, can)
            wish = self._wish(guard, memory, step, firing, undone)
            if wish is not None:
                wishes.append(wish)
                texts.append(wish.order.why)
        return decided(wishes), texts

    def _going_on(self, guard: Guard, memory: Memory, known: Sequence[Incident]) -> Wish:
        value, what = self._value(guard, memory, known)
        why = f"guard {guard.do}: {what}, since step {memory.since}; for {_named(known[0])}"
        return Wish(Order(guard.do, known[0].id, why, dry=False), value)

    def _due(self, guard: Guard, memory: Memory, step: int, firing: Sequence[Incident]) -> list[Incident]:
        """The incidents that `guard` has to deal with now."""
        rests = memory.last is not None and 0 <= step - memory.last < guard.cooldown
        if memory.times >= guard.most or memory.since is not None or rests:
            return []
        return [incident for incident in firing if memory.is_news(incident) and guard.on.holds(incident)]

    def _wish(
        self, guard: Guard, memory: Memory, step: int, firing: Sequence[Incident], undone: str = ""
    ) -> Wish | None:
        """What `guard` wants now, if anything; it is taken for done.

        Args:
            undone: why it cannot be done, if it cannot: the incident is dealt with all the same, and nothing counted.
        """
        due = self._due(guard, memory, step, firing)
        if due and guard.act and (unread := self._limits.recall(self._acting())):
            undone = undone or f"its limits are not known, {unread}"
        due = self._due(guard, memory, step, due)  # which may have acted before a rollback
        if not due:
            return None
        value: Value = None
        what = guard.do.replace("_", " ")
        if guard.do == "rollback" and not undone:
            onset = 1 + min(incident.good_until for incident in due)
            others = (self._agreement.others,) if self._agreement else ()
            checks: tuple[Check, ...] = (self.checkpoints.reread, *others) if guard.act else ()
            value, wrong, certain = self.checkpoints.before(onset, *checks)
            if not certain:
                return None  # asked again at the next step
            passed = f"; passed over {', '.join(wrong)}" if wrong else ""
            if value is None:
                undone = f"no clean and whole checkpoint from before step {onset}{passed}"
            else:
                what = f"to step {value.step}, {value.path}{passed}"
        for incident in due:
            memory.meet(incident, incident.severity)
        if not undone:
            memory.times, memory.last = memory.times + 1, step
            if guard.do in HELD:
                memory.since = step
                memory.value = control.within(self._last.get("kl_coefficient", 0.0), guard.within)
                value, what = self._value(guard, memory, due)
        why = f"guard {guard.do}{_mode(guard)}: {f'not done, {undone}' if undone else what}; for {_named(due[0])}"
        return Wish(Order(guard.do, due[0].id, why, dry=bool(undone) or not guard.act), value)

    def _value(self, guard: Guard, memory: Memory, known: Sequence[Incident]) -> tuple[Value, str]:
        """What a guard that holds on sets now, and how that is said."""
        if guard.do == "kl_cap":
            return memory.value, f"coefficient {memory.value:.3g}"
        if guard.do == "scale_lr":
            seen = [self._last[key] for key in control.ESS if key in self._last]
            factor = control.lr_factor(min(seen, default=None), guard.within)
            return factor, f"learning rate × {factor:.3g}, " + (f"ESS {min(seen):.3g}" if seen else "no ESS seen")
        if guard.do == "cap_tool_share":
            weights = smallest(control.tool_weights(incident, self._last, guard.within) for incident in known)
            return weights, ", ".join(f"weight of {tool} {weight:.3g}" for tool, weight in weights.items())
        return None, "no updates"

    def _reported_unasked(self, step: int, firing: Sequence[Incident]) -> list[str]:
        """That guards that act are due, and nobody asks; once."""
        due = [guard.do for guard, memory in self._each if guard.act and self._due(guard, memory, step, firing)]
        if self._unasked < 0 or not due:
            return []
        self._unasked += 1
        if self._unasked < UNASKED:
            return []
        self._unasked = -1
        return [
            f"guards: {', '.join(due)} would act, but nobody asks; call decide() after each log, and do what it says"
        ]


def _mode(guard: Guard) -> str:
    return "" if guard.act else ", dry-run"


def _named(incident: Incident) -> str:
    return f"{incident.id}, {incident.severity}: {incident.cause.summary}"
