"""What the bench does inside the hub: fill, submit at a pace, write as the web does, time a claim.

Each role is a process: `python -m bench.hubside ROLE '{...}'` prints one line of JSON.
"""

from __future__ import annotations

import json
import logging
import statistics
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import django

from bench.client import thing


def connection_row(name: str, url: str) -> Any:
    """The connection of that name to the echo, its gate open, its credential sealed."""
    from hub import credentials, gate
    from hub.models import Connection, Installation, Tenant

    Installation.objects.get_or_create(pk=1)
    tenant = Tenant.objects.get_or_create(slug="bench", defaults={"name": "Bench"})[0]
    row, _ = Connection.objects.select_related("tenant").update_or_create(
        name=name,
        defaults={
            "tenant": tenant,
            "integration": "bench",
            "account": name,
            "base_url": url,
            "secrets": credentials.seal({"token": "a-secret-of-the-bench-0123456789"}),
            "networks": "127.0.0.0/8",
            "max_in_flight": 50,
        },
    )
    gate.ensure(row)
    return row


def multiply(template: int, begin: int, end: int, *, stream: str = "", **other: str) -> None:
    """Copies of an operation, numbered from `begin` to before `end`: each another intent.

    Each is a stream of its own, or all are versions of one `stream`. `other` names columns whose
    value is not the template's, as SQL in which `n.i` is the number.
    """
    from django.db import connection

    from hub.models import Operation

    def padded(width: int) -> str:
        if connection.vendor == "sqlite":
            return f"printf('%%0{width}d', n.i)"
        return f"lpad(n.i::text, {width}, '0')"

    given = {
        "source_id": f"'{stream}'" if stream else "'copy-' || n.i",
        "stream": f"'{stream}'" if stream else padded(32),
        "version": "n.i" if stream else "1",
        "operation_key": padded(64),
        "remote_key": padded(40),
        "reference": padded(40),
        **other,
    }
    columns = [str(one.column) for one in Operation._meta.local_fields if one.column != "id"]
    values = [given.get(name, f'o."{name}"') for name in columns]
    numbers = (
        "(WITH RECURSIVE c(i) AS (SELECT %s UNION ALL SELECT i + 1 FROM c WHERE i < %s) "
        "SELECT i FROM c) AS n"
        if connection.vendor == "sqlite"
        else "generate_series(%s, %s) AS n(i)"
    )
    quoted = ", ".join(f'"{name}"' for name in columns)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO hub_operation ({quoted}) SELECT {', '.join(values)} "
            f"FROM {numbers} CROSS JOIN hub_operation o WHERE o.id = %s",
            [begin, end - 1, template],
        )


def tidy() -> None:
    """Statistics for the planner, and on SQLite all of it in the one file that is copied."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
        if connection.vendor == "sqlite":
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def fill(n: int, url: str, connections: list[str]) -> dict[str, Any]:
    """Have connections, and `n` creates on the first: some submitted, the others their copies."""
    from django.db import transaction

    from hub import outbox

    rows = [connection_row(name, url) for name in connections]
    submitted = min(n, 200)
    began = time.monotonic()
    last = 0
    for number in range(submitted):
        with transaction.atomic():
            last = outbox.submit(
                rows[0],
                "thing.create",
                source_id=f"thing-{number}",
                version=1,
                fields=thing(number),
            ).operation_id
    took = time.monotonic() - began
    if n > submitted:
        multiply(last, submitted, n)
    tidy()
    return {"submit_ms": took / submitted * 1000} if submitted else {}


FINISHED = {
    "state": "'confirmed'",
    "attempts": "1",
    "lease_token": "1",
    "sent_at": "o.created_at",
    "first_sent_at": "o.created_at",
    "confirmed_at": "o.created_at",
    "remote_ref": "'T-' || n.i",
}
FINISHED_ATTEMPTS = """
INSERT INTO hub_attempt (operation_id, token, purpose, worker, claimed_at, marked_at, settled_at,
  "left", request_digest, outcome, verdict, error_class, remote_request_id, seen, stale)
SELECT id, 1, 'send', 'bench', created_at, created_at, created_at, 'maybe', '', 'X', 'Confirmed.',
  '', '', '', %s FROM hub_operation WHERE state = 'confirmed'
"""
FINISHED_MAPPINGS = """
INSERT INTO hub_mapping (tenant_id, connection_id, object_type, source_system, source_id,
  remote_ref, version, remote_version, "values", revision, updated_at)
SELECT tenant_id, connection_id, object_type, source_system, source_id, remote_ref, 1, '', '{}', 1,
  created_at FROM hub_operation WHERE state = 'confirmed'
"""


def history(
    url: str, finished: int, streamed: int = 0, alone: int = 0, later: int = 0
) -> dict[str, Any]:
    """Finished operations with attempt and mapping; `streamed` pending versions of one stream,
    `alone` pending streams of one, and `later` more of these behind them.
    """
    from django.db import connection

    fill(1, url, ["bench"])
    with connection.cursor() as cursor:
        # A million rows are made here, not checked: each refers to what its template refers to.
        cursor.execute(
            "PRAGMA foreign_keys = OFF"
            if connection.vendor == "sqlite"
            else "SET session_replication_role = replica"
        )
        cursor.execute("SELECT max(id) FROM hub_operation")
        template = cursor.fetchone()[0]
    number = 10
    began = time.monotonic()
    for count, stream, other in (
        (finished, "", FINISHED),
        (streamed, "one-long-stream", {}),
        (alone, "", {}),
        (later, "", {}),
    ):
        if count:
            multiply(template, number, number + count, stream=stream, **other)
            number += count
    with connection.cursor() as cursor:
        cursor.execute(FINISHED_ATTEMPTS, [False])
        cursor.execute(FINISHED_MAPPINGS)
        if connection.vendor == "postgresql":
            cursor.execute("VACUUM (ANALYZE) hub_operation, hub_attempt, hub_mapping")
    tidy()
    return {"seconds": time.monotonic() - began}


class Watcher(threading.Thread):
    """Sees operations become confirmed, as another process would: by looking every millisecond."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.waiting: dict[int, float] = {}
        self.took: list[float] = []
        self.ended = False

    def run(self) -> None:
        from django.db import connection

        while not (self.ended and not self.waiting):
            time.sleep(0.001)
            ids = list(self.waiting)
            if not ids:
                continue
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT id FROM hub_operation WHERE state = 'confirmed' AND id IN "
                    f"({','.join(['%s'] * len(ids))})",
                    ids,
                )
                now = time.monotonic()
                for (found,) in cursor.fetchall():
                    self.took.append(now - self.waiting.pop(found))
        connection.close()


def _note_now(told: list[float]) -> None:
    told.append(time.monotonic())


def paced(
    n: int, every: float, connection: str, begin: int = 0, patience: float = 30.0
) -> dict[str, Any]:
    """Submit one after another at a pace; the milliseconds each took from commit to confirmed."""
    from django.db import transaction

    from hub import outbox
    from hub.models import Connection

    row = Connection.objects.select_related("tenant").get(name=connection)
    watcher = Watcher()
    watcher.start()
    start = time.monotonic()
    late = 0.0
    for number in range(n):
        wait = start + number * every - time.monotonic()
        late = min(late, wait)
        time.sleep(max(0.0, wait))
        with transaction.atomic():
            committed: list[float] = []
            # First in the row of what follows the commit, so that ringing is part of what is timed.
            transaction.on_commit(partial(_note_now, committed))
            done = outbox.submit(
                row,
                "thing.create",
                source_id=f"paced-{begin + number}",
                version=1,
                fields=thing(begin + number),
            )
        watcher.waiting[done.operation_id] = committed[0]
    watcher.ended = True
    watcher.join(patience)
    if watcher.waiting:
        raise RuntimeError(f"{len(watcher.waiting)} operations were not confirmed in time")
    return {"ms": [took * 1000 for took in watcher.took], "late": -late}


def web(seconds: float, name: str, connection: str) -> dict[str, Any]:
    """Write as a web request does: read, then submit, in one transaction, and pause."""
    from django.db import OperationalError, transaction

    from hub import outbox
    from hub.indexes import unfinished
    from hub.models import Connection, Operation

    took: list[float] = []
    locked = number = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        number += 1
        began = time.monotonic()
        try:
            with transaction.atomic():
                row = Connection.objects.select_related("tenant").get(name=connection)
                Operation.objects.filter(pk__in=unfinished("review")).count()  # as our pages ask
                outbox.submit(
                    row,
                    "thing.create",
                    source_id=f"{name}-{number}",
                    version=1,
                    fields=thing(number),
                )
        except OperationalError as error:
            if "locked" not in str(error):
                raise
            locked += 1
        took.append((time.monotonic() - began) * 1000)
        time.sleep(0.01)
    return {"ms": took, "locked": locked}


def cost(turns: int, batch: int, settle_all: bool = False) -> dict[str, Any]:
    """Claim, mark and settle by the hub's own functions, without a call; milliseconds of each.

    With `settle_all` it first turns until no claim parks anything more, and says how long it took.
    """
    from django.db import connection, transaction
    from django.utils import timezone

    from hub import claims, moves, policy
    from hub.contract import Done, Kind
    from hub.models import Connection
    from hub.sql import go_by_index, is_postgres
    from hub.states import Actor, Outcome, Purpose, State

    if is_postgres():
        go_by_index()  # as a drain does
    lane = Connection.objects.order_by("pk").values_list("pk", flat=True)[0]
    who = claims.Claim("bench", 1, 0)
    spent: dict[str, list[float]] = {"claim": [], "mark": [], "settle": [], "taken": []}

    def turn() -> int:
        began = time.monotonic()
        with transaction.atomic(durable=True):
            share = claims.LaneShare(lane, batch, 0, 70.0, None)
            taken = claims.claim(who, [share], began, timezone.now())
        claimed = time.monotonic()
        with transaction.atomic(durable=True):
            hit = moves.mark(
                [moves.Mark(one.id, one.token, "0" * 64, 20.0) for one in taken], timezone.now()
            )
        marked = time.monotonic()
        if len(hit) != len(taken):
            raise RuntimeError(f"{len(taken)} were claimed and {len(hit)} marked")
        settlements = []
        for one in taken:
            one.state = State.SENT
            verdict = policy.Verdict(
                State.CONFIRMED, "confirmed", "Confirmed.", Outcome.DONE,
                done=Done(remote_ref=f"T-{one.source_id}"),
            )  # fmt: skip
            settlements.append(
                moves.Settlement(
                    one,
                    verdict,
                    Actor.WORKER,
                    moves.Tried(Purpose.SEND, left="maybe"),
                    kind=Kind.CREATE,
                )
            )
        ready = time.monotonic()
        with transaction.atomic(durable=True):
            settled = moves.settle(settlements, timezone.now())
        if len(settled.ids) != len(taken):
            raise RuntimeError(f"{len(taken)} were claimed and {len(settled.ids)} settled")
        spent["claim"].append((claimed - began) * 1000)
        spent["mark"].append((marked - claimed) * 1000)
        spent["settle"].append((time.monotonic() - ready) * 1000)
        spent["taken"].append(len(taken))
        return len(taken)

    def parked() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM hub_operation WHERE parked")
            return int(cursor.fetchone()[0])

    began = time.monotonic()
    parking = 0
    if settle_all:
        before = -1
        while parking < 400 and (now := parked()) > before:
            before = now
            turn()
            parking += 1
    aside = time.monotonic() - began
    spent = {name: [] for name in spent}
    for _ in range(5):
        turn()
    spent = {name: [] for name in spent}
    for _ in range(turns):
        turn()
    told: dict[str, Any] = {name: statistics.median(values) for name, values in spent.items()}
    told["all"] = statistics.median(
        sum(each) for each in zip(spent["claim"], spent["mark"], spent["settle"], strict=True)
    )
    return told | {"parking_turns": parking, "parking_seconds": aside}


ROLES: dict[str, Callable[..., dict[str, Any]]] = {
    "fill": fill,
    "history": history,
    "paced": paced,
    "web": web,
    "cost": cost,
}


def main() -> None:
    """Do one role."""
    django.setup()
    logging.disable(logging.INFO)
    print(json.dumps(ROLES[sys.argv[1]](**json.loads(sys.argv[2]))), flush=True)


if __name__ == "__main__":
    main()
