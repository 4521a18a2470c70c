"""How we get onto a run: wrap, watch, trackers that are underway, the kit of the integrations."""
