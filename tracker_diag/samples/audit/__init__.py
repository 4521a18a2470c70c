"""Audit of samples: what the reward pays for that it should not, and prompts of the evaluation among them."""
