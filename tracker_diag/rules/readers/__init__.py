"""Readers: signals at work, each with the state that it needs. They see series and steps, nothing else."""
