"""Django's SQLite backend, but for how it waits for the write lock.

SQLite's own waiting looks ever more rarely, in the end ten times a second. Beside a busy drain,
which lets go of the lock for a millisecond or two and takes it again, a web request would hardly
ever find it free.
"""

from __future__ import annotations

import sqlite3
import time
from typing import Any

from django.db.backends.sqlite3 import base

_LOOK_EVERY = 0.0005
_PATIENCE = 20.0
"""Seconds until "database is locked", unless the options name their own `timeout`."""


class DatabaseWrapper(base.DatabaseWrapper):
    """A connection that looks for the write lock every half millisecond while it waits for it."""

    transaction_mode: str | None

    def _start_transaction_under_autocommit(self) -> None:
        patience = float(self.settings_dict["OPTIONS"].get("timeout", _PATIENCE))
        raw: Any = self.connection
        end = time.monotonic() + patience
        with self.wrap_database_errors:
            raw.execute("PRAGMA busy_timeout = 0")
            try:
                while not _begun(raw, f"BEGIN {self.transaction_mode or ''}", end):
                    time.sleep(_LOOK_EVERY)
            finally:
                raw.execute(f"PRAGMA busy_timeout = {int(patience * 1000)}")


def _begun(raw: Any, statement: str, end: float) -> bool:
    """Whether a transaction has begun; False while somebody else has the lock and time is left."""
    try:
        raw.execute(statement)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= end:
            raise
        return False
    return True
