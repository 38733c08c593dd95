"""The witness: looks into the hub's database while a write is being handled.

Two promises can only be seen from here. *Marker before byte*: when a write arrives, the database
already says so, with the digest of exactly these bytes. *No transaction spans a call*: the hub's
sender has no transaction open for as long as it waits for an answer. All SQL is in :data:`SQL`.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol
from urllib.parse import quote, unquote, urlsplit

NOT_LEFT = ("pending", "running")
"""States in which nothing has left under the operation's present lease."""


class SQL:
    """Every statement the witness uses; ``%s`` is the parameter mark."""

    # By reference first: that column has an index, the digest has none.
    MARKED_REFERENCE = (
        "SELECT id, state FROM hub_operation "
        "WHERE reference = %s AND request_digest = %s AND first_sent_at IS NOT NULL"
    )
    MARKED = (
        "SELECT id, state FROM hub_operation "
        "WHERE request_digest = %s AND first_sent_at IS NOT NULL"
    )
    EARLIER = (
        "SELECT o.id, o.state FROM hub_attempt a JOIN hub_operation o ON o.id = a.operation_id "
        "WHERE a.request_digest = %s AND o.first_sent_at IS NOT NULL"
    )
    TRANSACTIONS = (
        "SELECT pid, CAST(xact_start AS text), state FROM pg_stat_activity "
        "WHERE application_name LIKE 'hub-drain%%' AND xact_start IS NOT NULL "
        "AND datname = current_database()"
    )


HOLD = (0.02, 0.05, 0.1, 0.2, 0.4)
"""How long an answer is held back, step by step, to see whether a transaction waits for it."""


class Database(Protocol):
    """One connection for reading, used from one thread."""

    watches_transactions: bool

    def rows(self, statement: str, *values: str) -> list[tuple[Any, ...]]:
        """The rows of one statement in a transaction of its own."""
        ...

    def close(self) -> None:
        """Let the connection go."""
        ...


class Postgres:
    """The hub on PostgreSQL."""

    watches_transactions = True

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Any = None

    def rows(self, statement: str, *values: str) -> list[tuple[Any, ...]]:
        """See :class:`Database`; connects again after a failure."""
        import psycopg  # only needed here, and the stand-in should start without it

        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(
                self._url,
                autocommit=True,
                connect_timeout=5,
                application_name="bitrix24-stand-in-witness",
                options="-c statement_timeout=10000",
            )
        # Always with parameters, so that a doubled percent sign means the same everywhere.
        found: list[tuple[Any, ...]] = self._connection.execute(statement, values).fetchall()
        return found

    def close(self) -> None:
        """See :class:`Database`."""
        if self._connection is not None:
            self._connection.close()


class Sqlite:
    """The hub on SQLite, opened read-only."""

    watches_transactions = False

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def rows(self, statement: str, *values: str) -> list[tuple[Any, ...]]:
        """See :class:`Database`."""
        if self._connection is None:
            self._connection = sqlite3.connect(
                f"file:{quote(self._path)}?mode=ro", uri=True, isolation_level=None, timeout=10
            )
        return self._connection.execute(statement.replace("%s", "?"), values).fetchall()

    def close(self) -> None:
        """See :class:`Database`."""
        if self._connection is not None:
            self._connection.close()


def database(url: str) -> Database:
    """``postgres://…``, ``postgresql://…`` or ``sqlite:///path``; raises ValueError otherwise."""
    scheme, _, rest = url.partition(":")
    if scheme in ("postgres", "postgresql", "psql"):
        return Postgres("postgresql:" + rest)
    if scheme == "sqlite":
        # Four slashes are the correct form of an absolute path, three what people write: both
        # are taken as absolute, because a path relative to this process would mean nothing.
        path = unquote(urlsplit(url).path)
        return Sqlite(path[1:] if path.startswith("//") else path)
    raise ValueError(
        f"--witness: {scheme!r} is no database this witness can read; "
        "give postgres://… or sqlite:////absolute/path"
    )


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise, with what was seen."""

    invariant: str
    text: str
    digest: str
    reference: str | None
    seen: str


@dataclass(slots=True)
class Seen:
    """What was there when the request began."""

    digest: str
    reference: str | None
    transactions: dict[Any, str] | None


@dataclass(slots=True)
class Witness:
    """Checks each write; every ``sample``-th also for transactions (it slows the answer down)."""

    database: Database
    sample: int = 5
    violations: list[Violation] = field(default_factory=list)
    checked: dict[str, int] = field(default_factory=lambda: {"I7": 0, "I19": 0})
    errors: list[str] = field(default_factory=list)
    _writes: int = 0
    # One thread: a SQLite connection belongs to the thread that made it.
    _thread: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="witness")
    )
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reset(self) -> None:
        """Forget what was seen."""
        self.violations = []
        self.checked = {"I7": 0, "I19": 0}
        self.errors = []

    def report(self) -> dict[str, Any]:
        """Everything seen, as JSON can hold it. ``errors`` not empty: the witness was blind."""
        return {
            "violations": [asdict(one) for one in self.violations],
            "checked": dict(self.checked),
            "errors": list(self.errors),
        }

    async def begins(self, digest: str, reference: str | None) -> Seen:
        """A write has arrived: is its marker there?"""
        self._writes += 1
        look = self.database.watches_transactions and self._writes % self.sample == 1 % self.sample
        seen = Seen(digest, reference, None)
        await self._in_thread(self._marker, seen)
        if look:
            found = await self._in_thread(self._open_transactions)
            seen.transactions = found
        return seen

    async def ends(self, seen: Seen) -> None:
        """The answer is ready: is a transaction waiting for it?

        A sender that works on many calls commits batches all the time, and a short call may well
        lie inside one of them. So a suspicion is no proof: the answer is held back until the
        transaction ends, which it does unless it waits for this very answer.
        """
        if seen.transactions is None:
            return
        suspects = dict(seen.transactions)
        for pause in HOLD:
            await asyncio.sleep(pause)
            now = await self._in_thread(self._open_transactions)
            if now is None:
                return
            suspects = {pid: at for pid, at in suspects.items() if now.get(pid) == at}
            if not suspects:
                break
        with self._lock:
            self.checked["I19"] += 1
            for pid, since in suspects.items():
                self.violations.append(
                    Violation(
                        "I19",
                        "a transaction of the sender was open from the request to its answer",
                        seen.digest,
                        seen.reference,
                        f"backend {pid}, transaction since {since}",
                    )
                )

    def _marker(self, seen: Seen) -> None:
        marked: list[tuple[Any, ...]] = []
        if seen.reference:
            marked = self.database.rows(SQL.MARKED_REFERENCE, seen.reference, seen.digest)
        if not marked:
            marked = self.database.rows(SQL.MARKED, seen.digest)
        text = "no operation carries the marker for these bytes"
        good = any(state not in NOT_LEFT for _, state in marked)
        if not good:
            # The lease may have moved on while these bytes were under way: then an attempt
            # already closed says that they left.
            good = bool(self.database.rows(SQL.EARLIER, seen.digest))
            if marked:
                text = "the operation does not say that these bytes have left"
        with self._lock:
            self.checked["I7"] += 1
            if not good:
                states = (
                    ", ".join(f"operation {key}: {state}" for key, state in marked) or "nothing"
                )
                self.violations.append(Violation("I7", text, seen.digest, seen.reference, states))

    def _open_transactions(self) -> dict[Any, str]:
        return {pid: since for pid, since, _ in self.database.rows(SQL.TRANSACTIONS)}

    async def _in_thread(self, work: Any, *given: Any) -> Any:
        """Run in the witness's thread; a failure is recorded, and never fails the request."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, *given)
        except Exception as error:  # noqa: BLE001 - a blind witness must be visible, not fatal
            with self._lock:
                if len(self.errors) < 100:
                    self.errors.append(f"{type(error).__name__}: {error}".strip())
            return None
