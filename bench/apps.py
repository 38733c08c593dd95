"""The bench's own integration: it speaks to the bench's echo and is installed nowhere else."""

from hub.registry import IntegrationConfig


class BenchConfig(IntegrationConfig):
    """Switched on by `bench.settings` alone."""

    name = "bench"
    label = "bench"
    verbose_name = "Bench"
    connector = "bench.connector.BenchConnector"
