"""Trackers: where records and findings go. One file per tracker, imported only when it is used."""
