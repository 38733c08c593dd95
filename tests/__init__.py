"""The hub's own tests; each integration carries its own."""
