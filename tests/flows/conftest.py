"""The question about the whole run is asked last."""

import pytest

LAST = "test_sometimes.py"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what asks about all other tests behind them."""
    items.sort(key=lambda item: item.path.name == LAST)
