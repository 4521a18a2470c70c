"""Traces of agents, from the formats in which trackers keep them to sample records."""
