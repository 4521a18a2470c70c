"""Patience: how long a tracker is waited for."""

import os
import random

EXIT_TIMEOUT = "TRACKER_DIAG_EXIT_TIMEOUT"
"""Environment variable: seconds that the end of a run waits while nothing gets through to a tracker; 5 if not set."""


def jittered(pause: float) -> float:
    """Three quarters of `pause` to all of it: many trainers do not come back to a server at once."""
    return pause * random.uniform(0.75, 1.0)  # nothing is kept secret by it


def exit_timeout() -> float:
    """Seconds that the end of a run waits while nothing gets through."""
    given = os.environ.get(EXIT_TIMEOUT, "")
    try:
        return max(0.0, float(given)) if given else 5.0
    except ValueError:
        return 5.0
