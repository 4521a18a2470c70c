"""Keep: for each finding that is pending or firing on a slice, the worst sequences of three of its steps.

What is kept is bounded, whatever the run's length. It is shown in the report and in the table `diag/worst_sequences`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tracker_diag.health import Health
from tracker_diag.metrics.series import Pair
from tracker_diag.records import Table, WorstSequence
from tracker_diag.report.tokens import excerpt, worst_table
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.incidents import SEVERITIES
from tracker_diag.tensors.decode import Decode, Decoder
from tracker_diag.tensors.intake import Intake
from tracker_diag.tensors.windows import PairWindow
from tracker_diag.tensors.worst import Found, Place, beyond, tail_mass

MOST_PLACES = 6
"""Slices that are looked at in one step; the gravest findings first, and of these the earliest."""
MOST_EPISODES = 16
"""Findings whose sequences are kept: the first, and the last ones. Each has 24 sequences of 512 tokens at most."""
CLOSE_WITHIN = 5.0
"""Seconds that the end waits for a decoder."""


@dataclass(eq=False)
class _Episode:
    """What is kept of a place, from when a finding began there until none is left."""

    place: Place
    onset: int
    fired: bool
    first: Found
    worst: Found
    last: Found

    def sequences(self) -> Iterator[WorstSequence]:
        """Those of the worst step, then those of the first and the last one, where these are others."""
        pair, slice = self.place
        shown: set[int] = set()
        for moment, at in (("worst", self.worst), ("first", self.first), ("last", self.last)):
            if at.step not in shown:
                shown.add(at.step)
                about = {"pair": pair, "slice": slice, "onset": self.onset, "moment": moment, "step": at.step}
                yield from at.sequences(partial(WorstSequence, **about))  # type: ignore[arg-type]


class WorstSequences:
    """Decides which slices are looked at, and keeps what was found there.

    Args:
        decode: makes text of token ids; None for no text.
        live: whether the run is underway. Then a warning says so if a decoder was given and no ids came.
    """

    def __init__(self, health: Health, decode: Decode | None, *, live: bool) -> None:
        self._health, self._live = health, live
        self._decoder = None if decode is None else Decoder(decode)
        self._episodes: list[_Episode] = []
        self._open: dict[Place, _Episode] = {}
        self._asked = False
        """Whether there was an alert for which no table has been sent."""
        self._due: tuple[WorstSequence, ...] | None = None
        """What the next table is of, while its text is made."""
        self._warned = False

    def step(
        self, step: int, findings: Sequence[Finding], windows: Mapping[Pair, PairWindow], intake: Intake, *,
        alerted: bool,
    ) -> list[Table]:  # fmt: skip
        """Keep what the slices of `findings`, those that are open, have at `step`, and say where to look next.

        Args:
            alerted: whether this step reports an incident.

        Returns:
            The table, where one is due: with an alert, or as soon as there is something to show of it.
        """
        with self._health.guard("internal_errors"):
            places = {place: on_it for place, on_it in _places(findings).items() if place.pair in windows}
            windows_of = {place: windows[place.pair].slices(intake.names, (place.slice,)) for place in places}
            for place, worst in intake.worst.taken(intake.names).items():
                if place in places and place.slice in windows_of[place]:
                    mass = tail_mass(windows_of[place][place.slice], worst.limit)
                    onset = min(finding.onset for finding in places[place])
                    self._add(place, onset, replace(worst, step=step, window=mass))
            self._forget(places)
            intake.worst.limits = {
                place: beyond(slices[place.slice]) for place, slices in windows_of.items() if place.slice in slices
            }
            if self._live and self._episodes and self._decoder and not intake.worst.given_ids and not self._warned:
                self._warned = True
                do = "give token_ids=... to observe, shaped as the log-probabilities are"
                self._health.warn([f"decode was given, but no token ids came, so no text can be shown: {do}"])
            self._asked |= alerted
            if self._asked and self._due is None and self.sequences:
                self._asked, self._due = False, self.sequences
            if self._due is not None:
                self._shown(self._due)  # begins what is to be decoded
                if not (self._decoder and self._decoder.busy):
                    shown, self._due = self._shown(self._due), None
                    return [worst_table(shown)]
        return []

    def _add(self, place: Place, onset: int, now: Found) -> None:
        kept = self._open.get(place)
        if kept is None:
            kept = _Episode(place, onset, fired=False, first=now, worst=now, last=now)
            self._open[place] = kept
            self._episodes.append(kept)
            if len(self._episodes) > MOST_EPISODES:
                over = (episode for episode in self._episodes[1:] if episode not in self._open.values())
                self._episodes.remove(next(over, self._episodes[1]))
        same = now.step == kept.last.step  # more of a step that has come in part
        kept.last = now
        if now.mass > kept.worst.mass or (same and kept.worst.step == now.step):
            kept.worst = now

    def _forget(self, places: Mapping[Place, Sequence[Finding]]) -> None:
        """Close the episodes of places where nothing is open any more; what never fired was no incident."""
        for place, kept in self._open.items():
            kept.fired |= any(finding.fired is not None for finding in places.get(place, ()))
        for place in self._open.keys() - places.keys():
            over = self._open.pop(place)
            if not over.fired:
                self._episodes.remove(over)

    @property
    def sequences(self) -> tuple[WorstSequence, ...]:
        """All that are kept of findings that fired, by their onset."""
        fired = sorted((episode for episode in self._episodes if episode.fired), key=lambda episode: episode.onset)
        return tuple(sequence for episode in fired for sequence in episode.sequences())

    def shown(self) -> tuple[WorstSequence, ...]:
        """What may leave this machine: no token ids; text where a decoder was given, as far as it is there."""
        with self._health.guard("internal_errors"):
            return self._shown(self.sequences)
        return ()

    def _shown(self, kept: tuple[WorstSequence, ...]) -> tuple[WorstSequence, ...]:
        if self._decoder and not self._health.elsewhere():
            with_ids = [sequence for sequence in kept if sequence.token_ids is not None]
            decoded = self._decoder.texts(
                [(sequence.token_ids, excerpt(sequence)) for sequence in with_ids if sequence.token_ids is not None]
            )
            texts = {id(sequence): text for sequence, text in zip(with_ids, decoded, strict=True)}
            kept = tuple(replace(sequence, texts=texts.get(id(sequence))) for sequence in kept)
            for error in self._decoder.errors():
                self._health.record("decode_errors", error)
        return tuple(replace(sequence, token_ids=None) for sequence in kept)

    def tables(self) -> list[Table]:
        """The table of what is shown, if there is anything."""
        shown = self.shown()
        return [worst_table(shown)] if shown else []

    def close(self) -> None:
        """Have what is shown decoded; wait for that a few seconds at most."""
        self.shown()
        if self._decoder:
            self._decoder.close(CLOSE_WITHIN)


def _places(findings: Sequence[Finding]) -> dict[Place, list[Finding]]:
    """The slices that findings with a pair are open on, the gravest first, then the earliest."""
    places: dict[Place, list[Finding]] = {}
    for finding in sorted(findings, key=lambda finding: (-SEVERITIES.index(finding.severity), finding.onset)):
        if finding.pair is not None:
            places.setdefault(Place(finding.pair, finding.slice), []).append(finding)
    return dict(list(places.items())[:MOST_PLACES])
