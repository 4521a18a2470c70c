"""The numeric core: pure functions on plain arrays of numpy, and of torch where the caller has loaded it."""
