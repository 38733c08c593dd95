"""Fixtures and rules that every test of the hub and of its integrations shares."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import hypothesis
import pytest

from tests import emptying

ROOT = Path(__file__).resolve().parent.parent
REPORT_VARIABLE = "HUB_TEST_REPORT"
_DATABASE_FIXTURES = {
    "db",
    "transactional_db",
    "django_db_reset_sequences",
    "django_db_serialized_rollback",
}
_OUTCOMES = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")

# Derandomised: the suite says the same thing twice. Searching is what a longer run by hand is for.
hypothesis.settings.register_profile(
    "suite",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("suite")


# --- which test runs where -----------------------------------------------------------------------


def _asks_for_database(item: pytest.Item) -> bool:
    if any(item.get_closest_marker(name) for name in ("django_db", "processes", "both_databases")):
        return True
    if _DATABASE_FIXTURES.intersection(getattr(item, "fixturenames", ())):
        return True
    from django.test import TransactionTestCase

    owner = getattr(item, "cls", None)
    return owner is not None and issubclass(owner, TransactionTestCase)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as `pure` what asks for no database; leave out what belongs to the other database.

    Left out, not skipped: the other run of `make test` takes it.
    """
    from django.db import connection

    other = {"sqlite": "postgresql", "postgresql": "sqlite"}[connection.vendor]
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        if not item.get_closest_marker("pure") and not _asks_for_database(item):
            item.add_marker(pytest.mark.pure)
        belongs_elsewhere = item.get_closest_marker(other) and not item.get_closest_marker(
            connection.vendor
        )
        (left_out if belongs_elsewhere else kept).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    items[:] = _in_order(config, kept)


_LONGEST = (
    "tests/flows/test_chaos.py",
    "tests/hub/test_run_local.py",
    "tests/test_weaknesses.py",
    "tests/test_bench.py",
    "tests/hub/test_run.py",
    "tests/flows/test_crash_points.py",
    "tests/hub/test_demo.py",
    "tests/flows/test_limits.py",
    "tests/flows/test_restart_mid_work.py",
)
"""Files with tests of processes that take longest: begun last, each would make all others wait."""


def _in_order(config: pytest.Config, items: list[pytest.Item]) -> list[pytest.Item]:
    """Put tests of processes behind the others, the longest first, and last what judges the run.

    Under xdist a worker gets one piece of the list to begin with, and takes from the end of
    another's when it is through: so each piece begins with long ones.
    """
    last = [item for item in items if item.get_closest_marker("afterwards")]
    mine = [item for item in items if item.get_closest_marker("processes") and item not in last]
    mine.sort(key=_rank)
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    dealt = [item for worker in range(workers) for item in mine[worker::workers]]
    apart = {*last, *mine}
    return [*(item for item in items if item not in apart), *dealt, *last]


def _rank(item: pytest.Item) -> int:
    for rank, path in enumerate(_LONGEST):
        if item.nodeid.startswith(path):
            return rank
    return len(_LONGEST)


# --- nothing is skipped silently, and the runner gets its numbers --------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip without a reason into a failure."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and isinstance(report.longrepr, tuple):
        reason = str(report.longrepr[2]).removeprefix("Skipped").removeprefix(":").strip()
        if reason in {"", "unconditional skip"}:
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} is skipped without a reason: say why, or let it run."
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Leave the counts where tests/run.py told this run to put them."""
    target = os.environ.get(REPORT_VARIABLE)
    if target and not hasattr(config, "workerinput"):
        counts: dict[str, Any] = {
            name: len(terminalreporter.stats.get(name, ())) for name in _OUTCOMES
        }
        stats = terminalreporter.stats
        failed = [one.nodeid for name in ("failed", "error") for one in stats.get(name, ())]
        counts["again"] = list(dict.fromkeys(failed))
        Path(target).write_text(json.dumps(counts))


# --- fixtures ------------------------------------------------------------------------------------


@pytest.fixture(scope="session", autouse=True)
def _quick_passwords(request: pytest.FixtureRequest) -> None:
    from django.conf import settings

    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> None:
    """The test database: left as it was found by tests that commit, and ready for their clock."""
    from tests.harness import clock

    with django_db_blocker.unblock():
        clock.prepare_database()
        emptying.install()


@pytest.fixture
def database_vendor() -> str:
    """ "sqlite" or "postgresql": what this run of the suite is on."""
    from django.db import connection

    return connection.vendor


@pytest.fixture
def database_url(transactional_db: None) -> str:
    """The URL of the test database as it is now, for other processes and for plain psycopg.

    It brings a database whose commits are real (and which is emptied after the test): another
    process would see nothing of a test that is wrapped in a transaction.
    """
    from django.db import connection

    values = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{values['NAME']}"
    login = quote(values["USER"], safe="")
    if values["PASSWORD"]:
        login += ":" + quote(values["PASSWORD"], safe="")
    place = values["HOST"] + (f":{values['PORT']}" if values["PORT"] else "")
    return f"postgresql://{login}@{place}/{quote(values['NAME'], safe='')}"


@pytest.fixture
def hub_environment(database_url: str) -> dict[str, str]:
    """The environment of another process of this hub: same database, same keys, same `HUB_HOME`.

    A new dictionary each time; a test adds the settings it wants, such as `HUB_DRAIN_BUDGET`.
    """
    from django.conf import settings

    return {
        **os.environ,
        "DATABASE_URL": database_url,
        "DJANGO_SETTINGS_MODULE": "hub.settings",
        "HUB_HOME": str(settings.HUB_HOME),
        "HUB_LOCAL": "1",
        "HUB_SECRET_KEY": settings.SECRET_KEY,
        "HUB_CREDENTIAL_KEYS": ",".join(settings.HUB_CREDENTIAL_KEYS),
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": str(ROOT),
    }


@pytest.fixture
def manage(
    hub_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`manage("hub_show", "1", input="", timeout=30, HUB_SENDERS="5")`: run one command to its end.

    The result is a `CompletedProcess` with text output; a bad exit code is the test's to judge.
    """
    from tests.harness.forge import forge

    def run(
        *arguments: str, input: str | None = None, timeout: float = 120, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        folder = tmp_path_factory.mktemp("manage")
        given, output, errors = (folder / name for name in ("given", "output", "errors"))
        given.write_text(input or "")
        environment = hub_environment | variables
        process = forge(environment).manage(
            *arguments, environment=environment, input=given, output=output, errors=errors
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            raise
        said, wrong = (one.read_text() for one in (output, errors))
        return subprocess.CompletedProcess(process.args, code, said, wrong)

    return run


@pytest.fixture
def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
