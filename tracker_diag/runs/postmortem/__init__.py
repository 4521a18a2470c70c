"""What a run leaves behind: the context that it can be repeated from, and a folder that says what ended it."""
