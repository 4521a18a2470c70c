"""Sources: finished runs, read back into the same pipe that a live run goes through."""
