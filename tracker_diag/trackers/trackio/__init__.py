"""Trackio: write, listen, read."""
