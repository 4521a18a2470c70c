"""Guards: policies over incidents, as data, that say what to do to training; dry-run unless they are told to act."""
