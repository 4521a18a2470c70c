"""Finished runs: read from what they logged, diagnosed, replayed, shown as a page."""
