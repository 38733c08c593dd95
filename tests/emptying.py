"""Empties the database after a test that commits: what it wrote and no more.

Django's own way is `flush`: it truncates every table there is and has each app put its rows in
again. Most of these tests write some rows into a few tables, so nearly all of that is for nothing,
and it is most of the time such a test takes on PostgreSQL.
"""

from __future__ import annotations

from typing import Any

from django.db import connection, transaction
from django.test import TransactionTestCase

_FEW = 500
"""Above this many rows in a table the flush is quicker: each row deleted is checked for others
that point to it."""


class Emptying:
    """Knows what the database holds when no test has run, and brings it back to that."""

    def __init__(self) -> None:
        self._tables: list[str] = connection.introspection.django_table_names(
            only_existing=True, include_views=False
        )
        self._kept: dict[str, list[tuple[Any, ...]]] = {}
        self.learn()

    def learn(self) -> None:
        """Take what the database holds now as what stays: content types, schedules and the like."""
        self._kept = {table: _rows(f"SELECT * FROM {_name(table)}") for table in self._filled()}

    def empty(self) -> bool:
        """Delete what came; False when only a flush will do, which then has to follow."""
        filled = self._filled()
        if any(
            sorted(_rows(f"SELECT * FROM {_name(table)}"), key=repr) != sorted(kept, key=repr)
            for table, kept in self._kept.items()
        ):
            return False
        added = [table for table, count in filled.items() if table not in self._kept]
        if any(filled[table] > _FEW for table in added):
            return False
        # One transaction: foreign keys are checked at its end, so the order does not matter.
        with transaction.atomic(), connection.cursor() as cursor:
            for table in added:
                cursor.execute(f"DELETE FROM {_name(table)}")
        return True

    def _filled(self) -> dict[str, int]:
        counts = " UNION ALL ".join(
            f"SELECT '{table}', count(*) FROM (SELECT 1 FROM {_name(table)} LIMIT {_FEW + 1}) t"
            for table in self._tables
        )
        return {table: count for table, count in _rows(counts) if count}


def _name(table: str) -> str:
    return connection.ops.quote_name(table)


def _rows(sql: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall()


def install() -> None:
    """Have every test that commits emptied in this way; once the test database is there."""
    emptying = Emptying()
    flush = TransactionTestCase._fixture_teardown  # type: ignore[attr-defined]

    def teardown(case: TransactionTestCase) -> None:
        if case.available_apps is None and emptying.empty():
            return
        flush(case)
        emptying.learn()

    TransactionTestCase._fixture_teardown = teardown  # type: ignore[attr-defined]
