"""One folder per remote system: side by side, nothing shared, and no I/O of their own."""
