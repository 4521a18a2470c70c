"""Notify: alerts to webhooks, and through apprise to chat, mail and telephone.

For trackers that send no alerts, and for runs that are offline. A URL is a secret: what comes after its host, or with
apprise after its scheme, is written nowhere.
"""

import base64
import json
import logging
import os
import re
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from typing import Any
from urllib.parse import unquote, unquote_plus, urlsplit, urlunsplit

from tracker_diag.errors import DiagError, require
from tracker_diag.rules.alerts import Notice
from tracker_diag.rules.model import Severity
from tracker_diag.trackers.tracker import Address, Entry, Refused, Tracker

NOTIFY = "TRACKER_DIAG_NOTIFY"
"""Environment variable that holds URLs, with spaces between them."""

TIMEOUT = 20.0
"""Seconds until a receiver that says nothing is given up, and tried again later."""

TRY_AGAIN = frozenset({408, 425, 429})  # replies below 500 that say nothing against what was sent

KINDS: Mapping[Severity, str] = {"info": "success", "warn": "warning", "error": "failure"}
"""What apprise calls a notice; one of level info says that something is over."""


class Notifier(Tracker):
    """Tells people: each notice once to each URL, in order, however long a receiver is away.

    A plain http(s) URL gets a POST of `{"title", "text", "level", "step", "run"}` as JSON, and "id" if there is one. A
    URL of any other scheme is one of apprise's, such as `slack://` or `mailto://`. It sends findings at warn and above,
    and their end.

    Args:
        urls: where to; those in the environment variable TRACKER_DIAG_NOTIFY by default.
        run: what the run is called, for people who watch several.

    Raises:
        DiagError: no URL, or one that cannot be used; the message says which, and not what is in it.
    """

    name = "notify"
    takes = (Notice,)

    def __init__(self, urls: str | Sequence[str] | None = None, *, run: str | None = None) -> None:
        given = os.environ.get(NOTIFY, "") if urls is None else urls
        listed = given.split() if isinstance(given, str) else list(given)
        if not listed:
            raise DiagError(f"urls: none given, expected some here or in {NOTIFY}")
        self._run = run
        self._receivers = [_receiver(f"urls[{i}]", url) for i, url in enumerate(listed)]
        self._waiting: list[deque[Notice]] = [deque() for _ in listed]

    @classmethod
    def find(cls, target: object = None, *, run_id: str | None = None) -> Tracker | None:
        if isinstance(target, Address):  # the URLs are written nowhere: those of the environment are taken
            return cls(run=target.get("run"))
        return None

    def __repr__(self) -> str:
        return f"Notifier({', '.join(receiver.name for receiver in self._receivers)})"

    @property
    def address(self) -> Mapping[str, str]:
        return {"run": self._run} if self._run else {}

    def write(self, step: int, entries: Sequence[Entry], at: float) -> None:
        for waiting in self._waiting:
            waiting.extend(entry for entry in entries if isinstance(entry, Notice))

    def flush(self, *, last: bool = False) -> bool:
        away: OSError | None = None
        for receiver, waiting in zip(self._receivers, self._waiting, strict=True):
            try:
                while waiting:
                    receiver.send(waiting[0], self._run)
                    waiting.popleft()
            except Refused:  # noqa: PERF203  # the rest comes with the next call
                waiting.popleft()
                raise
            except OSError as error:  # what this one gets waits; the others get theirs
                away = away or error
        if away:
            raise away
        return True


def from_environment(run: str | None = None) -> list[Notifier]:
    """One for the URLs in TRACKER_DIAG_NOTIFY; none if there are none.

    Raises:
        DiagError: a URL there cannot be used.
    """
    return [Notifier(run=run)] if os.environ.get(NOTIFY, "").strip() else []


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """A POST would continue as a GET, which delivers nothing and looks as if it had."""


_OPENER = urllib.request.build_opener(_NoRedirect)


class _Webhook:
    """A URL of the web; as a string, without what is secret."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        user, _, place = parts.netloc.rpartition("@")
        self._url = urlunsplit((parts.scheme, place, parts.path, parts.query, ""))
        self._headers = {"Content-Type": "application/json", "User-Agent": "tracker_diag"}
        if user:
            known = unquote(user if ":" in user else f"{user}:")
            self._headers["Authorization"] = "Basic " + base64.b64encode(known.encode()).decode()
        self.name = f"{parts.scheme}://{place}"
        _ = parts.port  # a ValueError now, if it is none
        if not parts.hostname or not (url.isascii() and url.isprintable()) or " " in url:
            raise ValueError

    def send(self, notice: Notice, run: str | None) -> None:
        """Deliver `notice`; OSError if that may go well later, Refused if it never will."""
        body = {"title": notice.title, "text": notice.text, "level": notice.level, "step": notice.step}
        body |= {name: known for name, known in (("run", run), ("id", notice.id)) if known}
        try:
            content = json.dumps(body).encode()
            request = urllib.request.Request(self._url, content, self._headers, method="POST")  # noqa: S310  # http(s) alone
            with _OPENER.open(request, timeout=TIMEOUT):
                return
        except urllib.error.HTTPError as error:
            error.close()
            problem, later = f"HTTP {error.code}", error.code >= 500 or error.code in TRY_AGAIN
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            problem, later = getattr(reason, "strerror", None) or type(reason).__name__, True
        except ValueError as error:  # of a host that cannot be looked up
            problem, later = type(error).__name__, False
        # Raised here, so that no error hangs on it that knows the URL.
        raise (OSError if later else Refused)(f"{self.name}: {problem}")


class _Service:
    """A URL of apprise's, as `_Webhook`."""

    def __init__(self, url: str) -> None:
        apprise: Any = require("apprise", "notify")
        _REDACT.learn(url)
        # Without a limit of its own it stays in this thread; its pool of threads is gone when a run ends by `atexit`.
        service = apprise.Apprise.instantiate(url, asset=apprise.AppriseAsset(service_timeout=0))
        if service is None:
            raise ValueError
        if "rto" not in url:  # apprise's own 4 s would tell a slow receiver again and again
            service.socket_read_timeout = TIMEOUT
        self._apprise = apprise.Apprise()
        self._apprise.add(service)
        self.name = f"{url.partition('://')[0]}://***"

    def send(self, notice: Notice, run: str | None) -> None:
        text = f"{notice.text}\n\nStep {notice.step}" + (f" of {run}" if run else "")
        sent = self._apprise.notify(text, notice.title, KINDS[notice.level], body_format="text")
        if not sent:  # apprise does not say why; its log does
            raise OSError(f"{self.name}: apprise could not deliver")


def _receiver(which: str, url: str) -> _Webhook | _Service:
    problem = "expected scheme://..."
    if "://" in url:
        web = url.lower().startswith(("http://", "https://"))
        try:
            return _Webhook(url) if web else _Service(url)
        except ValueError:
            problem = "it cannot be read" if web else "apprise cannot use it"
    raise DiagError(f"{which}: {problem}; the URL is not shown, since it may hold secrets")


class _Redact(logging.Filter):
    """Takes the parts of URLs out of what apprise, and the library below it, write to their logs."""

    _secrets: Sequence[str] = ()

    def learn(self, url: str) -> None:
        parts = {part for part in re.split(r"[^\w.~%+-]", url.partition("://")[2]) if len(part) > 3}
        known = parts | {unquote(part) for part in parts} | {unquote_plus(part) for part in parts} | {*self._secrets}
        self._secrets = sorted(known, key=len, reverse=True)
        for name in ("apprise", "urllib3.connectionpool"):
            logging.getLogger(name).addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        text = clean = record.getMessage()
        for secret in self._secrets:
            clean = clean.replace(secret, "***")
        if clean != text:
            record.msg, record.args = clean, ()
        return True


_REDACT = _Redact()
