"""The live path: from tensors and metrics to a verdict, and on to the trackers."""
