"""W&B: write, read, listen, view."""
