"""The trackers that are underway in this process: see `tracker_diag.backends.discovery`."""

from tracker_diag.backends.discovery import active_backends

__all__ = ["active_backends"]
