"""The tests' own integration; only `tests.harness.settings` switches it on."""

from hub.registry import IntegrationConfig


class TestRemoteConfig(IntegrationConfig):
    """The fake remote's connector."""

    __test__ = False
    name = "tests.harness"
    label = "testremote"
    verbose_name = "Test remote"
    connector = "tests.harness.classes.TestRemoteConnector"
