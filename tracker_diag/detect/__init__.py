"""Change detectors on one scalar series each; they see numbers and steps, nothing else."""
