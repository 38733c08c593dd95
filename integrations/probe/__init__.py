"""The hub's own echo: a synthetic operation goes the whole way, to the hub's own web process."""
