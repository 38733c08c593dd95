"""The operation protocol as a small machine, and an exhaustive search through it."""
