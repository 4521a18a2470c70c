"""Audit of samples: what the reward pays for that it should not, and prompts that are met twice."""
