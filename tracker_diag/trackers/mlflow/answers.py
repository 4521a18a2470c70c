"""MLflow: what an error says of a request: that it may go well later, or never will."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from tracker_diag.trackers.tracker import Refused, Unavailable

REFUSED = "INVALID_PARAMETER_VALUE"
"""Error code with which MLflow says what it has against a value. All else may pass: an expired token, a gateway that is
being redeployed and answers 404 itself, a run that is restored."""

TOO_LARGE = 413

AGAINST_IT = frozenset(range(400, 500)) - {408, 425, 429}  # statuses that say something against what was sent


@contextmanager
def judged() -> Generator[None]:
    """What a request inside raises is `Unavailable` where it may go well later, else `Refused`; the cause is kept."""
    try:
        yield
    except Exception as error:
        code = getattr(error, "error_code", None)
        later = code != REFUSED if code else isinstance(error, OSError) and status(error) != TOO_LARGE
        raise (Unavailable if later else Refused)(f"mlflow: {type(error).__name__}: {error}") from error


def status(error: BaseException | None) -> int:
    """The HTTP status that `error` or its cause has; 0 if none."""
    if isinstance(error, Unavailable):
        error = error.__cause__
    of_mlflow: Any = getattr(error, "get_http_status_code", None)
    of_response: int | None = getattr(getattr(error, "response", None), "status_code", None)
    return of_response or (int(of_mlflow()) if of_mlflow else 0)
