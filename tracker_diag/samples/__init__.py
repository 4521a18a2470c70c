"""Rewards, texts and tool calls of the sequences of a step: from columns to aggregates, series and a table to read."""
