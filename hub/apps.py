"""The hub's one Django app."""

from django.apps import AppConfig


class HubConfig(AppConfig):
    """The hub app: label "hub", models in `hub.models`, checks in `hub.checks`."""

    name = "hub"
    label = "hub"
    verbose_name = "Integration hub"
