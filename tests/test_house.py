"""The house stands: each run is on the database it claims, and other processes find it, too."""

import pytest
from django.conf import settings
from django.db import connection


@pytest.mark.both_databases
@pytest.mark.django_db
def test_database_is_a_test_database(database_vendor):
    name = str(connection.settings_dict["NAME"])
    if database_vendor == "sqlite":
        assert name.startswith(str(settings.HUB_HOME))
    else:
        assert name.startswith("test_")


@pytest.mark.sqlite
@pytest.mark.django_db
def test_sqlite_forgets_nothing_on_power_loss():
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA synchronous")
        assert cursor.fetchone() == (2,)
        cursor.execute("PRAGMA journal_mode")
        assert cursor.fetchone() == ("wal",)


@pytest.mark.postgresql
@pytest.mark.django_db
def test_postgresql_is_durable_and_names_its_clients():
    with connection.cursor() as cursor:
        cursor.execute("SHOW fsync")
        assert cursor.fetchone() == ("on",)
        cursor.execute("SELECT application_name FROM pg_stat_activity WHERE pid = pg_backend_pid()")
        assert cursor.fetchone() == ("hub",)


@pytest.mark.processes
def test_another_process_reads_what_was_committed(manage):
    from django.contrib.auth.models import User

    User.objects.create_user("seen")
    done = manage(
        "shell", "-v", "0", "-c",
        "from django.contrib.auth.models import User; print(User.objects.get().username)",
    )  # fmt: skip
    assert done.stdout.strip() == "seen", done.stderr
