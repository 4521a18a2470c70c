"""Guards: policies over incidents, as data, that say what to do to training; a dry run unless they may act."""
