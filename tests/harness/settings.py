"""The hub's settings with the tests' own integration: what worker processes of a test run with."""

from hub.settings import *  # noqa: F403
from hub.settings import INSTALLED_APPS as _INSTALLED
from hub.settings import INTEGRATIONS as _INTEGRATIONS

INTEGRATIONS = [*_INTEGRATIONS, "tests.harness"]
INSTALLED_APPS = [*_INSTALLED, "tests.harness"]
