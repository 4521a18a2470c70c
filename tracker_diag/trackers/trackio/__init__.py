"""Trackio: write, read, listen."""
