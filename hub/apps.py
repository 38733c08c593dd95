"""The hub's one Django app."""

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class HubConfig(AppConfig):
    """The hub app: label "hub", models in `hub.models`, checks in `hub.checks`."""

    name = "hub"
    label = "hub"
    verbose_name = "Integration hub"

    def ready(self) -> None:
        """Register the checks, and the schedule that `migrate` makes."""
        from hub import checks  # noqa: F401 - importing registers them

        post_migrate.connect(_after_migrate, sender=self, dispatch_uid="hub.schedule")


def _after_migrate(sender: AppConfig, **more: Any) -> None:
    from hub import tasks  # not before: it brings the whole engine with it

    tasks.after_migrate(sender)
