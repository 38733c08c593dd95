"""What every test of the hub may ask for: a world to run operations in."""

from collections.abc import Generator

import pytest

from tests.harness.fixtures import situations, world

__all__ = ["situations", "world"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let the world know whether the test itself failed."""
    report = yield
    if report.when == "call":
        item.harness_report = report  # type: ignore[attr-defined]
    return report
