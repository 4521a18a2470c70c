"""From a trainer's tensors to windows of counts: batch, slices, step, windows, ranks, and their saved state."""
