"""The probe integration."""

from hub.registry import IntegrationConfig


class ProbeConfig(IntegrationConfig):
    """Switched on by its line in INTEGRATIONS."""

    name = "integrations.probe"
    label = "probe"
    verbose_name = "Probe"
    connector = "integrations.probe.connector.ProbeConnector"
