"""What differs between PostgreSQL and SQLite when statements are written by hand.

"The database's clock" is `clock_timestamp()` on PostgreSQL. SQLite has none worth the name, and
lives on this host: there it is one reading of the host's clock per transaction, passed in as `now`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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


def named(sql: str) -> str:
    """A statement with Django's `%(name)s` in SQLite's own form, `:name`; for `each_row`."""
    return re.sub(r"%\((\w+)\)s", r":\1", sql)


@contextmanager
def each_row() -> Iterator[Callable[[str, Mapping[str, Any]], list[tuple[Any, ...]]]]:
    """SQLite only: run small statements row by row, inside a transaction.

    Yields a function that runs one (see `named`) and returns its rows. They go straight to the
    driver, whose cache of statements halves their time under the one write lock there is; its
    errors come as Django's.
    """
    with connection.wrap_database_errors:
        cursor = connection.connection.cursor()
        try:
            yield lambda sql, values: cursor.execute(sql, values).fetchall()
        finally:
            cursor.close()


def execute(sql: str, parameters: Any = ()) -> int:
    """Run a statement; the number of rows it touched."""
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return int(cursor.rowcount)


def go_by_index() -> None:
    """PostgreSQL: have this connection's statements use their indexes, whatever statistics say.

    For the drain, each of whose statements has its index: what the planner believes of tables that
    were empty a moment ago must not make one walk through all of a million rows, nor compile it.
    """
    for what in ("jit", "enable_seqscan", "enable_hashjoin", "enable_mergejoin"):
        execute(f"SET {what} = off")


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
