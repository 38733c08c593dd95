"""What differs between PostgreSQL and SQLite when statements are written by hand.

"The database's clock" is `clock_timestamp()` on PostgreSQL. SQLite has none worth the name, and
lives on this host: there it is one reading of the host's clock per transaction, passed in as `now`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.utils import timezone


def is_postgres() -> bool:
    """Whether the database in use is PostgreSQL (SQLite otherwise)."""
    return connection.vendor == "postgresql"


def stamp(moment: datetime | None) -> Any:
    """A moment as a raw parameter. SQLite compares times as text, so an offset in it would be
    silently wrong.
    """
    if moment is None or is_postgres():
        return moment
    return connection.ops.adapt_datetimefield_value(moment)


def moment(raw: Any) -> datetime | None:
    """A raw column as an aware datetime (SQLite returns naive texts, PostgreSQL aware values)."""
    if raw is None:
        return None
    if isinstance(raw, str):
        raw = datetime.fromisoformat(raw)
    return raw if raw.tzinfo else raw.replace(tzinfo=UTC)


def database_now() -> datetime:
    """The database's clock, now."""
    if not is_postgres():
        return timezone.now()
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0]


def later(now: datetime, seconds: float | None) -> Any:
    """`now` plus some seconds, as a raw parameter; None stays None."""
    return None if seconds is None else stamp(now + timedelta(seconds=seconds))


def rows(sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
    """Run a statement and fetch all it returns (SQLite counts rows only once they are fetched)."""
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchall()


def execute(sql: str, parameters: Any = ()) -> int:
    """Run a statement; the number of rows it touched."""
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return int(cursor.rowcount)


def as_json(value: Any) -> str:
    """JSON text for a raw parameter."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def marks(values: Sequence[Any]) -> str:
    """Placeholders for an IN list (SQLite has no arrays)."""
    return ",".join(["%s"] * len(values))


@contextmanager
def short_transaction() -> Iterator[None]:
    """A transaction of our own: never joined to a caller's, because what it commits must hold at
    once.

    Raises `transaction.TransactionManagementError` when called inside `atomic`.
    """
    with transaction.atomic(durable=True):
        yield
