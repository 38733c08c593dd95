"""Puts every test run, however it is started, on a database and a `HUB_HOME` of its own.

It stands here, above `tests` and `integrations`, because both need it, and because it has to speak
before Django's settings are read.
"""

import os
import shutil
import tempfile
from pathlib import Path

import django
import pytest

_HOME_VARIABLE = "HUB_TEST_HOME"


def _prepare_environment() -> Path | None:
    """Set the environment of the run; return the folder made for it, None when it was given one."""
    made = None
    if _HOME_VARIABLE not in os.environ:  # set by tests/run.py, or inherited by an xdist worker
        made = Path(tempfile.mkdtemp(prefix="hub-tests-"))
        os.environ[_HOME_VARIABLE] = str(made)
    # Settings of the developer's own shell must not change what the tests mean.
    for name in list(os.environ):
        if name in {"DATABASE_URL", "EMAIL_URL"} or (
            name.startswith("HUB_") and not name.startswith("HUB_TEST_")
        ):
            del os.environ[name]
    os.environ["HUB_LOCAL"] = "1"
    os.environ["HUB_HOME"] = os.environ[_HOME_VARIABLE]
    if os.environ.get("HUB_TEST_DATABASE_URL"):
        os.environ["DATABASE_URL"] = os.environ["HUB_TEST_DATABASE_URL"]
    os.environ["DJANGO_SETTINGS_MODULE"] = "hub.settings"
    return made


_made_home = _prepare_environment()

# pytest-django sets Django up before it reads this file, or only once settings are in use.
django.setup()

pytest_plugins = ["tests.fixtures"]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the folder this process made, and only that one."""
    if _made_home is not None:
        shutil.rmtree(_made_home, ignore_errors=True)
