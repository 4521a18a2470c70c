"""Telling: the notices of a watch, to each channel once.

What was handed over is written down before and after. A notice whose fate is not known, since the watch was killed
meanwhile or the receiver never answered, is handed over again, under the same id, and says so.
"""

import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from tracker_diag.rules.alerts import Notice
from tracker_diag.runs.logbook import Logbook, short_hash
from tracker_diag.trackers.notify import Notifier
from tracker_diag.trackers.tracker import Refused

AGAIN = "This was sent before, but whether it arrived is not known: you may have it already."
NOT_TAKEN = re.compile(r"(HTTP \d+|Connection refused)$")
"""Ends of what a notifier says where the receiver has certainly not taken a notice."""

NAME = 40
"""Characters of a run's name that stand before each of its alerts in the log."""

_log = logging.getLogger("tracker_diag")


@dataclass(frozen=True)
class Message:
    """A notice of a run, as it goes to people."""

    run: str
    notice: Notice

    @classmethod
    def of(cls, notice: Notice, source: str, run: str) -> "Message":
        """Of what was found in `source`, a run called `run`; the same notice gets the same id in each process."""
        known = short_hash(source, notice.step, notice.level, notice.title, notice.text)
        return cls(run, replace(notice, id=known))

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> "Message":
        return cls(state["run"], Notice(**state["notice"]))


class Channel(Protocol):
    """Where messages go."""

    id: str
    """The same in each process."""

    def tell(self, message: Message) -> None:
        """Hand over `message`; OSError if that may go well later, Refused if it never will."""
        ...


class Log:
    """The log, and so the terminal."""

    id = "log"

    def tell(self, message: Message) -> None:
        notice = message.notice
        run = " ".join(message.run.split())
        lines = [f"{run if len(run) <= NAME else run[: NAME - 1] + '…'}: {notice.title}", *notice.text.splitlines()]
        _log.log(logging.INFO if notice.level == "info" else logging.WARNING, "%s", "\n  ".join(lines))


class Url:
    """One URL of TRACKER_DIAG_NOTIFY. It is a secret, so that its id is a digest.

    Raises:
        DiagError: it cannot be used.
    """

    def __init__(self, url: str) -> None:
        self.id = short_hash(url)
        self._url = url
        Notifier([url])

    def tell(self, message: Message) -> None:
        notifier = Notifier([self._url], run=message.run)
        notifier.write(message.notice.step, [message.notice], time.time())
        notifier.flush()


class Teller:
    """Tells messages to `channels`, and keeps in `logbook` what became of them."""

    def __init__(self, logbook: Logbook, channels: Sequence[Channel]) -> None:
        self._logbook = logbook
        self._channels = channels
        self._away: dict[str, str] = {}
        """Channels that did not answer lately, and what was said of it."""
        self._skipped: set[str] = set()

    def again(self) -> None:
        """Try channels that were away once more."""
        self._skipped.clear()

    def waits(self, message: Message) -> bool:
        """Whether a channel has not got `message` yet."""
        return any(self._logbook.outcome(message.notice.id, one.id) != "told" for one in self._channels)

    def tell(self, messages: Sequence[Message]) -> list[Message]:
        """Tell `messages`, in their order; those that some channel could not take yet.

        Raises:
            OSError: what became of it cannot be written down.
        """
        for channel in self._channels:
            for message in messages:
                if channel.id in self._skipped:
                    break
                self._tell(channel, message)
        return [message for message in messages if self.waits(message)]

    def _tell(self, channel: Channel, message: Message) -> None:
        known = self._logbook.outcome(message.notice.id, channel.id)
        if known == "told":
            return
        if known == "begun":
            text = f"{AGAIN}\n{message.notice.text}"
            message = replace(message, notice=replace(message.notice, text=text))
        else:
            self._logbook.write(message.notice.id, channel.id, "begun")
        try:
            channel.tell(message)
        except Refused as error:
            _log.warning("an alert was refused, and is told there no more: %s", error)
        except OSError as error:
            self._skipped.add(channel.id)
            if NOT_TAKEN.search(str(error)) and known != "begun":
                self._logbook.write(message.notice.id, channel.id, "failed")
            if channel.id not in self._away:
                _log.warning("alerts wait for a receiver that is away: %s", error)
            self._away[channel.id] = str(error)
            return
        self._logbook.write(message.notice.id, channel.id, "told")
        if self._away.pop(channel.id, None):
            _log.warning("the receiver is back, and has got an alert that waited")
