"""How we get onto a run: wrap and its proxies, hooks into a framework's functions, trackers that are underway."""
