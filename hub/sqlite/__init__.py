"""Django's SQLite backend, with fair turns at the one write lock."""
