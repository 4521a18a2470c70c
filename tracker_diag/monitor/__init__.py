"""The sequences behind a tail: which are kept while a rule is pending or firing, where, and their text if asked for."""
