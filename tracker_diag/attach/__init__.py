"""How we get onto a run: wrap and its proxies, hooks, trackers that are underway, the kit of the integrations."""
