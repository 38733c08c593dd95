"""The database is restarted, cut off, read-only, locked, restored, or its clock steps: nothing is
sent without its marker, and what was accepted is carried out.
"""

from __future__ import annotations

import io
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import DatabaseError
from django.db import connection as database
from django.db.models import F
from django.utils import timezone

from hub.models import Attempt, Evidence, Heartbeat, Installation, Mapping, Operation
from hub.outbox import Submitted
from hub.sql import database_now
from hub.sweep import Sweeper
from tests.harness import audit
from tests.harness.crashing import Crash, Fuse
from tests.harness.remote import FakeRemote
from tests.harness.world import World, small_tuning

FIELDS = {"name": "Ann"}


def writes(remote: FakeRemote) -> list[str]:
    return [one.json.get("reference", "") for one in remote.log if one.method != "GET"]


def made(remote: FakeRemote) -> list[str]:
    return [x.reference for x in remote.effects("acme") if x.kind == "create" and not x.by_person]


@contextmanager
def admin(world: World) -> Iterator[psycopg.Connection[Any]]:
    """A connection of the server's administrator, to a database nobody else uses."""
    base = world.database_url.rpartition("/")[0]
    with psycopg.connect(f"{base}/postgres", autocommit=True) as one:
        yield one


def end_all(one: psycopg.Connection[Any], name: str) -> None:
    one.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])


@contextmanager
def unreachable(world: World) -> Iterator[None]:
    """Nobody can connect to the database, and whoever was is cut off, as at a restart."""
    name = str(database.settings_dict["NAME"])
    with admin(world) as one:
        one.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        end_all(one, name)
        try:
            yield
        finally:
            one.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
            database.close()


# --- restarts and outages ------------------------------------------------------------------------


@pytest.mark.postgresql
@pytest.mark.processes
def test_the_database_goes_away_in_mid_work(world: World) -> None:
    """F75, F77: cut off four times under two workers: they come back by themselves."""
    world.short_leases()  # a result that could not be stored in time leaves its lease behind
    remote = world.fake_remote(watched=False)  # its witness would be cut off, too
    connection = world.connect(remote)
    for number in range(120):
        world.submit(connection, ("a.note", "c.create")[number % 2], str(number), 1, FIELDS)
    workers = world.work(2)
    world.wait_for(lambda: Heartbeat.objects.count() == 2, saying="both at work")
    for time_out in range(4):
        world.wait_for(lambda: len(writes(remote)) > 20 * time_out)  # noqa: B023
        with unreachable(world):
            time.sleep(0.3)
    world.settle()
    assert all(worker.alive for worker in workers)
    assert world.states() == {"confirmed": 120}, world.states()
    assert len(made(remote)) == len(set(made(remote))) == 120


@pytest.mark.postgresql
@pytest.mark.processes
def test_the_database_is_away_for_a_while(world: World) -> None:
    """F76: no send without marker, nothing accepted without commit; afterwards all goes on."""
    remote = world.fake_remote(watched=False)
    connection = world.connect(remote)
    workers = world.work(1)
    world.submit(connection, "c.create", "0", 1, FIELDS)
    world.settle()
    before = len(remote.log)
    with unreachable(world):
        database.close()
        with pytest.raises(DatabaseError):
            world.submit(connection, "c.create", "1", 1, FIELDS)
        time.sleep(1.5)
        assert len(remote.log) == before
    done = world.submit(connection, "c.create", "1", 1, FIELDS)
    world.settle()
    assert world.state(done) == "confirmed"
    assert workers[0].alive
    assert len(made(remote)) == 2


# --- a database that cannot be written -----------------------------------------------------------


@pytest.mark.postgresql
def test_a_read_only_database(world: World) -> None:
    """F78: nothing is sent; when it can be written again, it recovers without hands."""
    remote = world.fake_remote()
    connection = world.connect(remote)
    done = [world.submit(connection, "c.create", str(n), 1, FIELDS) for n in range(3)]
    name = str(database.settings_dict["NAME"])
    drain = world.worker(budget=600.0)
    working = threading.Thread(target=drain.run, daemon=True)
    with admin(world) as one:
        one.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        try:
            working.start()
            world.wait_for(lambda: world.said().count("read-only") >= 5, saying="its refusals")
            assert remote.log == []
        finally:
            one.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
            end_all(one, name)
    database.close()
    world.wait_for(
        lambda: {world.state(x) for x in done} == {"confirmed"}, saying="the work, without hands"
    )
    drain.stop()
    working.join(60)
    assert len(made(remote)) == 3


@pytest.mark.sqlite
def test_a_full_or_read_only_file(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """F78: SQLite refuses every write (`query_only`, as a full disk does): nothing is sent.

    A disk quota of its own is not to be had in a test; what the engine sees is the same error.
    """
    remote = world.fake_remote()
    done = world.submit(world.connect(remote), "c.create", "1", 1, FIELDS)
    shut = threading.Event()
    shut.set()

    def steps(name: str) -> None:
        if threading.current_thread() is not threading.main_thread() and shut.is_set():
            with database.cursor() as cursor:
                cursor.execute("PRAGMA query_only = ON")

    world.drain(steps=steps, budget=0.6, until_idle=False)
    assert "readonly" in world.said()
    assert remote.log == []
    assert world.state(done) == "pending"
    shut.clear()
    world.settle()
    assert world.state(done) == "confirmed"


@pytest.mark.sqlite
@pytest.mark.parametrize("step", ["claim.before", "mark.before", "settle.before"])
def test_a_writer_that_keeps_the_file_locked(world: World, step: str) -> None:
    """F79: longer than the time-out: the claim gives up quietly, the settle goes on trying."""
    remote = world.fake_remote()
    done = world.submit(world.connect(remote), "c.create", "1", 1, FIELDS)
    path = str(database.settings_dict["NAME"])
    held: list[sqlite3.Connection] = []

    def release() -> None:
        held[0].rollback()
        held[0].close()

    def steps(name: str) -> None:
        if name == step and not held:
            with database.cursor() as cursor:
                cursor.execute("PRAGMA busy_timeout = 100")
            held.append(sqlite3.connect(path, check_same_thread=False, isolation_level=None))
            held[0].execute("BEGIN IMMEDIATE")
            threading.Timer(0.8, release).start()

    world.drain(steps=steps)
    world.settle()
    assert held
    assert world.state(done) == "confirmed", world.story(done)
    assert len(made(remote)) == 1


@pytest.mark.sqlite
@pytest.mark.parametrize("executed", [True, False])
def test_power_is_cut_after_the_marker(world: World, tmp_path: Path, executed: bool) -> None:
    """F80, A1: the file as the disk has it after the marker, restored: `sent`, so U follows."""
    remote = world.fake_remote()
    connection = world.connect(remote)
    done = {
        action: world.submit(connection, action, action, 1, FIELDS)
        for action in ("a.note", "c.create", "d.note")
    }
    path = Path(str(database.settings_dict["NAME"]))
    remote.order("drop", "POST", when="after" if executed else "before", times=3)
    kept = tmp_path / "kept"
    kept.mkdir()

    def steps(name: str) -> None:
        # What the disk holds, and no more: not what SQLite keeps in memory.
        if name == "settle.before" and not list(kept.iterdir()):
            for one in path.parent.glob(f"{path.name}*"):
                if not one.name.endswith("-shm"):
                    shutil.copy2(one, kept / one.name)
            raise Crash(name)

    with pytest.raises(Crash):
        world.drain(steps=steps)
    database.close()
    for one in path.parent.glob(f"{path.name}*"):
        one.unlink()
    for one in kept.iterdir():
        shutil.copy2(one, path.parent / one.name)
    sent = {world.state(one) for one in done.values()}
    assert "sent" in sent
    world.settle()
    assert world.state(done["a.note"]) == world.state(done["c.create"]) == "confirmed"
    assert world.state(done["d.note"]) in ("review", "confirmed")
    assert len(made(remote)) == len(set(made(remote)))


# --- restore -------------------------------------------------------------------------------------


def forget(ids: list[int]) -> None:
    """What a backup taken before the claim knows of these operations: nothing but that they wait.

    The rows' history was lost with the database; so is what the test's own audit knew of it.
    """
    Operation.objects.filter(pk__in=ids).update(
        state="pending", reason_code="", reason_text="", lease_token=0, lease_owner="",
        lease_until=None, sent_at=None, first_sent_at=None, request_digest="", last_byte_at=None,
        maybe_executed=False, stream_busy=False, remote_ref="", remote_version="", attempts=0,
        confirmed_at=None, hold_until=None, parked=False, next_at=timezone.now(),
    )  # fmt: skip
    Attempt.objects.filter(operation_id__in=ids).delete()
    Evidence.objects.filter(operation_id__in=ids).delete()
    Mapping.objects.filter(source_id__in=Operation.objects.filter(pk__in=ids).values("source_id"))\
        .delete()  # fmt: skip
    audit.install()


@pytest.mark.parametrize("days", [1 / 24, 10])
def test_a_backup_is_restored(world: World, days: float) -> None:
    """F81, F82: nothing goes out blindly: a repeats while its key lives, b, c look, d asks."""
    remote = world.fake_remote()
    connection = world.connect(remote, numbers={"key_ttl": 86_400.0})
    actions = ("a.note", "al.create", "b.create", "c.create", "d.note")
    done = {name: world.submit(connection, name, name, 1, FIELDS) for name in actions}
    world.settle()
    before = len(writes(remote))
    ids = [one.operation_id for one in done.values()]
    forget(ids)
    Operation.objects.filter(pk__in=ids).update(created_at=timezone.now() - timedelta(days=days))
    fresh = world.submit(connection, "c.create", "never sent", 1, FIELDS)
    call_command("hub_restored", "--yes", stdout=io.StringIO())
    world.settle()
    ends = {name: world.state(one) for name, one in done.items()}
    dead = days > 1
    assert ends == {
        "a.note": "review" if dead else "confirmed",
        "al.create": "confirmed", "b.create": "confirmed", "c.create": "confirmed",
        "d.note": "review",
    }, "\n".join(world.story(one) for one in done.values())  # fmt: skip
    assert world.state(fresh) == "confirmed", world.story(fresh)
    assert len(made(remote)) == len(actions) + 1
    for name in ("I4", "I10"):
        world.allow(name, "the records of what was sent were lost with the database")
    repeats = writes(remote)[before:]
    assert world.operation(done["d.note"]).reference not in repeats
    assert world.operation(done["c.create"]).reference not in repeats
    if dead:
        assert world.operation(done["a.note"]).reference not in repeats


def test_several_versions_of_one_entity_after_a_restore(world: World) -> None:
    """F81: one per stream at a time; the newest stands at the end, no lower after a higher."""
    remote = world.fake_remote()
    connection = world.connect(remote)
    world.submit(connection, "bp.create", "1", 1, {"name": "one"})
    world.settle()
    updates = []
    for version in range(2, 5):
        fields = {"name": f"v{version}"}
        updates.append(
            world.submit(connection, "bp.update", "1", version, fields, variant=str(version))
        )
    call_command("hub_restored", "--yes", stdout=io.StringIO())
    world.settle()
    assert world.state(updates[-1]) == "confirmed", world.story(updates[-1])
    assert {world.state(one) for one in updates[:-1]} <= {"confirmed", "discarded"}
    thing = next(iter(remote.things("acme").values()))
    assert thing.fields["name"] == "v4"


# --- long reads ----------------------------------------------------------------------------------


@pytest.mark.postgresql
def test_a_long_read_beside_the_work(world: World) -> None:
    """F83: a report's snapshot kept open under load: claims stay within a measured bound.

    Scaled down: some hundred operations, not 15 minutes. What it measures is that the rows nobody
    may clean up do not multiply the time of the run.
    """
    remote = world.fake_remote(watched=False)
    connection = world.connect(remote)

    def run(first: int) -> float:
        for number in range(first, first + 150):
            world.submit(connection, "d.note", str(number), 1, FIELDS)
        began = time.monotonic()
        world.settle()
        return time.monotonic() - began

    alone = run(0)
    with psycopg.connect(world.database_url) as report:
        report.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        report.execute("SELECT count(*) FROM hub_operation")
        # The machine may be busy elsewhere: rows that multiply the time would do so every time.
        for turn in range(1, 4):
            beside = run(1000 * turn)
            if beside < 4 * alone + 3.0:
                break
        report.rollback()
    assert beside < 4 * alone + 3.0
    assert set(world.states()) == {"confirmed"}


# --- clocks --------------------------------------------------------------------------------------


@pytest.mark.postgresql
@pytest.mark.parametrize("hours", [-1, 1])
def test_a_workers_wall_clock_means_nothing(world: World, hours: int) -> None:
    """F85, W13: on PostgreSQL only the database's clock counts: no early lapse, no late claim."""
    remote = world.fake_remote()
    connection = world.connect(remote)
    done = {
        action: world.submit(connection, action, action, 1, FIELDS)
        for action in ("a.note", "c.create", "b.create", "d.note")
    }
    remote.order("drop", "POST", reference=world.operation(done["c.create"]).reference)
    world.settle(600.0, now=lambda: timezone.now() + timedelta(hours=hours))
    assert world.states() == {"confirmed": 4}
    assert len(made(remote)) == 4
    for row in Operation.objects.all():
        assert abs((row.state_since - timezone.now()).total_seconds()) < 60
        assert row.lapses == 0


@pytest.mark.sqlite
@pytest.mark.parametrize("hours", [-1, 1])
def test_the_hosts_clock_steps(world: World, hours: int) -> None:
    """F85, A4: on SQLite the host's clock is the database's: early lapses, no second effect."""
    remote = world.fake_remote()
    connection = world.connect(remote, numbers={"key_ttl": 86_400.0})
    done = {
        action: world.submit(connection, action, action, 1, FIELDS)
        for action in ("a.note", "c.create", "b.create")
    }
    for action in ("a.note", "c.create"):
        reference = world.operation(done[action]).reference
        remote.order("slow", "POST", seconds=0.5, reference=reference)
    stepped = threading.Event()

    def now() -> datetime:
        return timezone.now() + (timedelta(hours=hours) if stepped.is_set() else timedelta(0))

    def steps(name: str) -> None:
        if name == "send.first_byte":
            stepped.set()

    world.drain(now=now, steps=steps, budget=4.0)
    assert stepped.is_set()
    if hours < 0:
        # What was written before the step is due in an hour; time goes on meanwhile.
        Operation.objects.exclude(state="confirmed").update(next_at=timezone.now())
    world.settle()
    assert world.states() == {"confirmed": 3}, world.states()
    assert len(made(remote)) == len(set(made(remote))) == 3


def test_the_sweep_notes_a_step_of_the_clock(world: World) -> None:
    """F85, A4: compared with the monotonic clock; beyond the margin it is written down."""
    clock = [100.0]
    tuning = small_tuning(margin=5.0)
    sweeper = Sweeper(tuning, clock=lambda: clock[0])
    sweeper.sweep({}, timezone.now)
    assert Installation.objects.get(pk=1).clock_jumped_at is None
    clock[0] -= 60.0  # an hour passes on the wall in a moment, or a minute here
    sweeper.sweep({}, timezone.now)
    mine = Installation.objects.get(pk=1)
    assert mine.clock_jumped_at is not None
    assert "stepped by +60" in mine.clock_note
    assert "A4" in mine.clock_note


def test_after_a_step_absence_is_not_trusted(world: World) -> None:
    """F85: the clock steps forward, so that all waits seem long over; no repeat for `max_exec`."""
    remote = world.fake_remote()
    connection = world.connect(remote, numbers={"max_exec": 1.5, "index_lag": 0.05})
    done = world.submit(connection, "c.create", "1", 1, FIELDS)
    remote.order("drop", "POST", when="before")
    stepped = 0.0

    def steps(name: str) -> None:
        nonlocal stepped
        if name == "settle.committed" and len(remote.log) == 1:
            an_hour = timedelta(hours=1)
            # The rows say what the old clock said: to the new one all of it is an hour ago.
            Operation.objects.filter(pk=done.operation_id).update(
                state_since=F("state_since") - an_hour, last_byte_at=F("last_byte_at") - an_hour
            )
            Installation.objects.filter(pk=1).update(clock_jumped_at=database_now())
            stepped = remote.requests("acme")[-1]

    world.settle(steps=steps)
    assert world.state(done) == "confirmed", world.story(done)
    assert len(writes(remote)) == 2
    assert stepped
    assert remote.requests("acme")[-1] - stepped >= (
        world.numbers["max_send"] + 1.5 + world.tuning.margin
    )


# --- another release -----------------------------------------------------------------------------


def test_rows_of_a_newer_release(world: World) -> None:
    """F86: an unknown payload schema goes to a person; what is another epoch's is left alone."""
    remote = world.fake_remote()
    connection = world.connect(remote)
    newer = world.submit(connection, "c.create", "newer", 1, FIELDS)
    Operation.objects.filter(pk=newer.operation_id).update(payload_schema=2)
    fine = world.submit(connection, "c.create", "fine", 1, FIELDS)
    world.settle()
    row = world.operation(newer)
    assert (row.state, row.reason_code) == ("review", "schema"), world.story(newer)
    assert world.state(fine) == "confirmed"
    assert len(writes(remote)) == 1


def test_a_state_this_release_does_not_know(world: World) -> None:
    """F86: the older worker leaves such a row alone and does not fall over it."""
    remote = world.fake_remote()
    connection = world.connect(remote)
    odd = world.submit(connection, "c.create", "odd", 1, FIELDS)
    Operation.objects.filter(pk=odd.operation_id).update(state="resting")
    fine = world.submit(connection, "c.create", "fine", 1, FIELDS)
    world.settle()
    row = world.operation(odd)
    assert (row.state, row.attempts) == ("resting", 0)
    assert world.state(fine) == "confirmed"
    Operation.objects.filter(pk=odd.operation_id).update(state="pending")
    audit.install()  # no table of ours knows the moves of a newer release
    world.settle()
    assert world.state(odd) == "confirmed"


# --- everybody dies ------------------------------------------------------------------------------


def test_all_workers_die_with_their_leases(world: World) -> None:
    """F22, W25, F84: 300 leases (scaled down) lapse; no operation needs a hand but by its class."""
    remote = world.fake_remote()
    connections = [world.connect(remote, f"t{n}", name=f"t{n}")
                   for n in range(3)]  # fmt: skip
    done: list[Submitted] = []
    for number in range(60):
        done.append(world.submit(connections[number % 3], "c.create", str(number), 1, FIELDS))
    fuse = Fuse("claim.committed")
    with pytest.raises(Crash):
        world.drain(steps=fuse)
    leased = Operation.objects.filter(lease_until__isnull=False).count()
    assert leased >= 40
    world.settle()
    assert world.states() == {"confirmed": 60}, world.states()
    for number in range(3):
        assert len(remote.effects(f"t{number}")) == 20
