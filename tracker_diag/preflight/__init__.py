"""Preflight: checks before training. Each finds one kind of wiring mistake, on what the user hands over."""
