"""Names: every metric that is logged or read, once."""
