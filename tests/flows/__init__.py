"""Whole flows over real HTTP, one promise per file."""
