"""Replay: logged tokens of any size are folded step by step, in any order, and judged as a live run is."""
