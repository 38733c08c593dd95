"""`manage.py check` finds what would let the hub make a duplicate, forget a marker, or go out as a
demo.
"""

from types import SimpleNamespace

import pytest
from django.contrib.auth import get_user_model
from django.core.checks import run_checks
from django.db import OperationalError
from django.db import connection as database

from hub import checks, credentials, registry
from hub.contract import IDEMPOTENCY_KEY, Connector, Kind, Write
from tests.hub.operations import connection

DATABASES = ["default"]


def ids(**options) -> set[str]:
    found = {message.id or "" for message in run_checks(**options)}
    return {name for name in found if name.startswith("hub.")}


# --- times ---


def test_what_ships_is_well():
    assert checks.wrong_times(database=False) == []


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"HUB_LEASE_ADDEND": 20.0}, "HUB_LEASE_ADDEND"),
        ({"HUB_LEASE_ADDEND": 0.0, "HUB_MARGIN": 0.0}, "HUB_MARGIN"),
        ({"HUB_MARGIN": 0.0}, "HUB_MARGIN"),
        ({"HUB_DRAIN_BUDGET": 90.0}, "HUB_TASK_TIMEOUT"),
    ],
)
def test_leases_and_budgets_nest(settings, changes, names):
    """F23: a lease that does not outlast its call, a drain longer than its task time-out."""
    for name, value in changes.items():
        setattr(settings, name, value)
    found = checks.wrong_times(database=False)
    assert found
    assert names in found[0]
    assert "hub.E001" in ids()


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"timeout": 135}, "HUB_TASK_TIMEOUT"),  # 45 + 75 + 15 exactly: not below
        ({"timeout": 480}, "HUB_TASK_RETRY"),
        ({"guard_cycle": 0.3}, "guard_cycle"),
    ],
)
def test_what_django_q2_counts_nests_around_it(settings, changes, names):
    settings.Q_CLUSTER = {**settings.Q_CLUSTER, **changes}
    found = checks.wrong_times(database=False)
    assert len(found) == 1
    assert names in found[0]


def test_small_numbers_of_a_demo_nest(settings):
    settings.HUB_MARGIN, settings.HUB_LEASE_ADDEND = 1.0, 5.0
    assert checks.wrong_times(database=False) == []


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("numbers", "names"),
    [
        ({"*": {"max_send": {"value": 120, "source": "x", "date": "y"}}}, "connection crm"),
        ({"probe.echo": {"max_send": 0}}, "max_send is 0"),
        ({"probe.echo": {"max_exec": -1}}, "max_exec is -1"),
    ],
)
def test_a_connections_own_numbers_are_judged_as_they_come_into_force(numbers, names):
    connection(numbers=numbers)
    found = [m.msg for m in run_checks(databases=DATABASES) if m.id == "hub.E014"]
    assert any(names in text for text in found)
    assert "hub.E001" not in ids(databases=DATABASES)  # the settings themselves are well


@pytest.mark.django_db
def test_a_retired_connection_is_not_judged():
    from django.utils import timezone

    connection(numbers={"*": {"max_send": 500}}, retired_at=timezone.now())
    assert "hub.E014" not in ids(databases=DATABASES)


# --- declarations ---


class Hollow(Connector):
    """Declares what it does not implement."""

    label = "hollow"
    actions = {"thing.make": Write(IDEMPOTENCY_KEY, kind=Kind.CREATE)}


def test_what_is_declared_and_not_implemented_is_an_error(monkeypatch):
    fake = SimpleNamespace(label="hollow", connector_class=lambda: Hollow)
    monkeypatch.setattr(registry, "integrations", lambda: [fake])
    found = [m.msg for m in checks.declarations() if m.id == "hub.E003"]
    assert any("send() is not implemented" in text for text in found)
    assert any("key_ttl" in text for text in found)


def test_an_integration_that_cannot_be_imported_is_an_error(monkeypatch):
    def missing():
        raise registry.UnknownIntegration("its code is gone")

    fake = SimpleNamespace(label="gone", connector_class=missing)
    monkeypatch.setattr(registry, "integrations", lambda: [fake])
    assert [m.id for m in checks.declarations()] == ["hub.E002"]


# --- workers and database ---


def test_a_connection_pool_is_refused(settings, monkeypatch):
    monkeypatch.setitem(settings.DATABASES["default"], "OPTIONS", {"pool": True})
    assert [m.id for m in checks.workers()] == ["hub.E004"]


def test_more_than_one_worker_on_sqlite_is_a_warning(settings, monkeypatch):
    settings.HUB_WORKERS = 2
    database = settings.DATABASES["default"]
    monkeypatch.setitem(database, "ENGINE", "django.db.backends.sqlite3")
    assert [m.id for m in checks.workers()] == ["hub.W001"]
    monkeypatch.setitem(database, "ENGINE", "django.db.backends.postgresql")
    assert checks.workers() == []


def test_django_q2_must_not_repeat_drains(settings):
    settings.Q_CLUSTER = {**settings.Q_CLUSTER, "max_attempts": 3}
    assert "hub.E005" in {m.id for m in checks.workers()}


@pytest.mark.django_db
def test_the_database_as_shipped_keeps_its_commits():
    assert checks.durability(databases=DATABASES) == []


@pytest.mark.sqlite
@pytest.mark.django_db(transaction=True)
def test_sqlite_that_may_forget_a_commit_is_an_error():
    """W24: `synchronous = NORMAL`."""
    with database.cursor() as cursor:
        cursor.execute("PRAGMA synchronous = NORMAL")
        try:
            assert [m.id for m in checks.durability(databases=DATABASES)] == ["hub.E013"]
        finally:
            cursor.execute("PRAGMA synchronous = FULL")


@pytest.mark.sqlite
@pytest.mark.django_db(transaction=True)
def test_sqlite_without_a_write_ahead_log_is_an_error():
    with database.cursor() as cursor:
        cursor.execute("PRAGMA journal_mode = DELETE")
        try:
            assert [m.id for m in checks.durability(databases=DATABASES)] == ["hub.E012"]
        finally:
            cursor.execute("PRAGMA journal_mode = WAL")


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_postgresql_that_may_forget_a_commit_is_an_error():
    with database.cursor() as cursor:
        cursor.execute("SET synchronous_commit = off")
        try:
            assert [m.id for m in checks.durability(databases=DATABASES)] == ["hub.E011"]
        finally:
            cursor.execute("RESET synchronous_commit")


@pytest.mark.django_db
def test_credentials_that_do_not_open_are_an_error():
    connection(secrets=credentials.seal({"key": "value"}, ["A" * 43 + "="]))
    assert "hub.E015" in ids(databases=DATABASES)


@pytest.mark.django_db
def test_without_databases_no_row_is_read(django_assert_num_queries):
    with django_assert_num_queries(0):
        run_checks()


# --- production ---


def production(**options) -> set[str]:
    return ids(include_deployment_checks=True, **options)


@pytest.mark.django_db
def test_a_local_run_is_no_production(settings):
    settings.HUB_LOCAL = True
    assert "hub.E020" in production()


@pytest.mark.django_db
def test_keys_a_local_run_generated_are_refused(settings, tmp_path):
    settings.HUB_LOCAL, settings.HUB_HOME = False, tmp_path
    assert not production() & {"hub.E020", "hub.E021"}
    (tmp_path / "secret_key").write_text(settings.SECRET_KEY + "\n")
    assert "hub.E021" in production()


@pytest.mark.django_db
def test_mail_that_goes_nowhere_is_a_warning(settings):
    settings.HUB_EMAIL_CONFIGURED = False
    assert "hub.W020" in production()
    settings.HUB_EMAIL_CONFIGURED = True
    assert "hub.W020" not in production()


@pytest.mark.django_db
def test_accounts_of_the_demo_are_refused():
    user = get_user_model().objects.create_user("agent", email=f"agent{checks.DEMO_DOMAIN}")
    assert "hub.E022" in production()
    user.is_active = False
    user.save()
    assert "hub.E022" not in production()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("networks", "refused"),
    [
        ("127.0.0.0/8", True),
        ("10.0.0.0/8, 0.0.0.0/0", True),
        ("::/0", True),
        ("10.1.0.0/16", False),
    ],
)
def test_a_connection_that_reaches_this_machine_is_refused(networks, refused):
    connection(integration="elsewhere", networks=networks)
    assert ("hub.E023" in production()) is refused


@pytest.mark.django_db
def test_the_probe_may_reach_this_machine():
    connection(networks="127.0.0.0/8")
    assert "hub.E023" not in production()


@pytest.mark.django_db
def test_production_is_judged_as_far_as_it_can_be_when_the_database_is_away(monkeypatch):
    def fail():
        raise OperationalError("connection refused")

    monkeypatch.setattr(checks, "_migrated", fail)
    assert [m.id for m in checks.production_rows()] == ["hub.I001"]
