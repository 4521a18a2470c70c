"""What a tracker is owed outlives the process: a journal on disk, and the outbox that delivers from it."""
