"""The Bitrix24 integration."""

from hub.registry import IntegrationConfig


class Bitrix24Config(IntegrationConfig):
    """Switched on by its line in INTEGRATIONS."""

    name = "integrations.bitrix24"
    label = "bitrix24"
    verbose_name = "Bitrix24"
    connector = "integrations.bitrix24.connector.Bitrix24Connector"
