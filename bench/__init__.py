"""The bench: the hub's goals of speed beside its rivals, in one run. See `make bench`."""
