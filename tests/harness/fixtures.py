"""The fixture `world`: a place to run operations, audited, and checked after the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.utils import timezone

from hub import registry
from tests import harness
from tests.harness import audit
from tests.harness.apps import TestRemoteConfig
from tests.harness.invariants import check_invariants
from tests.harness.sometimes import Situations
from tests.harness.world import World

_SITUATIONS = Situations()


@pytest.fixture(scope="session")
def situations() -> Situations:
    """What the worlds of this run have met so far."""
    return _SITUATIONS


@pytest.fixture
def world(
    database_url: str,
    hub_environment: dict[str, str],
    tmp_path: Path,
    situations: Situations,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[World]:
    """A world with nothing in it. After the test, all invariants are checked; a failure there fails
    the test.
    """
    # In this process the tests' integration is added by hand; workers get it by their settings.
    installed = registry.integrations()
    mine = TestRemoteConfig("tests.harness", harness)
    monkeypatch.setattr(registry, "integrations", lambda: [*installed, mine])
    audit.install()
    made = World(
        database_url=database_url,
        environment=hub_environment | {"DJANGO_SETTINGS_MODULE": "tests.harness.settings"},
        folder=tmp_path,
        situations=situations,
    )
    # On SQLite the host's clock is the database's.
    monkeypatch.setattr(timezone, "now", made.clock.now)
    if request.node.get_closest_marker("processes"):
        made.real_time()
    made.open()
    try:
        yield made
        made.end_workers()
        # After a failure in the test itself its own message says more than what it left half done.
        if not _failed(request):
            check_invariants(made)
    finally:
        made.close()
        audit.remove()


def _failed(request: pytest.FixtureRequest) -> bool:
    report = getattr(request.node, "harness_report", None)
    return bool(report is not None and report.failed)
