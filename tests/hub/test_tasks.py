"""Django-Q2's entry points carry nothing, may run twice or never, and refuse times that do not
nest.
"""

import inspect
from datetime import timedelta

import pytest
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.utils import timezone
from django_q.models import Failure, OrmQ, Schedule, Task
from django_q.signing import SignedPackage

from hub import bell, health, tasks
from hub.models import Heartbeat, Operation
from tests.hub.operations import connection, heartbeat, pending

pytestmark = pytest.mark.django_db


@pytest.fixture
def drains(monkeypatch):
    """Drains that are made and run, with their arguments; none is real."""
    made = []

    class Recorded:
        def __init__(self, **options):
            made.append(options)

        def run(self):
            return 7

    monkeypatch.setattr(tasks, "Drain", Recorded)
    # The task closes its connection before it hands over, which would end the test's transaction.
    monkeypatch.setattr(tasks.connection, "close", lambda: None)
    return made


def waiting() -> list[str]:
    return [row.func() for row in OrmQ.objects.all()]


def test_a_drain_runs_for_its_budget_with_its_own_stop_and_returns_a_number(drains):
    assert tasks.drain() == 7
    assert drains == [{"signals": True}]


def test_a_drain_leaves_its_successor_waiting(drains):
    tasks.drain()
    assert waiting() == [bell.DRAIN]


def test_wake_ups_do_not_pile_up(drains):
    for _ in range(3):
        tasks.drain()
    bell.ring()
    assert waiting() == [bell.DRAIN]


def test_a_drain_does_the_chores_of_the_minute(drains):
    health.ensure_probe()
    tasks.drain()
    assert Operation.objects.get().action == health.PROBE_ACTION


def test_times_that_do_not_nest_keep_a_drain_from_starting(drains, settings):
    """F23: a lease shorter than its call is refused at start-up."""
    settings.HUB_LEASE_ADDEND = 5
    with pytest.raises(ImproperlyConfigured, match="HUB_LEASE_ADDEND is 5 s"):
        tasks.drain()
    assert drains == []


def test_the_numbers_of_a_connection_are_judged_too(drains):
    connection(numbers={"*": {"max_send": 500}})
    with pytest.raises(ImproperlyConfigured, match="connection crm"):
        tasks.drain()
    assert drains == []


def test_a_tick_starts_a_drain_only_where_one_is_missing():
    tasks.tick()
    assert waiting() == [bell.DRAIN]
    OrmQ.objects.all().delete()
    for number in range(django_settings.HUB_WORKERS):
        heartbeat(f"drain-{number}")
    tasks.tick()
    assert waiting() == []


def test_a_tick_sweeps_what_a_dead_drain_left():
    """F5, F22: any process finds it, a worker of its own is not needed."""
    row = pending(connection())
    Operation.objects.filter(pk=row.pk).update(
        state="running",
        stream_busy=True,
        lease_token=1,
        lease_until=timezone.now() - timedelta(seconds=1),
    )
    assert tasks.tick() == 1
    assert Operation.objects.get(pk=row.pk).state in ("pending", "retry")


def test_ticks_and_wake_ups_may_come_as_often_as_they_like(drains):
    """F6: a wake-up delivered three times."""
    health.ensure_probe()
    for _ in range(3):
        tasks.tick()
        tasks.drain()
    assert Operation.objects.count() == 1


def test_a_chore_that_fails_does_not_keep_a_drain_from_starting(drains, monkeypatch):
    from django.db import OperationalError

    def fail():
        raise OperationalError("database is locked")

    monkeypatch.setattr(health, "note_exchange", fail)
    monkeypatch.setattr(fail, "__name__", "note_exchange")
    assert tasks.drain() == 7


def test_old_failures_and_dead_heartbeats_are_thrown_away():
    now = timezone.now()
    for name, days in (("old", 8), ("new", 1)):
        at = now - timedelta(days=days)
        Task.objects.create(
            id=name, name=name, func="x", started=at, stopped=at, success=False, result="no"
        )
    heartbeat("dead", age=tasks.FORGET_DRAINS + 5)
    heartbeat("silent", age=60)
    tasks.throw_away()
    assert [row.id for row in Failure.objects.all()] == ["new"]
    assert [row.drain for row in Heartbeat.objects.all()] == ["silent"]


def test_wake_ups_a_killed_cluster_had_taken_do_not_come_back():
    retry = django_settings.Q_CLUSTER["retry"]
    timeout = django_settings.Q_CLUSTER["timeout"]
    now = timezone.now()

    def taken(func: str, seconds_ago: float) -> None:
        payload = SignedPackage.dumps({"id": func, "name": func, "func": func})
        OrmQ.objects.create(
            key="hub", payload=payload, lock=now + timedelta(seconds=retry - seconds_ago)
        )

    taken(bell.DRAIN, 2 * timeout + 5)
    taken(bell.DRAIN, 2)
    taken("another.app.task", 2 * timeout + 5)
    tasks.throw_away()
    assert sorted(waiting()) == ["another.app.task", bell.DRAIN]


# --- the schedule ---


def test_migrate_makes_one_schedule_and_making_it_again_changes_nothing():
    call_command("migrate", verbosity=0, interactive=False)
    tasks.ensure_schedule()
    row = Schedule.objects.get(func=tasks.TICK)
    assert (row.schedule_type, row.minutes, row.repeats) == (Schedule.MINUTES, 1, -1)
    assert (row.args, row.kwargs, row.intended_date_kwarg) == (None, None, None)
    assert django_settings.Q_CLUSTER["catch_up"] is False


def test_a_schedule_somebody_spoilt_is_put_right():
    tasks.ensure_schedule()
    Schedule.objects.update(args="(", intended_date_kwarg="when", minutes=90, repeats=1)
    Schedule.objects.create(func=tasks.TICK, args="(")
    tasks.ensure_schedule()
    row = Schedule.objects.get(func=tasks.TICK)
    assert (row.args, row.intended_date_kwarg, row.minutes, row.repeats) == (None, None, 1, -1)


@pytest.mark.parametrize("path", [bell.DRAIN, tasks.TICK])
def test_what_is_rung_exists_is_plain_and_takes_no_argument(path):
    """An `async def` task is never awaited by Django-Q2 and comes back for ever."""
    found = getattr(tasks, path.rpartition(".")[2])
    assert f"{found.__module__}.{found.__name__}" == path
    assert not inspect.iscoroutinefunction(found)
    assert not inspect.signature(found).parameters
