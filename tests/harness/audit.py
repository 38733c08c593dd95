"""Triggers of the test database: every move of an operation, every claim and settle, and whatever
only may grow.

They live in the test schema alone. Rows are numbered by the database in the order the statements
ran, which for one
operation is the order of the moves; times would not do (on SQLite a moment is read before the lock
is waited for).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db import connection

TABLE = "test_audit"
GROWING = ("hub_operation", "hub_attempt", "hub_evidence", "hub_decision")
"""Tables no row of which may ever be deleted while tests run (I11)."""
WRITTEN_ONCE = ("hub_evidence",)


@dataclass(frozen=True, slots=True)
class Entry:
    """One audited fact; `kind` is move, claimed, settled, breaker or forbidden."""

    number: int
    kind: str
    operation_id: int | None
    before: str | None
    after: str | None
    old_token: int | None
    new_token: int | None
    owner: str
    was_busy: bool
    busy: bool
    was_doubtful: bool
    doubtful: bool
    stale: bool


_COLUMNS = (
    "kind, operation_id, before_state, after_state, old_token, new_token, owner, was_busy, busy, "
    "was_doubtful, doubtful, stale"
)
_CHANGED = (
    "OLD.state IS DISTINCT FROM NEW.state OR OLD.lease_token IS DISTINCT FROM NEW.lease_token OR "
    "OLD.stream_busy IS DISTINCT FROM NEW.stream_busy OR "
    "OLD.maybe_executed IS DISTINCT FROM NEW.maybe_executed"
)


def _statements() -> list[tuple[str, str, str, str, str]]:
    """Name, event, table, condition, and the values of the row that is written."""
    no = "false" if connection.vendor == "postgresql" else "0"
    found = [
        (
            "test_audit_born", "AFTER INSERT", "hub_operation", "",
            f"'move', NEW.id, NULL, NEW.state, NULL, NEW.lease_token, '', {no}, NEW.stream_busy, "
            f"{no}, NEW.maybe_executed, {no}",
        ),
        (
            "test_audit_moved", "AFTER UPDATE", "hub_operation", _CHANGED,
            "'move', NEW.id, OLD.state, NEW.state, OLD.lease_token, NEW.lease_token, "
            "CASE WHEN NEW.lease_owner <> '' THEN NEW.lease_owner ELSE OLD.lease_owner END, "
            f"OLD.stream_busy, NEW.stream_busy, OLD.maybe_executed, NEW.maybe_executed, {no}",
        ),
        (
            "test_audit_claimed", "AFTER INSERT", "hub_attempt", "",
            f"'claimed', NEW.operation_id, NULL, NEW.purpose, NULL, NEW.token, NEW.worker, {no}, "
            f"{no}, {no}, {no}, {no}",
        ),
        (
            "test_audit_settled", "AFTER UPDATE", "hub_attempt",
            "OLD.settled_at IS NULL AND NEW.settled_at IS NOT NULL",
            f"'settled', NEW.operation_id, NEW.purpose, NEW.outcome, NULL, NEW.token, NEW.worker, "
            f"{no}, {no}, {no}, {no}, NEW.stale",
        ),
        (
            "test_audit_resettled", "AFTER UPDATE", "hub_attempt", "OLD.settled_at IS NOT NULL",
            "'forbidden', NEW.operation_id, 'hub_attempt', 'a settled attempt was written again', "
            f"OLD.token, NEW.token, NEW.worker, {no}, {no}, {no}, {no}, {no}",
        ),
        (
            "test_audit_breaker", "AFTER UPDATE", "hub_gate",
            "OLD.breaker IS DISTINCT FROM NEW.breaker",
            f"'breaker', NULL, OLD.breaker, NEW.breaker, NULL, NULL, '', {no}, {no}, {no}, {no}, "
            f"{no}",
        ),
    ]  # fmt: skip
    for table in GROWING:
        found.append(
            (
                f"test_audit_deleted_{table}", "AFTER DELETE", table, "",
                f"'forbidden', OLD.id, '{table}', 'a row was deleted', NULL, NULL, '', {no}, {no}, "
                f"{no}, {no}, {no}",
            )
        )  # fmt: skip
    for table in WRITTEN_ONCE:
        found.append(
            (
                f"test_audit_rewritten_{table}", "AFTER UPDATE", table, "",
                f"'forbidden', NEW.id, '{table}', 'a row was rewritten', NULL, NULL, '', {no}, "
                f"{no}, {no}, {no}, {no}",
            )
        )  # fmt: skip
    return found


def install() -> None:
    """Put the triggers into the database in use; `remove()` takes them out again."""
    remove()
    postgres = connection.vendor == "postgresql"
    flag = "boolean" if postgres else "bool"
    number = "bigserial PRIMARY KEY" if postgres else "integer PRIMARY KEY AUTOINCREMENT"
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE TABLE {TABLE} (number {number}, kind text, operation_id bigint, "
            "before_state text, after_state text, old_token bigint, new_token bigint, owner text, "
            f"was_busy {flag}, busy {flag}, was_doubtful {flag}, doubtful {flag}, stale {flag})"
        )
        for name, event, table, condition, values in _statements():
            insert = f"INSERT INTO {TABLE} ({_COLUMNS}) VALUES ({values});"
            if postgres:
                when = f"WHEN ({condition})" if condition else ""
                cursor.execute(
                    f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS "
                    f"$$ BEGIN {insert} RETURN NULL; END $$"
                )
                cursor.execute(
                    f"CREATE TRIGGER {name} {event} ON {table} FOR EACH ROW {when} "
                    f"EXECUTE FUNCTION {name}()"
                )
            else:
                when = f"WHEN {condition}" if condition else ""
                cursor.execute(
                    f"CREATE TRIGGER {name} {event} ON {table} FOR EACH ROW {when} "
                    f"BEGIN {insert} END"
                )


def remove() -> None:
    """Take out what `install()` put in; the rows go with it."""
    postgres = connection.vendor == "postgresql"
    with connection.cursor() as cursor:
        for name, _, table, _, _ in _statements():
            if postgres:
                cursor.execute(f"DROP TRIGGER IF EXISTS {name} ON {table}")
                cursor.execute(f"DROP FUNCTION IF EXISTS {name}()")
            else:
                cursor.execute(f"DROP TRIGGER IF EXISTS {name}")
        cursor.execute(f"DROP TABLE IF EXISTS {TABLE}")


def entries() -> list[Entry]:
    """Everything audited so far, in order."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT number, {_COLUMNS} FROM {TABLE} ORDER BY number")
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return [_entry(*row) for row in rows]


def _entry(number: int, kind: str, operation_id: int | None, *rest: Any) -> Entry:
    before, after, old_token, new_token, owner, *flags = rest
    was_busy, busy, was_doubtful, doubtful, stale = map(bool, flags)
    return Entry(
        number, kind, operation_id, before, after, old_token, new_token, owner or "",
        was_busy, busy, was_doubtful, doubtful, stale,
    )  # fmt: skip
